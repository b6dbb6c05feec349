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

from nmt_cli import recipe
from nmt_cli.corpus import cleaning, readers, stages

CODE = """
import sys
from pathlib import Path
from nmt_cli import recipe
from nmt_cli.corpus.prepare import PrepareOptions, prepare
if __name__ == "__main__":
    where, workers, sample, vocabulary = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    plain = {"name": "speed", "train_src": [str(where / "a.en")], "train_tgt": [str(where / "a.de")],
             "tokenizer": {"vocabulary_size": vocabulary, "sample_pairs": sample}}
    prepare(recipe.from_plain({"corpus": plain}, "speed").corpus, where / "out", PrepareOptions(workers=workers))
"""


def multiply(corpora: Path, where: Path, pairs: int) -> int:
    """Write `pairs` distinct pairs; return the bytes of text."""
    rows = []
    for path in sorted((corpora / "wmt14-mini" / "de-en").glob("train-*.parquet")):
        rows += [row["translation"] for row in pyarrow.parquet.read_table(path).to_pylist()]
    with (where / "a.en").open("w", newline="\n") as en, (where / "a.de").open("w", newline="\n") as de:
        for i in range(pairs):
            row, copy = rows[i % len(rows)], i // len(rows)
            en.write(f"{row['en']} {copy}\n")
            de.write(f"{row['de']} {copy}\n")
    return sum((where / f"a.{language}").stat().st_size for language in ("en", "de"))


def family_rss(pid: int) -> int:
    """Return the bytes of resident memory of a process and its descendants (shared pages count once for each)."""
    total = 0
    try:
        total += int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024  # type: ignore[index]
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += family_rss(int(child))
    except (OSError, TypeError):
        pass
    return total


def folder_bytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total


def compare(where: Path, pairs: int, workers: int) -> tuple[float, float]:
    """Return the pairs per second of the encoding stage and of SentencePiece alone on the same text and cores.

    They take turns, three times, and the best of each counts: other work on the machine hurts both alike.
    """
    spool, model = where / "spool", where / "out" / "tokenizer.model"
    spool.mkdir()
    cleaner = cleaning.Cleaner("en", "de", recipe.Cleaning(), cleaning.HeldOut(frozenset(), frozenset()))
    part = readers.Part(where / "a.en", where / "a.de")
    stages.clean(spool, readers.Reader("en", "de", 1 << 20), [part], cleaner, workers, pairs)
    encoder = stages.Encoder(spool, model, "speed", recipe.Cleaning())
    alone = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = [(spool / f"text.{side}").read_text().split("\n")[:-1] for side in ("src", "tgt")]
    pairs = len(lines[0])
    ours, theirs = [], []
    for turn in range(3):
        stage = where / f"turn{turn}"
        stage.mkdir()
        start = time.perf_counter()
        stages.encode(stage, encoder, workers)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        for side in lines:
            for i in range(0, pairs, 10_000):
                alone.encode(side[i : i + 10_000], num_threads=workers)
        theirs.append(time.perf_counter() - start)
    return pairs / min(ours), pairs / min(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=1_000_000)
    parser.add_argument("--vocabulary", type=int, default=37_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        text = multiply(Path(os.environ["NMT_CORPORA"]), where, options.pairs)
        (where / "run.py").write_text(CODE)
        start = time.perf_counter()
        words = [where, options.workers, options.sample, options.vocabulary]
        child = subprocess.Popen(
            [sys.executable, str(where / "run.py"), *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            stderr=subprocess.PIPE,
            text=True,
        )
        peak_memory = peak_disk = 0
        rates: list[tuple[str, float]] = []

        def listen() -> None:
            for line in child.stderr or ():
                print(f"  {time.perf_counter() - start:7.1f} s, peak {peak_memory / 2**20:6.0f} MiB  {line.rstrip()}")
                found = re.match(r"(cleaned|trained|encoded) .* \(([\d,]+) pairs/s\)", line)
                if found:
                    rates.append((found[1], float(found[2].replace(",", ""))))

        ear = threading.Thread(target=listen)
        ear.start()
        while child.poll() is None:
            peak_memory = max(peak_memory, family_rss(child.pid))
            peak_disk = max(peak_disk, folder_bytes(where) - text)
            time.sleep(0.2)
        ear.join()
        seconds = time.perf_counter() - start
        ours, theirs = compare(where, min(options.pairs, 200_000), options.workers)
        print(f"{options.pairs:,} pairs, {text / 1e6:,.0f} MB of text, {options.workers} workers: {seconds:.1f} s")
        print(f"peak memory {peak_memory / 2**20:,.0f} MiB, peak disk beside the text {peak_disk / 1e6:,.0f} MB")
        for stage, speed in rates:
            print(f"{stage}: {speed:,.0f} pairs/s")
        print(f"encoding stage {ours:,.0f} pairs/s, sentencepiece alone {theirs:,.0f} pairs/s: {ours / theirs:.0%}")


if __name__ == "__main__":
    main()
