"""Warnings for runs that differ from the recipe's expectations."""

import math
import re

import pytest
from conftest import Lab

from nmt_cli.training import train as module


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ("expect.pairs=[500,500]", ""),
        ("expect.pairs=[501,600]", "the recipe expects 501 to 600 training pairs, this corpus has 500"),
        ("expect.pairs=[400,499]", "the recipe expects 400 to 499 training pairs, this corpus has 500"),
        ("expect.parameters=52224", ""),
        ("expect.parameters=52223", "the recipe expects 52,223 parameters, this model has 52,224"),
    ],
)
def test_unexpected_numbers_of_pairs_and_parameters_warn(lab: Lab, change: str, warning: str) -> None:
    assert lab.train("training.steps=1", "training.validate_bleu=0", change) == 0
    output = lab.stderr()
    assert ("the recipe expects" in output) == bool(warning)
    assert warning in output


@pytest.mark.parametrize(
    ("perplexities", "step"),
    [
        ([99.0, 25.0, 11.25], None),  # step 8 has no expectation, and a quarter more is within the tolerance
        ([20.0, 25.1, 9.0], 16),
        ([20.0, 30.0, 30.0], 16),
        ([20.0, 20.0, 11.3], 24),  # at step 24, the expectation of step 20 applies
        ([20.0, 20.0, math.nan], 24),
    ],
)
def test_a_run_worse_than_expected_warns_once(lab: Lab, perplexities: list[float], step: int | None) -> None:
    coming = iter(perplexities)
    lab.patch.setattr(module, "validate", lambda *_: {"dev_nll": 3.0, "dev_perplexity": next(coming), "dev_bleu": None})
    changes = ["training.steps=24", "training.validate_every=8", "expect.dev_steps=[16,20]"]
    assert lab.train(*changes, "expect.dev_perplexity=[20,9]") == 0
    warnings = re.findall(r"warning: step (\d+): dev perplexity .* expected .* nmt doctor", lab.stderr())
    assert warnings == ([str(step)] if step else [])
