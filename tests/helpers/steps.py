"""Act before each step of a training run, and read its losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.training import metrics
from nmt_cli.training.train import Run


def before_each_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[Run, int], object]) -> None:
    """Call `act(run, step)` before each step."""
    take_step = Run.take_step

    def acting(self: Run, step: int, *rest: Any) -> Any:
        act(self, step)
        return take_step(self, step, *rest)

    monkeypatch.setattr(Run, "take_step", acting)


def losses(run: Path) -> list[float]:
    """Return the training losses in a run's metrics."""
    return [record["nll"] for record in metrics.read(run / "metrics.jsonl") if "nll" in record]
