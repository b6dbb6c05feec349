"""Write and read metrics.jsonl, with one JSON object per line. Compare scores with the expectations of the recipe."""

import json
import math
import os
from pathlib import Path
from typing import Any

from nmt_cli.recipe import schema
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError
from nmt_cli.system.operating_system import peak_bytes

# Scores are worse than expected if perplexity is above PERPLEXITY_FACTOR times the expected value, or if BLEU is more
# than BLEU_POINTS below the expected BLEU. Noise is smaller: two runs on Multi30k differ by 3 % in perplexity and 1.3
# BLEU.
PERPLEXITY_FACTOR, BLEU_POINTS = 1.25, 3.0
MIN_IMPROVEMENT = 0.002  # training.patience ignores reductions of the dev loss by this fraction or less


class MetricsLog:
    """Appends records to the metrics file of a run. `size` is the total size of its complete lines, in bytes."""

    def __init__(self, path: Path, size: int) -> None:
        """Open the file, and remove all but the complete lines in its first `size` bytes.

        `size` is the size of the file at the last checkpoint.
        """
        self.file = path.open("a+b", buffering=0)
        self.file.seek(0)
        self.size = self.file.read(size).rfind(b"\n") + 1
        self.file.truncate(self.size)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record, with null for numbers that are not finite. If writing fails, print a warning."""
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
        """Flush the file to the disk and return its size."""
        os.fsync(self.file.fileno())
        return self.size


def peak_memory_mb() -> int:
    """Return the peak memory of this process in megabytes: on the GPU if it uses one, or else on the CPU."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() // 1_000_000  # includes the memory pool of CUDA graphs
    return peak_bytes() // 1_000_000


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return all records, or [] if there is no file. Raise DataError if a line is not a JSON object.

    Ignore an incomplete last line, because the process may have been killed while it wrote the line.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        return [dict(json.loads(line)) for line in lines]
    except (ValueError, TypeError):
        raise DataError(f"{path} is damaged: one of its lines is not a JSON object") from None


def worse_than_expected(expect: schema.Expect, step: int, scores: dict[str, Any]) -> str | None:
    """Return a message about the scores that are clearly worse than expected. Return None if no score is.

    If the recipe expects no scores at `step`, compare with the scores that it expects at the last earlier step, if any.
    """
    index = sum(expected <= step for expected in expect.dev_steps) - 1
    if index < 0:
        return None
    worse = []
    perplexity, bleu = scores["dev_perplexity"], scores["dev_bleu"]
    if expect.dev_perplexity and not perplexity <= PERPLEXITY_FACTOR * expect.dev_perplexity[index]:
        worse.append(f"dev perplexity {perplexity:.2f}, expected {expect.dev_perplexity[index]:.2f}")
    if expect.dev_bleu and bleu is not None and bleu < expect.dev_bleu[index] - BLEU_POINTS:
        worse.append(f"dev BLEU {bleu:.1f}, expected {expect.dev_bleu[index]:.1f}")
    return f"{' and '.join(worse)} at step {expect.dev_steps[index]:,}" if worse else None
