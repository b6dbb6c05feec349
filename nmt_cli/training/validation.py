"""Development loss and BLEU while training, by the same search and metric code as `translate` and `score`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
# How much worse than expected is another curve, not noise: two runs of Multi30k differ by 3 % and 1.3 BLEU.
PERPLEXITY_FACTOR, BLEU_POINTS = 1.25, 3.0


@dataclass(frozen=True)
class Validation:
    """The nll in nats per target token (EOS counted), not smoothed; BLEU, None where the recipe asks for none."""

    nll: float
    bleu: float | None
    samples: Sequence[str] = ()

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700))


@dataclass(frozen=True)
class DevSet:
    """The development lines, and the ids of those pairs that fit the model, short ones first."""

    tokenizer: Tokenizer
    lines: list[str]
    references: list[str]
    pairs: list[tuple[list[int], list[int]]]


def dev_set(corpus: Corpus, settings: recipe.Recipe) -> DevSet | None:
    """Encode the development lines of a corpus; None where it has none.

    Raises:
        DataError: the sides do not fit together, or no pair fits the model.
    """
    lines, references = corpus.lines("dev")
    if not lines and not references:
        return None
    tokenizer, longest = Tokenizer(corpus.tokenizer_file), settings.model.max_length
    both = zip(encode(tokenizer, lines), encode(tokenizer, references), strict=False)
    pairs = [(src or [EOS], tgt or [EOS]) for src, tgt in both if max(len(src), len(tgt)) <= longest]
    if len(lines) != len(references) or not pairs:
        counts = f"{len(lines)} and {len(references)} lines, {len(pairs)} pairs of at most {longest} tokens"
        raise DataError(f"{corpus.directory} has a development set that cannot be used: {counts}. Prepare it again")
    return DevSet(tokenizer, lines, references, sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))))


def dev_nll(model: Transformer, dtype: torch.dtype, dev: DevSet) -> float:
    """Return the negative log-likelihood per target token in nats."""
    total, tokens, start = 0.0, 0, 0
    with torch.inference_mode():
        while start < len(dev.pairs):
            end = start + 1
            while end < len(dev.pairs) and (end + 1 - start) * max(map(len, dev.pairs[end])) <= TOKENS_AT_ONCE:
                end += 1
            flat, lengths = [], []
            for side in zip(*dev.pairs[start:end], strict=True):
                flat.append(np.concatenate(side))
                lengths.append(np.array([len(ids) for ids in side]))
            batch = pack(flat[0], lengths[0], flat[1], lengths[1], model.embedding.weight.device)
            _, nll = smoothed_loss(*model.output_terms(model(batch, None, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
            tokens += len(batch.tgt_out_N)
            start = end
    return total / tokens


def validate(model: Transformer, dtype: torch.dtype, dev: DevSet, settings: recipe.Recipe) -> Validation:
    """Return the loss over the whole development set, and BLEU over the recipe's first `validate_bleu` lines."""
    nll = dev_nll(model, dtype, dev)
    count = min(settings.training.validate_bleu, len(dev.lines))
    if not count:
        return Validation(nll, None)
    translator = Translator.of(model, dev.tokenizer, settings, dtype)
    lines = [translation.text for translation in translator.translate(dev.lines[:count])]
    return Validation(nll, corpus_bleu(lines, dev.references[:count])[0], lines[:10])


def off_the_curve(expect: recipe.Expect, step: int, result: Validation) -> str | None:
    """Return in words what is clearly worse than the recipe expects at this or the last earlier step; else None."""
    at = sum(expected <= step for expected in expect.dev_steps) - 1
    if at < 0:
        return None
    worse = []
    if expect.dev_perplexity and not result.perplexity <= PERPLEXITY_FACTOR * expect.dev_perplexity[at]:
        worse.append(f"dev perplexity {result.perplexity:.2f}, expected {expect.dev_perplexity[at]:.2f}")
    if expect.dev_bleu and result.bleu is not None and result.bleu < expect.dev_bleu[at] - BLEU_POINTS:
        worse.append(f"dev BLEU {result.bleu:.1f}, expected {expect.dev_bleu[at]:.1f}")
    return f"{' and '.join(worse)} at step {expect.dev_steps[at]:,}" if worse else None
