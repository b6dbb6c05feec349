"""Measure the time, memory and disk space of `nmt prepare`.

The input repeats real pairs with a number appended, so that no pair is dropped as a duplicate. Run from the repository
root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/prepare_speed.py --pairs 200000 --workers 2
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow.parquet


def multiply(corpora: Path, folder: Path, pairs: int) -> int:
    """Write `pairs` distinct pairs into `folder`; return the bytes of text."""
    rows = []
    for path in sorted((corpora / "wmt14-mini" / "de-en").glob("train-*.parquet")):
        rows += [row["translation"] for row in pyarrow.parquet.read_table(path).to_pylist()]
    for language in ("en", "de"):
        with (folder / f"a.{language}").open("w", newline="\n") as file:
            file.writelines(f"{rows[i % len(rows)][language]} {i // len(rows)}\n" for i in range(pairs))
    return sum((folder / f"a.{language}").stat().st_size for language in ("en", "de"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=37_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = multiply(Path(os.environ["NMT_CORPORA"]), folder, options.pairs)
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
        print(f"peak memory {memory / 2**20:,.0f} MiB, peak disk without the text {disk / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
