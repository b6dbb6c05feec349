"""Training: the same numbers whatever the interruptions, the memory, the launcher and the hash seed."""

import contextlib
import dataclasses
import gc
import math
import os
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy as np
import pytest
import texts
import torch
import torch.nn.functional as F
from accelerate import tracking
from conftest import Lab
from reference import batch_of
from steps import before_each_step, losses

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, Side, open_corpus
from nmt_cli.corpus.tokenizer import target_file
from nmt_cli.recipe.schema import Recipe
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.training import checkpoints, distributed, metrics, validation
from nmt_cli.training import train as module
from nmt_cli.training.average import average
from nmt_cli.training.loss import LossModel, smoothed_loss
from nmt_cli.training.run import stored_recipe
from nmt_cli.training.train import Run, train
from nmt_cli.transformer.hardware import ToHost
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, load_tensors
from nmt_cli.translation import search

# ---- What a run leaves behind ----


def test_metrics_say_what_was_done(lab: Lab) -> None:
    records = metrics.read(lab.reference / "metrics.jsonl")
    lines = [r for r in records if "nll" in r]
    assert [r["step"] for r in lines] == [5, 10, 15, 20, 25, 30]
    assert lines[-1]["nll"] < lines[0]["nll"] - 2
    tokens = len(open_corpus(lab.corpus).tgt.ids)  # 15 steps are an epoch
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


def test_a_line_of_metrics_is_of_its_last_step_and_its_loss_of_all_since_the_one_before(lab: Lab) -> None:
    assert lab.train("training.log_every=1", "training.steps=10", "training.validate_every=99") == 0
    lines = [[r for r in metrics.read(run / "metrics.jsonl") if "nll" in r] for run in (lab.run, lab.reference)]
    for number, line in enumerate(lines[1][:2]):
        steps = lines[0][5 * number : 5 * number + 5]
        assert [line[key] for key in ("step", "epoch", "rate")] == [steps[-1][key] for key in ("step", "epoch", "rate")]
        assert line["gradient_norm"] == pytest.approx(steps[-1]["gradient_norm"], rel=1e-6)
        tokens = [step["tgt_tokens_per_step"] for step in steps]
        assert line["tgt_tokens_per_step"] == sum(tokens) / 5
        total = sum(step["nll"] * count for step, count in zip(steps, tokens, strict=True))
        assert line["nll"] == pytest.approx(total / sum(tokens), rel=1e-6)


def test_the_languages_are_those_of_the_corpus_unless_the_recipe_says_others(lab: Lab, tmp_path: Path) -> None:
    data = prepare(lab.recipe("corpus.src=nl", "corpus.tgt=uk").corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert train(lab.recipe("corpus.tgt=zh", "training.steps=1"), data, lab.run) == 0
    for stored in (stored_recipe(lab.run), load_model(lab.run / "model").recipe):
        assert (stored.corpus.src, stored.corpus.tgt) == ("nl", "zh")


def test_the_run_holds_the_last_weights_and_the_best_step(lab: Lab) -> None:
    model = load_model(lab.reference / "model")
    newest = load_tensors(checkpoints.directory_of(lab.reference, 30) / checkpoints.MODEL)
    assert all(torch.equal(tensor, newest[name]) for name, tensor in model.model.state_dict().items())
    assert checkpoints.steps_in(lab.reference) == [10, 20, 30]
    assert model.manifest["seen_tokens"] == max(open_corpus(lab.corpus).src.lengths())


def test_a_validation_measures_every_target_token_of_the_development_set(lab: Lab) -> None:
    model, settings = load_model(lab.reference / "model").model, lab.recipe("training.validate_bleu=3")
    dev = validation.DevSet(open_corpus(lab.corpus), settings)
    tokens = [sum(len(pair[side]) for pair in dev.pairs) for side in (0, 1)]
    assert len(dev.pairs) == 20
    assert tokens[0] != tokens[1]
    pairs = [(model.logits(model(batch_of([pair]))), torch.tensor(pair[1])) for pair in dev.pairs]
    nll = sum(F.cross_entropy(*pair, reduction="sum").item() for pair in pairs) / tokens[1]
    for tokens_at_once in (1, 40, 4096):
        lab.patch.setattr(search, "BATCH_TOKENS", tokens_at_once)
        record = validation.validate(model, torch.float32, dev, settings)
        assert (record["dev_nll"], record["dev_perplexity"]) == pytest.approx((nll, math.exp(nll)), rel=1e-5)
        assert len(record["samples"]) == 3
        assert record["dev_bleu"] == corpus_bleu(record["samples"], dev.references[:3])[0]


def test_dev_bleu_is_counted_in_the_tokens_of_the_target_language(lab: Lab) -> None:
    settings, said = lab.recipe("corpus.tgt=zh", "training.validate_bleu=2"), ["我们昨天看了两场电影。", "他喜欢喝茶。"]
    translations = [SimpleNamespace(text=text) for text in said]
    translator = SimpleNamespace(translate=lambda lines: translations)
    lab.patch.setattr(validation.Translator, "of", lambda *_: contextlib.nullcontext(translator))
    dev = validation.DevSet(open_corpus(lab.corpus), settings)
    dev.references = ["我们昨天看了一场电影。", "他喜欢喝茶。", *dev.references[2:]]
    record = validation.validate(load_model(lab.reference).model, torch.float32, dev, settings)
    scores = [corpus_bleu(said, dev.references[:2], language=language)[0] for language in ("zh", "en")]
    assert record["dev_bleu"] == scores[0] != scores[1]


def test_a_validation_takes_all_that_fits_and_shows_ten_samples(lab: Lab) -> None:
    """And a loss too large for a perplexity is still one."""
    corpus, settings, given = open_corpus(lab.corpus), lab.recipe("training.validate_bleu=12"), list[Any]()
    settings.corpus.moses, settings.corpus.tgt = True, "fr"
    dev = validation.DevSet(corpus, settings)
    sizes = [max(map(len, pair)) for pair in dev.pairs]
    for longest in (max(sizes), max(sizes) - 1):
        settings.model.max_length = longest
        kept = validation.DevSet(corpus, settings).pairs
        assert kept == [pair for pair, size in zip(dev.pairs, sizes, strict=True) if size <= longest]
    lines, tokens = [f"line {i}" for i in range(12)], sum(len(tgt) for _, tgt in dev.pairs)
    lab.patch.setattr(validation, "_share", lambda *_: (2000.0 * tokens, lines))
    lab.patch.setattr(validation, "corpus_bleu", lambda *at, **how: given.append((at, how)) or (12.5, ""))
    model = load_model(lab.reference).model
    record = validation.validate(model, torch.float32, dev, settings)
    assert record == {"dev_nll": 2000, "dev_perplexity": math.exp(700), "dev_bleu": 12.5, "samples": lines[:10]}
    assert given == [((lines, dev.references[:12]), {"language": "fr", "tokenised": True})]
    settings.training.validate_bleu = 99  # more than there are
    lab.patch.setattr(validation, "_share", lambda *_: (2000.0 * tokens, dev.lines))
    assert validation.validate(model, torch.float32, dev, settings)["samples"] == dev.lines[:10]
    assert given.pop() == ((dev.lines, dev.references), {"language": "fr", "tokenised": True})
    settings.training.validate_bleu = 0
    record = validation.validate(model, torch.float32, dev, settings)
    assert (record["dev_bleu"], record["samples"], len(given)) == (None, [], 1)


def test_a_run_says_where_it_begins_and_what_it_is(lab: Lab) -> None:
    facts = "52,224 parameters; 500 pairs, 15 steps an epoch; 1 x cpu, float32\n"
    for steps, start in (
        (1, "starting at step 0 of 1"),
        (2, "resuming after step 1 of 2"),
        (2, "finished with step 2 of 2"),
    ):
        assert lab.train(f"training.steps={steps}") == 0
        assert f"{lab.run}: {start}; {facts}" in lab.stderr()


@pytest.mark.parametrize(
    ("state", "changes", "asked", "reason"),
    [
        ({"step": 5}, [], False, ""),
        ({"step": 5}, [], True, module.STOPPED),
        ({"step": 30}, [], True, module.DONE),
        ({"step": 31}, [], False, module.DONE),
        ({"step": 30, "unvalidated": True}, [], False, module.STOPPED),
        ({"step": 5, "seconds": 1799.9}, ["max_hours=0.5"], False, ""),
        ({"step": 5, "seconds": 1800.0}, ["max_hours=0.5"], False, "0.5 hours are over"),
        ({"step": 5, "seconds": 1800.0}, ["max_hours=0.5"], True, module.STOPPED),
        ({"step": 5, "not_better": 2, "best_step": 3}, ["patience=3"], False, ""),
        ({"step": 5, "not_better": 99}, [], False, ""),
        (
            {"step": 9999, "not_better": 3, "best_step": 1234},
            ["patience=3", "steps=10000"],
            False,
            "nothing much better in 3 validations (best: step 1,234)",
        ),
    ],
)
def test_why_a_run_ends(lab: Lab, state: dict[str, Any], changes: list[str], asked: bool, reason: str) -> None:
    settings = lab.recipe(*(f"training.{change}" for change in changes))
    run: Any = SimpleNamespace(settings=settings, state=checkpoints.State(**state), accelerator=one_of(1, 0))
    assert module._reason_to_stop(run, SimpleNamespace(asked=asked)) == reason


def test_what_a_line_of_metrics_and_of_progress_says(lab: Lab) -> None:
    """With figures made up: two steps of 30 and 50 tokens in 10 seconds, 100 more to come."""
    settings, written, logged = lab.recipe("training.steps=102", "training.patience=3"), list[Any](), list[Any]()
    accelerator = one_of(1, 0)
    accelerator.reduce, accelerator.log = (
        lambda x, how: {"sum": x}[how],
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
    assert module._log(run, window, 10.0, bar) == "nll 2.000  8 tok/s"
    assert lab.stderr() == "step 2/102  nll 2.000  8 tok/s  at most 8 min 20 s left\n"
    assert bar.last > 0
    rate = settings.model.d_model**-0.5 * 2 * 60**-1.5
    record = {
        "step": 2, "epoch": 0.6667, "rate": pytest.approx(rate), "nll": 2.0, "gradient_norm": 4.0,
        "tgt_tokens_per_step": 40.0, "tgt_tokens_per_second": 8.0, "peak_memory_mb": 123,
    }  # fmt: skip
    assert (written, logged) == ([{**record, "seconds": 7.0, "skipped": 1}], [(record, 2)])
    bar.plain, settings.training.patience = False, None
    assert module._log(run, window, 10.0, bar) == "nll 2.000  8 tok/s"
    assert lab.stderr() == ""
    bar.plain = True
    module._log(run, window[:1], 10.0, bar)
    assert lab.stderr() == "step 2/102  nll 2.000  3 tok/s  16 min 40 s left\n"
    run.metrics = None  # of another process
    assert module._log(run, window, 10.0, bar) == ""
    assert len(written) == len(logged) == 3


def test_all_machines_compare_what_is_learnt_and_no_paths(lab: Lab) -> None:
    settings = lab.recipe(f"training.init_from={lab.reference}/model")
    expected = {name: settings.model_dump()[name] for name in ("model", "training")}
    del expected["training"]["init_from"]
    assert distributed.decisive(settings) == expected


def test_a_finished_run_does_no_work_and_keeps_its_average(lab: Lab) -> None:
    run = lab.run
    shutil.copytree(lab.reference, run)
    average(run, 3, None)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert lab.train() == 0
    assert "run: finished with step 30 of 30; " in lab.stderr()
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    shutil.rmtree(run / "model")  # as if it had been killed before the model was committed
    assert lab.train() == 0
    model = load_model(run / "model").manifest
    assert (model["steps"], model["corpus"]) == ([30], open_corpus(lab.corpus).identity)
    path = run / "model" / "manifest.json"
    path.write_text(path.read_text().replace(model["corpus"], "another"))
    assert lab.train() == 0
    assert load_model(run / "model").manifest["corpus"] == model["corpus"], "a model of another corpus is replaced"


def test_a_run_that_patience_ended_keeps_the_model_of_its_best_step(lab: Lab) -> None:
    losses = iter([1.0, 2.0])
    lab.patch.setattr(module, "validate", lambda *_: {"dev_nll": next(losses), "dev_perplexity": 1.0, "dev_bleu": None})
    changes = ["averaging.best=true", "training.patience=1", "training.validate_every=5"]
    assert lab.train(*changes) == 0
    assert average(lab.run, None, None)[1] == [5]
    assert lab.train(*changes) == 0
    assert (load_model(lab.run / "model").manifest["steps"], checkpoints.steps_in(lab.run)[-1]) == ([5], 10)


# ---- Interruptions ----


@pytest.mark.parametrize("stops", [(1, 15), (7, 9), (14, 16), (29,)])
def test_a_run_stopped_anywhere_ends_with_the_same_bits(lab: Lab, stops: tuple[int, ...]) -> None:
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            before_each_step(patch, lambda _, now, stop=stop: now == stop and os.kill(os.getpid(), signal.SIGTERM))
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


# ---- Ends ----


def test_hours_of_all_parts_of_a_run_count(lab: Lab) -> None:
    assert lab.train("training.steps=6") == 0
    read_state = checkpoints.read_state
    with lab.patch.context() as patch:  # as if those had taken a thousand seconds
        patch.setattr(checkpoints, "read_state", lambda *at: dataclasses.replace(read_state(*at), seconds=1000.0))
        assert lab.train("training.steps=8", "training.max_hours=0.5") == 0
    assert 1000 < read_state(lab.run, 8).seconds < 1100
    assert lab.train("training.max_hours=0.2777") == 0
    assert checkpoints.steps_in(lab.run) == [6, 8]
    assert load_model(lab.run / "model").manifest["steps"] == [8]


def test_no_hours_at_all_are_a_limit(lab: Lab) -> None:
    assert lab.train("training.max_hours=0") == 0
    assert checkpoints.steps_in(lab.run) == []
    assert load_model(lab.run / "model").manifest["steps"] == [0]


def test_patience_stops_and_the_best_checkpoint_stays(lab: Lab) -> None:
    losses = iter([3.0, 2.0, 2.0, 1.998, 2.5])  # by so little is hardly better
    scores = {"dev_perplexity": 9.0, "dev_bleu": None}
    lab.patch.setattr(module, "validate", lambda *_: {**scores, "dev_nll": next(losses)})
    changes = ("training.validate_every=3", "training.patience=3", "training.checkpoint_every=5", "averaging.last=2")
    assert lab.train(*changes, "training.keep_checkpoints=2") == 0
    state = checkpoints.read_state(lab.run, 15)
    assert (state.best_step, state.best_nll, state.not_better) == (12, 1.998, 3)
    assert checkpoints.steps_in(lab.run) == [10, 12, 15], "the best, and the last two regular ones"
    assert average(lab.run, 2, None)[1] == [10, 15]


def test_without_a_development_set_nothing_is_validated(lab: Lab, tmp_path: Path) -> None:
    settings = lab.recipe("corpus.dev_src=null", "corpus.dev_tgt=null", "training.steps=2")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert train(settings, data, lab.run) == 0
    assert "has no development set: nothing will be validated" in lab.stderr()


def test_a_development_set_that_does_not_fit_the_model_is_refused(lab: Lab) -> None:
    lab.patch.setattr(Corpus, "lines", lambda *_: (["one " * 99], ["eins"]))
    with pytest.raises(DataError, match="longer than 64 tokens"):
        lab.train()
    lab.patch.setattr(Corpus, "lines", lambda *_: (["one " * 99, "one"], ["eins", "eins"]))
    assert lab.train("training.steps=1") == 0
    assert "dev perplexity leaves out 1 pair longer than model.max_length" in lab.stderr()


def test_validation_is_not_counted_in_tokens_per_second(lab: Lab) -> None:
    lab.patch.setattr(module, "_validate", lambda *_: 1000.0)
    assert lab.train("training.steps=10", "training.validate_every=5") == 0
    speeds = [record["tgt_tokens_per_second"] for record in metrics.read(lab.run / "metrics.jsonl")]
    assert speeds[0] > 0 > speeds[1], "a thousand seconds are taken off the second five steps"
    lab.run = lab.run.with_name("tuned")
    start = f"training.init_from={lab.reference / 'model'}"
    assert lab.train(start, "training.steps=10", "training.validate_every=10") == 0
    speeds = [record["tgt_tokens_per_second"] for record in metrics.read(lab.run / "metrics.jsonl")]
    assert speeds[0] < 0 < speeds[1], "nor is that of the start"


# ---- Arithmetic ----


def test_weights_and_moments_are_float32_under_bf16(lab: Lab) -> None:
    lab.patch.setattr(module, "choose_dtype", lambda *_: torch.bfloat16)
    assert lab.train("training.steps=5") == 0
    model, moments = checkpoints.load(lab.run, 5)
    assert {tensor.dtype for tensor in [*model.values(), *moments.values()]} == {torch.float32}
    fine = model["embedding.weight"]
    assert not torch.equal(fine, fine.bfloat16().float()), "weights must be finer than bf16"
    assert losses(lab.run) == pytest.approx([6.23], rel=0.01)


@pytest.mark.parametrize("side", [0, 1])
def test_a_sentence_that_is_too_long_on_either_side_is_refused(lab: Lab, side: int) -> None:
    corpus = open_corpus(lab.corpus)
    ids = np.concatenate([np.full(64, 5), [2]])
    long, short = Side(ids.astype("<u2"), np.array([0, 65])), Side(ids[-9:].astype("<u2"), np.array([0, 9]))
    corpus = dataclasses.replace(corpus, src=short if side else long, tgt=long if side else short)
    with pytest.raises(DataError, match="has a sentence of 65 tokens, too long for the model"):
        Run(lab.recipe(), corpus, one_of(1, 0), Path(), 0)


def one_of(world: int, rank: int) -> Any:
    """Return as much of Accelerate as a step needs, for process `rank` of `world`, without other processes."""
    return SimpleNamespace(
        num_processes=world,
        process_index=rank,
        device=torch.device("cpu"),
        is_main_process=False,
        prepare=lambda model: model,
        no_sync=lambda model: contextlib.nullcontext(),
        backward=torch.Tensor.backward,
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
        rate = settings.model.d_model**-0.5 * (index + 1) * settings.training.warmup_steps**-1.5
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        for name, parameter in run.transformer.named_parameters():
            total[name] = total.get(name, 0) + parameter.grad / world
    return total


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max()) for name in a)


@pytest.mark.parametrize(
    ("tokens", "micro_batches", "worlds"), [(400, 1, [1]), (400, 3, [1, 2, 3]), (400, 8, [1, 8, 16]), (1, 8, [16])]
)
def test_the_gradient_is_that_of_the_sentences_one_by_one(
    lab: Lab, tokens: int, micro_batches: int, worlds: list[int]
) -> None:
    """Bar B15: 1e-10 relative in float64, whatever the number of parts and processes, dropout included.

    A process that has no micro-batch takes part and adds nothing.
    """
    lab.patch.setattr(Run, "check_memory", lambda self: None)
    changes = (f"training.tokens_per_step={tokens}", f"training.micro_batches={micro_batches}")
    settings = lab.recipe(*changes, "training.label_smoothing=0.2")
    for step in (0, 7):
        run = Run(settings, open_corpus(lab.corpus), one_of(1, 0), Path(), 0)
        model, sentences = run.transformer.double(), np.concatenate(run.plan.micro_batches_of(step))
        for i in sentences:
            batch = run.plan.batch(np.array([i]), step)
            loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.2)
            (loss / run.plan.tokens(sentences)[1]).backward()
        one_by_one = {name: parameter.grad for name, parameter in model.named_parameters()}
        for world in worlds:
            for memory_tokens in (1, 120, 1_000_000) if world <= 3 else (1000,):
                assert difference(one_by_one, gradients(settings, lab.corpus, world, memory_tokens, step)) < 1e-10


def test_memory_is_checked_with_the_longest_sentences_and_nothing_stays(lab: Lab, tmp_path: Path) -> None:
    settings, corpus = lab.recipe("training.memory_tokens=200", "training.seed=5"), open_corpus(lab.corpus)
    seen, forward = [], LossModel.forward
    lab.patch.setattr(LossModel, "forward", lambda self, b: seen.append(b) or forward(self, b))
    torch.rand(3)  # initial weights depend on the recipe's seed alone
    run = Run(settings, corpus, one_of(1, 0), tmp_path, 0)
    torch.manual_seed(5)
    untouched = Transformer(settings.model, run.transformer.vocabulary_size).state_dict()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in run.transformer.state_dict().items())
    assert all(parameter.grad is None for parameter in run.transformer.parameters())
    (batch,) = seen
    assert 170 < max(len(batch.src_N), len(batch.tgt_out_N)) <= 200
    assert max(side.integers[1].max() for side in (batch.src, batch.tgt)) == run.plan.longer_lengths.max()
    # However much fits: a tenth more than a process' share of a step, or than a part of it, which may be longer.
    for world, parts, most in ((1, 4, 440), (2, 4, 220), (8, 8, 55)):
        settings = lab.recipe("training.memory_tokens=9999", f"training.micro_batches={parts}")
        Run(settings, corpus, one_of(world, 0), tmp_path, 0)
        assert most - 30 < max(len(seen[-1].src_N), len(seen[-1].tgt_out_N)) <= most


def test_a_batch_is_freed_as_soon_as_its_step_is_done(lab: Lab) -> None:
    """Memory of what only the garbage collector frees would grow for thousands of steps."""
    run = Run(lab.recipe(), open_corpus(lab.corpus), one_of(1, 0), Path(), 0)
    gc.collect()
    gc.disable()
    try:
        batch = run.step_batch(0)
        run.take_step(1, batch)
        alive = [weakref.ref(x) for p in batch.passes for x in (p, p.src, p.tgt, p.buffer)]
        del batch
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()


def test_a_resume_with_other_arithmetic_is_warned_of(lab: Lab) -> None:
    said = []
    for steps, dtype in enumerate([torch.float32, torch.bfloat16, torch.bfloat16, torch.float32], 1):
        lab.patch.setattr(module, "choose_dtype", lambda *_, dtype=dtype: dtype)
        assert lab.train(f"training.steps={steps}") == 0
        said.append(f"so far and goes on in {str(dtype)[6:]}: " in lab.stderr())
    assert said == [False, True, False, True]


@pytest.mark.parametrize(
    ("step", "norms", "ends"),
    [
        (2099, [math.inf] * 10 + [1.0] + [math.nan] * 10, False),
        (2099, [math.inf] * 10 + [1.0] + [math.nan] * 10 + [1.0, math.inf], True),  # more than a hundredth
        (5000, [math.inf] * 11, True),  # in a row
    ],
)
def test_too_many_skipped_steps_end_a_run(
    step: int, norms: list[float], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = SimpleNamespace(state=checkpoints.State(), accelerator=SimpleNamespace(is_main_process=True))
    given_up = list[tuple[int, int]]()
    monkeypatch.setattr(module, "_give_up", lambda run, step: given_up.append((run.state.skipped, step)))
    unread = [(step, ToHost({"norm": torch.tensor(norm)})) for norm in (*norms, math.nan)]
    module._count_skipped(run, unread, 1)
    assert given_up == ([(sum(norm != 1.0 for norm in norms), step)] if ends else [])
    assert len(unread) == 1, "the last one may still be computed"


# ---- Launchers and trackers ----


@pytest.mark.parametrize(
    ("values", "precision", "warnings"),
    [
        (("EAGER", "fp16", "4", "1.0"), "fp32", 4),
        (("EAGER", "bf16", "1", "none"), "fp32", 2),
        (("NO", "bf16", "1", "none"), "auto", 0),
    ],
)
def test_settings_of_the_launcher_are_not_followed(lab: Lab, values: Any, precision: str, warnings: int) -> None:
    names = ("DYNAMO_BACKEND", "MIXED_PRECISION", "GRADIENT_ACCUMULATION_STEPS", "GRADIENT_CLIPPING")
    for name, value in zip(names, values, strict=True):
        lab.patch.setenv(f"ACCELERATE_{name}", value)
    accelerate.state.AcceleratorState._reset_state(True)
    lab.train("training.steps=10", f"training.precision={precision}")
    assert accelerate.state.AcceleratorState().dynamo_plugin.backend.value == "NO"
    assert lab.same(10) or precision == "auto"
    assert lab.stderr().count("of the accelerate configuration is not followed") == warnings


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_sharded_training_is_refused(lab: Lab, kind: str) -> None:
    lab.patch.setenv(f"ACCELERATE_USE_{kind}", "true")
    with pytest.raises(UsageError, match=f"{kind}, which is not supported.*: accelerate launch --multi_gpu -m nmt_cli"):
        lab.train()


def test_a_configuration_of_accelerate_launch(lab: Lab) -> None:
    config, run = lab.run.with_name("config.yaml"), lab.run
    machine = "compute_environment: LOCAL_MACHINE, num_machines: 1, num_processes: 1, machine_rank: 0, use_cpu: true"
    rest = "distributed_type: 'NO', mixed_precision: fp16, dynamo_config: {dynamo_backend: INDUCTOR}"
    config.write_text(f"{{{machine}, {rest}}}")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config, "-m", "nmt_cli", "train"]
    words = [lab.recipe_file, "--data", lab.corpus, "--run", run, "--set", "training.steps=10"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": "1"}  # changes nothing
    done = subprocess.run([*launch, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for setting in ("dynamo_backend inductor", "mixed_precision fp16"):
        assert f"{setting} of the accelerate configuration" in done.stderr
    assert lab.same(10)


def test_memory_of_onednn_is_bounded_before_torch_is_imported() -> None:
    names = ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"]
    code = f"import os, sys; del os.environ['{names[0]}']; import nmt_cli; "
    code += f"print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    done = texts.python("-c", code, ONEDNN_PRIMITIVE_CACHE_CAPACITY="", LRU_CACHE_CAPACITY="7")
    assert done.stdout == "32 7 False\n"  # the user's own value stays


@pytest.mark.parametrize("name", ["tensorbord", "wandb", "all"])
def test_a_tracker_that_is_not_there_is_refused(lab: Lab, name: str) -> None:
    lab.patch.setattr(tracking, "get_available_trackers", list)
    with pytest.raises(UsageError, match=f"no tracker '{name}' here.*pip install"):
        lab.train(tracker=name)
    assert not lab.run.exists()


def test_a_tracker_gets_recipe_losses_and_validations(lab: Lab) -> None:
    recipe, records = dict[str, Any](), []
    board = accelerate.utils.LoggerType.TENSORBOARD
    lab.patch.setattr(tracking, "get_available_trackers", lambda: [board])
    lab.patch.setattr(accelerate.Accelerator, "init_trackers", lambda _, name, values: recipe.update(values, run=name))
    lab.patch.setattr(accelerate.Accelerator, "log", lambda _, values, step: records.append((step, values)))
    assert lab.train("training.steps=10", "training.validate_every=10", tracker="tensorboard") == 0
    assert (recipe["run"], recipe["training.steps"]) == ("tiny", 10)
    assert all(isinstance(value, int | float | str) for value in recipe.values())
    assert [step for step, _ in records] == [5, 10, 10]
    assert {"nll", "rate", "tgt_tokens_per_second"} <= set(records[0][1])
    assert {"dev_nll", "dev_bleu"} <= set(records[2][1])


# ---- Fine-tuning ----


def test_fine_tuning_refuses_another_tokenizer_of_the_same_size(lab: Lab, tmp_path: Path) -> None:
    changes = ("corpus.limit=300", "corpus.tokenizer.file=null")
    settings = lab.recipe(*changes, f"training.init_from={lab.reference / 'model'}")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert open_corpus(data).manifest["vocabulary_size"] == load_model(lab.reference).model.vocabulary_size
    with pytest.raises(DataError, match="another tokenizer"):
        train(settings, data, lab.run)
    two = shutil.copytree(lab.reference / "model", tmp_path / "two") / "tokenizer.model"
    target_file(two).write_bytes(two.read_bytes())  # of target text only
    with pytest.raises(DataError, match="another tokenizer"):
        lab.train(f"training.init_from={two.parent}")


def test_a_model_is_no_run(lab: Lab) -> None:
    lab.run = shutil.copytree(lab.reference / "model", lab.run)
    with pytest.raises(DataError, match="is a model or a corpus, not a run"):
        lab.train()
    assert load_model(lab.run).manifest["steps"] == [30]


def test_what_does_not_fit_is_refused(lab: Lab) -> None:
    with pytest.raises(DataError, match="does not fit"):
        lab.train("model.d_ff=32", f"training.init_from={lab.reference / 'model'}")
    corpus = open_corpus(lab.corpus)
    longest = int(max(corpus.src.lengths().max(), corpus.tgt.lengths().max()))
    with pytest.raises(DataError, match=rf"has a sentence of {longest} tokens.*Raise model\.max_length"):
        lab.train(f"model.max_length={longest - 1}")
    assert lab.train(f"model.max_length={longest}", "training.steps=1") == 0
    shutil.rmtree(lab.run)
    assert lab.train("training.steps=1") == 0, "nothing was learnt yet, so the settings may be mended"
