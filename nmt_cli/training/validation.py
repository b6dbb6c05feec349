"""Development loss and BLEU while training, by the same search and metric code as `translate` and `score`."""

import itertools
import math
from typing import Any

import torch

from nmt_cli import recipe
from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.training.distributed import gather_objects
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import pair_batches
from nmt_cli.translation.translator import Translator


class DevSet:
    """Development lines, and the ids of those pairs that fit the model."""

    def __init__(self, corpus: Corpus, settings: recipe.Recipe, split: str = "dev") -> None:
        (self.lines, self.references), self.seen_tokens = corpus.lines(split), corpus.seen_tokens
        self.tokenizer, longest = Tokenizer(corpus.tokenizer_file), settings.model.max_length
        pairs = itertools.starmap(self.tokenizer.encode_pair, zip(self.lines, self.references, strict=True))
        self.pairs = [pair for pair in pairs if max(map(len, pair)) <= longest]
        if not self.pairs:
            raise DataError(f"all dev pairs of {corpus.directory} are longer than {longest} tokens. Use another set")


def validate(
    model: Transformer, dtype: torch.dtype, dev: DevSet, settings: recipe.Recipe, rank: int = 0, world: int = 1
) -> dict[str, Any]:
    """Return the loss over the development set, BLEU over its first `validate_bleu` lines (0: None), and samples.

    Each of `world` processes does every `world`th line, and all return the same."""
    total, lines, count = 0.0, list[str](), min(settings.training.validate_bleu, len(dev.lines))
    with torch.inference_mode():
        for _, batch in pair_batches(dev.pairs[rank::world], model.embedding.weight.device):
            _, nll = smoothed_loss(*model.output_terms(model(batch, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
    if count:
        with Translator.of(model, dev.tokenizer, settings, dtype, dev.seen_tokens) as translator:
            lines = [translation.text for translation in translator.translate(dev.lines[:count][rank::world])]
    shares = gather_objects((total, lines), world)
    loss = sum(share for share, _ in shares) / sum(len(tgt) for _, tgt in dev.pairs)
    lines = [shares[i % world][1][i // world] for i in range(count)]
    bleu = corpus_bleu(lines, dev.references[:count], language=settings.corpus.tgt)[0] if count else None
    return {"dev_nll": loss, "dev_perplexity": math.exp(min(loss, 700)), "dev_bleu": bleu, "samples": lines[:10]}
