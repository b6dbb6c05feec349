"""Training and search on the CPU and, if there is one, on a GPU. `pytest -m gpu` runs only the tests on the GPU."""

import contextlib
import copy
import math
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from lab import Lab
from reference import batch_of, random_model, random_pairs, tiny
from searching import by_torch, options, search_all
from steps import before_each_step
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training import checkpoints, estimate
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.loss import LossModel
from nmt_cli.training.trainer import start_trainer
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.hardware import ToHost, captured
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.segments import Segment

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
V = 100
READS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique", "_unique2"}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    monkeypatch.setenv("ACCELERATE_USE_CPU", str(request.param == "cpu"))
    AcceleratorState._reset_state(reset_partial_state=True)
    yield torch.device(request.param)
    AcceleratorState._reset_state(reset_partial_state=True)
    if request.param == "cuda":
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "d_v": 24}], ids=["post", "pre, d_k < d_v"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_loss_and_gradients_match_float64(
    device: torch.device, dtype: torch.dtype, tolerance: float, changes: dict[str, Any]
) -> None:
    model = random_model(tiny(**{"dropout": 0.2, "d_model": 64, "d_ff": 96, "d_k": 16, "d_v": 16, **changes}), V)
    pairs = random_pairs(2, V, [(1, 1), (9, 12), (30, 25), (30, 30), (5, 2)])

    def computed(own: LossModel, device: torch.device) -> dict[str, torch.Tensor]:
        batch = batch_of(pairs, device, (1,), np.arange(len(pairs)))  # the same dropout on every device
        loss, nll = own(batch)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in own.named_parameters()}
        hidden = own.transformer(batch, own.dtype)
        assert hidden.dtype == own.dtype
        return {"hidden": hidden, "loss": loss, "nll": nll, **gradients}

    exact = computed(LossModel(copy.deepcopy(model), 0.1, torch.float64), torch.device("cpu"))
    ours = computed(LossModel(model.float().to(device), 0.1, dtype), device)
    for name, expected in exact.items():
        assert ours[name].device.type == device.type
        assert (ours[name].double().cpu() - expected).norm() < tolerance * expected.norm(), name


def test_search_matches_float64(device: torch.device) -> None:
    model = random_model(tiny(), V)
    with torch.no_grad():
        model.embedding.weight *= 2  # sharper choices: sentences end, with different lengths
    sources, found = [src for src, _ in random_pairs(3, V, [(2 + i % 12, 1) for i in range(100)])], []
    how = options(extra_length=8, n_best=2)
    for dtype, place in ((torch.float64, "cpu"), (torch.float32, device)):
        segments = [Segment(ids, how) for ids in sources]
        frozen = for_inference(copy.deepcopy(model).to(place, dtype), dtype)
        assert len(search_all(by_torch([frozen], dtype, 100), segments)) == 100
        found.append([segment.hypotheses for segment in segments])
    for exact, ours in zip(*found, strict=True):
        assert [h.ids for h in ours] == [h.ids for h in exact]
        assert [h.score for h in ours] == pytest.approx([h.score for h in exact], abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)], indirect=True)
def test_a_stopped_run_resumes_bit_for_bit(
    device: torch.device, precision: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, the math backend of attention is deterministic. training/test_train.py stops runs on the CPU."""
    overrides = "training.steps=5", f"training.precision={precision}"
    with sdpa_kernel(SDPBackend.MATH), monkeypatch.context() as patch:
        before_each_step(patch, lambda _, now: now == 3 and os.kill(os.getpid(), signal.SIGTERM))
        assert lab.train(*overrides) == 143
        patch.undo()
        assert lab.train(*overrides) == 0
        resumed, lab.run = lab.run, lab.run.with_name("whole")
        assert lab.train(*overrides) == 0
    files = [checkpoints.check(run, 5)["files"] for run in (resumed, lab.run)]
    assert all(files[0][name] == files[1][name] for name in (checkpoints.MODEL, checkpoints.OPTIMIZER))


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)], indirect=True)
def test_all_graphs_are_captured_on_one_stream(device: torch.device) -> None:
    """Torch has 32 streams. If each capture took the next one, it would soon be the stream that copies batches."""

    def stream() -> int:
        torch.zeros(1, device=device)
        return torch.cuda.current_stream(device).cuda_stream

    assert len({captured(device, stream)[1] for _ in range(3)}) == 1


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e30])  # with 1e30, only the norm is infinite
def test_a_step_without_a_finite_gradient_changes_nothing(device: torch.device, lab: Lab, factor: float) -> None:
    lab.run.mkdir()
    settings = lab.recipe("training.precision=auto")  # the default of the device
    run = start_trainer(settings, open_corpus(lab.corpus), make_accelerator(settings, lab.run), lab.run, 0)
    run.graphs = None  # replays do not call the hook
    factors, states = iter([1.0, factor, 1.0]), []
    run.transformer.embedding.weight.register_hook(lambda gradient: gradient * next(factors))
    for step in (1, 2, 3):
        _, norm = run.take_step(step, run.step_batch(step - 1))
        assert bool(norm.isfinite()) == (step != 2)
        moments = checkpoints.optimizer_tensors(run.transformer, run.optimizer)
        states.append(ToHost({**run.transformer.state_dict(), **moments}).get())
    assert all(torch.equal(states[0][name], tensor) for name, tensor in states[1].items())
    assert not any(torch.equal(states[1][name], states[2][name]) for name in moments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_steps_equal_launched_steps(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, test_graphs.py makes this comparison with a stand-in for the graph."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    AcceleratorState._reset_state(reset_partial_state=True)
    lab.run.mkdir()
    settings = lab.recipe("training.precision=bf16", "training.warmup_steps=500")
    accelerator = make_accelerator(settings, lab.run)
    runs = [start_trainer(settings, open_corpus(lab.corpus), accelerator, lab.run, 0) for _ in range(2)]
    runs[0].graphs = None
    for step in range(1, 21):
        results = [torch.stack(run.take_step(step, run.step_batch(step - 1))).tolist() for run in runs]
        assert results[0] == pytest.approx(results[1], rel=0.05)
    assert runs[1].graphs is not None
    assert runs[1].graphs.graphs
    torch.manual_seed(settings.training.seed)
    start = Transformer(settings.model, runs[0].transformer.vocabulary_size)
    for name, weight in start.state_dict().items():
        launched, replayed = (run.transformer.state_dict()[name].cpu() for run in runs)
        assert (launched - replayed).norm() < 0.3 * (launched - weight).norm(), name
    AcceleratorState._reset_state(reset_partial_state=True)


class HostReads(TorchDispatchMode):
    """Forbids operations that wait for the device, as torch.cuda.set_sync_debug_mode does on CUDA."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function.overloadpacket.__name__ not in READS, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("part", ["gradient", "step"])
def test_the_host_never_waits_for_the_device(device: torch.device, lab: Lab, part: str) -> None:
    lab.run.mkdir()
    settings = lab.recipe("training.precision=auto")  # the default of the device
    run = start_trainer(settings, open_corpus(lab.corpus), make_accelerator(settings, lab.run), lab.run, 0)
    run.take_step(1, run.step_batch(0))
    batch = run.step_batch(1)
    batch.wait(run.device_module.current_stream())
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    with HostReads() if device.type == "cpu" else contextlib.nullcontext():  # on CUDA it would disable compiled code
        if part == "step":
            _, norm = run.take_step(2, run.step_batch(1))
            ToHost({"norm": norm})
        else:
            for inputs in batch.passes:
                loss, _ = run.model(inputs)
                run.accelerator.backward(loss)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)], indirect=True)
def test_a_dry_run_measures_the_device(
    device: torch.device, lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """training/test_estimate.py measures the CPU."""
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.2)
    assert estimate.dry_run(lab.recipe(), lab.corpus) == 0
    assert f"1 x {device.type}" in capsys.readouterr().err
