"""The 95% interval of a score by bootstrap resampling: sacreBLEU's numbers in less memory."""

import os
from typing import Any

import numpy as np
from sacrebleu.significance import estimate_ci

from nmt_cli.system.errors import UsageError

SAMPLES = 1000


def interval(scorer: Any, stats: list[Any]) -> tuple[float, float]:
    """Return the mean score of the samples and half of their 95% interval, as `sacrebleu --confidence` computes them.

    `stats` holds the counts of each line. `scorer`, a sacreBLEU metric, turns their sums into a score. Afterwards its
    signature includes the number of samples and the seed.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not seed.isdecimal():
        raise UsageError(f"SACREBLEU_SEED={seed[:20]!r} is not a seed. Give a whole number of 0 or more, or none")
    rng = np.random.default_rng(None if seed == "none" else int(seed))
    counts = np.array(stats, np.float64)
    lines = len(stats)
    scores = np.empty(SAMPLES)
    for i in range(SAMPLES):
        repeats = np.bincount(rng.choice(lines, lines), minlength=lines)  # the times each line is in the sample
        scores[i] = scorer._compute_score_from_stats((repeats @ counts).astype(np.float32)).score
    scorer.n_bootstrap, scorer.seed = SAMPLES, seed
    mean, half = estimate_ci(scores)
    return float(mean), float(half)
