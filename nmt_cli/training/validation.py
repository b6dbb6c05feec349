"""Loss and BLEU on the development set, by the search of `nmt translate` and the metric of `nmt score`."""

import contextlib
import itertools
import math
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
    """The lines of a development set, and the ids of the pairs that fit the model."""

    def __init__(self, corpus: Corpus, settings: schema.Recipe, split: str = "dev") -> None:
        self.lines, self.references = corpus.lines(split)
        self.seen_tokens = corpus.seen_tokens
        self.tokenizer = Tokenizer(corpus.tokenizer_file)
        longest = settings.model.max_length
        pairs = itertools.starmap(self.tokenizer.encode_pair, zip(self.lines, self.references, strict=True))
        self.pairs = [pair for pair in pairs if max(map(len, pair)) <= longest]
        if not self.pairs:
            raise DataError(f"all dev pairs of {corpus.directory} are longer than {longest} tokens. Use another set")


def validate(
    model: Transformer,
    dtype: torch.dtype,
    dev: DevSet,
    settings: schema.Recipe,
    rank: int = 0,
    world: int = 1,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Return the loss per target token, BLEU of the first `validate_bleu` lines (None for 0 lines), and ten samples.

    Process `rank` of `world` computes every `world`th line, and all return the same. If a signal interrupts one
    process, all raise Interrupted.
    """
    count, share = min(settings.training.validate_bleu, len(dev.lines)), None
    with contextlib.suppress(Interrupted), stop.interruptible() if stop else contextlib.nullcontext():
        share = compute_share(model, dtype, dev, settings, slice(rank, None, world))
    shares = gather_objects(share, world)
    if any(share is None for share in shares):
        raise Interrupted
    loss = sum(share for share, _ in shares) / sum(len(tgt) for _, tgt in dev.pairs)
    lines = [shares[i % world][1][i // world] for i in range(count)]
    tgt, moses = settings.corpus.tgt, settings.corpus.moses
    bleu = corpus_bleu(lines, dev.references[:count], language=tgt, tokenized=moses)[0] if count else None
    return {"dev_nll": loss, "dev_perplexity": math.exp(min(loss, 700)), "dev_bleu": bleu, "samples": lines[:10]}


def compute_share(
    model: Transformer, dtype: torch.dtype, dev: DevSet, settings: schema.Recipe, own: slice
) -> tuple[float, list[str]]:
    """Return the summed loss of one process' pairs, and the translations of its lines."""
    total = 0.0
    sources = dev.lines[: settings.training.validate_bleu][own]
    with torch.inference_mode():
        for _, batch in pair_batches(dev.pairs[own], model.embedding.weight.device, model.settings.source_eos):
            _, nll = smoothed_loss(*model.output_terms(model(batch, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
    if not sources:
        return total, []
    with Translator.of(model, dev.tokenizer, settings, dtype, dev.seen_tokens) as translator:
        return total, [translation.text for translation in translator.translate(sources)]
