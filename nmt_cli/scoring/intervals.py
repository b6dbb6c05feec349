"""The 95 % interval of a score by bootstrap resampling: sacreBLEU's figures, without its copies of all statistics."""

import os
from typing import Any

import numpy as np
from sacrebleu.significance import estimate_ci

from nmt_cli.system.errors import UsageError

SAMPLES = 1000


def interval(scorer: Any, stats: list[Any]) -> tuple[float, float]:
    """Return the mean of the samples' scores and half of their 95 % interval, as `sacrebleu --confidence` has them.

    `stats` are the counts of each line, which the sacreBLEU metric `scorer` adds up. Its signature then names samples
    and seed.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not seed.isdecimal():
        raise UsageError(f"SACREBLEU_SEED={seed[:20]!r} is no seed: give a number from 0 on, or none")
    rng = np.random.default_rng(None if seed == "none" else int(seed))
    counts, lines, scores = np.array(stats, np.float64), len(stats), np.empty(SAMPLES)
    for i in range(SAMPLES):
        repeats = np.bincount(rng.choice(lines, lines), minlength=lines)  # how often the sample holds each line
        scores[i] = scorer._compute_score_from_stats((repeats @ counts).astype(np.float32)).score
    scorer.n_bootstrap, scorer.seed = SAMPLES, seed
    mean, half = estimate_ci(scores)
    return float(mean), float(half)
