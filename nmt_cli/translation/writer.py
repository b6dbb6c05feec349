"""Write translations as lines of text or JSON, with word alignments, and report how many lines were cut, split etc."""

import itertools
import json
import os
import select
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.system.console import counted, say, warn
from nmt_cli.translation.pending import Copy, Translation
from nmt_cli.translation.segments import Hypothesis

FIELDS = ("text", "log_probability", "score", "tokens", "token_log_probabilities")  # fields of a hypothesis in jsonl


def write_lines(descriptor: int, lines: Iterable[str]) -> None:
    """Write lines in blocks that a pipe accepts whole, so that interrupted output ends with a whole line."""
    block = b""
    for line in lines:
        encoded = line.encode() + b"\n"
        if len(block) + len(encoded) > select.PIPE_BUF:
            _write(descriptor, block)
            block = b""
        block += encoded
    _write(descriptor, block)


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def formatted(translation: Translation, number: int, tokenizer: Tokenizer | None, form: str) -> Iterator[str]:
    """Yield the output lines of a translation. `form` is "text" or "jsonl". With a tokenizer, add word alignments."""
    hypotheses = translation.hypotheses
    alignments = list[str]()
    if tokenizer:
        ranks = range(len(hypotheses))
        copied = _copied(translation.copy)
        alignments = [copied or alignment(tokenizer, translation.parts(rank)) for rank in ranks]
    if form == "jsonl":
        records = []
        for rank, hypothesis in enumerate(hypotheses):
            record = {name: getattr(hypothesis, name) for name in FIELDS}
            if alignments:
                record["alignment"] = alignments[rank]
            if terms := translation.terms:
                record["terms"] = {term.source: translation.form_of(term, hypothesis.text) for term in terms}
            records.append(record)
        mark: dict[str, object] = {"copied": True} if translation.copy else {}
        if translation.case:
            mark["case"] = translation.case
        if translation.corrections:
            mark["spelling"] = translation.corrections
        if translation.untranslated:
            mark["untranslated"] = True
        yield json.dumps({"line": number, **mark, "hypotheses": records}, ensure_ascii=False)
        return
    for rank, hypothesis in enumerate(hypotheses):
        fields = [hypothesis.text]
        if len(hypotheses) > 1:
            fields = [f"{number - 1}", hypothesis.text, f"{hypothesis.score:.6g}"]
        if alignments:
            fields.append(alignments[rank])
        yield " ||| ".join(fields)


def _copied(copy: Copy | None) -> str:
    """Return the word alignment of a copied text, which links each word to its copy, or "" if `copy` is None."""
    return " ".join(f"{copy.skipped + word}-{word}" for word in range(len(copy.text.split()))) if copy else ""


def alignment(tokenizer: Tokenizer, parts: Sequence[tuple[list[int], Hypothesis]]) -> str:
    """Return the word alignment of a line, such as "0-1 1-0": pairs of source and target words, numbered from 0.

    Each target token links its word to the word of the source token that it translates. `parts` holds, for
    each segment, its source ids and its hypothesis.
    """
    pairs: set[tuple[int, int]] = set()
    words = [0, 0]  # numbers of source and target words in the segments so far
    for source, hypothesis in parts:
        sides = (tokenizer, source[:-1]), (tokenizer.target, hypothesis.ids)
        numbers: list[list[int]] = []  # for each side, the word number of each token
        for side, (own, ids) in enumerate(sides):
            # Later segments repeat the language and tag tokens of the line, which are already counted.
            skip = 0 if side or not words[0] else len(own.language(ids))
            starts = [token.startswith("\u2581") for token in own.tokens(ids[skip:])]
            numbered = [words[side] + n for n in itertools.accumulate([0, *starts[1:]])] if starts else []
            numbers.append([*range(skip), *numbered])
            words[side] += len(set(numbered))
        pairs |= {(numbers[0][origin], numbers[1][token]) for token, origin in enumerate(hypothesis.source_positions)}
    return " ".join(f"{src}-{tgt}" for src, tgt in sorted(pairs))


def report(counts: Counter[str], max_length: int) -> None:
    """Print how many lines were cut, split etc. Anything lost or left untranslated is a warning."""
    first = counts["first invalid"]
    for show, name, text in (
        (warn, "invalid", f"lines are not UTF-8 (first: line {first:,}): their invalid bytes were replaced"),
        (warn, "huge", f"lines were over {MAX_LINE_BYTES:,} bytes and were cut while they were read"),
        (warn, "cut", f"lines or prefixes were longer than the model's {max_length:,} tokens and were cut"),
        (warn, "unsaid", "terms are missing from translations: the search found no hypothesis with them"),
        (
            warn,
            "untranslated",
            "sentences or parts of them were left untranslated: the model repeated itself or did not end",
        ),
        (say, "corrected", "lines had typos that were corrected (--spelling off keeps them)"),
        (say, "constrained", "segments lacked a term and were searched again, with constraints"),
        (say, "split", "lines longer than training lines were split at sentence ends and rejoined"),
        (say, "retried", "translations were empty or repeated themselves and were tried again in halves"),
    ):
        if counts[name]:
            show(f"{counts[name]:,} {text}")
    if counts["copied"]:
        say(f"{counted(counts['copied'], 'line')} without letters copied")
