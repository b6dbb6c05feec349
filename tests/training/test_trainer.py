"""A step of training: gradients, memory, and the initial weights."""

import dataclasses
import gc
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lab import Lab
from steps import fake_accelerator, losses

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Side, open_corpus
from nmt_cli.corpus.tokenizer import target_file
from nmt_cli.recipe.schema import Recipe
from nmt_cli.system.errors import DataError
from nmt_cli.training import checkpoints, trainer
from nmt_cli.training.loss import LossModel, smoothed_loss
from nmt_cli.training.train import train
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model


def test_weights_and_moments_are_float32_under_bf16(lab: Lab) -> None:
    lab.patch.setattr(trainer, "choose_dtype", lambda *_: torch.bfloat16)
    assert lab.train("training.steps=5") == 0
    model, moments = checkpoints.load(lab.run, 5)
    assert {tensor.dtype for tensor in [*model.values(), *moments.values()]} == {torch.float32}
    fine = model["embedding.weight"]
    assert not torch.equal(fine, fine.bfloat16().float()), "weights must be finer than bf16"
    assert losses(lab.run) == pytest.approx(losses(lab.reference)[:1], rel=0.01)


@pytest.mark.parametrize("side", [0, 1])
def test_a_sentence_too_long_on_either_side_is_refused(lab: Lab, side: int) -> None:
    corpus = open_corpus(lab.corpus)
    ids = np.concatenate([np.full(64, 5), [2]])
    long, short = Side(ids.astype("<u2"), np.array([0, 65])), Side(ids[-9:].astype("<u2"), np.array([0, 9]))
    corpus = dataclasses.replace(corpus, src=short if side else long, tgt=long if side else short)
    with pytest.raises(DataError, match="has a sentence of 65 tokens, too long for the model"):
        start_trainer(lab.recipe(), corpus, fake_accelerator(1, 0), Path(), 0)


def gradients(settings: Recipe, data: Path, world: int, memory_tokens: int, index: int) -> dict[str, torch.Tensor]:
    """Return the float64 gradient of a step, averaged over processes as DDP does."""
    settings = settings.model_copy(deep=True)
    settings.training.memory_tokens, total = memory_tokens, dict[str, torch.Tensor]()
    for rank in range(world):
        run = start_trainer(settings, open_corpus(data), fake_accelerator(world, rank), Path(), 0)
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
    ("tokens", "micro_batches", "worlds"), [(400, 1, [1]), (400, 3, [1, 2, 3]), (400, 8, [1, 16]), (1, 8, [16])]
)
def test_the_gradient_equals_that_of_single_sentences(
    lab: Lab, tokens: int, micro_batches: int, worlds: list[int]
) -> None:
    """The two agree within 1e-10 in float64 for any number of micro-batches and processes, with dropout.

    A process without a micro-batch takes part and adds nothing.
    """
    lab.patch.setattr(Trainer, "check_memory", lambda self: None)
    changes = (f"training.tokens_per_step={tokens}", f"training.micro_batches={micro_batches}")
    settings = lab.recipe(*changes, "training.label_smoothing=0.2")
    run = start_trainer(settings, open_corpus(lab.corpus), fake_accelerator(1, 0), Path(), 0)
    model, sentences = run.transformer.double(), np.concatenate(run.plan.micro_batches_of(7))
    for i in sentences:
        batch = run.plan.batch(np.array([i]), 7)
        loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.2)
        (loss / run.plan.tokens(sentences, 7)[1]).backward()
    one_by_one = {name: parameter.grad for name, parameter in model.named_parameters()}
    for world in worlds:
        for memory_tokens in {1: (1, 120, 1_000_000), 2: (120,)}.get(world, (1000,)):
            assert difference(one_by_one, gradients(settings, lab.corpus, world, memory_tokens, 7)) < 1e-10


def test_the_losses_of_processes_add_up_to_the_loss_of_the_step(lab: Lab) -> None:
    """This also holds where a process repeats the sentences of another one, because there are too few."""

    def total(world: int) -> float:
        runs = [start_trainer(settings, corpus, fake_accelerator(world, rank), Path(), 0) for rank in range(world)]
        return sum(float(run.take_step(1, run.step_batch(0))[0]) for run in runs)

    settings, corpus = lab.recipe("training.tokens_per_step=1"), open_corpus(lab.corpus)
    assert total(3) == pytest.approx(total(1), rel=1e-6)


def test_the_memory_check_uses_the_longest_sentences_and_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    settings, corpus = lab.recipe("training.memory_tokens=200", "training.seed=5"), open_corpus(lab.corpus)
    seen, forward = [], LossModel.forward
    lab.patch.setattr(LossModel, "forward", lambda self, b: seen.append(b) or forward(self, b))
    torch.rand(3)  # must not matter: initial weights depend on the recipe's seed alone
    run = start_trainer(settings, corpus, fake_accelerator(1, 0), tmp_path, 0)
    torch.manual_seed(5)
    untouched = Transformer(settings.model, run.transformer.vocabulary_size).state_dict()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in run.transformer.state_dict().items())
    assert all(parameter.grad is None for parameter in run.transformer.parameters())
    (batch,) = seen
    assert 170 < max(len(batch.src_N), len(batch.tgt_out_N)) <= 200
    assert max(side.integers[1].max() for side in (batch.src, batch.tgt)) == run.plan.longest
    # Where memory allows more, a pass has at most a tenth more tokens than a process's share of a step, or twice
    # that share if the text is augmented.
    for world, parts, typos, limit in ((1, 4, 0, 440), (2, 4, 0, 220), (8, 8, 0, 55), (1, 4, 0.1, 800)):
        changes = f"training.micro_batches={parts}", f"corpus.augment.typos={typos}"
        settings = lab.recipe("training.memory_tokens=9999", *changes)
        start_trainer(settings, corpus, fake_accelerator(world, 0), tmp_path, 0)
        assert limit - 30 < max(len(seen[-1].src_N), len(seen[-1].tgt_out_N)) <= limit


@pytest.mark.parametrize("swapped", [False, True])
def test_passes_fit_into_the_memory_on_their_longer_side(lab: Lab, swapped: bool) -> None:
    corpus = open_corpus(lab.corpus)
    english_is_longer = len(corpus.src.ids) > len(corpus.tgt.ids)
    corpus = dataclasses.replace(corpus, src=corpus.tgt, tgt=corpus.src) if swapped else corpus
    settings = lab.recipe("training.memory_tokens=120", "training.micro_batches=30")
    run = start_trainer(settings, corpus, fake_accelerator(1, 0), Path(), 0)
    sides = [(len(each.src_N), len(each.tgt_out_N)) for step in range(15) for each in run.step_batch(step).passes]
    assert 110 < max(map(max, sides)) <= 120
    assert (sum(src for src, _ in sides) > sum(tgt for _, tgt in sides)) == (swapped != english_is_longer)


def test_each_process_has_a_part_of_the_step(lab: Lab) -> None:
    corpus, settings = open_corpus(lab.corpus), lab.recipe("training.micro_batches=2")
    runs = [start_trainer(settings, corpus, fake_accelerator(3, rank), Path(), 0) for rank in range(3)]
    steps = [run.step_batch(0) for run in runs]
    assert [step.weight for step in steps] == [1.0, 1.0, 1.0]
    assert sum(len(each.tgt_out_N) for step in steps for each in step.passes) == steps[0].tgt_tokens


def test_a_batch_is_freed_as_soon_as_its_step_is_done(lab: Lab) -> None:
    """If only the garbage collector freed batches, memory would grow for thousands of steps."""
    run = start_trainer(lab.recipe(), open_corpus(lab.corpus), fake_accelerator(1, 0), Path(), 0)
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


def test_fine_tuning_refuses_another_tokenizer_of_the_same_size(lab: Lab, tmp_path: Path) -> None:
    changes = ("corpus.limit=300", "corpus.tokenizer.file=null")
    settings = lab.recipe(*changes, f"training.init_from={lab.reference / 'model'}")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert open_corpus(data).manifest["vocabulary_size"] == load_model(lab.reference).model.vocabulary_size
    message = rf"{lab.reference}/model has a different tokenizer from {data}\. Prepare the corpus with --tokenizer "
    with pytest.raises(DataError, match=rf"{message}{lab.reference}/model/tokenizer\.model$"):
        train(settings, data, lab.run)
    two = shutil.copytree(lab.reference / "model", tmp_path / "two") / "tokenizer.model"
    target_file(two).write_bytes(two.read_bytes())  # a separate target model is another tokenizer
    with pytest.raises(DataError, match="a different tokenizer"):
        lab.train(f"training.init_from={two.parent}")
