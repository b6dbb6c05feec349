"""Measure the time, memory and disk space of `nmt prepare`, and the speed of its parent process alone.

The input repeats real pairs with a number appended, so that no pair is dropped as a duplicate. Run from the repository
root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/prepare_speed.py --pairs 200000 --workers 2
    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/prepare_speed.py --pairs 1000000 --parent
    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/prepare_speed.py --pairs 300000 --parent --format tmx

With --parent, the workers do no work: they return their input, or constant ids. The script then measures the parent's
CPU time for reading and hashing files, sending pairs to workers, receiving results, and writing. --format first
converts the input.
"""

import argparse
import contextlib
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet

from nmt_cli.corpus import cleaning, prepare, stages, tokenizer
from nmt_cli.corpus.sources import source_of
from nmt_cli.recipe import loading

TOKENS = 30  # per side of a pair, in the results of `encode_free`


def multiply(corpora: Path, folder: Path, pairs: int) -> int:
    """Write `pairs` distinct pairs into `folder`; return the size of the text in bytes."""
    rows = []
    for path in sorted((corpora / "wmt14-mini" / "de-en").glob("train-*.parquet")):
        rows += [row["translation"] for row in pyarrow.parquet.read_table(path).to_pylist()]
    for language in ("en", "de"):
        with (folder / f"a.{language}").open("w", newline="\n") as file:
            file.writelines(f"{rows[i % len(rows)][language]} {i // len(rows)}\n" for i in range(pairs))
    return sum((folder / f"a.{language}").stat().st_size for language in ("en", "de"))


UNITS = {
    "tmx": '<tu>\n<tuv xml:lang="en"><seg>{}</seg></tuv>\n<tuv xml:lang="de"><seg>{}</seg></tuv>\n</tu>\n',
    "xlf": '<trans-unit id="1">\n<source>{}</source>\n<target>{}</target>\n</trans-unit>\n',
}
ROOTS = {
    "tmx": ('<tmx version="1.4">\n<header srclang="en"/>\n<body>\n', "</body>\n</tmx>\n"),
    "xlf": (
        '<xliff version="1.2"><file source-language="en" target-language="de"><body>\n',
        "</body></file></xliff>\n",
    ),
}


def convert(folder: Path, kind: str) -> list[str]:
    """Convert the text to a format, and return the paths of its files."""
    sides = [(folder / f"a.{language}").read_text().split("\n")[:-1] for language in ("en", "de")]
    file = folder / f"a.{kind}"
    if kind in ("plain", "gz"):
        names = [str(folder / f"a.{language}") for language in ("en", "de")]
        for name in names if kind == "gz" else ():
            Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes(), 6))
        return [f"{name}.gz" if kind == "gz" else name for name in names]
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(("en", "de"), sides, strict=True))), file)
        return [str(file)]
    with file.open("w", newline="") as output:
        if kind == "csv":
            csv.writer(output).writerows(zip(*sides, strict=True))
        elif kind == "jsonl":
            output.writelines(json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in zip(*sides, strict=True))
        elif kind == "tsv":
            output.writelines(f"{src}\t{tgt}\n" for src, tgt in zip(*sides, strict=True))
        else:
            first, last = ROOTS[kind]
            output.write(first)
            output.writelines(UNITS[kind].format(escape(src), escape(tgt)) for src, tgt in zip(*sides, strict=True))
            output.write(last)
    return [str(file)]


def clean_free(corpus: Any, held_out: Any, chunk: Any) -> Any:
    """Return what cleaning returns if it drops no pair, at no cost."""
    pairs = len(chunk.src)
    stats = cleaning.CleaningStats(pairs)
    stats.kept[0] = pairs
    sides = [b"".join(line + b"\n" for line in side) for side in chunk[:2]]
    return *sides, bytes(16 * pairs), stats


def encode_free(model: Path, corpus: Any, chunk: Any) -> Any:
    """Return what encoding returns if it drops no pair, at no cost. All ids are the same."""
    pairs = len(chunk[2])
    lengths = np.full(pairs, TOKENS)
    ids = np.full(pairs * TOKENS, 7, np.int32)
    return [ids, ids], [lengths, lengths], np.arange(pairs), cleaning.CleaningStats(), np.zeros(0, np.uint8)


def measure_parent(folder: Path, workers: int, kind: str) -> None:
    """Print the pairs per second of the parent's CPU time, in cleaning and in encoding."""
    section = {"name": "own", "src": "en", "tgt": "de", "sources": [{"files": convert(folder, kind)}]}
    corpus = loading.from_plain({"corpus": section}, "benchmark").corpus
    stages.clean_chunk, stages.encode_chunk = clean_free, encode_free
    cleaned, directory = folder / "cleaned", folder / "corpus"
    cleaned.mkdir()
    directory.mkdir()
    lines = [line for name in ("a.en", "a.de") for line in (folder / name).read_text().split("\n")[:5000]]
    (directory / "tokenizer.model").write_bytes(tokenizer.train(lines, 8000))
    with stages.Pool(workers) as pool:
        list(pool.calls(len, ["ready"] * workers))
        text = source_of(corpus).open(folder, folder)
        start, wall = time.process_time(), time.perf_counter()
        repeated, _ = stages.clean(cleaned, prepare.training_chunks(text, None), corpus, frozenset(), pool)
        pairs, seconds = len(repeated), time.process_time() - start
        print(f"cleaning: {pairs / seconds:,.0f} pairs/s of CPU, {pairs / (time.perf_counter() - wall):,.0f} elapsed")
        start, wall = time.process_time(), time.perf_counter()
        stages.encode(cleaned, repeated, np.array([pairs]), directory / "tokenizer.model", corpus, pool)
        seconds = time.process_time() - start
        print(f"encoding: {pairs / seconds:,.0f} pairs/s of CPU, {pairs / (time.perf_counter() - wall):,.0f} elapsed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--parent", action="store_true", help="measure the parent process alone")
    kinds = ("plain", "gz", "tsv", "csv", "jsonl", "parquet", *UNITS)
    parser.add_argument("--format", choices=kinds, default="plain", help="format of the text with --parent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = multiply(Path(os.environ["NMT_CORPORA"]), folder, options.pairs)
        if options.parent:
            measure_parent(folder, options.workers, options.format)
            return
        words = ["prepare", "--src", folder / "a.en", "--tgt", folder / "a.de", "--out", folder / "out"]
        words += ["--workers", options.workers, "--set", f"corpus.tokenizer.vocabulary_size={options.vocabulary}"]
        start = time.perf_counter()
        child = psutil.Popen([sys.executable, "-m", "nmt_cli", *map(str, words)], env=os.environ | {"PYTHONPATH": "."})
        memory = disk = 0
        while child.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):  # counts shared pages once per process
                family = [child, *child.children(recursive=True)]
                memory = max(memory, sum(process.memory_info().rss for process in family))
            disk = max(disk, int(subprocess.check_output(["du", "-sb", temporary]).split()[0]) - text)
            time.sleep(0.2)
        seconds = time.perf_counter() - start
        print(f"{options.pairs:,} pairs, {text / 1e6:,.0f} MB of text, {options.workers} workers: {seconds:.1f} s")
        print(f"peak memory {memory / 2**20:,.0f} MiB, peak disk space without the text {disk / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
