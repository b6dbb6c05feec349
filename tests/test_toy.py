import hashlib
import re
from itertools import chain

import pytest

from nmt_cli.corpus.toy import pronoun_accuracy, read_splits

ANTECEDENT = re.compile(r"The (?:(?:small|big|brown|black|white) )?(\w+) .* the (\w+) because it (?:is|was) too \w+\.")
PINNED = {"train": "28017b83a97c013a", "dev": "98d36645a82d3eb2", "test": "269e7987a8bbd144"}  # SHA-256


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[tuple[str, str]]]:
    return {
        split: [(str(en, "utf-8"), str(de, "utf-8")) for en, de in zip(*sides, strict=True)]
        for split, sides in read_splits().items()
    }


def test_the_text_is_the_pinned_one_and_no_sentence_occurs_twice(corpus: dict[str, list[tuple[str, str]]]) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 20_000, "dev": 500, "test": 500}
    for split, digest in PINNED.items():
        text = "".join(f"{en}\t{de}\n" for en, de in corpus[split])
        assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)
    for sentences in zip(*chain(*corpus.values()), strict=True):
        assert len(set(sentences)) == len(sentences)


def test_antecedent_pairs_of_dev_and_test_are_unseen(corpus: dict[str, list[tuple[str, str]]]) -> None:
    train, dev, test = (
        [match.groups() for en, _ in corpus[split] if (match := ANTECEDENT.fullmatch(en))]
        for split in ("train", "dev", "test")
    )
    assert 100 <= len(test) <= 150
    assert len(dev) >= 50
    assert not set(train) & {*dev, *test}
    assert len(set(test)) >= 25
    for role in (0, 1):
        assert {couple[role] for couple in (*dev, *test)} <= {couple[role] for couple in train}


def test_pronoun_accuracy_counts_antecedent_sentences_only() -> None:
    sources = [f"The animal did not cross the street because it was too {word}." for word in ("tired", "wide")]
    references = ["Das Tier überquerte die Straße nicht, weil es zu müde war.", "Es ging nicht, weil sie zu breit war."]
    sources, references = [*sources, "He sleeps because she is tired."], [*references, "Er schläft, weil sie müde ist."]
    assert pronoun_accuracy(sources, references, references) == (2, 2)
    assert pronoun_accuracy(sources, [references[1], references[0], ""], references) == (0, 2)
    assert pronoun_accuracy(sources, ["Ganz anders, weil es geht.", "", references[2]], references) == (1, 2)
