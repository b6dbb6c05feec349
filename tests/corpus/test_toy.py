"""The toy corpus and the accuracy of its pronouns."""

import hashlib

from nmt_cli.corpus.toy import pronoun_accuracy, read_splits

PINNED = {"train": "28017b83a97c013a", "dev": "98d36645a82d3eb2", "test": "269e7987a8bbd144"}  # beginnings of SHA-256


def test_the_text_never_changes() -> None:
    splits = read_splits()
    assert {split: len(pairs.src) for split, pairs in splits.items()} == {"train": 20_000, "dev": 500, "test": 500}
    for split, digest in PINNED.items():
        pairs = zip(splits[split].src, splits[split].tgt, strict=True)
        text = "".join(f"{str(en, 'utf-8')}\t{str(de, 'utf-8')}\n" for en, de in pairs if en and de)
        assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)


def test_pronoun_accuracy_counts_antecedent_sentences_only() -> None:
    sources = [f"The animal did not cross the street because it was too {word}." for word in ("tired", "wide")]
    references = ["Das Tier überquerte die Straße nicht, weil es zu müde war.", "Es ging nicht, weil sie zu breit war."]
    sources[1] = sources[1].replace(" was ", " is ")
    sources, references = [*sources, "He sleeps because she is tired."], [*references, "Er schläft, weil sie müde ist."]
    assert pronoun_accuracy(sources, references, references) == (2, 2)
    assert pronoun_accuracy(sources, [references[1], references[0], ""], references) == (0, 2)
    assert pronoun_accuracy(sources, ["Ganz anders, weil es geht.", "", references[2]], references) == (1, 2)


def test_only_the_pronoun_of_the_reference_is_correct() -> None:
    source, reference = "It is here because it is too old.", "Er ist hier, weil er zu alt ist."
    for hypothesis, correct in (
        (reference, 1),
        ("weil er", 1),
        ("Er ist hier, weil sie zu alt ist.", 0),
        ("Er ist hier, weil es zu alt ist.", 0),
        ("Er ist hier, weil ersterer zu alt ist.", 0),
        ("Er ist hier, dieweil er zu alt ist.", 0),
        ("weil es weil er", 0),
        ("weil e zu alt ist", 0),
    ):
        assert pronoun_accuracy([source], [hypothesis], [reference]) == (correct, 1), hypothesis
    for other in (source + " So.", source.replace("old", "very old"), source.replace("is too", "has too"), source[:-1]):
        assert pronoun_accuracy([other], [reference], [reference]) == (0, 0), other
    assert pronoun_accuracy([source], [reference], ["Er ist hier, denn er ist zu alt."]) == (0, 0)
