"""A small generated language pair, English and correct German: the embedded default corpus, `toy-en-de`.

A synchronous grammar: every rule builds both sides together, so an English sentence has exactly one translation. The
pair asks for what the Transformer is about: words that move far (verb second, verb final, separable prefixes), endings
that depend on words elsewhere, and the pronoun "it", whose German gender hangs on which of two nouns the last word of
the sentence fits. Where English leaves a choice, the grammar makes it once: "you" is "du", the past is the Präteritum.
Its words are in toy.toml.
"""

import re
import tomllib
from collections import namedtuple
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

Row = list[str]
Pair = tuple[str, str]  # English, German
NONE = ("", "")

Phrase = namedtuple("Phrase", "en de person")  # de in nominative, accusative, dative; person: ich, du, er, wir
Clause = namedtuple("Clause", "en en_asked de de_inverted de_final")


def _rows(table: str) -> list[Row]:
    return [[cell.replace("_", " ") for cell in row.split()] for row in table.split(";")]


TABLES = tomllib.loads(Path(__file__).with_name("toy.toml").read_text("utf-8"))
ENDINGS, TENSES, IT, MOODS = TABLES["endings"], TABLES["tenses"], TABLES["it"], TABLES["moods"].split()
_NOUNS = {kind: text.split(":") for kind, text in TABLES["nouns"].items()}
LEXICON = {kind: (adjectives.split(), _rows(nouns)) for kind, (adjectives, nouns) in _NOUNS.items()}
GERMAN, STEM = ({row[0]: row[column] for row in _rows(TABLES["adjectives"])} for column in (1, -1))
ACTIONS = [(*key.split(" | "), _rows(verbs)) for key, verbs in TABLES["verbs"].items()]
ACTS = [(_rows(verb)[0], scene) for verb, scenes in TABLES["scenes"].items() for scene in _rows(scenes)]
IRREGULAR = {row[0]: row[1:] for row in _rows(TABLES["finite"])}
ONES = [(one, eins) for one, eins in _rows(TABLES["units"])]  # from index 19 on: the tens
DIGITS = [("one", "ein"), *ONES[1:9]]
COMPOUNDS = [(f"{ten}-{one}", f"{eins}und{zehn}") for ten, zehn in ONES[19:] for one, eins in DIGITS]
NUMBERS = dict(ONES[1:] + COMPOUNDS)
PERSONS, OTHERS = (
    [Phrase(row[0], row[1:4], int(row[4])) for row in _rows(TABLES[table])] for table in ("pronouns", "objects")
)
FORMS = ["present", "past", "can", "must", "will", "want to", "present", "past", "perfect", "perfect"]


def noun_phrase(noun: Row, determiner: str, adjective: str = "", plural: bool = False) -> Phrase:
    """Decline a noun after "the", an ein-word ("no" is a negated "a"), a number in words, or nothing."""
    (en, _, irregular), gender, (de, de_plural) = noun[0].partition("/"), noun[1], noun[2:]
    nouns, gender = [de] + [de_plural if gender == "w" else de] * 2, gender.replace("w", "m")
    if plural:
        en, gender = irregular or f"{en}s", "p"
        nouns = [de_plural, de_plural, de_plural + ("" if de_plural[-1] in "ns" else "n")]
    articles, endings = [NUMBERS.get(determiner, "")] * 3, ENDINGS["strong"]
    if determiner == "the":
        articles, endings = ENDINGS["the"][gender].split(), ENDINGS["weak"]
    elif determiner in ENDINGS["ein_words"]:
        ein = ENDINGS["ein_words"][determiner]
        articles, endings = [ein + ending.strip("-") for ending in ENDINGS["ein"][gender].split()], ENDINGS["mixed"]
    described = [adjective and STEM[adjective] + ending for ending in endings[gender].split()]
    if determiner == "no":
        determiner = "" if plural else "a"
    if determiner == "a" and (adjective or en)[0] in "aeiou":
        determiner = "an"
    cases = [" ".join(words) for words in zip(articles, described, nouns, strict=True)]
    return Phrase(f"{determiner} {adjective} {en}", cases, 3 if plural else 2)


def clock(hour: int, minute: int) -> Pair:
    """Return a time of the twelve-hour clock in words."""
    (now, jetzt), (soon, bald) = ONES[hour - 1], ONES[hour % 12]
    if minute == 0:
        return f"{now} o'clock", f"{'ein' if hour == 1 else jetzt} Uhr"
    if minute == 30:
        return f"half past {now}", f"halb {bald}"
    en, de = ONES[min(minute, 60 - minute) - 1] if minute % 15 else ["a quarter", "Viertel"]
    return (f"{en} past {now}", f"{de} nach {jetzt}") if minute < 30 else (f"{en} to {soon}", f"{de} vor {bald}")


def _english_verb(verb: Row, form: str, person: int, support: bool) -> Pair:
    """Return auxiliary and rest; with `support`, as questions and negation need it, there is an auxiliary."""
    base, past, participle, third = *verb[:3], person == 2
    if form == "want to":
        base, form = f"want to {base}", "present"
    if form in IRREGULAR:
        return form, base
    if form == "perfect":
        return "has" if third else "have", participle
    if base == "be":
        return ("was were was were" if form == "past" else "am are is are").split()[person], ""
    if support:
        return "did" if form == "past" else "does" if third else "do", base
    word, _, particle = base.partition(" ")
    present = f"{word}{'es' if word[-1] in 'oh' else 's'} {particle}" if third else base
    return "", past if form == "past" else present


def _german_verb(verb: Row, form: str, person: int, negated: bool) -> Pair:
    """Return the finite verb and what closes a main clause: a separable prefix, an infinitive or a participle."""
    infinitive, present, past, participle, *helper = verb[3:]
    prefix, _, infinitive = infinitive.rpartition("/")
    if form == "perfect":
        return IRREGULAR[helper[0] if helper else "haben"][person], prefix + participle
    if form in IRREGULAR:
        return IRREGULAR["must not" if form == "must" and negated else form][person], prefix + infinitive
    forms = IRREGULAR.get(infinitive, [infinitive[:-1], f"{present[:-1]}st", present, infinitive])
    if form == "past":
        du = past + ("est" if past.endswith(("nd", "t", "ß")) else "st")
        forms = [past, du, past, past + ("n" if past[-1] == "e" else "en")]
    return forms[person], prefix


def assemble(subject: Phrase, verb: Row, form: str, negated: bool, *parts: Pair) -> Clause:
    """Put a clause together; `form` is a tense or modal, `parts` are an object, a place or state, and a time."""
    object, tail, time = (*parts, NONE, NONE, NONE)[:3]
    (helper, rest), (asked, base) = (_english_verb(verb, form, subject.person, need) for need in (negated, True))
    finite, end = _german_verb(verb, form, subject.person, negated)
    nicht = "nicht" if negated and "kein" not in object[1] else ""
    en, de = f"{object[0]} {tail[0]} {time[0]}", f"{time[1]} {object[1]} {nicht} {tail[1]}"
    return Clause(
        f"{subject.en} {helper} {'not' if negated else ''} {rest} {en}",
        f"{asked} {subject.en} {base} {en}",
        f"{subject.de[0]} {finite} {de} {end}",
        f"{finite} {subject.de[0]} {de} {end}",
        f"{subject.de[0]} {de} {end}{'' if verb[3].startswith(f'{end}/') else ' '}{finite}",
    )


def _some(rng: Random, kinds: str, loose: str = "", pronouns: Sequence[Phrase] = ()) -> Phrase:
    """Draw a noun phrase, or one of `pronouns` for people; `loose`, where given, replaces indefinite determiners."""
    if pronouns and "people" in kinds and rng.random() < 0.33:
        return rng.choice(pronouns)
    kind, plural = rng.choice(kinds.split()), rng.random() < 0.35
    adjectives, nouns = LEXICON[kind]
    loose = loose or (rng.choice(("", rng.choice(list(NUMBERS)))) if plural else "a")
    own = "the" if kind == "people" else rng.choice(list(ENDINGS["ein_words"])[2:])
    adjective = rng.choice(adjectives) if rng.random() < 0.4 else ""
    return noun_phrase(rng.choice(nouns), rng.choice(("the", loose, own)), adjective, plural)


def _complement(rng: Random, complement: str, negated: bool, pronouns: Sequence[Phrase]) -> tuple[Pair, Pair]:
    """Draw what a verb takes: an object, and a place or state."""
    head, _, kinds = complement.partition(" ")
    if head == "none":
        return NONE, NONE
    if head == "be":
        en, de = rng.choice(_rows(TABLES["states"]))
        return NONE, (en, de)
    if head in ("in", "to"):
        (en, wo, wohin), friend = rng.choice(_rows(TABLES["places"])), _some(rng, "family")
        en, de = (en, wo) if head == "in" else (f"to {en[3:]}", wohin)
        return NONE, rng.choice(((en, de), (f"{en} with {friend.en}", f"mit {friend.de[2]} {de}")))
    other = _some(rng, kinds, "no" * negated, pronouns)
    return (other.en, other.de[1 if head == "acc" else 2]), NONE


def _clause(rng: Random, form: str, negated: bool = False, time: Pair = NONE) -> Clause:
    subjects, complement, _, verbs = rng.choice(ACTIONS)
    subject, verb = _some(rng, subjects, "the" * negated, PERSONS), rng.choice(verbs)
    # A pronoun as object would have to stand before a time or, where the verb comes first, before a noun as subject.
    object, tail = _complement(rng, complement, negated, OTHERS if subject in PERSONS and time == NONE else ())
    return assemble(subject, verb, form, negated, object, tail, time)


def _statement(rng: Random) -> Pair:
    form, negated, order = rng.choice(FORMS), rng.random() < 0.3, rng.random()
    en, de = rng.choice(_rows(TABLES["times"].get(form, TABLES["times"]["modal"])))
    if form != "perfect" and rng.random() < 0.5:
        en, de = clock(rng.randint(1, 12), rng.choice((0, 5, 10, 15, 20, 30, 30, 40, 45, 50, 55)))
        if order < 0.1:
            return f"it is {en}.", f"es ist {de}."
        en, de = f"at {en}", f"um {de}"
    if order < 0.35:
        clause = _clause(rng, form, negated)
        return f"{en} {clause.en}.", f"{de} {clause.de_inverted}."
    clause = _clause(rng, form, negated, (en, de) if order < 0.5 and not negated else NONE)
    return f"{clause.en}.", f"{clause.de}."


def _question(rng: Random) -> Pair:
    subjects, complement, asked, verbs = rng.choice(ACTIONS)
    kind, (en, de) = rng.random(), asked.split()
    if kind < 0.35:
        clause = _clause(rng, rng.choice(FORMS))
        return f"{clause.en_asked}?", f"{clause.de_inverted}?"
    who = kind < 0.55 and "people" in subjects
    known = _complement(rng, complement, False, OTHERS) if who or complement == "be" else ()
    subject = Phrase("who", ["wer"], 2) if who else _some(rng, subjects, "", PERSONS)
    # The last two forms are the perfect, which "when" does not take.
    clause = assemble(subject, rng.choice(verbs), rng.choice(FORMS[:-2]), False, *known)
    return (f"{clause.en}?", f"{clause.de}?") if who else (f"{en} {clause.en_asked}?", f"{de} {clause.de_inverted}?")


def _complex(rng: Random) -> Pair:
    (en, de), tense, negated = rng.choice(_rows(TABLES["conjunctions"])), rng.choice(FORMS[:2]), rng.random() < 0.3
    form = tense if en == "before" or tense == "past" else rng.choice(("present", "perfect", "must", "can"))
    clause = _clause(rng, form, negated and en != "before")
    main = _clause(rng, tense)
    if en == "that":
        main = assemble(_some(rng, "people family", "", PERSONS), rng.choice(_rows(TABLES["saying"])), tense, False)
    elif rng.random() < 0.3:
        return f"{en} {clause.en}, {main.en}.", f"{de} {clause.de_final}, {main.de_inverted}."
    return f"{main.en} {en} {clause.en}.", f"{main.de}, {de} {clause.de_final}."


def _antecedent(rng: Random, animal: Row, verb: Row, scene: Row) -> Pair:
    en, gender, de, *flaws = scene
    form, own, colour = rng.choice(list(TENSES)), rng.random() < 0.5, rng.choice(["", *LEXICON["animals"][0]])
    other = f"the {en}", f"{ENDINGS['the'][gender].split()[1]} {de}"
    main = assemble(noun_phrase(animal, "the", colour), verb, form, True, other)
    reason, (was, war) = rng.choice(MOODS if own else flaws), TENSES[form].split()
    it = IT[animal[1] if own else gender]
    return f"{main.en} because it {was} too {reason}.", f"{main.de}, weil {it} zu {GERMAN[reason]} {war}."


def _tidy(text: str) -> str:
    text = re.sub(r" (?=[ .,?])", "", text).strip().replace("can not", "cannot")
    return text[0].upper() + text[1:]


def generate(seed: int, train: int = 20_000, dev: int = 500, test: int = 500) -> dict[str, list[Pair]]:
    """Generate the splits of a corpus, the same for the same seed everywhere; no sentence occurs twice on either side.

    The antecedent sentences of dev and test pair nouns that train never pairs.
    """
    rng = Random(seed)  # noqa: S311 - a reproducible corpus, no secret
    # One couple in seven along each row and column is held out, if its genders differ: train still knows each noun.
    couples: dict[bool, list[tuple[Row, Row, Row]]] = {True: [], False: []}
    for (i, animal), (j, (verb, scene)) in product(enumerate(LEXICON["animals"][1]), enumerate(ACTS)):
        couples[(i + 2 * j + seed) % 7 == 0 and IT[animal[1]] != IT[scene[1]]].append((animal, verb, scene))
    used: set[str] = set()

    def draw(size: int, held_out: bool) -> list[Pair]:
        pairs: list[Pair] = []
        while len(pairs) < size:
            rule = rng.choice((_statement, _question, _complex, None))
            en, de = map(_tidy, rule(rng) if rule else _antecedent(rng, *rng.choice(couples[held_out])))
            if used.isdisjoint((en, de)) and all(4 <= len(side.split()) <= 16 for side in (en, de)):
                used.update((en, de))
                pairs.append((en, de))
        return pairs

    return {"test": draw(test, True), "dev": draw(dev, True), "train": draw(train, False)}


def pronoun_accuracy(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Return how many antecedent sentences (English to German) got their reference's pronoun, and of how many."""
    correct = total = 0
    for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
        asked, got = (re.search(r"\bweil (\w+)", german) for german in (reference, hypothesis))
        if asked and re.search(r" because it (is|was) too \w+\.$", source):
            correct, total = correct + (got is not None and got[1] == asked[1]), total + 1
    return correct, total
