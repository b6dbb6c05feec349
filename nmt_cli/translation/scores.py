"""Forced scoring: how probable a model finds given translations, line by line."""

import json
import math
from collections.abc import Iterator, Sequence

import torch

from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import encode
from nmt_cli.translation.search import SearchSettings, force, length_penalty
from nmt_cli.translation.stream import LineReader, write_lines

LINES_AT_ONCE, TOKENS_AT_ONCE = 1024, 4096


def force_all(
    models: Sequence[Transformer], dtype: torch.dtype, pairs: Sequence[tuple[list[int], list[int]]]
) -> list[list[float]]:
    """Return the log-probability of every target token of every pair; the models' probabilities are averaged.

    Pairs of similar length are computed together, within TOKENS_AT_ONCE.
    """
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
    results: list[list[float]] = [[] for _ in pairs]
    while order:
        count = 1
        while count < len(order) and (count + 1) * max(map(len, pairs[order[count]])) <= TOKENS_AT_ONCE:
            count += 1
        batch, order = order[:count], order[count:]
        found = [force(model, dtype, [pairs[i] for i in batch]) for model in models]
        for place, i in enumerate(batch):
            each = torch.tensor([one[place] for one in found], dtype=torch.float64)
            results[i] = (each.logsumexp(0) - math.log(len(models))).tolist()
    return results


def _pairs(source: LineReader, target: LineReader) -> Iterator[tuple[list[str], list[str]]]:
    """Yield as many source lines as target lines, some at a time.

    Raises:
        DataError: one side ends before the other.
    """
    sides: list[list[bytes]] = [[], []]
    done = 0
    while True:
        for side, reader in zip(sides, (source, target), strict=True):
            while len(side) < LINES_AT_ONCE and not reader.ended:
                side += reader.take(wait=True)
        count = min(LINES_AT_ONCE, *map(len, sides))
        if not count:
            break
        yield tuple([line.decode(errors="replace") for line in side[:count]] for side in sides)  # type: ignore[misc]
        sides = [side[count:] for side in sides]
        done += count
    if sides[0] or sides[1]:
        shorter = "the input" if sides[1] else "the file of --score-pairs"
        raise DataError(f"{shorter} ends after line {done:,} and the other side goes on: they are not pairs")


def score_pairs(
    models: Sequence[Transformer],
    dtype: torch.dtype,
    tokenizer: Tokenizer,
    files: tuple[int, int, int],
    settings: SearchSettings,
    form: str,
) -> tuple[int, float, int]:
    """Write the score of every pair; return how many there were, their log-probability and their pieces.

    Args:
        models: as `for_inference` returns them; their probabilities are averaged.
        dtype: arithmetic.
        tokenizer: of the models.
        files: descriptors of sources, translations and output.
        settings: for the length penalty.
        form: "text" (one score a line) or "jsonl".

    Raises:
        DataError: the files have different numbers of lines, or a pair is too long for the model.
    """
    longest = min(model.settings.max_length for model in models)
    lines, total, pieces = 0, 0.0, 0
    for texts in _pairs(LineReader(files[0]), LineReader(files[1])):
        src, tgt = (encode(tokenizer, side) for side in texts)
        pairs = [(s or [EOS], t or [EOS]) for s, t in zip(src, tgt, strict=True)]
        for i, pair in enumerate(pairs):
            if max(map(len, pair)) > longest:
                raise DataError(f"line {lines + i + 1:,} has more than the model's {longest} pieces: it has no score")
        found = force_all(models, dtype, pairs)
        records = []
        for i, values in enumerate(found):
            log_probability = math.fsum(values)
            score = log_probability / float(length_penalty(len(values), settings.alpha))
            records.append(
                {
                    "line": lines + i + 1,
                    "log_probability": log_probability,
                    "score": score,
                    "tokens": tokenizer.pieces(pairs[i][1]),
                    "token_log_probabilities": values,
                }
            )
            total, pieces = total + log_probability, pieces + len(values)
        if form == "jsonl":
            write_lines(files[2], [json.dumps(record, ensure_ascii=False) for record in records])
        else:
            write_lines(files[2], [f"{record['score']:.6f}" for record in records])
        lines += len(pairs)
    return lines, total, pieces
