"""References and metrics give the scores and signatures of the `sacrebleu` command on the same files."""

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sacrebleu.tokenizers.tokenizer_spm as pieces
from sacrebleu_command import sacrebleu
from tiny_model import train_tokenizer

from nmt_cli.corpus.readers import split_lines
from nmt_cli.scoring import score
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.system.errors import DownloadError, UsageError

WORDS = ["über", "die", "Straße", "geht", "der", "Hund", ",", "und", "das", "Café", "ist", "zu", ".", "Ende", "é", "ñ"]
BOM = b"\xef\xbb\xbf"


def write(path: Path, lines: list[str], head: bytes = b"") -> Path:
    path.write_bytes(head + "".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Any]:
    """Sixty hypotheses and two references. The first lacks line 10, and the second lacks lines 1, 5, 9 and so on."""
    draw = random.Random(3)
    lines = [" ".join(draw.choices(WORDS, k=draw.choice((4, 9, 17)))) for _ in range(60)]
    spoilt = [[w if draw.random() < 0.7 else draw.choice(WORDS) for w in line.split()] for line in lines]
    second = [line.replace("der", "ein") if i % 4 else "" for i, line in enumerate(lines)]
    lines[9] = ""
    hypotheses = [*map(" ".join, spoilt)]
    hypotheses[12] = ""
    return {"hyp": write(tmp_path / "hyp", hypotheses), "one": write(tmp_path / "one", lines),
            "two": write(tmp_path / "two", second), "lines": lines}  # fmt: skip


def theirs(hypothesis: Path, *words: object) -> list[tuple[str, str, float]]:
    """Return name, signature and score from the `sacrebleu` command."""
    found = sacrebleu(*words, "-i", hypothesis, "-w", 6)
    return [
        (each["name"], each["signature"], each["score"]) for each in (found if isinstance(found, list) else [found])
    ]


def ours(hypothesis: Path, *references: Path, **options: Any) -> list[tuple[str, str, float]]:
    report = score.evaluate(ScoreOptions(hypothesis, references, intervals=False, **options))
    return [(each.name, each.signature, round(each.score, 6)) for each in report.scores]


def warnings(hypothesis: Path, *references: Path, **options: Any) -> list[str]:
    return score.evaluate(ScoreOptions(hypothesis, references, intervals=False, **options)).warnings


def test_references_with_missing_lines_are_scored_as_by_sacrebleu(texts: dict[str, Any]) -> None:
    files = texts["one"], texts["two"]
    names = ("bleu", "chrf", "ter")
    assert ours(texts["hyp"], *files, metrics=names) == theirs(texts["hyp"], *files, "-m", *names)
    assert ours(texts["hyp"], texts["two"], metrics=names) == theirs(texts["hyp"], texts["two"], "-m", *names)
    assert ours(texts["hyp"], *files, metrics=("bleu",)) != ours(texts["hyp"], texts["one"], metrics=("bleu",))


def test_chrf_with_words_equals_sacrebleu(texts: dict[str, Any]) -> None:
    files = texts["one"], texts["two"]
    for lowercase in (False, True):
        words = ("-m", "chrf", "--chrf-word-order", 2, *["--chrf-lowercase"] * lowercase)
        [found] = ours(texts["hyp"], *files, metrics=("chrf++",), lowercase=lowercase)
        assert [found] == theirs(texts["hyp"], *files, *words)
        assert found[0] == "chrF2++"
    report = score.evaluate(ScoreOptions(texts["hyp"], files, metrics=("chrf++",), baseline=texts["one"]))
    assert report.comparisons[0]["significantly_worse"] is True
    assert report.scores[0].ci is not None


def test_flores_tokenizers_equal_sacrebleu(
    texts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a SentencePiece model of our own instead of the downloaded one."""
    for name, key in (("flores200sacrebleuspm", "flores200"), ("sacrebleu_tokenizer_spm.model", "flores101")):
        (tmp_path / "home" / "models").mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / "models" / name).write_bytes(train_tokenizer())
        monkeypatch.setattr(pieces, "SACREBLEU_DIR", str(tmp_path / "home"))
        found = ours(texts["hyp"], texts["one"], metrics=("bleu",), tokenize=key)
        assert found == theirs(texts["hyp"], texts["one"], "-tok", key)
        assert f"tok:{key}" in found[0][1]


def test_a_failed_download_of_a_tokenizer_is_a_one_line_error(
    texts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(pieces, "SACREBLEU_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(pieces, "download_file", fail)
    with pytest.raises(
        DownloadError, match=r"cannot fetch tokenizer flores200 from https.*: no network\. Connect to a network"
    ):
        ours(texts["hyp"], texts["one"], metrics=("bleu",), tokenize="flores200")
    assert ours(texts["hyp"], texts["one"], metrics=("chrf",), tokenize="flores200"), "chrF has no tokenizer"
    broken = tmp_path / "empty" / "models" / "flores200sacrebleuspm"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"torn")
    with pytest.raises(DownloadError, match="flores200sacrebleuspm is damaged"):
        ours(texts["hyp"], texts["one"], metrics=("bleu",), tokenize="flores200")


@pytest.mark.usefixtures("few_samples")
def test_a_bom_changes_no_score(texts: dict[str, Any], tmp_path: Path) -> None:
    lines = ["Straße und Café sind zu", "geht der Hund über die Straße"]
    plain, marked = write(tmp_path / "plain", lines), write(tmp_path / "marked", lines, BOM)
    names = ("bleu", "chrf", "ter", "chrf++")
    expected = ours(plain, plain, metrics=names)
    assert expected[0][2] == 100
    for hypothesis, reference in ((plain, marked), (marked, plain), (marked, marked)):
        assert ours(hypothesis, reference, metrics=names) == expected
    report = score.evaluate(ScoreOptions(plain, (plain,), source=marked, baseline=marked))
    assert report.copies == 2
    assert report.comparisons[0]["difference"] == 0
    assert split_lines(BOM + b"a\n\xef\xbb\xbfb\n", "f") == ["a", "\ufeffb"], "a BOM inside the text stays"


def test_empty_lines_in_references_give_a_warning(texts: dict[str, Any]) -> None:
    hypothesis, one, two = texts["hyp"], texts["one"], texts["two"]
    (first, second) = [each for each in warnings(hypothesis, one, two) if "empty" in each]
    assert first.startswith(f"1 of 60 lines of {one} are empty where the hypotheses have text")
    assert second.startswith(f"14 of 60 lines of {two} are empty where"), "line 13 is empty on both sides"
    assert [each for each in warnings(one, one) if "empty" in each] == []


def test_text_that_is_not_in_nfc_gives_a_warning_and_sacrebleus_score(texts: dict[str, Any], tmp_path: Path) -> None:
    apart = write(tmp_path / "nfd", [unicodedata.normalize("NFD", line) for line in texts["lines"]])
    count = sum(bool(set("üéñ") & set(line)) for line in texts["lines"])
    (found,) = [each for each in warnings(texts["one"], apart) if "NFC" in each]
    assert found.startswith(f"{count} of 60 lines of {apart} are not in Unicode form NFC")
    (found,) = [each for each in warnings(apart, texts["one"]) if "NFC" in each]
    assert f"lines of {apart} are" in found
    assert ours(texts["one"], apart, metrics=("bleu",)) == theirs(texts["one"], apart)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ("chrf+",)}, r"not 'chrf\+'. Did you mean chrf\+\+\?"),
        ({"metrics": ("spbleu",)}, r"Did you mean bleu\?"),
        (
            {"test_set": "wmt14/ful", "references": ()},
            r"no test set 'wmt14/ful'. Names look like wmt14/full. Did you mean wmt14/full\?",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(
    texts: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        score.evaluate(ScoreOptions(**{"hypothesis": texts["hyp"], "references": (texts["one"],), **options}))
