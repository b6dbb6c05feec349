"""metrics.jsonl: one JSON object per line, appended as training goes, cut back to the checkpoint on resume."""

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.console import warn
from nmt_cli.errors import DataError

if TYPE_CHECKING:  # reading the file needs no torch
    import torch

    from nmt_cli.training.batches import StepBatch


class Metrics:
    """The metrics file of a run, cut back to `size` bytes: without what was written after the last checkpoint."""

    def __init__(self, path: Path, size: int) -> None:
        self.file = path.open("a+b", buffering=0)
        self.file.seek(0)
        self.size = self.file.read(size).rfind(b"\n") + 1
        self.file.truncate(self.size)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, null for numbers that are not finite; where that fails, warn and go on without it."""
        finite = {k: v if not isinstance(v, float) or v - v == 0 else None for k, v in record.items()}
        line = json.dumps(finite, ensure_ascii=False).encode() + b"\n"
        try:
            if self.file.write(line) != len(line):
                raise OSError(28, os.strerror(28), self.file.name)
            self.size += len(line)
        except OSError as error:
            warn(f"a line of {self.file.name} could not be written: {error.strerror}")
            self.file.truncate(self.size)

    def commit(self) -> int:
        """Force the lines to the disk and return the size of the file."""
        os.fsync(self.file.fileno())
        return self.size

    def close(self) -> None:
        self.file.close()


class Window:
    """Sums over the steps since the last line of metrics."""

    def __init__(self) -> None:
        self.start, self.steps, self.src_tokens, self.tgt_tokens = time.monotonic(), 0, 0, 0
        self.nll: torch.Tensor | float = 0.0
        self.norm, self.places, self.padded = 0.0, 0, 0

    def add(self, nll: "torch.Tensor", norm: "torch.Tensor", batch: "StepBatch") -> None:
        """Count one step: its loss and gradient norm, its tokens, and the padding of what was computed here."""
        self.steps += 1
        self.nll = self.nll + nll
        self.norm = float(norm)
        self.src_tokens += batch.src_tokens
        self.tgt_tokens += batch.tgt_tokens
        for pairs in (group.batch for group in batch.groups):
            for ids_N, layout in ((pairs.src_N, pairs.src), (pairs.tgt_out_N, pairs.tgt)):
                places = sum(len(block.lengths_B) * block.max_length for block in layout.blocks)
                self.places, self.padded = self.places + places, self.padded + places - len(ids_N)

    def summary(self, nll: float) -> dict[str, Any]:
        """Return what goes into the line, the loss of all processes being `nll`."""
        return {
            "nll": nll / max(1, self.tgt_tokens),
            "gradient_norm": self.norm,
            "src_tokens_per_step": self.src_tokens / self.steps,
            "tgt_tokens_per_step": self.tgt_tokens / self.steps,
            "tgt_tokens_per_second": self.tgt_tokens / (time.monotonic() - self.start),
            "padded_share": self.padded / self.places,
            "peak_memory_mb": peak_memory_mb(),
        }


def peak_memory_mb() -> int:
    """Return the most memory this process has held so far, of its GPU where it has one."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() // 1_000_000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1_000_000 if sys.platform == "darwin" else peak * 1024 // 1_000_000


def read(path: Path) -> list[dict[str, Any]]:
    """Return all whole records; a last line cut short by a kill is left out."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    records: list[dict[str, Any]] = []
    try:
        for line in whole.split(b"\n") if whole else ():
            records.append(dict(json.loads(line)))
    except (ValueError, TypeError):
        raise DataError(f"{path}, line {len(records) + 1} is damaged") from None
    return records
