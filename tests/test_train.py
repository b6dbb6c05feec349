"""Training: the same numbers whatever the interruptions, the memory, the launcher and the hash seed."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from accelerate import tracking
from conftest import Lab

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.errors import DataError, UsageError
from nmt_cli.recipe import Recipe
from nmt_cli.training import checkpoints, metrics
from nmt_cli.training import train as module
from nmt_cli.training.average import average
from nmt_cli.training.distributed import make_accelerator
from nmt_cli.training.loss import LossModel, smoothed_loss
from nmt_cli.training.train import Run, TrainOptions, train
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, load_tensors


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send this process SIGTERM in this step."""
    take_step = Run.take_step

    def stopped(self: Run, now: int, *rest: Any) -> Any:
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take_step(self, now, *rest)

    monkeypatch.setattr(Run, "take_step", stopped)


def losses(run: Path) -> list[float]:
    """Return the training losses in a run's metrics."""
    return [record["nll"] for record in metrics.read(run / "metrics.jsonl") if "nll" in record]


# ---- What a run leaves behind ----


def test_metrics_say_what_was_done(lab: Lab) -> None:
    records = metrics.read(lab.reference / "metrics.jsonl")
    lines = [r for r in records if "nll" in r]
    assert [r["step"] for r in lines] == [5, 10, 15, 20, 25, 30]
    assert lines[-1]["nll"] < lines[0]["nll"] - 2
    corpus = open_corpus(lab.corpus)
    for side, ids in (("src", corpus.src.ids), ("tgt", corpus.tgt.ids)):  # 15 steps are an epoch
        assert sum(r[f"{side}_tokens_per_step"] for r in lines[:3]) * 5 == pytest.approx(len(ids))
    for record in lines:
        assert record["gradient_norm"] > 0
        assert record["peak_memory_mb"] > 10
        assert record["tgt_tokens_per_second"] > 0
        assert record["skipped"] == 0
    assert [lines[0]["rate"], lines[-1]["rate"]] == pytest.approx([32**-0.5 * step * 60**-1.5 for step in (5, 30)])
    assert [r["step"] for r in records if "dev_nll" in r] == [15, 30]


def test_the_run_holds_the_last_weights_and_the_best_step(lab: Lab) -> None:
    model = load_model(lab.reference / "model")
    newest = load_tensors(checkpoints.directory_of(lab.reference, 30) / checkpoints.MODEL)
    assert all(torch.equal(tensor, newest[name]) for name, tensor in model.model.state_dict().items())
    assert checkpoints.steps_in(lab.reference) == [10, 20, 30]
    best = json.loads((lab.reference / "best.json").read_text())
    validated = [r for r in metrics.read(lab.reference / "metrics.jsonl") if "dev_nll" in r]
    assert best == {"step": 30, "dev_nll": validated[-1]["dev_nll"], "dev_bleu": validated[-1]["dev_bleu"]}


def test_a_finished_run_does_no_work_and_keeps_its_average(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    run = lab.run
    shutil.copytree(lab.reference, run)
    average(run, 3, None)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert lab.train() == 0
    assert "run: finished with step 30 of 30; " in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    shutil.rmtree(run / "model")  # as if it had been killed before the model was committed
    assert lab.train() == 0
    model = load_model(run / "model").manifest
    assert (model["steps"], model["corpus"]) == ([30], open_corpus(lab.corpus).identity)
    path = run / "model" / "manifest.json"
    path.write_text(path.read_text().replace(model["corpus"], "another"))
    assert lab.train() == 0
    assert load_model(run / "model").manifest["corpus"] == model["corpus"], "a model of another corpus is replaced"


# ---- Interruptions ----


@pytest.mark.parametrize("stops", [(1, 15), (7, 9), (14, 16), (29,)])
def test_a_run_stopped_anywhere_ends_with_the_same_bits(lab: Lab, stops: tuple[int, ...]) -> None:
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, stop)
            assert lab.train() == 143
        assert checkpoints.steps_in(lab.run)[-1] == stop
    assert lab.train() == 0
    assert lab.same()
    lines = [metrics.read(run / "metrics.jsonl") for run in (lab.run, lab.reference)]
    assert [record["step"] for record in lines[0]] == [record["step"] for record in lines[1]]
    assert average(lab.run, 3, None)[1] == [10, 20, 30], "an interruption must not change the average"


def test_a_run_made_longer_is_the_longer_run(lab: Lab) -> None:
    for steps in (12, 30):
        assert lab.train(f"training.steps={steps}") == 0
        assert load_model(lab.run / "model").manifest["steps"] == [steps]
    assert lab.same()


def test_the_hash_seed_changes_nothing(lab: Lab) -> None:
    """The reference run has had this process' own hash seed."""
    (result,) = lab.jobs({"set": ["training.steps=20"]}, PYTHONHASHSEED="1")
    assert result["codes"] == [0], result["stderr"]
    assert lab.same(20)


# ---- Ends ----


def test_max_hours(lab: Lab) -> None:
    assert lab.train("training.steps=6") == 0
    assert lab.train("training.max_hours=0") == 0
    assert checkpoints.steps_in(lab.run) == [6]
    assert load_model(lab.run / "model").manifest["steps"] == [6]


def test_patience_stops_and_the_best_checkpoint_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.5, 2.5])
    scores = {"dev_perplexity": 9.0, "dev_bleu": None}
    monkeypatch.setattr(module, "validate", lambda *_: {**scores, "dev_nll": next(losses)})
    changes = ("training.validate_every=3", "training.patience=3", "training.checkpoint_every=5", "averaging.last=2")
    assert lab.train(*changes, "training.keep_checkpoints=2") == 0
    assert json.loads((lab.run / "best.json").read_text()) == {"step": 6, "dev_nll": 2.0, "dev_bleu": None}
    assert checkpoints.steps_in(lab.run) == [6, 10, 15], "the best, and the last two regular ones"
    assert average(lab.run, 2, None)[1] == [10, 15]


def test_patience_without_a_development_set_is_refused(lab: Lab, tmp_path: Path) -> None:
    settings = lab.recipe("corpus.dev_src=null", "corpus.dev_tgt=null", "training.patience=2", "training.steps=2")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    with pytest.raises(DataError, match="needs a development set"):
        train(settings, TrainOptions(data, tmp_path / "refused"))
    settings.training.patience = None
    assert train(settings, TrainOptions(data, lab.run)) == 0


def test_a_development_set_that_does_not_fit_the_model_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corpus, "lines", lambda *_: (["one " * 99], ["eins"]))
    with pytest.raises(DataError, match="longer than 64 tokens"):
        lab.train()


# ---- Arithmetic ----


def test_weights_and_moments_are_float32_under_bf16(lab: Lab) -> None:
    try:
        lab.train("training.precision=bf16", "training.steps=5")
    except UsageError:
        pytest.skip("this hardware has no bf16")
    model, moments = checkpoints.load(lab.run, 5)
    assert {tensor.dtype for tensor in [*model.values(), *moments.values()]} == {torch.float32}
    fine = model["embedding.weight"]
    assert not torch.equal(fine, fine.bfloat16().float()), "weights must be finer than bf16"
    assert losses(lab.run) == pytest.approx([6.23], rel=0.01)


def one_of(world: int, rank: int) -> Any:
    """Return as much of Accelerate as a step needs, for process `rank` of `world`, without other processes."""
    return SimpleNamespace(
        num_processes=world,
        process_index=rank,
        device=torch.device("cpu"),
        is_main_process=False,
        prepare=lambda *things: things,
        no_sync=lambda model: contextlib.nullcontext(),
        backward=torch.Tensor.backward,
        clip_grad_norm_=lambda parameters, limit: torch.nn.utils.clip_grad_norm_(list(parameters), limit),
    )


def gradients(settings: Recipe, data: Path, world: int, memory_tokens: int, index: int) -> dict[str, torch.Tensor]:
    """Return the float64 gradient of a step, averaged over processes as DDP does."""
    settings = settings.model_copy(deep=True)
    settings.training.memory_tokens, total = memory_tokens, dict[str, torch.Tensor]()
    for rank in range(world):
        run = Run(settings, open_corpus(data), one_of(world, rank), Path(), 0)
        run.dtype = run.model.dtype = run.transformer.double().embedding.weight.dtype
        run.optimizer = SimpleNamespace(param_groups=[{}], step=lambda: None, zero_grad=lambda set_to_none: None)
        run.take_step(index + 1, run.step_batch(index))
        for name, parameter in run.transformer.named_parameters():
            total[name] = total.get(name, 0) + parameter.grad / world
    return total


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max()) for name in a)


@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_the_gradient_is_that_of_one_big_batch(lab: Lab, micro_batches: int) -> None:
    """Bar B15: 1e-10 relative in float64, whatever the number of parts and processes, dropout included."""
    settings = lab.recipe(f"training.micro_batches={micro_batches}")
    for step in (0, 7):
        whole = gradients(settings, lab.corpus, 1, 1_000_000, step)
        for world in (1, 2, 3):
            if world <= micro_batches:
                for memory_tokens in (1, 120, 1_000_000):
                    split = gradients(settings, lab.corpus, world, memory_tokens, step)
                    assert difference(whole, split) < 1e-10


def test_the_gradient_is_that_of_the_sentences_one_by_one(lab: Lab) -> None:
    settings, corpus = lab.recipe("model.dropout=0"), open_corpus(lab.corpus)
    run = Run(settings, corpus, one_of(1, 0), Path(), 0)
    model, sentences = run.transformer.double(), np.concatenate(run.plan.micro_batches_of(0))
    for i in sentences:
        batch = run.plan.batch(np.array([i]), 0)
        loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.1)
        (loss / run.plan.tokens(sentences)[1]).backward()
    one_by_one = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert difference(one_by_one, gradients(settings, lab.corpus, 2, 100, 0)) < 1e-10


def test_a_process_without_a_micro_batch_takes_part_and_adds_nothing(lab: Lab) -> None:
    settings = lab.recipe("training.tokens_per_step=1", "training.micro_batches=9")  # a step is one pair
    whole, shared = (gradients(settings, lab.corpus, world, 1000, 0) for world in (1, 3))
    assert difference(whole, shared) < 1e-10


def test_memory_is_checked_with_the_longest_sentences_and_nothing_stays(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = lab.recipe("training.memory_tokens=200"), open_corpus(lab.corpus)
    seen, forward = [], LossModel.forward
    monkeypatch.setattr(LossModel, "forward", lambda self, b: seen.append(b) or forward(self, b))
    run = Run(settings, corpus, one_of(1, 0), tmp_path, 0)
    torch.manual_seed(settings.training.seed)
    untouched = Transformer(settings.model, run.transformer.vocabulary_size).state_dict()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in run.transformer.state_dict().items())
    assert all(parameter.grad is None for parameter in run.transformer.parameters())
    (batch,) = seen
    assert 170 < max(len(batch.src_N), len(batch.tgt_out_N)) <= 200
    assert max(batch.src.max_length, batch.tgt.max_length) == run.plan.longer_lengths.max()


# ---- Launchers and trackers ----


def test_accumulation_set_by_the_launcher_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    lab.train("training.steps=10")
    assert lab.same(10)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_other_wrappers_are_refused(lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        accelerate.Accelerator, "distributed_type", property(lambda self: accelerate.DistributedType(kind))
    )
    with pytest.raises(UsageError, match=f"{kind} is not supported"):
        lab.train()


@pytest.mark.parametrize("name", ["tensorbord", "wandb", "all"])
def test_a_tracker_that_is_not_there_is_refused(lab: Lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    with pytest.raises(UsageError, match=f"no tracker '{name}' here.*pip install"):
        lab.train(tracker=name)
    assert not lab.run.exists()


def test_a_tracker_gets_recipe_losses_and_validations(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {"log": []}

    class Fake(tracking.GeneralTracker):
        name, requires_logging_directory, tracker = "tensorboard", True, None

        def __init__(self, run_name: str, logging_dir: Any) -> None:
            got["name"], got["directory"] = run_name, logging_dir

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            got["recipe"] = values

        def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
            got["log"].append((step, values))

    board = accelerate.utils.LoggerType.TENSORBOARD
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [board])
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "tensorboard", Fake)
    changes = ("training.steps=10", "training.validate_every=10")
    assert lab.train(*changes, tracker="tensorboard") == 0
    assert got["name"] == "tiny"
    assert str(got["directory"]) == str(lab.run)
    assert got["recipe"]["training.steps"] == 10
    assert all(isinstance(value, int | float | str) for value in got["recipe"].values())
    assert [step for step, _ in got["log"]] == [5, 10, 10]
    assert {"nll", "rate", "tgt_tokens_per_second"} <= set(got["log"][0][1])
    assert {"dev_nll", "dev_bleu"} <= set(got["log"][2][1])


# ---- Fine-tuning ----


def test_fine_tuning_starts_from_the_model(lab: Lab) -> None:
    changes = (f"training.init_from={lab.reference / 'model'}", "training.steps=5")
    assert lab.train(*changes) == 0
    assert losses(lab.run)[0] < losses(lab.reference)[-1] + 0.1
    assert lab.train(*changes) == 0, "the model is not needed again"


def test_fine_tuning_refuses_another_tokenizer_of_the_same_size(lab: Lab, tmp_path: Path) -> None:
    settings = lab.recipe("corpus.limit=300", f"training.init_from={lab.reference / 'model'}")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert open_corpus(data).manifest["vocabulary_size"] == load_model(lab.reference).model.vocabulary_size
    with pytest.raises(DataError, match="another tokenizer"):
        train(settings, TrainOptions(data, lab.run))


def test_what_does_not_fit_is_refused(lab: Lab) -> None:
    with pytest.raises(DataError, match="does not fit"):
        lab.train("model.d_ff=32", f"training.init_from={lab.reference / 'model'}")
    shutil.rmtree(lab.run)
    with pytest.raises(DataError, match=r"Raise model\.max_length"):
        lab.train("model.max_length=8")


def test_one_process_where_several_were_asked_for_is_warned_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # as `accelerate launch --cpu --num_processes 2` sets it
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    make_accelerator(lab.recipe(), tmp_path)
    assert "starts only one process" in capsys.readouterr().err
