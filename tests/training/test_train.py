"""Training runs: their files and messages, and the same bits after any interruption."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lab import Lab
from steps import before_each_step, fake_accelerator

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import open_corpus
from nmt_cli.system.errors import DataError, StorageError
from nmt_cli.training import checkpoints, trainer
from nmt_cli.training import train as module
from nmt_cli.training.average import average
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.run import stored_recipe
from nmt_cli.training.stopping import StopReason
from nmt_cli.training.train import train
from nmt_cli.transformer.hardware import ToHost
from nmt_cli.transformer.weights import load_model, load_tensors

# ---- Files and messages of a run ----


def test_metrics_record_every_interval(lab: Lab) -> None:
    records = read_records(lab.reference / "metrics.jsonl")
    lines = [r for r in records if "nll" in r]
    assert [r["step"] for r in lines] == [5, 10, 15, 20, 25, 30]
    assert lines[-1]["nll"] < lines[0]["nll"] - 2
    tokens = len(open_corpus(lab.corpus).tgt.ids)  # an epoch has 15 steps
    assert sum(r["tgt_tokens_per_step"] for r in lines[:3]) * 5 == pytest.approx(tokens)
    for record in lines:
        assert record["gradient_norm"] > 0
        assert record["peak_memory_mb"] > 10
        assert record["tgt_tokens_per_second"] > 0
        assert record["skipped"] == 0
    assert [lines[0]["rate"], lines[-1]["rate"]] == pytest.approx([32**-0.5 * step * 60**-1.5 for step in (5, 30)])
    validations = [r for r in records if "dev_nll" in r]
    assert [r["step"] for r in validations] == [15, 30]
    assert 0 < validations[0]["seconds"] < validations[1]["seconds"]
    assert validations[0]["seconds"] >= lines[2]["seconds"] > lines[0]["seconds"] > 0


def test_a_record_averages_the_loss_since_the_previous_record(lab: Lab) -> None:
    assert lab.train("training.log_every=1", "training.steps=10", "training.validate_every=99") == 0
    lines = [[r for r in read_records(run / "metrics.jsonl") if "nll" in r] for run in (lab.run, lab.reference)]
    for number, line in enumerate(lines[1][:2]):
        steps = lines[0][5 * number : 5 * number + 5]
        assert [line[key] for key in ("step", "epoch", "rate")] == [steps[-1][key] for key in ("step", "epoch", "rate")]
        assert line["gradient_norm"] == pytest.approx(steps[-1]["gradient_norm"], rel=1e-6)
        tokens = [step["tgt_tokens_per_step"] for step in steps]
        assert line["tgt_tokens_per_step"] == sum(tokens) / 5
        total = sum(step["nll"] * count for step, count in zip(steps, tokens, strict=True))
        assert line["nll"] == pytest.approx(total / sum(tokens), rel=1e-6)


def test_the_corpus_sets_the_languages_unless_the_recipe_does(lab: Lab, tmp_path: Path) -> None:
    data = prepare(lab.recipe("corpus.src=nl", "corpus.tgt=uk").corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert train(lab.recipe("corpus.tgt=zh", "training.steps=1"), data, lab.run) == 0
    for stored in (stored_recipe(lab.run), load_model(lab.run / "model").recipe):
        assert (stored.corpus.src, stored.corpus.tgt) == ("nl", "zh")


def test_a_finished_run_has_the_last_weights_as_its_model(lab: Lab) -> None:
    model = load_model(lab.reference / "model")
    newest = load_tensors(checkpoints.directory_of(lab.reference, 30) / checkpoints.MODEL)
    assert all(torch.equal(tensor, newest[name]) for name, tensor in model.model.state_dict().items())
    assert checkpoints.steps_in(lab.reference) == [10, 20, 30]
    assert model.manifest["seen_tokens"] == max(open_corpus(lab.corpus).src.lengths())


def test_a_run_prints_its_start_and_size(lab: Lab) -> None:
    facts = "31,232 parameters; 500 pairs, 15 steps per epoch; 1 x cpu, float32\n"
    for steps, start in (
        (1, "starting at step 0 of 1"),
        (2, "resuming after step 1 of 2"),
        (2, "finished with step 2 of 2"),
    ):
        assert lab.train(f"training.steps={steps}") == 0
        output = lab.stderr()
        assert f"{lab.run}: {start}; {facts}" in output
        validation = re.search(rf"^step {steps}  dev nll .* dev BLEU \d+\.\d+  \(\d+ s\)$", output, re.MULTILINE)
        assert bool(validation) == ("finished" not in start)


@pytest.mark.parametrize(
    ("state", "changes", "asked", "reason"),
    [
        ({"step": 5}, [], False, None),
        ({"step": 5}, [], True, StopReason.SIGNAL),
        ({"step": 30}, [], True, StopReason.ALL_STEPS),
        ({"step": 31}, [], False, StopReason.ALL_STEPS),
        ({"step": 30, "unvalidated": True}, [], False, StopReason.SIGNAL),
        ({"step": 5, "seconds": 1799.9}, ["max_hours=0.5"], False, None),
        ({"step": 5, "seconds": 1800.0}, ["max_hours=0.5"], False, StopReason.MAX_HOURS),
        ({"step": 5, "seconds": 1800.0}, ["max_hours=0.5"], True, StopReason.SIGNAL),
        ({"step": 5, "not_better": 2, "best_step": 3}, ["patience=3"], False, None),
        ({"step": 5, "not_better": 99}, [], False, None),
        (
            {"step": 9999, "not_better": 3, "best_step": 1234},
            ["patience=3", "steps=10000"],
            False,
            StopReason.NO_IMPROVEMENT,
        ),
    ],
)
def test_reasons_to_stop(
    lab: Lab, state: dict[str, Any], changes: list[str], asked: bool, reason: StopReason | None
) -> None:
    settings = lab.recipe(*(f"training.{change}" for change in changes))
    run: Any = SimpleNamespace(settings=settings, state=checkpoints.State(**state), accelerator=fake_accelerator(1, 0))
    assert module.reason_to_stop(run, SimpleNamespace(requested=asked)) is reason


def test_figures_of_a_record_and_its_progress_line(lab: Lab) -> None:
    """The figures are made up: two steps of 30 and 50 tokens took 10 seconds, and 100 steps are left."""
    settings, written, logged = lab.recipe("training.steps=102", "training.patience=3"), list[Any](), list[Any]()
    accelerator = fake_accelerator(1, 0)
    accelerator.reduce, accelerator.log = (
        lambda x, reduction: {"sum": x}[reduction],
        lambda *given, step: logged.append((*given, step)),
    )
    state = checkpoints.State(step=2, seconds=7.0, skipped=1)
    run: Any = SimpleNamespace(
        settings=settings, state=state, accelerator=accelerator, plan=SimpleNamespace(steps_per_epoch=3)
    )
    run.metrics = SimpleNamespace(write=written.append)
    lab.patch.setattr(module, "peak_memory_mb", lambda: 123)
    lab.stderr()
    window = [
        (torch.tensor(nll), torch.tensor(norm), count) for nll, norm, count in ((60.0, 5.0, 30), (100.0, 4.0, 50))
    ]
    bar: Any = SimpleNamespace(plain=True, last=0.0)
    assert module.log_steps(run, window, 10.0, bar) == "nll 2.000  8 tok/s"
    assert lab.stderr() == "step 2/102  nll 2.000  8 tok/s  at most 8 min 20 s left\n"
    assert bar.last > 0
    rate = settings.model.d_model**-0.5 * 2 * 60**-1.5
    record = {
        "step": 2, "epoch": 0.6667, "rate": pytest.approx(rate), "nll": 2.0, "gradient_norm": 4.0,
        "tgt_tokens_per_step": 40.0, "tgt_tokens_per_second": 8.0, "peak_memory_mb": 123,
    }  # fmt: skip
    assert (written, logged) == ([{**record, "seconds": 7.0, "skipped": 1}], [(record, 2)])
    bar.plain, settings.training.patience = False, None
    assert module.log_steps(run, window, 10.0, bar) == "nll 2.000  8 tok/s"
    assert lab.stderr() == ""
    bar.plain = True
    module.log_steps(run, window[:1], 10.0, bar)
    assert lab.stderr() == "step 2/102  nll 2.000  3 tok/s  16 min 40 s left\n"
    run.metrics = None  # as on other processes
    assert module.log_steps(run, window, 10.0, bar) == ""
    assert len(written) == len(logged) == 3


def test_a_finished_run_does_no_work_and_keeps_its_average(lab: Lab) -> None:
    run = lab.run
    shutil.copytree(lab.reference, run)
    average(run, 3, None)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert lab.train() == 0
    assert "run: finished with step 30 of 30; " in lab.stderr()
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    shutil.rmtree(run / "model")  # as if killed before the model was committed
    assert lab.train() == 0
    model = load_model(run / "model").manifest
    assert (model["steps"], model["corpus"]) == ([30], open_corpus(lab.corpus).identity)
    path = run / "model" / "manifest.json"
    path.write_text(path.read_text().replace(model["corpus"], "another"))
    assert lab.train() == 0
    assert load_model(run / "model").manifest["corpus"] == model["corpus"], "a model of another corpus is replaced"


def test_a_run_stopped_by_patience_keeps_the_model_of_its_best_step(lab: Lab) -> None:
    losses = iter([1.0, 2.0])
    lab.patch.setattr(module, "validate", lambda *_: {"dev_nll": next(losses), "dev_perplexity": 1.0, "dev_bleu": None})
    changes = ["averaging.best=true", "training.patience=1", "training.validate_every=5"]
    assert lab.train(*changes) == 0
    assert average(lab.run, None, None)[1] == [5]
    assert lab.train(*changes) == 0
    assert (load_model(lab.run / "model").manifest["steps"], checkpoints.steps_in(lab.run)[-1]) == ([5], 10)


def test_a_model_of_the_best_step_is_replaced_unless_the_recipe_asks_for_it(lab: Lab) -> None:
    shutil.copytree(lab.reference, lab.run)
    state = checkpoints.read_state(lab.run, 30)
    lab.patch.setattr(checkpoints, "read_state", lambda *_: dataclasses.replace(state, best_step=15))
    for best, stored, steps in (("yes", [15], [15]), ("no", [15], [30]), ("no", [], [30])):
        path = lab.run / "model" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": stored}))
        assert lab.train(f"averaging.best={best}") == 0
        assert load_model(lab.run / "model").manifest["steps"] == steps


# ---- Interruptions ----


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StorageError("the disk is full")])
def test_a_run_that_cannot_save_at_a_signal_fails(lab: Lab, error: Exception) -> None:
    before_each_step(lab.patch, lambda _, now: now == 7 and os.kill(os.getpid(), signal.SIGTERM))
    lab.patch.setattr(checkpoints, "save", Mock(side_effect=error))
    with pytest.raises(StorageError, match=r"the disk is full|No space left on device"):
        lab.train()


@pytest.mark.parametrize("stops", [(1, 15, 29), (14, 16)])
def test_a_run_stopped_anywhere_ends_with_the_same_bits(lab: Lab, stops: tuple[int, ...]) -> None:
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            before_each_step(patch, lambda _, now, stop=stop: now == stop and os.kill(os.getpid(), signal.SIGTERM))
            assert lab.train() == 143
        assert checkpoints.steps_in(lab.run)[-1] == stop
    assert lab.train() == 0
    assert lab.same()
    lines = [read_records(run / "metrics.jsonl") for run in (lab.run, lab.reference)]
    assert [record["step"] for record in lines[0]] == [record["step"] for record in lines[1]]
    assert average(lab.run, 3, None)[1] == [10, 20, 30], "an interruption must not change the average"


def test_a_run_that_gets_a_signal_in_its_last_step_is_finished(lab: Lab) -> None:
    """This holds if nothing is left to validate."""
    before_each_step(lab.patch, lambda _, now: now == 3 and os.kill(os.getpid(), signal.SIGTERM))
    lab.patch.setattr(module, "_validate", lambda *_: 0.0)
    assert lab.train("training.steps=3") == 0
    assert load_model(lab.run / "model").manifest["steps"] == [3]


def test_a_run_extended_later_equals_a_longer_run(lab: Lab) -> None:
    for steps in (12, 20):
        assert lab.train(f"training.steps={steps}") == 0
        assert load_model(lab.run / "model").manifest["steps"] == [steps]
        assert stored_recipe(lab.run).training.steps == steps
    assert lab.same(20)


# ---- The end of a run ----


def test_max_hours_counts_all_parts_of_a_run(lab: Lab) -> None:
    assert lab.train("training.steps=6") == 0
    read_state = checkpoints.read_state
    with lab.patch.context() as patch:  # as if the first part had taken a thousand seconds
        patch.setattr(checkpoints, "read_state", lambda *at: dataclasses.replace(read_state(*at), seconds=1000.0))
        assert lab.train("training.steps=8", "training.max_hours=0.5") == 0
    assert 1000 < read_state(lab.run, 8).seconds < 1100
    lab.stderr()
    assert lab.train("training.max_hours=0.2777") == 0
    assert "stopped after step 8: the limit of 0.2777 hours is reached\n" in lab.stderr()
    assert checkpoints.steps_in(lab.run) == [6, 8]
    assert load_model(lab.run / "model").manifest["steps"] == [8]


def test_zero_hours_are_a_limit(lab: Lab) -> None:
    assert lab.train("training.max_hours=0") == 0
    assert checkpoints.steps_in(lab.run) == []
    assert load_model(lab.run / "model").manifest["steps"] == [0]


def test_a_validation_prints_and_logs_its_figures(lab: Lab) -> None:
    logged = list[Any]()
    settings = lab.recipe("expect.dev_steps=[7]", "expect.dev_bleu=[50]")
    run: Any = SimpleNamespace(
        settings=settings, directory=lab.run, warned=False, state=checkpoints.State(step=1234, seconds=9.5),
        metrics=SimpleNamespace(write=logged.append),
        accelerator=SimpleNamespace(log=lambda *given, step: logged.append((*given, step))),
    )  # fmt: skip
    scores = {"dev_nll": 1.25, "dev_perplexity": 3.5, "dev_bleu": 31.0, "dev_bleu_en-de": None, "samples": ["x"]}
    lab.stderr()
    module._report(run, scores, 65.4)
    assert logged[0] == {"step": 1234, **scores, "seconds": 9.5}
    assert logged[1] == ({"dev_nll": 1.25, "dev_perplexity": 3.5, "dev_bleu": 31.0}, 1234)
    assert lab.stderr() == (
        "step 1,234  dev nll 1.250  dev perplexity 3.500  dev BLEU 31.000  (1 min 05 s)\nnmt: warning: step 1,234: dev "
        f"BLEU 31.0, expected 50.0 at step 7. Find the cause with nmt doctor {lab.run}\n"
    )
    module._report(run, scores, 0.0)
    assert "warning" not in lab.stderr(), "it warns only once"


def test_small_improvements_add_up_to_a_clear_one(lab: Lab) -> None:
    losses = iter([3.0, 2.997, 2.993, 2.99, 2.987])  # each is too small an improvement; two are enough
    scores = {"dev_perplexity": 9.0, "dev_bleu": None}
    lab.patch.setattr(module, "validate", lambda *_: {**scores, "dev_nll": next(losses)})
    assert lab.train("training.steps=15", "training.validate_every=3", "training.patience=2") == 0
    state = checkpoints.read_state(lab.run, 15)
    assert (state.best_nll, state.improved_nll, state.not_better) == (2.987, 2.987, 0)


def test_patience_stops_a_run_and_keeps_the_best_checkpoint(lab: Lab) -> None:
    losses = iter([3.0, 2.0, 2.0, 1.998, 2.5])  # 1.998 is too small an improvement
    scores = {"dev_perplexity": 9.0, "dev_bleu": None}
    lab.patch.setattr(module, "validate", lambda *_: {**scores, "dev_nll": next(losses)})
    changes = ("training.validate_every=3", "training.patience=3", "training.checkpoint_every=5", "averaging.last=2")
    assert lab.train(*changes, "training.keep_checkpoints=2") == 0
    state = checkpoints.read_state(lab.run, 15)
    assert (state.best_step, state.best_nll, state.improved_nll, state.not_better) == (12, 1.998, 2.0, 3)
    reason = "no clear improvement in 3 validations (best: step 12)"
    assert f"stopped after step 15: {reason}\n" in lab.stderr()
    assert checkpoints.steps_in(lab.run) == [10, 12, 15], "the best, and the last two regular ones"
    assert average(lab.run, 2, None)[1] == [10, 15]


def test_a_resume_in_another_precision_warns(lab: Lab) -> None:
    warned = []
    for steps, dtype in enumerate([torch.float32, torch.bfloat16, torch.bfloat16, torch.float32], 1):
        lab.patch.setattr(trainer, "choose_dtype", lambda *_, dtype=dtype: dtype)
        assert lab.train(f"training.steps={steps}") == 0
        warned += re.findall("has computed in (.*) so far and continues in (.*): ", lab.stderr())
    assert warned == [("float32", "bfloat16"), ("bfloat16", "float32")]


@pytest.mark.parametrize(
    ("step", "norms", "ends"),
    [
        (2099, [math.inf] * 10 + [1.0] + [math.nan] * 10, False),
        (2099, [math.inf] * 10 + [1.0] + [math.nan] * 10 + [1.0, math.inf], True),  # more than a hundredth of all steps
        (5000, [math.inf] * 11, True),  # more than ten in a row
    ],
)
def test_too_many_skipped_steps_end_a_run(
    step: int, norms: list[float], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = SimpleNamespace(state=checkpoints.State(), accelerator=SimpleNamespace(is_main_process=True))
    given_up = list[tuple[int, int]]()
    monkeypatch.setattr(module, "give_up", lambda run, step: given_up.append((run.state.skipped, step)))
    unread = [(step, ToHost({"norm": torch.tensor(norm)})) for norm in (*norms, math.nan)]
    module.count_skipped(run, unread, 1)
    assert given_up == ([(sum(norm != 1.0 for norm in norms), step)] if ends else [])
    assert len(unread) == 1, "the last norm may not be computed yet"


def test_a_model_directory_is_refused_as_a_run(lab: Lab) -> None:
    lab.run = shutil.copytree(lab.reference / "model", lab.run)
    with pytest.raises(DataError, match="is a model or a corpus, not a run"):
        lab.train()
    assert load_model(lab.run).manifest["steps"] == [30]


def test_a_model_that_does_not_fit_is_refused(lab: Lab) -> None:
    with pytest.raises(DataError, match="does not fit"):
        lab.train("model.d_ff=32", f"training.init_from={lab.reference / 'model'}")
    corpus = open_corpus(lab.corpus)
    longest = int(max(corpus.src.lengths().max(), corpus.tgt.lengths().max()))
    with pytest.raises(DataError, match=rf"has a sentence of {longest} tokens.*Raise model\.max_length"):
        lab.train(f"model.max_length={longest - 1}")
    assert lab.train(f"model.max_length={longest}", "training.steps=1") == 0
    shutil.rmtree(lab.run)
    assert lab.train("training.steps=1") == 0, "without a checkpoint, settings may still change"


# ---- Expectations of the recipe ----


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ("expect.pairs=[500,500]", ""),
        ("expect.pairs=[501,600]", "the recipe expects 501 to 600 training pairs, but this corpus has 500"),
        ("expect.pairs=[400,499]", "the recipe expects 400 to 499 training pairs, but this corpus has 500"),
        ("expect.parameters=31232", ""),
        ("expect.parameters=31231", "the recipe expects 31,231 parameters, but this model has 31,232"),
        ("expect.parameters=31233", "the recipe expects 31,233 parameters, but this model has 31,232"),
    ],
)
def test_unexpected_numbers_of_pairs_and_parameters_cause_warnings(lab: Lab, change: str, warning: str) -> None:
    assert lab.train("training.steps=1", "training.validate_bleu=0", change) == 0
    output = lab.stderr()
    assert ("the recipe expects" in output) == bool(warning)
    assert warning in output


@pytest.mark.parametrize(
    ("perplexities", "step"),
    [
        ([99.0, 25.0, 11.25], None),  # step 2 has no expectation, and a quarter more is within the tolerance
        ([20.0, 25.1, 9.0], 4),
        ([20.0, 30.0, 30.0], 4),
        ([20.0, 20.0, 11.3], 6),  # at step 6, the expectation of step 5 applies
        ([20.0, 20.0, math.nan], 6),
    ],
)
def test_a_run_worse_than_expected_warns_once(lab: Lab, perplexities: list[float], step: int | None) -> None:
    remaining = iter(perplexities)
    lab.patch.setattr(
        module, "validate", lambda *_: {"dev_nll": 3.0, "dev_perplexity": next(remaining), "dev_bleu": None}
    )
    changes = ["training.steps=6", "training.validate_every=2", "expect.dev_steps=[4,5]"]
    assert lab.train(*changes, "expect.dev_perplexity=[20,9]") == 0
    warnings = re.findall(r"warning: step (\d+): dev perplexity .* expected .* nmt doctor", lab.stderr())
    assert warnings == ([str(step)] if step else [])
