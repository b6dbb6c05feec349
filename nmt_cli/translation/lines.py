"""Kept until its callers use Translator."""

from collections.abc import Sequence

import torch

from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import SearchSettings, score_targets, search
from nmt_cli.translation.segments import Hypothesis, Segment


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    ids = tokenizer.encode([normalise(line) for line in lines])
    return [[*line, EOS] if line else [] for line in ids]


def translate_ids(
    models: Sequence[Transformer], dtype: torch.dtype, sources: Sequence[Sequence[int]], settings: SearchSettings
) -> list[list[Hypothesis]]:
    limit = min(model.settings.max_length for model in models)
    cut = [[*source[: limit - 1], EOS] if len(source) > limit else list(source) for source in sources]
    order = sorted((i for i in range(len(cut)) if cut[i]), key=lambda i: -len(cut[i]))
    results: list[list[Hypothesis]] = [[] for _ in cut]
    for result in search(models, dtype, iter([Segment(i, cut[i]) for i in order]), settings):
        if result:
            results[result[0]] = result[1]
    return results


def translate_lines(
    models: Sequence[Transformer],
    dtype: torch.dtype,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    settings: SearchSettings,
) -> list[str]:
    best = translate_ids(models, dtype, encode(tokenizer, lines), settings)
    return tokenizer.decode([hypotheses[0].ids if hypotheses else [] for hypotheses in best])


def force(
    model: Transformer, dtype: torch.dtype, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    return score_targets([model], dtype, pairs)
