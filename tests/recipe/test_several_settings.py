"""Checks that involve several settings: each part of a condition counts, and all wrong values are named."""

from typing import Any

import pytest

from nmt_cli.recipe import loading
from nmt_cli.system.errors import UsageError

FILES = {f"train_{side}": ["a", "b"] for side in ("src", "tgt")}


def refusal(**sections: Any) -> str:
    """Return the error message for a recipe, or "" if it is valid."""
    try:
        loading.from_plain({"name": "x", "corpus": {"name": "own", **FILES}, **sections}, "test")
    except UsageError as error:
        return str(error)
    return ""


NUMBERS = "must be two numbers, lowest and highest"
CURVES = "expect.dev_steps must ascend, and dev_perplexity and dev_bleu must have as many numbers"


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"pairs": [40, 50], "bleu": [10, 20]}, ""),
        ({"pairs": [50, 50], "bleu": [20, 20]}, ""),
        ({"pairs": [50, 40], "bleu": [10, 20]}, NUMBERS),
        ({"pairs": [40, 50], "bleu": [20, 10]}, NUMBERS),
        ({"pairs": [40], "bleu": [10, 20]}, NUMBERS),
        ({"pairs": [40, 50], "bleu": [10, 15, 20]}, NUMBERS),
        ({"dev_steps": [1, 2], "dev_bleu": [9, 8], "dev_perplexity": [7, 6]}, ""),
        ({"dev_steps": [1, 2], "dev_perplexity": [7, 6]}, ""),
        ({"dev_steps": [1, 2], "dev_bleu": [9, 8], "dev_perplexity": [7]}, CURVES),
        ({"dev_steps": [1, 2], "dev_bleu": [9], "dev_perplexity": [7, 6]}, CURVES),
        ({"dev_steps": [2, 1], "dev_bleu": [9, 8]}, CURVES),
        ({"dev_steps": [1, 1], "dev_bleu": [9, 8]}, CURVES),
    ],
)
def test_expected_figures_are_pairs_and_curves(expect: dict[str, Any], says: str) -> None:
    assert says in refusal(expect=expect)
    assert bool(says) == bool(refusal(expect=expect))


@pytest.mark.parametrize("split", ["train", "dev", "test", "mix", "general"])
def test_both_sides_of_each_split_have_the_same_number_of_files(split: str) -> None:
    several = split in ("train", "mix")
    one: Any = ["a"] if several else "a"
    assert refusal(corpus={"name": "own", **FILES, f"{split}_src": one, f"{split}_tgt": one}) == ""
    says = f"corpus.{split}_src and corpus.{split}_tgt must name the same number of files"
    if several:
        assert says in refusal(corpus={"name": "own", **FILES, f"{split}_src": ["a", "b"], f"{split}_tgt": one})
    assert says in refusal(
        corpus={"name": "own", **FILES, f"{split}_src": one, f"{split}_tgt": [] if several else None}
    )


def test_settings_that_exclude_each_other_are_valid_alone() -> None:
    mix = {"mix_src": ["c"], "mix_tgt": ["c"]}
    assert refusal(corpus={"name": "own", **FILES, **mix}) == ""
    assert refusal(corpus={"name": "own", **FILES, "limit": 9}) == ""
    assert "corpus.limit would cut off corpus.mix_src" in refusal(corpus={"name": "own", **FILES, **mix, "limit": 9})
    start = {"with_start": [0.5]}
    assert "averaging.with_start requires training.init_from" in refusal(averaging=start)
    assert refusal(averaging=start, training={"init_from": "m"}) == ""
    assert refusal(averaging={"last": 4}, training={"keep_checkpoints": 4}) == ""
    assert "averaging.last is larger" in refusal(averaging={"last": 5}, training={"keep_checkpoints": 4})


def test_five_wrong_values_are_named() -> None:
    names = ["steps", "warmup_steps", "log_every", "validate_every", "checkpoint_every", "tokens_per_step"]
    five = refusal(training=dict.fromkeys(names[:5], "x"))
    assert [name for name in names if f"training.{name} " in five] == names[:5]
    assert "and more" not in five
    six = refusal(training=dict.fromkeys(names, "x"))
    assert six.count("must be") == 5
    assert six.endswith("and more")
