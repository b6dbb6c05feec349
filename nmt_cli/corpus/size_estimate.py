"""Estimates of the size, time and memory of a preparation, for a dry run and to check the free disk space."""

from pathlib import Path

from nmt_cli.corpus.raw_text import Source
from nmt_cli.storage import artefact
from nmt_cli.system import console

DISK_PER_TEXT_BYTE = 1.7  # bytes of cleaned text, ids and hashes per byte of raw text
BYTES_PER_PAIR = 250  # size of an average pair of news text, both sides together


def disk_megabytes(source: Source) -> int | None:
    """Estimate the disk space that a preparation needs, in MB. Return None if the size of the text is unknown."""
    text_bytes, limit = source.size().text_bytes, source.corpus.limit
    return text_bytes and int(DISK_PER_TEXT_BYTE * min(text_bytes, (limit or text_bytes) * BYTES_PER_PAIR) / 1e6) + 1


def show(source: Source, out: Path, processes: int) -> None:
    """Show a table with the estimated size, time and memory of a preparation."""
    corpus, size, counted = source.corpus, source.size(), source.count_pairs()
    pairs = counted or size.pairs or (size.text_bytes and size.text_bytes // BYTES_PER_PAIR) or corpus.limit
    pairs = pairs and min(pairs, corpus.limit or pairs)
    # The first term is the time to clean and encode the text, the second the time to train the tokenizer. The numbers
    # were measured with tests/benchmarks/prepare_speed.py on 2 cores of a Zen 4 machine, with WMT news text.
    seconds = pairs and pairs / (4000 * processes) + 60 * min(1.0, pairs / 1e6)
    memory = max(1300, 150 + 100 * processes)  # MB: the larger of the tokenizer training and the workers

    def shown(count: float | None, unit: str = " MB") -> str:
        return "unknown" if count is None else f"{count:,.0f}{unit}"

    rows = [
        ("from", source.origin),
        ("download", shown(size.download_bytes and size.download_bytes / 1e6)),
        ("training pairs" if counted else "training pairs, about", shown(pairs, "")),
        (f"disk while preparing, in {out.parent}", shown(disk_megabytes(source))),
        ("free there", shown(artefact.free_megabytes(out))),
        (f"memory, {processes} workers", shown(memory)),
        ("time without the download, about", console.duration(seconds) if seconds else "unknown"),
    ]
    if source.fills_cache:
        arrow = shown(size.text_bytes and size.text_bytes / 1e6)
        rows.insert(2, ("Arrow files in the hub's cache", arrow))
    console.table(f"nmt prepare {corpus.name} would need", ("", ""), rows)
