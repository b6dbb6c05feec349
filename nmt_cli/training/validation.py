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
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer, pack
from nmt_cli.translation.lines import encode, translate_ids
from nmt_cli.translation.search import SearchSettings

TOKENS_AT_ONCE = 4096
# How much worse than expected is another curve, not noise: two runs of Multi30k differ by 3 % and 1.3 BLEU.
PERPLEXITY_FACTOR, BLEU_POINTS = 1.25, 3.0


@dataclass(frozen=True)
class Validation:
    """What one validation found.

    Attributes:
        nll: nats per target piece (EOS counted), not smoothed; perplexity is exp of it.
        bleu: sacreBLEU of greedy or beam output, as the recipe decodes; None where it was not asked for.
        samples: the first translations, to watch them improve.
    """

    nll: float
    bleu: float | None
    samples: list[str] = field(default_factory=list)


def off_the_curve(expect: recipe.Expect, step: int, result: Validation) -> str | None:
    """Return what is clearly worse than a recipe expects after `step` updates; None where nothing is, or is known.

    Compared is the last figure known for this or an earlier step: a run is at least as good later on.
    """
    at = sum(known <= step for known in expect.dev_steps) - 1
    if at < 0:
        return None
    found, perplexity = [], math.exp(min(result.nll, 700))
    if expect.dev_perplexity and not perplexity <= PERPLEXITY_FACTOR * expect.dev_perplexity[at]:
        found.append(f"dev perplexity {perplexity:.2f}, expected {expect.dev_perplexity[at]:.2f}")
    if expect.dev_bleu and result.bleu is not None and result.bleu < expect.dev_bleu[at] - BLEU_POINTS:
        found.append(f"dev BLEU {result.bleu:.1f}, expected {expect.dev_bleu[at]:.1f}")
    return f"{' and '.join(found)} at update {expect.dev_steps[at]:,}" if found else None


@dataclass(frozen=True)
class DevSet:
    """The development pairs, encoded once; pairs longer than the model are left out of the loss, not of BLEU."""

    sources: list[list[int]]
    targets: list[list[int]]
    references: list[str]


def dev_set(corpus: Corpus, tokenizer: Tokenizer, settings: recipe.Recipe) -> DevSet:
    """Encode the development lines of a corpus.

    Raises:
        DataError: the sides do not fit together, or no pair fits the model.
    """
    src, tgt = corpus.lines("dev")
    dev = DevSet(encode(tokenizer, src), encode(tokenizer, tgt), tgt)
    shortest = min((max(map(len, pair)) for pair in zip(dev.sources, dev.targets, strict=False)), default=0)
    if len(src) != len(tgt) or shortest > settings.model.max_length:
        counts = f"{len(src)} and {len(tgt)} lines, the shortest pair of {shortest} pieces"
        raise DataError(f"{corpus.directory} has a development set that cannot be used: {counts}. Prepare it again")
    return dev


def dev_nll(model: Transformer, dtype: torch.dtype, dev: DevSet) -> float:
    """Return the negative log-likelihood per target piece, in nats."""
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
            sides = [_flat([p[i] for p in pairs[start:end]]) for i in (0, 1)]
            batch = pack(*sides[0], *sides[1], device)
            _, nll = smoothed_loss(*model.output_terms(model(batch, None, dtype)), batch.tgt_out_N, 0.0)
            total += float(nll)
            tokens += len(batch.tgt_out_N)
            start = end
    return total / tokens


def _flat(sentences: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.concatenate([np.asarray(s) for s in sentences]), np.array([len(s) for s in sentences])


def validate(
    model: Transformer, dtype: torch.dtype, tokenizer: Tokenizer, dev: DevSet, settings: recipe.Recipe
) -> Validation:
    """Return the loss over the whole development set, and BLEU over the recipe's first `validate_bleu` lines."""
    nll = dev_nll(model, dtype, dev)
    count = min(settings.training.validate_bleu, len(dev.sources))
    if not count:
        return Validation(nll, None)
    decoding = settings.decoding
    search = SearchSettings(decoding.beam, decoding.alpha, decoding.extra_length)
    best = translate_ids([for_inference(model, dtype)], dtype, dev.sources[:count], search)
    lines = tokenizer.decode([hypotheses[0].ids if hypotheses else [] for hypotheses in best])
    return Validation(nll, corpus_bleu(lines, dev.references[:count])[0], lines[:10])
