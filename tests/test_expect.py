"""What a recipe expects is compared with what comes: early, once, and only where something is known."""

import math
import re

import pytest
from conftest import Lab

from nmt_cli.recipe import Expect
from nmt_cli.training.validation import off_the_curve

CURVE = Expect(dev_steps=[300, 600], dev_perplexity=[60.0, 20.0], dev_bleu=[7.0, 22.0])


@pytest.mark.parametrize(
    ("expect", "step", "perplexity", "bleu", "verdict"),
    [
        (CURVE, 300, 62, 6.5, None),
        (CURVE, 300, 80, 6, "dev perplexity 80.00, expected 60.00 at step 300"),
        (CURVE, 600, 20, 18, "dev BLEU 18.0, expected 22.0 at step 600"),
        (CURVE, 600, 80, 1, "dev perplexity 80.00, expected 20.00 and dev BLEU 1.0, expected 22.0 at step 600"),
        (CURVE, 600, math.nan, None, "dev perplexity nan, expected 20.00 at step 600"),
        (CURVE, 599, 60, None, None),  # between known steps the last one is the least
        (CURVE, 299, 5000, 0, None),  # nothing known, nothing said
        (Expect(), 1000, 5000, 0, None),
        (Expect(dev_steps=[10], dev_bleu=[20.0]), 10, 5000, None, None),
    ],
)
def test_a_run_is_compared_with_its_curve(
    expect: Expect, step: int, perplexity: float, bleu: float | None, verdict: str | None
) -> None:
    assert off_the_curve(expect, step, {"dev_perplexity": perplexity, "dev_bleu": bleu}) == verdict


@pytest.mark.parametrize("off", [True, False])
def test_training_says_once_that_it_is_off(lab: Lab, capsys: pytest.CaptureFixture[str], off: bool) -> None:
    changes = ["training.steps=20", "training.validate_every=10", "expect.dev_steps=[5]", "expect.dev_bleu=[0]"]
    figures = ["pairs=[501,900]", "dev_perplexity=[2]"] if off else ["pairs=[500,500]", "dev_perplexity=[400]"]
    assert lab.train(*changes, *(f"expect.{figure}" for figure in figures)) == 0
    warnings = [line for line in capsys.readouterr().err.split("\n") if line.startswith("nmt: warning:")]
    assert len(warnings) == (2 if off else 0)
    if off:
        assert re.search("has 500.*501 to 900 training pairs|501 to 900 training pairs.*has 500", warnings[0])
        assert re.search("step 10 is off the curve.*expected 2.00 at step 5", warnings[1])
        assert f"nmt doctor {lab.run}" in warnings[1]
