"""Training under faults: signals, non-finite numbers, full disks, changed inputs, damaged checkpoints, kills."""

import dataclasses
import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from lab import Lab, held
from steps import before_each_call, before_each_step, plan_of

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import target_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import BusyError, DataError, DivergedError, OutputError, StorageError
from nmt_cli.training import checkpoints
from nmt_cli.training import train as module
from nmt_cli.training.loss import LossModel
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.trainer import Trainer
from nmt_cli.transformer.directory import parameter_count

# ---- Numbers that are not finite ----


def poison(monkeypatch: pytest.MonkeyPatch, steps: range, factor: float = math.nan) -> None:
    """Multiply the loss of these steps by `factor`."""
    now = [0]
    before_each_step(monkeypatch, lambda _, step: now.__setitem__(0, step))
    real = LossModel.forward

    def forward(self: LossModel, *inputs: Any) -> Any:
        loss, nll = real(self, *inputs)
        return (loss * factor if now[0] in steps else loss), nll

    monkeypatch.setattr(LossModel, "forward", forward)


@pytest.mark.parametrize("factor", [math.nan, 1e30])  # the norm is NaN, or infinite although all gradients are finite
def test_one_poisoned_step_is_skipped_and_counted(lab: Lab, factor: float) -> None:
    poison(lab.patch, range(7, 8), factor)
    assert lab.train("training.steps=10") == 0
    state = checkpoints.read_state(lab.run, 10)
    assert (state.skipped, state.skipped_in_a_row) == (1, 0)
    assert "step 7: the gradient is not finite" in lab.stderr()
    _, moments = checkpoints.load(lab.run, 10)
    assert moments["embedding.weight.step"] == 9
    assert [r["skipped"] for r in read_records(lab.run / "metrics.jsonl") if "skipped" in r] == [0, 1]


def test_a_poisoned_first_step_can_be_resumed(lab: Lab) -> None:
    poison(lab.patch, range(1, 2))
    assert lab.train("training.steps=1") == 0
    assert lab.train("training.steps=3") == 0
    assert checkpoints.read_state(lab.run, 3).skipped == 1


def test_too_many_poisoned_steps_end_the_run_and_name_the_sentences(lab: Lab) -> None:
    poison(lab.patch, range(12, 99))
    with pytest.raises(DivergedError, match="11 steps had no finite gradient; the last was step 22"):
        lab.train()
    assert checkpoints.newest(lab.run, open_corpus(lab.corpus).identity) == 20
    crash = json.loads((lab.run / "crash.json").read_text())
    assert crash["step"] == 22
    plan = plan_of(open_corpus(lab.corpus), 400, 4, 1)
    assert crash["sentences"] == [m.tolist() for m in plan.micro_batches_of(21)]
    assert all(torch.isfinite(t).all() for t in checkpoints.load(lab.run, 20)[0].values())


def test_an_error_before_the_first_checkpoint_mentions_no_checkpoint(lab: Lab) -> None:
    poison(lab.patch, range(1, 99))
    with pytest.raises(DivergedError, match=r"11 steps .*precision=fp32$"):
        lab.train("training.checkpoint_every=50", "training.validate_every=50")
    assert checkpoints.steps_in(lab.run) == []


def test_weights_that_are_not_finite_are_never_committed(lab: Lab) -> None:
    def ruin(run: Trainer, step: int) -> None:
        if step == 15:
            with torch.no_grad():
                run.transformer.embedding.weight[5, 5] = float("inf")

    before_each_step(lab.patch, ruin)
    with pytest.raises(DivergedError, match=r"weight embedding\.weight is not finite at step"):
        lab.train("training.validate_every=100", "training.checkpoint_every=5")  # noticed by the next save
    assert checkpoints.steps_in(lab.run) == [5, 10]
    assert not (lab.run / "model").exists()


# ---- Disks and memory ----


def test_training_continues_while_a_checkpoint_is_written(lab: Lab) -> None:
    """The checkpoint holds the weights as they were when the save started."""
    later = threading.Event()
    before_each_step(lab.patch, lambda _, step: later.set() if step == 14 else None)
    before_each_call(
        lab.patch, checkpoints, "save", lambda: later.wait(60) or pytest.fail("training waits for the checkpoint")
    )
    assert lab.train() == 0
    state = checkpoints.read_state(lab.run, 10)
    lines = (lab.run / "metrics.jsonl").read_bytes()[: state.metrics_bytes].splitlines()
    assert (state.step, json.loads(lines[-1])["step"]) == (10, 10)
    assert lab.same(10)
    assert lab.same()


def test_a_failed_save_warns_and_training_continues(lab: Lab) -> None:
    real = checkpoints.save

    def save(run: Path, state: checkpoints.State, *rest: Any) -> None:
        if state.step == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run))
        real(run, state, *rest)

    lab.patch.setattr(checkpoints, "save", save)
    assert lab.train() == 0
    assert "cannot write the checkpoint of step 10" in lab.stderr()
    assert checkpoints.steps_in(lab.run) == [20, 30]
    assert lab.same()


def test_a_limit_on_file_size_is_a_storage_error(lab: Lab) -> None:
    """The safetensors files exceed the limit; the other files do not."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(StorageError, match="File too large"):
            lab.train("training.steps=20")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "cannot write the checkpoint of step 10" in lab.stderr()
    assert list((lab.run / "checkpoints").iterdir()) == []


def test_too_little_disk_space_is_an_error_before_the_first_step(lab: Lab) -> None:
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 1)
    before_each_step(lab.patch, lambda *_: pytest.fail("it trained"))
    with pytest.raises(StorageError, match="needs 2 MB for checkpoints and has 1 MB free"):
        lab.train()
    lab.patch.undo()
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 2)
    assert lab.train("training.steps=1") == 0, "just enough"
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 1)
    lab.patch.setattr(checkpoints, "disk_megabytes", lambda training, numbers, present: 2 - present)
    assert lab.train("training.steps=2") == 0, "the run already has one of the checkpoints"


def test_a_read_only_run_directory_is_an_error_before_the_corpus_is_read(lab: Lab, tmp_path: Path) -> None:
    lab.patch.setattr(module, "open_corpus", lambda *_, **__: pytest.fail("it read the corpus"))
    (tmp_path / "file").touch()
    lab.run = tmp_path / "file" / "run"
    with pytest.raises(OutputError, match="cannot create"):
        lab.train()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()]
)
def test_too_little_memory_is_an_error_before_the_first_step(lab: Lab, error: Exception) -> None:
    def forward(self: LossModel, *inputs: Any) -> Any:
        raise error

    lab.patch.setattr(LossModel, "forward", forward)
    before_each_step(lab.patch, lambda *_: pytest.fail("it trained"))
    with pytest.raises(StorageError, match=r"out of memory.*training\.memory_tokens=N"):
        lab.train()
    assert checkpoints.steps_in(lab.run) == []


# ---- Changed inputs ----


@pytest.fixture
def started_run(lab: Lab) -> Lab:
    """A copy of the reference run, to resume from step 20."""
    shutil.copytree(lab.reference, lab.run)
    shutil.rmtree(checkpoints.directory_of(lab.run, 30))
    shutil.rmtree(lab.run / "model")
    return lab


@pytest.mark.parametrize(
    "change",
    [
        "model.dropout=0.2",
        "training.tokens_per_step=500",
        "training.init_from={}",
        "corpus.limit=100",
        "corpus.name=other",
    ],
)
def test_the_refusal_of_a_changed_recipe_names_the_key(started_run: Lab, change: str) -> None:
    stored = (started_run.run / "recipe.yaml").read_bytes()
    with pytest.raises(DataError, match=change.split("=")[0].replace(".", r"\.") + ": .* -> ") as refusal:
        started_run.train(change.format(started_run.reference / "model"))
    assert refusal.value.exit_code == 65
    assert (started_run.run / "recipe.yaml").read_bytes() == stored


def test_a_run_with_only_a_model_and_a_run_of_an_unknown_corpus_are_not_changed(started_run: Lab) -> None:
    shutil.rmtree(started_run.run / "checkpoints")
    shutil.copytree(started_run.reference / "model", started_run.run / "model")
    with pytest.raises(DataError, match=r"started with other settings: training\.seed: 1 -> 2\. Restore them"):
        started_run.train("training.seed=2")
    (started_run.run / "corpus.json").write_text("{}")
    with pytest.raises(DataError, match=r"started with other settings: .* has other data or another tokenizer"):
        started_run.train()


def test_settings_that_do_not_change_the_model_may_change(started_run: Lab) -> None:
    changes = [
        *"log_every=3 validate_every=7 validate_bleu=0 checkpoint_every=30 keep_checkpoints=4".split(),  # noqa: SIM905
        *"patience=9 max_hours=99 memory_tokens=2000".split(),  # noqa: SIM905
    ]
    elsewhere = ("decoding.beam=2", "averaging.last=2", "name=other", "corpus.train_src=[elsewhere/train.en]")
    assert started_run.train(*(f"training.{c}" for c in changes), *elsewhere) == 0
    assert started_run.same()
    assert b"log_every: 3" in (started_run.run / "recipe.yaml").read_bytes()


def test_a_run_without_its_recipe_is_not_started_again(started_run: Lab) -> None:
    (started_run.run / "recipe.yaml").unlink()
    with pytest.raises(DataError, match=r"recipe.yaml is missing, but its run has a model or checkpoints\. Restore it"):
        started_run.train()
    shutil.rmtree(started_run.run / "checkpoints")
    shutil.copytree(started_run.reference / "model", started_run.run / "model")
    with pytest.raises(DataError, match=r"recipe.yaml is missing, but its run has a model or checkpoints\. Restore it"):
        started_run.train()


def test_the_tokenizer_of_a_run_without_checkpoints_is_replaced(lab: Lab) -> None:
    lab.run.mkdir()
    for file in (lab.run / "tokenizer.model", target_file(lab.run / "tokenizer.model")):
        file.write_bytes(b"of another corpus")
    assert lab.train("training.steps=1") == 0
    names = {path.name for path in lab.run.iterdir() if path.name.startswith("tokenizer")}
    assert names == {
        path.name for path in lab.corpus.iterdir() if path.name.startswith("tokenizer") and path.suffix == ".model"
    }
    assert (lab.run / "tokenizer.model").read_bytes() == (lab.corpus / "tokenizer.model").read_bytes()


def test_a_corpus_with_a_source_vocabulary_needs_a_model_with_one(lab: Lab) -> None:
    corpus = open_corpus(lab.corpus)
    manifest = {**corpus.manifest, "source_vocabulary_size": 77}
    other = dataclasses.replace(corpus, manifest={**manifest, "vocabulary_size": 320})
    for change in ((), ("model.source_vocabulary=78",)):
        with pytest.raises(DataError, match=r"has a source vocabulary of 77 tokens: set model\.source_vocabulary=77"):
            checkpoints.open_run(lab.recipe(*change), other, lab.run)
    given, settings = list[int](), lab.recipe("model.source_vocabulary=77")
    lab.patch.setattr(checkpoints, "disk_megabytes", lambda training, numbers, present: given.append(numbers) or 0)
    assert checkpoints.open_run(settings, other, lab.run) == 0
    assert given == [parameter_count(settings.model, 320)], "the parameters of both vocabularies count"


def test_other_data_another_tokenizer_and_damaged_data_are_refused(started_run: Lab, tmp_path: Path) -> None:
    data = prepare(started_run.recipe("corpus.limit=300").corpus, tmp_path / "data", PrepareOptions(workers=1))
    with pytest.raises(DataError, match="other data or another tokenizer"):
        started_run.train(data=data)
    content = bytearray((data / "train.tgt.ids").read_bytes())
    content[100] ^= 1
    (data / "train.tgt.ids").write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        started_run.train(data=data)


# ---- Damaged checkpoints, two runs at once, kills at random moments ----


def test_a_damaged_newest_checkpoint_costs_one_interval(started_run: Lab) -> None:
    path = checkpoints.directory_of(started_run.run, 20) / checkpoints.OPTIMIZER
    path.write_bytes(path.read_bytes()[:-9])
    assert started_run.train() == 0
    assert "step-0000020 is not usable" in (text := started_run.stderr())
    assert "resuming after step 10" in text
    assert started_run.same(20)
    assert started_run.same(30)
    steps = [record["step"] for record in read_records(started_run.run / "metrics.jsonl")]
    assert steps == [5, 10, 15, 15, 20, 25, 30, 30]


def test_a_second_run_in_the_same_directory_is_refused(lab: Lab) -> None:
    with held(lab.run) as holder, pytest.raises(BusyError, match=f"in use by host .*, process {holder}, since"):
        lab.train()
    assert not (lab.run / "recipe.yaml").exists()


def test_a_run_killed_four_times_ends_with_the_same_bits(lab: Lab) -> None:
    draw = [random.SystemRandom().uniform(0.3, 1) for _ in range(4)]
    shares = [0.8 * part / sum(draw) for part in draw]  # of the time that an undisturbed run takes, including its start
    print(f"killed after {shares}")  # shown if the test fails
    results = lab.jobs({"name": "undisturbed"}, *({"kill_after": share} for share in shares), {})
    codes = [result["codes"] for result in results]
    assert codes[0] == codes[-1] == [0], results[0]["stderr"]
    assert codes.count([-signal.SIGKILL]) >= 3, "one of the four may end before its kill"
    lab.reference = lab.run.with_name("undisturbed")
    steps, records, models = [], [], []
    for run in (lab.run, lab.reference):
        steps.append(checkpoints.steps_in(run))
        lines = read_records(run / "metrics.jsonl")
        records.append([(line["step"], line.get("nll"), line.get("dev_nll")) for line in lines])
        models.append(artefact.verify(run / "model", "model")["files"])
    assert steps[0] == steps[1]
    assert all(lab.same(step) for step in steps[0])
    assert records[0] == records[1]
    assert models[0] == models[1]
    assert list(lab.run.rglob(".tmp-*")) == []
