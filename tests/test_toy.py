"""The generated language: its German against hand-written tables, and what the corpus promises."""

import hashlib
import re
from itertools import chain

import pytest

from nmt_cli.corpus import toy
from nmt_cli.corpus.toy import NONE, Clause, Pair, Phrase, Row, assemble, clock, generate, pronoun_accuracy

ANTECEDENT = re.compile(
    r"The (?:(?:small|big|brown|black|white) )?(\w+) .* the (\w+) because it (?:is|was) too (\w+)\."
)
PINNED = {"train": "28017b83a97c013a", "dev": "98d36645a82d3eb2", "test": "269e7987a8bbd144"}  # SHA-256 of seed 1
GARDEN, MARKET = ("in the garden", "im Garten"), ("to the market", "zum Markt")


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return generate(1)


def phrase(words: str) -> Phrase:
    """Read "he", "the tall man", "no red coats" (kein), "- old keys" (no article), "twenty-one doors"."""
    for pronoun in (*toy.PERSONS, *toy.OTHERS):
        if pronoun.en == words:
            return pronoun
    determiner, *adjective, name = words.split()
    for row in (row for _, rows in toy.LEXICON.values() for row in rows):
        singular, _, plural = row[0].partition("/")
        if name in (singular, plural or f"{singular}s"):
            return toy.noun_phrase(row, determiner.strip("-"), " ".join(adjective), name != singular)
    raise KeyError(words)


def verb(base: str) -> Row:
    return next(
        row
        for table in (*toy.TABLES["verbs"].values(), toy.TABLES["saying"])
        for row in toy._rows(table)
        if row[0] == base
    )


def clause(who: str, base: str, form: str, what: str = "", *, dative: bool = False, no: bool = False,
           tail: Pair = NONE, time: Pair = NONE) -> Clause:  # fmt: skip
    thing = phrase(what) if what else None
    parts = (thing.en, thing.de[1 + dative]) if thing else NONE
    return assemble(phrase(who), verb(base), form, no, parts, tail, time)


def ends(en: str, de: str, mark: str = ".") -> Pair:
    return toy._tidy(en + mark), toy._tidy(de + mark)


def plain(c: Clause) -> Pair:
    return ends(c.en, c.de)


def fronted(time: Pair, c: Clause) -> Pair:
    return ends(f"{time[0]} {c.en}", f"{time[1]} {c.de_inverted}")


def asked(c: Clause, word: Pair = NONE) -> Pair:
    return ends(f"{word[0]} {c.en_asked}", f"{word[1]} {c.de_inverted}", "?")


def known(c: Clause) -> Pair:
    return ends(f"the woman knows that {c.en}", f"die Frau weiß, dass {c.de_final}")


HALF_PAST_TWO = ("at half past two", "um halb drei")

TRANSLATIONS = [
    (plain(clause("the tall man", "buy", "present", "a red coat")),
     "The tall man buys a red coat.", "Der große Mann kauft einen roten Mantel."),
    (plain(clause("our friend", "help", "present", "the poor woman", dative=True)),
     "Our friend helps the poor woman.", "Unser Freund hilft der armen Frau."),
    (plain(clause("the queen", "buy", "past", "twenty-one green dresses")),
     "The queen bought twenty-one green dresses.", "Die Königin kaufte einundzwanzig grüne Kleider."),
    (fronted(("yesterday", "gestern"), clause("the girl", "pick up", "past", "a new book")),
     "Yesterday the girl picked up a new book.", "Gestern hob das Mädchen ein neues Buch auf."),
    (plain(clause("the teachers", "open", "present", "the windows", time=HALF_PAST_TWO)),
     "The teachers open the windows at half past two.", "Die Lehrer machen um halb drei die Fenster auf."),
    (plain(clause("I", "buy", "past", "no blue car", no=True)),
     "I did not buy a blue car.", "Ich kaufte kein blaues Auto."),
    (plain(clause("the boy", "open", "must", "the suitcase", no=True)),
     "The boy must not open the suitcase.", "Der Junge darf den Koffer nicht aufmachen."),
    (fronted(("tomorrow", "morgen"), clause("my aunt", "meet", "will", "your neighbour")),
     "Tomorrow my aunt will meet your neighbour.", "Morgen wird meine Tante deinen Nachbarn treffen."),
    (asked(clause("the train", "leave", "perfect")), "Has the train left?", "Ist der Zug abgefahren?"),
    (asked(clause("the geese", "follow", "present"), ("whom", "wem")),
     "Whom do the geese follow?", "Wem folgen die Gänse?"),
    (known(clause("the train", "leave", "present", time=("today", "heute"))),
     "The woman knows that the train leaves today.", "Die Frau weiß, dass der Zug heute abfährt."),
    (known(clause("they", "watch", "can", "her", dative=True)),
     "The woman knows that they can watch her.", "Die Frau weiß, dass sie ihr zusehen können."),
]  # fmt: skip


@pytest.mark.parametrize(("made", "en", "de"), TRANSLATIONS, ids=[en for _, en, _ in TRANSLATIONS])
def test_translations_written_by_hand(made: Pair, en: str, de: str) -> None:
    assert made == (en, de)


@pytest.mark.parametrize(
    ("words", "forms"),
    [
        ("the white goose", "die weiße Gans, die weiße Gans, der weißen Gans"),
        ("the big elephant", "der große Elefant, den großen Elefanten, dem großen Elefanten"),
        ("our brown horse", "unser braunes Pferd, unser braunes Pferd, unserem braunen Pferd"),
        ("the small mice", "die kleinen Mäuse, die kleinen Mäuse, den kleinen Mäusen"),
        ("two clever women", "zwei kluge Frauen, zwei kluge Frauen, zwei klugen Frauen"),
        ("- expensive cars", "teure Autos, teure Autos, teuren Autos"),
    ],
)  # fmt: skip
def test_declension(words: str, forms: str) -> None:
    assert ", ".join(" ".join(case.split()) for case in phrase(words).de) == forms


@pytest.mark.parametrize(
    ("hour", "minute", "en", "de"),
    [
        (2, 30, "half past two", "halb drei"),
        (7, 15, "a quarter past seven", "Viertel nach sieben"),
        (12, 45, "a quarter to one", "Viertel vor eins"),
        (8, 40, "twenty to nine", "zwanzig vor neun"),
    ],
)
def test_clock_times(hour: int, minute: int, en: str, de: str) -> None:
    assert clock(hour, minute) == (en, de)


def test_the_text_is_the_same_everywhere_and_no_sentence_occurs_twice(corpus: dict[str, list[Pair]]) -> None:
    for name, digest in PINNED.items():
        text = "".join(f"{en}\t{de}\n" for en, de in corpus[name])
        assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)
    for sentences in zip(*chain(*corpus.values()), strict=True):
        assert len(set(sentences)) == len(sentences) == 21_000
    assert generate(5, 300, 30, 30) == generate(5, 300, 30, 30) != generate(6, 300, 30, 30)


def test_every_line_is_raw_text_of_4_to_16_words(corpus: dict[str, list[Pair]]) -> None:
    for en, de in chain(*corpus.values()):
        for text in (en, de):
            assert re.fullmatch(r"[A-ZÄÖÜ][^.?_/|]*[^ ,][.?]", text), text
            assert "  " not in text
            assert " ," not in text
            assert 4 <= len(text.split()) <= 16
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|s's|\w(ss|x|sh|ch)s\b", en), en
        assert en[-1] == de[-1]


def test_a_sentence_has_one_translation() -> None:
    seen: dict[str, str] = {}
    for seed in range(4):
        for en, de in generate(seed, train=4000, dev=100, test=100)["train"]:
            assert seen.setdefault(en, de) == de
    assert len(seen) > 15_000


def test_antecedent_pairs_of_dev_and_test_are_unseen(corpus: dict[str, list[Pair]]) -> None:
    train, dev, test = (
        [match.groups()[:2] for en, _ in split if (match := ANTECEDENT.fullmatch(en))]
        for split in (corpus["train"], corpus["dev"], corpus["test"])
    )
    assert 100 <= len(test) <= 150
    assert len(dev) >= 50
    assert not set(train) & {*dev, *test}
    assert len(set(test)) >= 25
    for role in (0, 1):
        assert {couple[role] for couple in (*dev, *test)} <= {couple[role] for couple in train}


def test_the_minimal_pair_of_the_paper() -> None:
    act = next(act for act in toy.ACTS if act[1][0] == "street")
    animal = toy.LEXICON["animals"][1][0]
    couples = dict(toy._antecedent(toy.Random(seed), animal, *act) for seed in range(3000))
    made = {toy._tidy(en): toy._tidy(de) for en, de in couples.items()}
    assert made["The animal did not cross the street because it was too tired."] == (
        "Das Tier überquerte die Straße nicht, weil es zu müde war."
    )
    assert made["The animal did not cross the street because it was too wide."] == (
        "Das Tier überquerte die Straße nicht, weil sie zu breit war."
    )


def test_pronoun_accuracy_counts_antecedent_sentences_only() -> None:
    sources = [f"The animal did not cross the street because it was too {word}." for word in ("tired", "wide")]
    references = ["Das Tier überquerte die Straße nicht, weil es zu müde war.", "Es ging nicht, weil sie zu breit war."]
    sources, references = [*sources, "He sleeps because she is tired."], [*references, "Er schläft, weil sie müde ist."]
    assert pronoun_accuracy(sources, references, references) == (2, 2)
    assert pronoun_accuracy(sources, [references[1], references[0], ""], references) == (0, 2)
    assert pronoun_accuracy(sources, ["Ganz anders, weil es geht.", "", references[2]], references) == (1, 2)
    assert pronoun_accuracy([], [], []) == (0, 0)
