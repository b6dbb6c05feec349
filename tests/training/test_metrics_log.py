"""metrics.jsonl, and the comparison of a run's figures with its recipe's expectations."""

import math
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt_cli.recipe.schema import Expect
from nmt_cli.system.errors import DataError
from nmt_cli.training import metrics_log
from nmt_cli.training.metrics_log import MetricsLog, read_records


def test_records_are_lines_of_strict_json(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m", 0)
    log.write({"step": 1, "nll": math.nan, "samples": ["é\n\u2028"]})
    log.write({"step": 2, "nll": -math.inf, "dev_bleu": None, "rate": 1e-9})
    text = '{"step": 1, "nll": null, "samples": ["é\\n\u2028"]}\n'
    text += '{"step": 2, "nll": null, "dev_bleu": null, "rate": 1e-09}\n'
    assert (tmp_path / "m").read_bytes() == text.encode()
    assert log.commit() == log.size == len(text.encode())
    log.file.close()
    assert read_records(tmp_path / "m") == [
        {"step": 1, "nll": None, "samples": ["é\n\u2028"]},
        {"step": 2, "nll": None, "dev_bleu": None, "rate": 1e-9},
    ]


@pytest.mark.parametrize(
    ("size", "left"), [(0, b""), (2, b""), (3, b"{}\n"), (4, b"{}\n"), (6, b"{}\n{}\n"), (99, b"{}\n{}\n")]
)
def test_records_after_the_checkpoint_are_cut_off_in_whole_lines(tmp_path: Path, size: int, left: bytes) -> None:
    (tmp_path / "m").write_bytes(b"{}\n{}\n{")
    log = MetricsLog(tmp_path / "m", size)
    assert (tmp_path / "m").read_bytes() == left
    log.write({"a": 1})
    log.file.close()
    assert (tmp_path / "m").read_bytes() == left + b'{"a": 1}\n'


def test_an_incomplete_last_line_is_ignored_and_other_lines_must_be_objects(tmp_path: Path) -> None:
    assert read_records(tmp_path / "absent") == []
    (tmp_path / "m").write_text('{"a": 1}\n{"a": 2}')
    assert read_records(tmp_path / "m") == [{"a": 1}]
    for wrong in ("5", "{", "[1]", ""):
        (tmp_path / "m").write_text(f'{{"a": 1}}\n{wrong}\n')
        with pytest.raises(DataError, match="m is damaged: one of its lines is not a JSON object"):
            read_records(tmp_path / "m")


def test_peak_memory_is_in_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2_000_000))  # KiB
    assert metrics_log.peak_memory_mb() == 2048
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda: 3_999_999)
    assert metrics_log.peak_memory_mb() == 3, "memory of the GPU"


EXPECTED: dict[str, Any] = {"dev_steps": [10, 20], "dev_perplexity": [8, 4], "dev_bleu": [10, 30]}


@pytest.mark.parametrize(
    ("step", "perplexity", "bleu", "worse"),
    [
        (9, 99, 0, None),  # no expectation yet
        (10, 10.0, 7.0, None),  # up to a quarter more perplexity and three points less BLEU may be noise
        (10, 10.01, 7.0, "dev perplexity 10.01, expected 8.00 at step 10"),
        (10, 10.0, 6.99, "dev BLEU 7.0, expected 10.0 at step 10"),
        (19, 10.0, 7.0, None),
        (20, 5.1, 26.0, "dev perplexity 5.10, expected 4.00 and dev BLEU 26.0, expected 30.0 at step 20"),
        (99, 5.1, 30.0, "dev perplexity 5.10, expected 4.00 at step 20"),
        (20, 5.0, None, None),
        (20, math.nan, None, "dev perplexity nan, expected 4.00 at step 20"),
    ],
)
def test_scores_clearly_worse_than_expected(
    step: int, perplexity: float, bleu: float | None, worse: str | None
) -> None:
    scores = {"dev_perplexity": perplexity, "dev_bleu": bleu}
    assert metrics_log.worse_than_expected(Expect(**EXPECTED), step, scores) == worse
    alone = Expect(**{**EXPECTED, "dev_bleu": []}), Expect(**{**EXPECTED, "dev_perplexity": []})
    for expect, name in zip(alone, ("perplexity", "BLEU"), strict=True):
        description = metrics_log.worse_than_expected(expect, step, scores)
        assert (name in (description or "")) == (f"dev {name}" in (worse or ""))
