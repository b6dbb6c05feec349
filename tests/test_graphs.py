"""Padded batches, and steps that are replayed: with a stand-in for CUDA's graphs where there is no GPU."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.varlen
from conftest import Lab
from reference import random_model, tiny
from test_attention import plain_varlen_attn
from test_batches import corpus_of, skewed
from test_train import one_of

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training import batches, graphs
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.graphs import StepGraphs
from nmt_cli.training.loss import LossModel
from nmt_cli.training.train import Run
from nmt_cli.transformer import attention
from nmt_cli.transformer.model import PAD


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "positions": "learned", "output_bias": True}])
@pytest.mark.parametrize("count", [1, 16, 40])
def test_padding_changes_neither_loss_nor_gradient(count: int, changes: dict[str, Any]) -> None:
    plan = BatchPlan(corpus_of(skewed(60)), 100, 1, 1)
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


def test_padding_is_of_short_sentences_on_both_sides() -> None:
    """None is empty or longer than the positions that every model with padded batches has."""
    pairs = skewed(400)
    plan = BatchPlan(corpus_of(pairs), 100, 1, 1)
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
    """Stands in for a CUDA graph: what is captured is not computed, a replay computes it in the same memory."""

    def __init__(self, run: Run, function: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        self.function, kept = function, copy.deepcopy((run.transformer.state_dict(), run.optimizer.state_dict()))
        self.output = function()
        run.transformer.load_state_dict(kept[0])
        run.optimizer.load_state_dict(kept[1])
        run.optimizer._warned_capturable_if_run_uncaptured = True

    def replay(self) -> None:
        for place, value in zip(self.output, self.function(), strict=True):
            place.copy_(value)

    def pool(self) -> str:
        return "pool"


@pytest.mark.parametrize("most", [64, 1])
def test_replayed_steps_are_those_that_are_computed(lab: Lab, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own batch, learning rate and number of tokens; the first of some sizes is computed, the second
    captured."""
    settings = lab.recipe("training.tokens_per_step=150", "training.warmup_steps=3", "model.dropout=0.2")
    runs = [Run(settings, open_corpus(lab.corpus), one_of(1, 0), Path(), 0) for _ in range(2)]
    for run in runs:
        run.dtype = run.model.dtype = run.transformer.double().embedding.weight.dtype
    replayed = runs[1]
    captures, pools = list[Recording](), list[object]()

    def captured(device: torch.device, function: Callable[[], Any], pool: object) -> tuple[Any, Any]:
        recording = Recording(replayed, function)
        captures.append(recording)
        pools.append(pool)
        return recording, recording.output

    monkeypatch.setattr(attention, "has_kernel", lambda *rest: True)  # what else looks at a batch's lengths on the host
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", plain_varlen_attn)
    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(graphs, "MOST", most)
    replayed.graphs = StepGraphs(torch.device("cpu"))
    sizes, results = [], list[list[tuple[torch.Tensor, torch.Tensor]]]()
    for step in range(1, 25):
        steps = [run.step_batch(step - 1) for run in runs]
        sizes.append(steps[1].passes[0].sizes)
        results.append([run.take_step(step, batch) for run, batch in zip(runs, steps, strict=True)])
    for plain_result, replayed_result in results:  # at the end: later replays have not written there
        for a, b in zip(plain_result, replayed_result, strict=True):
            assert b.item() == pytest.approx(a.item(), rel=1e-5)
    for a, b in zip(*(run.transformer.parameters() for run in runs), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6)
    repeated = {size for size in sizes if sizes.count(size) > 1}
    assert len(captures) == min(most, len(repeated)) < len(sizes) / 2
    assert pools == [None, *["pool"] * (len(captures) - 1)]


@pytest.mark.parametrize(
    ("dtype", "changes", "processes", "megabytes", "expected"),
    [
        (torch.bfloat16, [], 1, 121, True),
        (torch.bfloat16, [], 1, 119, False),  # free, beside 100 that the largest batch took
        (torch.bfloat16, [], 2, 1000, False),
        (torch.float32, [], 1, 1000, False),
        (torch.bfloat16, ["model.d_v=24"], 1, 1000, False),
        (torch.bfloat16, ["model.max_length=16", "corpus.cleaning.max_tokens=16"], 1, 1000, False),
    ],
)
def test_graphs_are_for_packed_batches_of_one_process_with_memory_to_spare(
    lab: Lab, dtype: torch.dtype, changes: list[str], processes: int, megabytes: int, expected: bool
) -> None:
    run = object.__new__(Run)
    run.settings, run.dtype = lab.recipe("model.d_k=16", "model.d_v=16", *changes), dtype
    run.accelerator = one_of(processes, 0)
    run.accelerator.device = torch.device("meta")  # not the CPU
    lab.patch.setattr(torch.cuda, "max_memory_reserved", lambda device: 100 << 20)
    lab.patch.setattr(torch.cuda, "mem_get_info", lambda device: (megabytes << 20, 200 << 20))
    assert run._fits_graphs() is expected
