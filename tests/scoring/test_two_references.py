"""Scoring against several references, and counting glossary terms over all lines."""

from pathlib import Path

import pytest

from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.system.errors import DataError


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("wrong", [0, 1])
def test_each_reference_must_have_as_many_lines_as_the_translation(tmp_path: Path, wrong: int) -> None:
    references = [write(tmp_path / f"r{number}", "a", "b") for number in range(2)]
    write(references[wrong], "a", "b", "c")
    expected = [f"{path}: {3 if number == wrong else 2}" for number, path in enumerate(references)]
    with pytest.raises(DataError, match=", ".join(expected)):
        evaluate(ScoreOptions(write(tmp_path / "hyp", "a", "b"), tuple(references)))


def test_terms_of_all_lines_are_counted(tmp_path: Path) -> None:
    """Two source lines contain three terms in total, and the translations use two of the terms."""
    sources = write(tmp_path / "src", "dog and cat", "no animal", "a dog")
    terms = write(tmp_path / "terms", "dog\tHund", "cat\tKatze|Kater")
    hypotheses = ["Hund und Maus", "kein Tier", "ein Hund"]
    options = ScoreOptions(references=(sources,), source=sources, terms=terms, metrics=("chrf",), intervals=False)
    report = evaluate(options, hypotheses)
    assert report.terms
    assert (report.terms.terms, report.terms.met, report.terms.with_terms) == (3, 2, 2)
