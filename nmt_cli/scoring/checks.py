"""Warnings about inputs whose scores would mislead: tokenized text, doubtful references, a filtered test set."""

import re
import unicodedata
from collections.abc import Iterator

from nmt_cli.scoring.score_report import Report

# Signs of tokenization: a space before a full stop or comma, Moses' entities, and the marks of BPE and SentencePiece.
# They are rare in other text.
TOKENIZED = re.compile(r" [.,](?:\s|$)|&(?:quot|apos|amp|#\d+);|@@ |@-@|▁")
CHINESE_OR_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
FILTERED_NEWSTEST2014 = 2737  # lines


def hypothesis_warnings(report: Report) -> Iterator[str]:
    """Yield warnings about hypotheses that word-based metrics misjudge."""
    lines = report.hypotheses.lines
    tokenized = sum(bool(TOKENIZED.search(line)) for line in lines)
    if tokenized * 10 > len(lines) and not report.tokenized:
        found = f"{tokenized:,} of {len(lines):,} hypotheses look tokenized (a separate full stop, &quot;, @@ or ▁)"
        yield f"{found}. Detokenize them first: scores of tokenized text cannot be compared with other scores"
    unspaced = sum(bool(CHINESE_OR_JAPANESE.search(line)) for line in lines)
    if unspaced * 2 > len(lines) and report.tokenize == "13a":
        found = "the hypotheses look Chinese or Japanese, and tokenizer 13a treats a line without spaces as one word"
        yield f"{found}. Pass --language zh or ja"


def reference_warnings(report: Report) -> Iterator[str]:
    """Yield warnings about empty references and about text that is not in NFC. Both lower the score."""
    for text in report.references:
        pairs = zip(text.lines, report.hypotheses.lines, strict=True)
        if empty := sum(bool(line.strip()) > bool(reference.strip()) for reference, line in pairs):
            found = f"{empty:,} of {len(text.lines):,} lines of {text.name} are empty where the hypotheses have text"
            yield f"{found}. sacreBLEU counts them as references without words, not as missing references"
    for text in (*report.references, report.hypotheses):
        if other := sum(not unicodedata.is_normalized("NFC", line) for line in text.lines):
            found = f"{other:,} of {len(text.lines):,} lines of {text.name} are not in Unicode form NFC"
            yield f"{found}. For example, a decomposed é does not match the é of NFC. Convert the lines: uconv -x nfc"


def test_set_warnings(report: Report) -> Iterator[str]:
    """Yield a warning about the filtered newstest2014, recognized by its number of lines."""
    if len(report.hypotheses.lines) == FILTERED_NEWSTEST2014:
        yield (
            "2,737 lines is the size of the filtered newstest2014. "
            '"Attention Is All You Need" and most other papers score all 3,003 lines. '
            "To do the same, pass --test-set wmt14/full"
        )
