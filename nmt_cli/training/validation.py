"""Loss and BLEU of a model on a held-out set. The search is that of `nmt translate`, and BLEU that of `nmt score`."""

import contextlib
import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch

from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.recipe import schema
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.system.errors import DataError
from nmt_cli.training.collectives import gather_objects
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.training.stopping import Interrupted, Stop
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import pair_batches
from nmt_cli.translation.translator import Translator


class DevSet:
    """All lines of a held-out set, for BLEU, and the token ids of its pairs that fit the model, for the loss."""

    def __init__(self, corpus: Corpus, settings: schema.Recipe, split: str = "dev") -> None:
        self.lines, self.references = corpus.lines(split)
        self.lines_by_pair = corpus.lines_by_pair(split)
        self.seen_tokens = corpus.seen_tokens
        self.tokenizer = Tokenizer(corpus.tokenizer_file)
        longest = settings.model.max_length
        pairs = itertools.starmap(self.tokenizer.encode_pair, zip(self.lines, self.references, strict=True))
        self.pairs = [pair for pair in pairs if max(map(len, pair)) <= longest]
        if not self.pairs:
            raise DataError(f"all pairs of {split} in {corpus.directory} exceed {longest} tokens. Use another set")

    def translated(self, count: int) -> list[int]:
        """Return the indices of about `count` lines to translate: the first ones, or the first of each language pair.

        Each language pair contributes the same number of lines, at least one, or all its lines if there are fewer. If
        `count` is 0, return [].
        """
        each = max(1, count // len(self.lines_by_pair)) if self.lines_by_pair and count else count
        groups = self.lines_by_pair.values() or [range(len(self.lines))]
        return [line for group in groups for line in group[:each]]


def validate(
    model: Transformer,
    dtype: torch.dtype,
    dev: DevSet,
    settings: schema.Recipe,
    rank: int = 0,
    world: int = 1,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Return the loss per target token, the perplexity, BLEU, and up to ten translations.

    BLEU is that of the lines from `DevSet.translated`, or None if training.validate_bleu is 0. If the set has
    several language pairs, also return the BLEU of each pair. Each of `world` processes computes a share of the set,
    and all return the same result. If a signal interrupts one process, all raise Interrupted.
    """
    translated, share = dev.translated(settings.training.validate_bleu), None
    with contextlib.suppress(Interrupted), stop.interruptible() if stop else contextlib.nullcontext():
        share = compute_share(model, dtype, dev, settings, slice(rank, None, world))
    shares = gather_objects(share, world)
    if any(share is None for share in shares):
        raise Interrupted
    loss = sum(total for total, _ in shares) / sum(len(tgt) for _, tgt in dev.pairs)
    hypotheses = {line: shares[i % world][1][i // world] for i, line in enumerate(translated)}

    def bleu(lines: Iterable[int], language: str) -> float | None:
        chosen = [line for line in lines if line in hypotheses]
        sides = [hypotheses[line] for line in chosen], [dev.references[line] for line in chosen]
        return corpus_bleu(*sides, language=language, tokenized=settings.corpus.moses)[0] if chosen else None

    scores = {"dev_nll": loss, "dev_perplexity": math.exp(min(loss, 700))}
    scores |= {"dev_bleu": bleu(translated, settings.corpus.tgt)}
    for (src, tgt), lines in dev.lines_by_pair.items():
        scores[f"dev_bleu_{src}-{tgt}"] = bleu(lines, tgt)
    return {**scores, "samples": [hypotheses[line] for line in translated[:10]]}


def compute_share(
    model: Transformer, dtype: torch.dtype, dev: DevSet, settings: schema.Recipe, own: slice
) -> tuple[float, list[str]]:
    """Return the total loss of one process's pairs, and the translations of its lines. `own` selects both."""
    total = 0.0
    sources = [dev.lines[line] for line in dev.translated(settings.training.validate_bleu)[own]]
    with torch.inference_mode():
        for _, batch in pair_batches(dev.pairs[own], model.embedding.weight.device, model.settings.source_eos):
            _, nll = smoothed_loss(*model.output_terms(model(batch, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
    if not sources:
        return total, []
    with Translator.of(model, dev.tokenizer, settings, dtype, dev.seen_tokens) as translator:
        return total, [translation.text for translation in translator.translate(sources)]
