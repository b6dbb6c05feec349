"""Hooks before the steps of a training run, plans of its batches, and its losses."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.corpus.store import Corpus
from nmt_cli.recipe import loading
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.trainer import Trainer


def before_each_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[Trainer, int], object]) -> None:
    """Call `act(trainer, step)` before each step."""
    take_step = Trainer.take_step

    def acting(self: Trainer, step: int, *rest: Any) -> Any:
        act(self, step)
        return take_step(self, step, *rest)

    monkeypatch.setattr(Trainer, "take_step", acting)


def before_each_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> None:
    """Call `act` before each call of a function."""
    real = getattr(owner, name)

    def acting(*arguments: Any, **named: Any) -> Any:
        act()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, acting)


def plan_of(
    corpus: Corpus, tokens: int, micro_batches: int, seed: int = 1, source_eos: bool = True, **settings: object
) -> BatchPlan:
    """Return a batch plan with steps of `tokens` tokens and with these settings of the recipe's training section."""
    values = {"tokens_per_step": tokens, "seed": seed, **settings}
    training = loading.from_plain({"training": values}, "test").training
    return BatchPlan(corpus, training, micro_batches, source_eos)


def losses(run: Path) -> list[float]:
    """Return the training losses in a run's metrics."""
    return [record["nll"] for record in read_records(run / "metrics.jsonl") if "nll" in record]


def fake_accelerator(world: int, rank: int) -> Any:
    """Return a stand-in for the Accelerator of process `rank` of `world` that suffices for steps in one process."""
    return SimpleNamespace(
        num_processes=world,
        process_index=rank,
        device=torch.device("cpu"),
        is_main_process=False,
        prepare=lambda model: model,
        no_sync=lambda model: contextlib.nullcontext(),
        backward=torch.Tensor.backward,
    )
