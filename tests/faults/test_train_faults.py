"""Training under faults: signals, poison, full disks, changed inputs, damaged checkpoints, kills. Rows of the bar."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Lab, held
from steps import before_each_step

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import target_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import BusyError, DataError, DivergedError, OutputError, StorageError
from nmt_cli.training import checkpoints, distributed, metrics
from nmt_cli.training import train as module
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.loss import LossModel
from nmt_cli.training.train import Run
from nmt_cli.translation.translator import Translator


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> None:
    """Call `act` before each call of a function."""
    real = getattr(owner, name)

    def acting(*arguments: Any, **named: Any) -> Any:
        act()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, acting)


# ---- Signals ----


@pytest.mark.parametrize(
    ("number", "owner", "name", "code"),
    [
        (signal.SIGTERM, Run, "take_step", 143),
        (signal.SIGINT, artefact, "staged", 130),
        (signal.SIGUSR1, module, "validate", 143),
        (signal.SIGINT, metrics.Metrics, "write", 130),
        (signal.SIGTERM, Run, "step_batch", 143),
    ],
)
def test_a_signal_ends_the_step_and_commits(lab: Lab, number: int, owner: Any, name: str, code: int) -> None:
    handlers = [signal.getsignal(n) for n in distributed.SIGNALS]
    with pytest.MonkeyPatch.context() as patch:
        sent = []

        def send() -> None:
            if not sent and (name != "step_batch" or checkpoints.steps_in(lab.run)):
                sent.append(os.kill(os.getpid(), number))

        before(patch, owner, name, send)
        assert lab.train() == code
    assert [signal.getsignal(n) for n in distributed.SIGNALS] == handlers
    stopped = checkpoints.steps_in(lab.run)[-1]
    assert 0 < stopped < 30
    assert not (lab.run / "model").exists()
    assert lab.train() == 0
    assert lab.same()


@pytest.mark.parametrize("step", [15, 30], ids=["on the way", "at the end"])
def test_a_validation_that_a_signal_ends_is_made_again_on_resume(lab: Lab, step: int) -> None:
    """At once, whatever the search is doing; the state of its step is saved first, and no figure is lost or doubled."""
    reached = []

    def search(*_: Any) -> Any:
        reached.append(len(reached))
        if len(reached) == step // 15:
            os.kill(os.getpid(), signal.SIGINT)
            later.wait(60)
            pytest.fail("the search goes on")
        yield from real(*_)

    later, real = threading.Event(), Translator.translate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", search)
        assert lab.train() == 130
    assert f"stopped after step {step}: a signal asked for it" in lab.stderr()
    assert checkpoints.steps_in(lab.run)[-1] == step
    assert checkpoints.read_state(lab.run, step).unvalidated
    assert not (lab.run / "model").exists()
    assert lab.train() == 0
    assert lab.same()
    runs = [metrics.read(run / "metrics.jsonl") for run in (lab.run, lab.reference)]
    figures = [[(record["step"], record.get("nll"), record.get("dev_nll")) for record in run] for run in runs]
    assert figures[0] == figures[1]
    states = [checkpoints.read_state(run, 30) for run in (lab.run, lab.reference)]
    assert len({(state.best_step, state.best_nll, state.not_better, state.unvalidated) for state in states}) == 1


def test_a_signal_to_the_command_ends_a_validation_of_all_its_forks(lab: Lab) -> None:
    forks = ["training.processes=2", "training.validate_every=3", "training.steps=6"]
    stopped, resumed = lab.jobs({"set": forks, "stuck": "SIGTERM"}, {"set": forks})
    assert (stopped["codes"], resumed["codes"]) == ([143], [0]), stopped["stderr"]
    validations = [record["step"] for record in metrics.read(lab.run / "metrics.jsonl") if "dev_nll" in record]
    assert (stopped["stderr"].count("stopped after step 3"), validations) == (1, [3, 6])


def test_a_signal_before_the_first_step_leaves_no_checkpoint(lab: Lab) -> None:
    before(lab.patch, module, "open_corpus", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert lab.train() == 143
    assert checkpoints.steps_in(lab.run) == []
    assert not (lab.run / "model").exists()


@pytest.mark.parametrize(("seconds", "number", "code"), [(0.1, 15, 7), (1.5, 15, 143), (1.5, 2, 130), (1.5, 10, 143)])
def test_a_second_signal_exits_at_once_unless_it_is_an_echo(seconds: float, number: int, code: int) -> None:
    """Launchers forward what a terminal or a scheduler has sent to every process already."""
    child = os.fork()
    if not child:
        now = [100.0]
        distributed.time.monotonic = lambda: now[0]  # type: ignore[attr-defined]
        with distributed.Stop() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            now[0] += seconds
            os.kill(os.getpid(), number)
            os._exit(7 if stop.exit_code == 143 else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code


# ---- Numbers that are not finite ----


def poison(monkeypatch: pytest.MonkeyPatch, steps: range, factor: float = math.nan) -> None:
    """Multiply the loss of these steps."""
    now = [0]
    before_each_step(monkeypatch, lambda _, step: now.__setitem__(0, step))
    real = LossModel.forward

    def forward(self: LossModel, *inputs: Any) -> Any:
        loss, nll = real(self, *inputs)
        return (loss * factor if now[0] in steps else loss), nll

    monkeypatch.setattr(LossModel, "forward", forward)


@pytest.mark.parametrize("factor", [math.nan, 1e30])  # the norm is NaN, or infinite while all gradients are finite
def test_one_poisoned_step_is_skipped_and_counted(lab: Lab, factor: float) -> None:
    poison(lab.patch, range(7, 8), factor)
    assert lab.train("training.steps=10") == 0
    state = checkpoints.read_state(lab.run, 10)
    assert (state.skipped, state.skipped_in_a_row) == (1, 0)
    assert "step 7: the gradient is not finite" in lab.stderr()
    _, moments = checkpoints.load(lab.run, 10)
    assert moments["embedding.weight.step"] == 9
    assert [r["skipped"] for r in metrics.read(lab.run / "metrics.jsonl") if "skipped" in r] == [0, 1]


def test_a_poisoned_first_step_can_be_resumed(lab: Lab) -> None:
    poison(lab.patch, range(1, 2))
    assert lab.train("training.steps=1") == 0
    assert lab.train("training.steps=3") == 0
    assert checkpoints.read_state(lab.run, 3).skipped == 1


def test_too_many_poisoned_steps_end_the_run_and_name_the_sentences(lab: Lab) -> None:
    poison(lab.patch, range(12, 99))
    with pytest.raises(DivergedError, match="11 steps had no finite gradient, the last was step 22"):
        lab.train()
    assert checkpoints.newest(lab.run, open_corpus(lab.corpus).identity) == 20
    crash = json.loads((lab.run / "crash.json").read_text())
    assert crash["step"] == 22
    plan = BatchPlan(open_corpus(lab.corpus), 400, 4, 1)
    assert crash["sentences"] == [m.tolist() for m in plan.micro_batches_of(21)]
    assert all(torch.isfinite(t).all() for t in checkpoints.load(lab.run, 20)[0].values())


def test_poisoned_steps_before_the_first_checkpoint_promise_none(lab: Lab) -> None:
    poison(lab.patch, range(1, 99))
    with pytest.raises(DivergedError, match=r"11 steps .*precision=fp32$"):
        lab.train("training.checkpoint_every=50", "training.validate_every=50")
    assert checkpoints.steps_in(lab.run) == []


def test_weights_that_are_not_finite_are_never_committed(lab: Lab) -> None:
    def ruin(run: Run, step: int) -> None:
        if step == 15:
            with torch.no_grad():
                run.transformer.embedding.weight[5, 5] = float("inf")

    before_each_step(lab.patch, ruin)
    with pytest.raises(DivergedError, match=r"weight embedding\.weight is not finite at step"):
        lab.train("training.validate_every=100", "training.checkpoint_every=5")  # the next save tells
    assert checkpoints.steps_in(lab.run) == [5, 10]
    assert not (lab.run / "model").exists()


# ---- Disks and memory ----


def test_training_goes_on_while_a_checkpoint_is_written(lab: Lab) -> None:
    """And what is written is what was there when it began."""
    later = threading.Event()
    before_each_step(lab.patch, lambda _, step: later.set() if step == 14 else None)
    before(lab.patch, checkpoints, "save", lambda: later.wait(60) or pytest.fail("training waits for the checkpoint"))
    assert lab.train() == 0
    state = checkpoints.read_state(lab.run, 10)
    lines = (lab.run / "metrics.jsonl").read_bytes()[: state.metrics_bytes].splitlines()
    assert (state.step, json.loads(lines[-1])["step"]) == (10, 10)
    assert lab.same(10)
    assert lab.same()


def failing_saves(monkeypatch: pytest.MonkeyPatch, steps: list[int], error: int) -> None:
    """Make the commits of the checkpoints of these steps fail."""
    real = checkpoints.save

    def save(run: Path, state: checkpoints.State, *rest: Any) -> None:
        if state.step in steps:
            raise OSError(error, os.strerror(error), str(run))
        real(run, state, *rest)

    monkeypatch.setattr(checkpoints, "save", save)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_save_that_fails_is_a_loud_warning_and_training_goes_on(lab: Lab, error: int) -> None:
    failing_saves(lab.patch, [10, 15], error)
    assert lab.train() == 0
    assert "NO CHECKPOINT of step 10" in lab.stderr()
    assert checkpoints.steps_in(lab.run) == [20, 30]
    assert lab.same()


def test_the_third_failure_or_the_last_save_ends_the_run(lab: Lab) -> None:
    failing_saves(lab.patch, [15, 20, 25, 30], errno.ENOSPC)
    with pytest.raises(StorageError):
        lab.train("training.checkpoint_every=5")
    assert checkpoints.steps_in(lab.run) == [5, 10]
    with pytest.raises(StorageError):
        lab.train("training.steps=15")
    assert checkpoints.steps_in(lab.run) == [5, 10]


def test_files_that_may_not_grow(lab: Lab) -> None:
    """A real limit on file sizes: what the safetensors library writes hits it, the rest does not."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(StorageError, match="File too large"):
            lab.train("training.steps=20")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "NO CHECKPOINT of step 10" in lab.stderr()
    assert list((lab.run / "checkpoints").iterdir()) == []


def test_too_little_disk_is_said_before_the_first_step(lab: Lab) -> None:
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 1)
    before_each_step(lab.patch, lambda *_: pytest.fail("it trained"))
    with pytest.raises(StorageError, match="needs 4 MB for checkpoints and has 1 MB free"):
        lab.train()
    lab.patch.undo()
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 4)
    assert lab.train("training.steps=1") == 0, "just enough"
    lab.patch.setattr(artefact, "free_megabytes", lambda path: 3)
    lab.patch.setattr(checkpoints, "disk_megabytes", lambda training, numbers, present: 4 - present)
    assert lab.train("training.steps=2") == 0, "one of them is there already"


def test_a_place_that_cannot_be_written_is_said_before_the_corpus_is_read(lab: Lab, tmp_path: Path) -> None:
    lab.patch.setattr(checkpoints, "open_corpus", lambda *_, **__: pytest.fail("it read the corpus"))
    (tmp_path / "file").touch()
    lab.run = tmp_path / "file" / "run"
    with pytest.raises(OutputError, match="cannot create"):
        lab.train()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()]
)
def test_too_little_memory_is_said_before_the_first_step(lab: Lab, error: Exception) -> None:
    def forward(self: LossModel, *inputs: Any) -> Any:
        raise error

    lab.patch.setattr(LossModel, "forward", forward)
    before_each_step(lab.patch, lambda *_: pytest.fail("it trained"))
    with pytest.raises(StorageError, match=r"out of memory.*training\.memory_tokens=N"):
        lab.train()
    assert checkpoints.steps_in(lab.run) == []


# ---- Changed inputs ----


@pytest.fixture
def begun(lab: Lab) -> Lab:
    """A copy of the reference run, to go on from step 20."""
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
def test_a_changed_recipe_is_refused_by_key(begun: Lab, change: str) -> None:
    stored = (begun.run / "recipe.yaml").read_bytes()
    with pytest.raises(DataError, match=change.split("=")[0].replace(".", r"\.") + ": .* -> ") as refusal:
        begun.train(change.format(begun.reference / "model"))
    assert refusal.value.exit_code == 65
    assert (begun.run / "recipe.yaml").read_bytes() == stored


def test_what_does_not_change_the_model_may_change(begun: Lab) -> None:
    changes = [
        *"log_every=3 validate_every=7 validate_bleu=0 checkpoint_every=30 keep_checkpoints=4".split(),  # noqa: SIM905
        *"patience=9 max_hours=99 memory_tokens=2000".split(),  # noqa: SIM905
    ]
    elsewhere = ("decoding.beam=2", "averaging.last=2", "name=other", "corpus.train_src=[elsewhere/train.en]")
    assert begun.train(*(f"training.{c}" for c in changes), *elsewhere) == 0
    assert begun.same()
    assert b"log_every: 3" in (begun.run / "recipe.yaml").read_bytes()


def test_a_run_without_its_recipe_is_not_begun_anew(begun: Lab) -> None:
    (begun.run / "recipe.yaml").unlink()
    with pytest.raises(DataError, match=r"recipe.yaml is missing beside a model or checkpoints\. Put it back"):
        begun.train()
    shutil.rmtree(begun.run / "checkpoints")
    shutil.copytree(begun.reference / "model", begun.run / "model")
    with pytest.raises(DataError, match=r"recipe.yaml is missing beside a model or checkpoints\. Put it back"):
        begun.train()


def test_a_tokenizer_left_by_a_run_that_learnt_nothing_is_replaced_whole(lab: Lab) -> None:
    lab.run.mkdir()
    for file in (lab.run / "tokenizer.model", target_file(lab.run / "tokenizer.model")):
        file.write_bytes(b"of another corpus")
    assert lab.train("training.steps=1") == 0
    names = {path.name for path in lab.run.iterdir() if path.name.startswith("tokenizer")}
    assert names == {
        path.name for path in lab.corpus.iterdir() if path.name.startswith("tokenizer") and path.suffix == ".model"
    }
    assert (lab.run / "tokenizer.model").read_bytes() == (lab.corpus / "tokenizer.model").read_bytes()


def test_a_corpus_with_source_tokens_of_its_own_needs_such_a_model(lab: Lab) -> None:
    corpus = open_corpus(lab.corpus)
    manifest = {**corpus.manifest, "source_vocabulary_size": 77}
    other = dataclasses.replace(corpus, manifest={**manifest, "vocabulary_size": 320})
    lab.patch.setattr(checkpoints, "open_corpus", lambda *_, **__: other)
    for change in ((), ("model.source_vocabulary=78",)):
        with pytest.raises(DataError, match=r"has 77 source tokens: set model\.source_vocabulary=77"):
            checkpoints.open_run(lab.recipe(*change), lab.corpus, lab.run)
    assert checkpoints.open_run(lab.recipe("model.source_vocabulary=77"), lab.corpus, lab.run) == 0


def test_other_data_another_tokenizer_and_damaged_data_are_refused(begun: Lab, tmp_path: Path) -> None:
    data = prepare(begun.recipe("corpus.limit=300").corpus, tmp_path / "data", PrepareOptions(workers=1))
    with pytest.raises(DataError, match="other data or another tokenizer"):
        begun.train(data=data)
    content = bytearray((data / "train.tgt.ids").read_bytes())
    content[100] ^= 1
    (data / "train.tgt.ids").write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        begun.train(data=data)


# ---- Damaged checkpoints, two runs at once, kills at random moments ----


def test_a_damaged_newest_checkpoint_costs_one_interval(begun: Lab) -> None:
    path = checkpoints.directory_of(begun.run, 20) / checkpoints.OPTIMIZER
    path.write_bytes(path.read_bytes()[:-9])
    assert begun.train() == 0
    assert "step-0000020 is not usable" in (text := begun.stderr())
    assert "resuming after step 10" in text
    assert begun.same(20)
    assert begun.same(30)
    steps = [record["step"] for record in metrics.read(begun.run / "metrics.jsonl")]
    assert steps == [5, 10, 15, 15, 20, 25, 30, 30]


def test_a_second_run_in_the_directory_is_refused(lab: Lab) -> None:
    with held(lab.run) as holder, pytest.raises(BusyError, match=f"in use by host .*, process {holder}, since"):
        lab.train()
    assert not (lab.run / "recipe.yaml").exists()


def test_a_run_killed_five_times_ends_with_the_same_bits(lab: Lab) -> None:
    draw = [random.SystemRandom().uniform(0.3, 1) for _ in range(5)]
    shares = [0.8 * part / sum(draw) for part in draw]  # of the time an undisturbed run takes, start included
    print(f"killed after {shares}")  # shown when the test fails
    changes = ["training.steps=60", "training.validate_every=40"]
    kills = [{"set": changes, "kill_after": share} for share in shares]
    results = lab.jobs({"set": changes, "name": "undisturbed"}, *kills, {"set": changes})
    codes = [result["codes"] for result in results]
    assert codes[0] == codes[-1] == [0], results[0]["stderr"]
    assert codes.count([-signal.SIGKILL]) >= 4, "one run in five may be faster than the first was"
    lab.reference = lab.run.with_name("undisturbed")
    steps, records, models = [], [], []
    for run in (lab.run, lab.reference):
        steps.append(checkpoints.steps_in(run))
        lines = metrics.read(run / "metrics.jsonl")
        records.append([(line["step"], line.get("nll"), line.get("dev_nll")) for line in lines])
        models.append(artefact.verify(run / "model", "model")["files"])
    assert steps[0] == steps[1]
    assert all(lab.same(step) for step in steps[0])
    assert records[0] == records[1]
    assert models[0] == models[1]
    assert list(lab.run.rglob(".tmp-*")) == []
