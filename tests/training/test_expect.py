"""What a recipe expects is compared with what comes: early, once, and only where something is known."""

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
def test_other_numbers_of_pairs_and_parameters_are_warned_of(lab: Lab, change: str, warning: str) -> None:
    assert lab.train("training.steps=1", "training.validate_bleu=0", change) == 0
    said = lab.stderr()
    assert ("the recipe expects" in said) == bool(warning)
    assert warning in said


@pytest.mark.parametrize(
    ("perplexities", "step"),
    [
        ([99.0, 25.0, 11.25], None),  # nothing is known of step 8, and a quarter more is not yet worse
        ([20.0, 25.1, 9.0], 16),
        ([20.0, 30.0, 30.0], 16),
        ([20.0, 20.0, 11.3], 24),  # the last known step before this one is the least
        ([20.0, 20.0, math.nan], 24),
    ],
)
def test_training_says_once_that_it_is_worse_than_expected(
    lab: Lab, perplexities: list[float], step: int | None
) -> None:
    coming = iter(perplexities)
    lab.patch.setattr(module, "validate", lambda *_: {"dev_nll": 3.0, "dev_perplexity": next(coming), "dev_bleu": None})
    changes = ["training.steps=24", "training.validate_every=8", "expect.dev_steps=[16,20]"]
    assert lab.train(*changes, "expect.dev_perplexity=[20,9]") == 0
    warnings = re.findall(r"warning: step (\d+): dev perplexity .* expected .* nmt doctor", lab.stderr())
    assert warnings == ([str(step)] if step else [])
