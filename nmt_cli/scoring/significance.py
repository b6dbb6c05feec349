"""The 95% interval of a score, and tests of the difference between two scores, as sacreBLEU computes them."""

import os
from typing import Any, cast

import numpy as np
from sacrebleu.significance import PairedTest, estimate_ci

from nmt_cli.system.errors import UsageError

SAMPLES = 1000


def interval(scorer: Any, stats: list[Any]) -> tuple[float, float]:
    """Return the mean of bootstrap scores and half the width of their 95% interval, like `sacrebleu --confidence`.

    `stats` holds the counts of each line. `scorer`, a sacreBLEU metric, computes a score from their sums. After the
    call, the signature of `scorer` includes the number of samples and the seed. Raise UsageError if SACREBLEU_SEED is
    invalid.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not seed.isdecimal():
        raise UsageError(f"SACREBLEU_SEED={seed[:20]!r} is not a seed. Use a whole number of 0 or more, or 'none'")
    rng = np.random.default_rng(None if seed == "none" else int(seed))
    counts = np.array(stats, np.float64)
    lines = len(stats)
    scores = np.empty(SAMPLES)
    for i in range(SAMPLES):
        repeats = np.bincount(rng.choice(lines, lines), minlength=lines)  # how often each line is in the sample
        scores[i] = scorer._compute_score_from_stats((repeats @ counts).astype(np.float32)).score
    scorer.n_bootstrap, scorer.seed = SAMPLES, seed
    mean, half = estimate_ci(scores)
    return float(mean), float(half)


def compare(metric: str, name: str, scorer: Any, baseline: list[str], hypotheses: list[str]) -> dict[str, Any]:
    """Compare hypotheses with a baseline, and return the results as JSON fields.

    sacreBLEU's tests are paired bootstrap (bs) and approximate randomization (ar). See `Score` for `metric` and `name`.
    """
    row: dict[str, Any] = {"metric": metric, "name": name}
    systems = [("baseline", baseline), ("this", hypotheses)]
    test = cast(Any, PairedTest)
    for kind in ("bs", "ar"):
        signatures, results = test(systems, {metric: scorer}, None, kind)()
        ((result, signature),) = signatures.items()
        old, new = results[result]
        # For two equal systems, sacreBLEU returns the p-value 1 / (samples + 1) instead of 1.
        p = 1.0 if old.score == new.score else float(new.p_value)
        row |= {f"p_{kind}": p, f"signature_{kind}": str(signature)}
        if kind == "bs":
            row |= {"baseline": float(old.score), "score": float(new.score), "difference": float(new.score - old.score)}
            row |= {"baseline_ci": float(old.ci), "score_ci": float(new.ci)}
    worse = row["difference"] > 0 if metric == "ter" else row["difference"] < 0
    return row | {"significantly_worse": worse and row["p_bs"] < 0.05}
