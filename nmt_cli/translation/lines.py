"""Lines of text in, the same number of lines out, in order: what validation, translate and score share."""

from collections.abc import Sequence

import torch

from nmt_cli.console import warn
from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import Hypothesis, SearchSettings, Source, search


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """Return each line's ids, closed by EOS; [] for a line without text."""
    ids = tokenizer.encode([normalise(line) for line in lines])
    return [[*line, EOS] if line else [] for line in ids]


def translate_ids(
    models: Sequence[Transformer], dtype: torch.dtype, sources: Sequence[Sequence[int]], settings: SearchSettings
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of every source, in order; [] for an empty source.

    Long sentences come first, so that neighbours are alike and the last ones leave soon.
    """
    limit = min(model.settings.max_length for model in models)
    long = sum(len(source) > limit for source in sources)
    if long:
        warn(f"{long:,} sources were longer than the model's {limit} pieces and were cut")
        sources = [[*source[: limit - 1], EOS] if len(source) > limit else source for source in sources]
    order = sorted((i for i in range(len(sources)) if sources[i]), key=lambda i: -len(sources[i]))
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for place, hypotheses in search(models, dtype, iter([Source(sources[i]) for i in order]), settings):
        results[order[place]] = hypotheses
    return results


def translate_lines(
    models: Sequence[Transformer],
    dtype: torch.dtype,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    settings: SearchSettings,
) -> list[str]:
    """Return one translation per line; a line without text gives an empty one."""
    sources = encode(tokenizer, lines)
    best = translate_ids(models, dtype, sources, settings)
    return tokenizer.decode([hypotheses[0].ids if hypotheses else [] for hypotheses in best])
