"""Kept until their callers use Translator."""

from collections.abc import Sequence

import torch

from nmt_cli.console import warn
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import SearchSettings, score_targets, search
from nmt_cli.translation.segments import Hypothesis, Segment, encode

__all__ = ["encode", "force", "translate_ids", "translate_lines"]


def translate_ids(
    models: Sequence[Transformer], dtype: torch.dtype, sources: Sequence[Sequence[int]], settings: SearchSettings
) -> list[list[Hypothesis]]:
    limit = min(model.settings.max_length for model in models)
    if long := sum(len(source) > limit for source in sources):
        warn(f"{long:,} sources were longer than the model's {limit} pieces and were cut")
        sources = [[*source[: limit - 1], EOS] if len(source) > limit else source for source in sources]
    order = sorted((i for i in range(len(sources)) if sources[i]), key=lambda i: -len(sources[i]))
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for result in search(models, dtype, iter([Segment(i, sources[i]) for i in order]), settings):
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
