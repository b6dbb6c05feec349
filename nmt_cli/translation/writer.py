"""Write translations as lines of text or JSON, with word alignments, and report how many lines were cut, split etc."""

import itertools
import json
import os
import re
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
    """Write lines in blocks of at most PIPE_BUF bytes. A pipe accepts such a block whole, so no line is broken off.

    Only a line of more than PIPE_BUF bytes may be broken off if the command is interrupted.
    """
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
    """Return the word alignment of a copied text: each word is linked to its copy. Return "" if `copy` is None."""
    return " ".join(f"{copy.skipped + word}-{word}" for word in range(len(copy.text.split()))) if copy else ""


def alignment(tokenizer: Tokenizer, parts: Sequence[tuple[list[int], Hypothesis]]) -> str:
    """Return the word alignment of a line, such as "0-1 1-0": pairs of source and target words, numbered from 0.

    Two words are linked if a token of the target word translates a token of the source word. `parts` holds, for each
    segment, its source ids and its hypothesis.
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
    """Print how many lines were cut, split etc. Anything lost or left untranslated is a warning.

    In the texts, "line/lines" is "line" for a count of 1, and "lines" for other counts.
    """
    first = counts["first invalid"]
    losses = {
        "invalid": f"line/lines is/are not UTF-8 (first: line {first:,}): its/their invalid bytes were replaced",
        "huge": f"line/lines was/were over {MAX_LINE_BYTES:,} bytes and was/were cut while it/they was/were read",
        "cut": f"line/lines or prefix/prefixes was/were longer than the model's {max_length:,} tokens and was/were cut",
        "unsaid": "term/terms is/are missing from translations: the search found no hypothesis with it/them",
        "untranslated": "sentence/sentences or part/parts of it/them was/were left untranslated: the model repeated "
        "itself or did not end",
    }
    others = {
        "corrected": "line/lines had typos that were corrected (--spelling off keeps them)",
        "constrained": "segment/segments was/were searched again with constraints, because a term was missing",
        "split": "line/lines longer than training lines was/were split at sentence ends and rejoined",
        "retried": "segment/segments was/were translated again in two halves, because its/their "
        "translation/translations was/were empty, repetitive or far too long",
    }
    for show, texts in ((warn, losses), (say, others)):
        for name, text in texts.items():
            if count := counts[name]:
                chosen = re.sub(r"\b([a-z]+)/([a-z]+)", r"\1" if count == 1 else r"\2", text)
                show(f"{count:,} {chosen}")
    if counts["copied"]:
        say(f"{counted(counts['copied'], 'line')} without letters copied")
