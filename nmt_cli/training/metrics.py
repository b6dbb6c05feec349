"""metrics.jsonl: one JSON object per line, appended as training goes, cut back to the checkpoint on resume."""

import json
import math
import os
import resource
from pathlib import Path
from typing import Any

from nmt_cli.recipe import schema
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError

# Worse than expected by more is not noise: two runs of Multi30k differ by 3 % and 1.3 BLEU.
PERPLEXITY_FACTOR, BLEU_POINTS = 1.25, 3.0
MIN_IMPROVEMENT = 0.002  # the share of the dev loss by which a validation must be better for patience to begin anew


class Metrics:
    """The metrics file of a run, cut back to its `size` at the last checkpoint."""

    def __init__(self, path: Path, size: int) -> None:
        self.file = path.open("a+b", buffering=0)
        self.file.seek(0)
        self.size = self.file.read(size).rfind(b"\n") + 1
        self.file.truncate(self.size)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, null for numbers that are not finite; where that fails, warn and go on."""
        finite = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in record.items()}
        line = json.dumps(finite, ensure_ascii=False).encode() + b"\n"
        try:
            if self.file.write(line) != len(line):
                raise OSError(28, os.strerror(28), self.file.name)
            self.size += len(line)
        except OSError as error:
            warn(f"a line of {self.file.name} could not be written: {error.strerror}")
            self.file.truncate(self.size)

    def commit(self) -> int:
        os.fsync(self.file.fileno())
        return self.size


def peak_memory_mb() -> int:
    """Return the most memory this process has held so far, of its GPU where it has one."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() // 1_000_000  # with what only graphs of steps may use
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1_000_000


def read(path: Path) -> list[dict[str, Any]]:
    """Return all whole records; a last line cut short by a kill is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        return [dict(json.loads(line)) for line in lines]
    except (ValueError, TypeError):
        raise DataError(f"{path} is damaged: a line of it is not a JSON object") from None


def worse_than_expected(expect: schema.Expect, step: int, scores: dict[str, Any]) -> str | None:
    """Return in words what is clearly worse than the recipe expects at this or the last earlier step."""
    at, worse = sum(expected <= step for expected in expect.dev_steps) - 1, []
    if at < 0:
        return None
    perplexity, bleu = scores["dev_perplexity"], scores["dev_bleu"]
    if expect.dev_perplexity and not perplexity <= PERPLEXITY_FACTOR * expect.dev_perplexity[at]:
        worse.append(f"dev perplexity {perplexity:.2f}, expected {expect.dev_perplexity[at]:.2f}")
    if expect.dev_bleu and bleu is not None and bleu < expect.dev_bleu[at] - BLEU_POINTS:
        worse.append(f"dev BLEU {bleu:.1f}, expected {expect.dev_bleu[at]:.1f}")
    return f"{' and '.join(worse)} at step {expect.dev_steps[at]:,}" if worse else None
