"""Development loss and BLEU while training, by the same search and metric code as `translate` and `score`."""

import math
from typing import Any

import numpy as np
import torch

from nmt_cli import recipe
from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.model import Transformer, pack
from nmt_cli.translation.segments import encode
from nmt_cli.translation.translator import Translator

TOKENS_AT_ONCE = 4096


class DevSet:
    """Development lines, and the ids of those pairs that fit the model, short ones first."""

    def __init__(self, corpus: Corpus, settings: recipe.Recipe, split: str = "dev") -> None:
        (self.lines, self.references), self.seen_tokens = corpus.lines(split), corpus.seen_tokens
        self.tokenizer, longest = Tokenizer(corpus.tokenizer_file), settings.model.max_length
        both = zip(encode(self.tokenizer, self.lines), encode(self.tokenizer.target, self.references), strict=True)
        pairs = [(src or [EOS], tgt or [EOS]) for src, tgt in both if max(len(src), len(tgt)) <= longest]
        if not pairs:
            raise DataError(f"all dev pairs of {corpus.directory} are longer than {longest} tokens. Use another set")
        self.pairs = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))


def dev_nll(model: Transformer, dtype: torch.dtype, dev: DevSet) -> float:
    """Return the negative log-likelihood per target token in nats."""
    total, tokens, start = 0.0, 0, 0
    with torch.inference_mode():
        while start < len(dev.pairs):
            end = start + 1
            while end < len(dev.pairs) and (end + 1 - start) * max(map(len, dev.pairs[end])) <= TOKENS_AT_ONCE:
                end += 1
            columns = zip(*dev.pairs[start:end], strict=True)
            src, tgt = ((np.concatenate(column), np.array([len(ids) for ids in column])) for column in columns)
            batch = pack(*src, *tgt, model.embedding.weight.device)
            _, nll = smoothed_loss(*model.output_terms(model(batch, dtype)), batch.tgt_out_N, 0.0)
            total, tokens, start = total + float(nll), tokens + len(batch.tgt_out_N), end
    return total / tokens


def validate(model: Transformer, dtype: torch.dtype, dev: DevSet, settings: recipe.Recipe) -> dict[str, Any]:
    """Return the loss over the development set, BLEU over its first `validate_bleu` lines (0: None), and samples."""
    nll, bleu, lines = dev_nll(model, dtype, dev), None, list[str]()
    if count := min(settings.training.validate_bleu, len(dev.lines)):
        translator = Translator.of(model, dev.tokenizer, settings, dtype, dev.seen_tokens)
        lines = [translation.text for translation in translator.translate(dev.lines[:count])]
        bleu = corpus_bleu(lines, dev.references[:count])[0]
    return {"dev_nll": nll, "dev_perplexity": math.exp(min(nll, 700)), "dev_bleu": bleu, "samples": lines[:10]}
