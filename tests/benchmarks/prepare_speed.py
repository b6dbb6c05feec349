"""How fast `prepare` is, how much memory and disk it takes, and how its encoding compares with bare SentencePiece.

Real pairs are multiplied and made distinct, so that nothing is dropped as a duplicate. Run from the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/prepare_speed.py --pairs 200000 --workers 2
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow.parquet
import sentencepiece


def multiply(corpora: Path, where: Path, pairs: int) -> int:
    """Write `pairs` distinct pairs; return the bytes of text."""
    rows = []
    for path in sorted((corpora / "wmt14-mini" / "de-en").glob("train-*.parquet")):
        rows += [row["translation"] for row in pyarrow.parquet.read_table(path).to_pylist()]
    for language in ("en", "de"):
        with (where / f"a.{language}").open("w", newline="\n") as file:
            file.writelines(f"{rows[i % len(rows)][language]} {i // len(rows)}\n" for i in range(pairs))
    return sum((where / f"a.{language}").stat().st_size for language in ("en", "de"))


def family_rss(pid: int) -> int:
    """Return the bytes of resident memory of a process and its descendants (shared pages count once for each)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024 + sum(family_rss(int(child)) for child in children)
    except (OSError, IndexError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=37_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        text = multiply(Path(os.environ["NMT_CORPORA"]), where, options.pairs)
        words = ["prepare", "--src", where / "a.en", "--tgt", where / "a.de", "--out", where / "out"]
        words += ["--workers", options.workers, "--set", f"corpus.tokenizer.vocabulary_size={options.vocabulary}"]
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "nmt_cli", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(Path.cwd())}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        memory = disk = 0

        def listen() -> None:
            for line in child.stderr or ():
                print(f"  {time.perf_counter() - start:7.1f} s, peak {memory / 2**20:6.0f} MiB  {line.rstrip()}")

        ear = threading.Thread(target=listen)
        ear.start()
        while child.poll() is None:
            memory = max(memory, family_rss(child.pid))
            disk = max(disk, int(subprocess.check_output(["du", "-sb", folder]).split()[0]) - text)
            time.sleep(0.2)
        ear.join()
        seconds = time.perf_counter() - start
        print(f"{options.pairs:,} pairs, {text / 1e6:,.0f} MB of text, {options.workers} workers: {seconds:.1f} s")
        print(f"peak memory {memory / 2**20:,.0f} MiB, peak disk beside the text {disk / 1e6:,.0f} MB")
        alone = sentencepiece.SentencePieceProcessor(model_file=str(where / "out" / "tokenizer.model"))
        start = time.perf_counter()
        for language in ("en", "de"):
            lines = (where / f"a.{language}").read_text().split("\n")[:-1]
            for i in range(0, len(lines), 10_000):
                alone.encode(lines[i : i + 10_000], num_threads=options.workers)
        print(f"sentencepiece alone encodes {options.pairs / (time.perf_counter() - start):,.0f} pairs/s")


if __name__ == "__main__":
    main()
