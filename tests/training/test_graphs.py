"""Padded batches and replayed steps, with a stand-in for CUDA graphs."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab import Lab
from reference import random_model, tiny
from steps import fake_accelerator, plan_of
from test_batches import corpus_of, skewed
from varlen import plain_varlen_attn

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training import batches, checkpoints, graphs
from nmt_cli.training.graphs import StepGraphs, has_spare_memory, uses_padding
from nmt_cli.training.loss import LossModel
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer import attention
from nmt_cli.transformer.model import PAD


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "positions": "learned", "output_bias": True}])
@pytest.mark.parametrize("count", [1, 16, 40])
def test_padding_changes_neither_loss_nor_gradient(count: int, changes: dict[str, Any]) -> None:
    plan = plan_of(corpus_of(skewed(60)), 100, 1, 1)
    settings = tiny(dropout=0.2, max_length=256, **changes)
    model = LossModel(random_model(settings, 300), 0.1, torch.float64)
    found = []
    for padded in (False, True):
        batch = plan.batch(np.arange(count), 3, padded=padded)
        loss, nll = model(batch)
        found.append([loss, nll, *torch.autograd.grad(loss, [*model.parameters()])])
    assert len(batch.src_N) % batches.TOKENS == len(batch.tgt_in_N) % batches.TOKENS == 0
    assert len(batch.src.lengths_B) == len(batch.tgt.lengths_B) == -(-(count + 16) // 32) * 32
    for plain, with_pads in zip(*found, strict=True):
        assert torch.allclose(plain, with_pads, rtol=1e-12, atol=1e-12)
        assert plain.any()


def test_padding_adds_short_sentences_to_both_sides() -> None:
    """No added sentence is empty or longer than LONGEST_PADDING, which every model with padded batches accepts."""
    pairs = skewed(400)
    plan = plan_of(corpus_of(pairs), 100, 1, 1)
    for count in [*range(1, 70), 336, 337, 400]:
        batch = plan.batch(np.arange(count), 0, padded=True)
        for side, ids in ((batch.src, batch.src_N), (batch.tgt, batch.tgt_out_N)):
            assert side.lengths_B[:count].tolist() == [pair[side is batch.tgt] for pair in pairs[:count]]
            assert batches.MIN_PADDING <= len(side.lengths_B) - count < batches.MIN_PADDING + batches.SENTENCES
            assert 1 <= side.lengths_B[count:].min() <= side.lengths_B[count:].max() <= batches.LONGEST_PADDING
            real = int(side.lengths_B[:count].sum())
            assert (ids[:real] != PAD).all()
            assert (ids[real:] == PAD).all()


class Recording:
    """Stands in for a CUDA graph: a capture changes nothing, and a replay computes into the captured memory."""

    def __init__(self, run: Trainer, function: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        self.function, kept = function, copy.deepcopy((run.transformer.state_dict(), run.optimizer.state_dict()))
        self.output = function()
        run.transformer.load_state_dict(kept[0])
        run.optimizer.load_state_dict(kept[1])
        run.optimizer._warned_capturable_if_run_uncaptured = True

    def replay(self) -> None:
        for output, value in zip(self.output, self.function(), strict=True):
            output.copy_(value)

    def pool(self) -> str:
        return "pool"


STEPS = 12  # so many that three sizes recur


@dataclass
class Pair:
    """Two runs of one recipe, in float64: one computes its steps, the other replays them from `captures`."""

    plain: Trainer
    replayed: Trainer
    captures: list[Recording] = field(default_factory=list)
    pools: list[object] = field(default_factory=list)
    memory: int = 1000  # the number of captures that fit
    attempts: int = 0

    def captured(self, device: torch.device, function: Callable[[], Any], pool: object) -> tuple[Any, Any]:
        self.attempts += 1
        recording = Recording(self.replayed, function)
        if len(self.captures) == self.memory:
            raise torch.OutOfMemoryError
        self.captures.append(recording)
        self.pools.append(pool)
        return self.captures[-1], self.captures[-1].output

    def step(self, step: int) -> tuple[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return the sizes of the step's padded batch, and nll and norm of both runs."""
        runs = self.plain, self.replayed
        steps = [run.step_batch(step - 1) for run in runs]
        return steps[1].passes[0].sizes, [run.take_step(step, each) for run, each in zip(runs, steps, strict=True)]

    def assert_equal(self) -> None:
        for a, b in zip(self.plain.transformer.parameters(), self.replayed.transformer.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6)


@pytest.fixture
def pair(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Pair:
    settings = lab.recipe(
        "model.num_layers=2", "training.tokens_per_step=150", "training.warmup_steps=3", "model.dropout=0.2"
    )
    runs = Pair(
        *(start_trainer(settings, open_corpus(lab.corpus), fake_accelerator(1, 0), Path(), 0) for _ in range(2))
    )
    for run in (runs.plain, runs.replayed):
        run.dtype = run.model.dtype = run.transformer.double().embedding.weight.dtype
    runs.replayed.pads, runs.replayed.graphs = True, StepGraphs(torch.device("cpu"))
    monkeypatch.setattr(
        attention, "has_kernel", lambda *rest: True
    )  # attention without the kernel reads lengths on the host
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen_attn)
    monkeypatch.setattr(graphs, "captured", runs.captured)
    monkeypatch.setattr(batches, "TOKENS", 32)  # so that there are several sizes, but few
    monkeypatch.setattr(batches, "SENTENCES", 8)
    return runs


def test_replayed_steps_equal_computed_steps(pair: Pair) -> None:
    """Each step has its own batch, learning rate and number of tokens. The first step of a size is computed, and the
    second is captured.
    """
    sizes, results = zip(*(pair.step(step) for step in range(1, STEPS + 1)), strict=True)
    for plain, replayed in results:  # read at the end: later replays have not overwritten them
        for a, b in zip(plain, replayed, strict=True):
            assert b.item() == pytest.approx(a.item(), rel=1e-5)
    pair.assert_equal()
    repeated = {size for size in sizes if sizes.count(size) > 1}
    assert 1 < len(repeated) < len(sizes) / 2
    assert len(pair.captures) == len(repeated)
    assert pair.pools == [None, *["pool"] * (len(pair.captures) - 1)]


def test_a_step_of_several_passes_is_neither_padded_nor_replayed(pair: Pair) -> None:
    for run in (pair.plain, pair.replayed):
        run.memory_tokens = 60
    for step in (1, 2, 3):
        batch = pair.replayed.step_batch(step - 1)
        assert len(batch.passes) > 1
        assert all((each.tgt_out_N != PAD).all() for each in batch.passes)
        plain, replayed = pair.step(step)[1]
        assert [value.item() for value in replayed] == pytest.approx([value.item() for value in plain], rel=1e-9)
    pair.assert_equal()
    assert pair.captures == []


def test_after_a_capture_runs_out_of_memory_steps_are_computed_as_usual(pair: Pair) -> None:
    pair.memory = 1
    sizes = [pair.step(step)[0] for step in range(1, STEPS + 1)]
    assert len({size for size in sizes if sizes.count(size) > 1}) > 2
    assert len(pair.captures) == 1
    assert pair.attempts == 2, "no capture is tried after memory ran out"
    assert pair.replayed.graphs.max_graphs == 1
    pair.assert_equal()


def test_a_replay_without_a_finite_gradient_changes_nothing(pair: Pair) -> None:
    run, graphs_of_sizes = pair.replayed, pair.replayed.graphs.graphs
    for step in range(1, STEPS + 1):
        run.take_step(step, run.step_batch(step - 1))
        if graphs_of_sizes:
            break
    else:
        pytest.fail("no step was captured")
    again = next(s for s in range(step + 1, 100) if run.step_batch(s - 1).passes[0].sizes in graphs_of_sizes)
    run.transformer.encoder[0].feed_forward.inner.weight.data[0, 0] = math.nan
    before = copy.deepcopy(checkpoints.optimizer_tensors(run.transformer, run.optimizer))
    weights = copy.deepcopy(run.transformer.state_dict())
    _, norm = run.take_step(again, run.step_batch(again - 1))
    assert not norm.isfinite()
    after = checkpoints.optimizer_tensors(run.transformer, run.optimizer)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    now = run.transformer.state_dict()
    assert all(torch.equal(value.nan_to_num(), now[name].nan_to_num()) for name, value in weights.items())


@pytest.mark.parametrize(
    ("dtype", "changes", "processes", "expected"),
    [
        (torch.bfloat16, [], 1, True),
        (torch.bfloat16, ["model.max_length=17", "corpus.cleaning.max_tokens=17"], 1, True),
        (torch.bfloat16, ["model.max_length=16", "corpus.cleaning.max_tokens=16"], 1, False),
        (torch.bfloat16, ["model.d_v=24"], 1, False),
        (torch.bfloat16, ["training.cuda_graphs=no"], 1, False),
        (torch.bfloat16, [], 2, False),
        (torch.float32, [], 1, False),
    ],
)
def test_padding_needs_packed_batches_and_one_process(
    lab: Lab, dtype: torch.dtype, changes: list[str], processes: int, expected: bool
) -> None:
    settings, accelerator = lab.recipe("model.d_k=16", "model.d_v=16", *changes), fake_accelerator(processes, 0)
    accelerator.device = torch.device("meta")  # not the CPU
    assert uses_padding(settings, dtype, accelerator) is expected


@pytest.mark.parametrize(("pads", "spare"), [(True, True), (True, False), (False, True)])
def test_steps_are_replayed_if_batches_are_padded_and_memory_suffices(lab: Lab, pads: bool, spare: bool) -> None:
    lab.patch.setattr(graphs, "uses_padding", lambda *_: pads)
    lab.patch.setattr(graphs, "has_spare_memory", lambda _: spare)
    run = start_trainer(lab.recipe(), open_corpus(lab.corpus), fake_accelerator(1, 0), Path(), 0)
    assert (run.pads, run.graphs is not None) == (pads, pads and spare)


@pytest.mark.parametrize(("megabytes", "expected"), [(121, True), (119, False)])
def test_graphs_need_more_free_memory_than_was_used(
    megabytes: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 100 << 20)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (megabytes << 20, 200 << 20))
    assert has_spare_memory(torch.device("cuda")) is expected
