"""What a recipe expects is compared with what comes: early, once, and only where something is known."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.recipe import Expect, Recipe
from nmt_cli.training.train import TrainOptions, train
from nmt_cli.training.validation import off_the_curve

CURVE = Expect(dev_steps=[300, 600], dev_perplexity=[60.0, 20.0], dev_bleu=[7.0, 22.0])


def judged(expect: Expect, step: int, perplexity: float, bleu: float | None = None) -> str:
    return off_the_curve(expect, step, {"dev_perplexity": perplexity, "dev_bleu": bleu}) or ""


def test_a_run_on_its_curve_is_no_news() -> None:
    assert judged(CURVE, 300, 62, 6.5) == judged(CURVE, 600, 24, 19.5) == judged(CURVE, 600, 5, 40) == ""


def test_a_run_off_its_curve_is_told_by_what() -> None:
    assert judged(CURVE, 300, 80, 6) == "dev perplexity 80.00, expected 60.00 at step 300"
    assert judged(CURVE, 600, 20, 18) == "dev BLEU 18.0, expected 22.0 at step 600"
    both = judged(CURVE, 600, 80, 1)
    assert "80.00, expected 20.00" in both
    assert "1.0, expected 22.0" in both
    assert "expected 20.00" in judged(CURVE, 600, math.nan)


def test_between_known_steps_the_last_one_is_the_least() -> None:
    assert judged(CURVE, 599, 60) == ""
    assert "step 300" in judged(CURVE, 450, 90)
    assert "step 600" in judged(CURVE, 50_000, 60)
    assert judged(CURVE, 299, 5000, 0) == judged(Expect(), 1000, 5000, 0) == ""  # nothing known, nothing said
    assert judged(Expect(dev_steps=[10], dev_bleu=[20.0]), 10, 5000) == ""  # BLEU was not measured


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.split("\n") if line.startswith("nmt: warning:")]


def test_training_says_once_that_it_is_off(
    tiny_recipe: Callable[..., Recipe], numbers_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["training.validate_every=10", "expect.dev_steps=[5]", "expect.dev_perplexity=[2]"]
    run = tmp_path / "run"
    assert train(tiny_recipe(*changes, "expect.pairs=[600,900]"), TrainOptions(numbers_corpus, run)) == 0
    pairs, curve = warnings_of(capsys)
    assert "600 to 900 training pairs" in pairs
    assert "has 500" in pairs
    assert "step 10 is off the curve" in curve
    assert "expected 2.00 at step 5" in curve
    assert f"nmt doctor {run}" in curve


def test_training_as_expected_warns_of_nothing(
    tiny_recipe: Callable[..., Recipe], numbers_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["expect.dev_steps=[15]", "expect.dev_perplexity=[400]", "expect.dev_bleu=[0]", "expect.pairs=[500,500]"]
    assert train(tiny_recipe(*changes), TrainOptions(numbers_corpus, tmp_path / "run")) == 0
    assert warnings_of(capsys) == []
