"""Development loss and BLEU while training, by the same search and metric code as `translate` and `score`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from nmt_cli import recipe
from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.scoring.score import corpus_bleu
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer, pack
from nmt_cli.translation.lines import encode, translate_lines
from nmt_cli.translation.search import SearchSettings

TOKENS_AT_ONCE = 4096
# How much worse than expected is another curve, not noise: two runs of Multi30k differ by 3 % and 1.3 BLEU.
PERPLEXITY_FACTOR, BLEU_POINTS = 1.25, 3.0


@dataclass(frozen=True)
class Validation:
    """The result of one validation.

    Attributes:
        nll: nats per target token (EOS counted), not smoothed; perplexity is exp of it.
        bleu: sacreBLEU, decoded as the recipe says; None where the recipe asks for none.
        samples: the first translations, to watch them improve.
    """

    nll: float
    bleu: float | None
    samples: list[str] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700))


@dataclass(frozen=True)
class DevSet:
    """The development pairs as text, and encoded for the loss."""

    tokenizer: Tokenizer
    lines: list[str]
    references: list[str]
    sources: list[list[int]]
    targets: list[list[int]]


def dev_set(corpus: Corpus, settings: recipe.Recipe) -> DevSet | None:
    """Encode the development lines of a corpus; None where it has none.

    Raises:
        DataError: the sides do not fit together, or no pair fits the model.
    """
    src, tgt = corpus.lines("dev")
    if not src and not tgt:
        return None
    tokenizer = Tokenizer(corpus.tokenizer_file)
    dev = DevSet(tokenizer, src, tgt, encode(tokenizer, src), encode(tokenizer, tgt))
    shortest = min((max(map(len, pair)) for pair in zip(dev.sources, dev.targets, strict=False)), default=0)
    if len(src) != len(tgt) or shortest > settings.model.max_length:
        counts = f"{len(src)} and {len(tgt)} lines, the shortest pair of {shortest} tokens"
        raise DataError(f"{corpus.directory} has a development set that cannot be used: {counts}. Prepare it again")
    return dev


def dev_nll(model: Transformer, dtype: torch.dtype, dev: DevSet) -> float:
    """Return the negative log-likelihood per target token in nats, over the pairs that fit the model."""
    longest = model.settings.max_length
    pairs = [(s or [EOS], t or [EOS]) for s, t in zip(dev.sources, dev.targets, strict=True)]
    pairs = sorted((p for p in pairs if max(map(len, p)) <= longest), key=lambda p: (len(p[1]), len(p[0])))
    total, tokens, start = 0.0, 0, 0
    device = model.embedding.weight.device
    with torch.inference_mode():
        while start < len(pairs):
            end = start + 1
            while end < len(pairs) and (end + 1 - start) * max(map(len, pairs[end])) <= TOKENS_AT_ONCE:
                end += 1
            src, tgt = ([pair[side] for pair in pairs[start:end]] for side in (0, 1))
            batch = pack(*_flat(src), *_flat(tgt), device)
            _, nll = smoothed_loss(*model.output_terms(model(batch, None, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
            tokens += len(batch.tgt_out_N)
            start = end
    return total / tokens


def _flat(sentences: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.concatenate([np.asarray(s) for s in sentences]), np.array([len(s) for s in sentences])


def validate(model: Transformer, dtype: torch.dtype, dev: DevSet, settings: recipe.Recipe) -> Validation:
    """Return the loss over the whole development set, and BLEU over the recipe's first `validate_bleu` lines."""
    nll = dev_nll(model, dtype, dev)
    count = min(settings.training.validate_bleu, len(dev.lines))
    if not count:
        return Validation(nll, None)
    decoding = settings.decoding
    search = SearchSettings(decoding.beam, decoding.alpha, decoding.extra_length)
    lines = translate_lines([for_inference(model, dtype)], dtype, dev.tokenizer, dev.lines[:count], search)
    return Validation(nll, corpus_bleu(lines, dev.references[:count])[0], lines[:10])


def off_the_curve(expect: recipe.Expect, step: int, result: Validation) -> str | None:
    """Return in words what is clearly worse than the recipe expects; None where nothing is.

    Compared is the last figure expected at this or an earlier step: a run is at least as good later on.
    """
    at = sum(expected <= step for expected in expect.dev_steps) - 1
    if at < 0:
        return None
    worse = []
    if expect.dev_perplexity and not result.perplexity <= PERPLEXITY_FACTOR * expect.dev_perplexity[at]:
        worse.append(f"dev perplexity {result.perplexity:.2f}, expected {expect.dev_perplexity[at]:.2f}")
    if expect.dev_bleu and result.bleu is not None and result.bleu < expect.dev_bleu[at] - BLEU_POINTS:
        worse.append(f"dev BLEU {result.bleu:.1f}, expected {expect.dev_bleu[at]:.1f}")
    return f"{' and '.join(worse)} at step {expect.dev_steps[at]:,}" if worse else None
