"""Validations on the development set: loss, BLEU and samples."""

import contextlib
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lab import Lab
from reference import batch_of

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.system.errors import DataError
from nmt_cli.training import checkpoints, validation
from nmt_cli.training import train as module
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.train import train
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation import search


def test_validation_loss_covers_every_target_token(lab: Lab) -> None:
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


def test_dev_bleu_uses_the_tokenization_of_the_target_language(lab: Lab) -> None:
    settings = lab.recipe("corpus.tgt=zh", "training.validate_bleu=2")
    lines = ["我们昨天看了两场电影。", "他喜欢喝茶。"]
    translations = [SimpleNamespace(text=text) for text in lines]
    translator = SimpleNamespace(translate=lambda _: translations)
    lab.patch.setattr(validation.Translator, "of", lambda *_: contextlib.nullcontext(translator))
    dev = validation.DevSet(open_corpus(lab.corpus), settings)
    dev.references = ["我们昨天看了一场电影。", "他喜欢喝茶。", *dev.references[2:]]
    record = validation.validate(load_model(lab.reference).model, torch.float32, dev, settings)
    scores = [corpus_bleu(lines, dev.references[:2], language=language)[0] for language in ("zh", "en")]
    assert record["dev_bleu"] == scores[0] != scores[1]


def test_each_language_pair_has_its_own_dev_bleu(lab: Lab) -> None:
    """Each pair has the same number of translated lines, scored with the tokenization of its target language."""
    settings = lab.recipe("training.validate_bleu=5")
    dev = validation.DevSet(open_corpus(lab.corpus), settings)
    dev.lines_by_pair = {("en", "zh"): [1, 2, 3], ("zh", "en"): [0, *range(4, 20)]}
    dev.references = ["x", "我们昨天看了一场电影。", "他喜欢喝茶。", "y", "A small dog runs.", *dev.references[5:]]
    translations = {1: "我们昨天看了两场电影。", 2: "他喜欢喝茶。", 0: "x", 4: "A small cat runs."}
    given = list[str]()

    def translate(sources: list[str]) -> list[SimpleNamespace]:
        given.extend(sources)
        return [SimpleNamespace(text=text) for text in translations.values()]

    translator = SimpleNamespace(translate=translate)
    lab.patch.setattr(validation.Translator, "of", lambda *_: contextlib.nullcontext(translator))
    record = validation.validate(load_model(lab.reference / "model").model, torch.float32, dev, settings)
    assert given == [dev.lines[i] for i in translations]
    for pair, lines in (("en-zh", [1, 2]), ("zh-en", [0, 4])):
        sides = [translations[i] for i in lines], [dev.references[i] for i in lines]
        assert record[f"dev_bleu_{pair}"] == corpus_bleu(*sides, language=pair[3:])[0] > 0
    assert record["samples"] == list(translations.values())


@pytest.mark.parametrize(
    ("count", "lines"), [(0, []), (1, [1, 0]), (2, [1, 0]), (3, [1, 0]), (4, [1, 2, 0, 4]), (99, [1, 2, 3, 0, 4, 5])]
)
def test_equally_many_first_lines_of_each_language_pair_are_translated(lab: Lab, count: int, lines: list[int]) -> None:
    dev = validation.DevSet(open_corpus(lab.corpus), lab.recipe())
    assert dev.translated(count) == [*range(min(count, 20))]
    dev.lines_by_pair = {("en", "zh"): [1, 2, 3], ("zh", "en"): [0, 4, 5]}
    assert dev.translated(count) == lines


def test_the_lines_of_each_set_are_chosen_by_its_own_language_pairs(lab: Lab) -> None:
    corpus = open_corpus(lab.corpus)
    languages = {"dev": [["en", "de", 20]], "test": [["en", "de", 12], ["de", "en", 8]]}
    corpus = dataclasses.replace(corpus, manifest=corpus.manifest | {"languages": languages})
    chosen = {split: validation.DevSet(corpus, lab.recipe(), split).translated(4) for split in languages}
    assert chosen == {"dev": [0, 1, 2, 3], "test": [0, 1, 12, 13]}


def test_sources_of_a_dev_set_have_eos_only_if_the_model_reads_it(lab: Lab) -> None:
    model, settings = load_model(lab.reference / "model").model, lab.recipe("training.validate_bleu=0")
    dev = validation.DevSet(open_corpus(lab.corpus), settings)
    losses = []
    for source_eos in (True, False):
        model.settings.source_eos = source_eos
        pairs = [(src if source_eos else src[:-1], tgt) for src, tgt in dev.pairs]
        rows = [(model.logits(model(batch_of([pair]))), torch.tensor(pair[1])) for pair in pairs]
        nll = sum(F.cross_entropy(*row, reduction="sum").item() for row in rows)
        record = validation.validate(model, torch.float32, dev, settings)
        assert record["dev_nll"] * sum(len(tgt) for _, tgt in pairs) == pytest.approx(nll, rel=1e-5)
        losses.append(record["dev_nll"])
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_a_validation_uses_all_fitting_pairs_and_keeps_ten_samples(lab: Lab) -> None:
    """A loss too large for a finite perplexity gives e^700."""
    corpus, settings, given = open_corpus(lab.corpus), lab.recipe("training.validate_bleu=12"), list[Any]()
    settings.corpus.moses, settings.corpus.tgt = True, "fr"
    dev = validation.DevSet(corpus, settings)
    sizes = [max(map(len, pair)) for pair in dev.pairs]
    for longest in (max(sizes), max(sizes) - 1):
        settings.model.max_length = longest
        kept = validation.DevSet(corpus, settings).pairs
        assert kept == [pair for pair, size in zip(dev.pairs, sizes, strict=True) if size <= longest]
    lines, tokens = [f"line {i}" for i in range(12)], sum(len(tgt) for _, tgt in dev.pairs)
    lab.patch.setattr(validation, "compute_share", lambda *_: (2000.0 * tokens, lines))
    lab.patch.setattr(validation, "corpus_bleu", lambda *texts, **options: given.append((texts, options)) or (12.5, ""))
    model = load_model(lab.reference).model
    record = validation.validate(model, torch.float32, dev, settings)
    assert record == {"dev_nll": 2000, "dev_perplexity": math.exp(700), "dev_bleu": 12.5, "samples": lines[:10]}
    assert given == [((lines, dev.references[:12]), {"language": "fr", "tokenized": True})]
    settings.training.validate_bleu = 99  # more lines than the set has
    lab.patch.setattr(validation, "compute_share", lambda *_: (2000.0 * tokens, dev.lines))
    assert validation.validate(model, torch.float32, dev, settings)["samples"] == dev.lines[:10]
    assert given.pop() == ((dev.lines, dev.references), {"language": "fr", "tokenized": True})
    settings.training.validate_bleu = 0
    record = validation.validate(model, torch.float32, dev, settings)
    assert (record["dev_bleu"], record["samples"], len(given)) == (None, [], 1)


def test_tokens_per_second_exclude_validations(lab: Lab) -> None:
    lab.patch.setattr(module, "_validate", lambda *_: 1000.0)
    assert lab.train("training.steps=10", "training.validate_every=5") == 0
    speeds = [record["tgt_tokens_per_second"] for record in read_records(lab.run / "metrics.jsonl")]
    assert speeds[0] > 0 > speeds[1], "a thousand seconds are subtracted from the time of the second five steps"
    lab.run = lab.run.with_name("tuned")
    start = f"training.init_from={lab.reference / 'model'}"
    assert lab.train(start, "training.steps=10", "training.validate_every=10") == 0
    speeds = [record["tgt_tokens_per_second"] for record in read_records(lab.run / "metrics.jsonl")]
    assert speeds[0] < 0 < speeds[1], "so is the time of the initial model's validation"
    state = dataclasses.replace(checkpoints.read_state(lab.run, 10), unvalidated=True)
    lab.patch.setattr(checkpoints, "read_state", lambda *_: state)
    lab.patch.setattr(module, "_validate", lambda trainer, *_: setattr(trainer.state, "unvalidated", False) or 1000.0)
    assert lab.train(start, "training.steps=20", "training.validate_every=99") == 0
    speeds = [record["tgt_tokens_per_second"] for record in read_records(lab.run / "metrics.jsonl")]
    assert speeds[-2] < 0 < speeds[-1], "and the time of a validation that a signal had interrupted"


def test_without_a_development_set_nothing_is_validated(lab: Lab, tmp_path: Path) -> None:
    settings = lab.recipe("corpus.dev_src=null", "corpus.dev_tgt=null", "training.steps=2")
    data = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert train(settings, data, lab.run) == 0
    assert "has no development set: nothing will be validated" in lab.stderr()


def test_a_development_set_too_long_for_the_model_is_refused(lab: Lab) -> None:
    lab.patch.setattr(Corpus, "lines", lambda *_: (["one " * 99], ["eins"]))
    with pytest.raises(DataError, match=r"all pairs of dev in .* exceed 64 tokens"):
        lab.train()
    lab.patch.setattr(Corpus, "lines", lambda *_: (["one " * 99, "one"], ["eins", "eins"]))
    assert lab.train("training.steps=1") == 0
    assert "dev perplexity leaves out 1 pair longer than model.max_length" in lab.stderr()
