"""Measure the time and memory of planning the order and the steps of an epoch of a billion pairs.

The corpus has random sentence lengths and no text: the files of its ids are sparse and take no disk space. The offsets
take 16 bytes per pair in DIR. Run from the repository root:

    PYTHONPATH=. python tests/benchmarks/large_plan.py --pairs 1000000000 --directory DIR
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from nmt_cli.corpus import store
from nmt_cli.recipe import schema
from nmt_cli.training.batches import BatchPlan

LONGEST = 60  # tokens per side of a pair
TOKENS_PER_STEP = 25_000  # on each side
VOCABULARY = 32_000


def write_side(directory: Path, name: str, pairs: int) -> None:
    """Write the offsets of random sentences of 1 to LONGEST tokens, and a sparse file of their ids."""
    random = np.random.default_rng(len(name) + ord(name[0]))
    end = 0
    with (directory / f"train.{name}.offsets").open("wb") as file:
        file.write(bytes(8))
        for first in range(0, pairs, store.BLOCK):
            lengths = random.integers(1, LONGEST + 1, min(store.BLOCK, pairs - first), np.uint8)
            offsets = end + np.cumsum(lengths, dtype="<i8")
            file.write(offsets.tobytes())
            end = int(offsets[-1])
    with (directory / f"train.{name}.ids").open("wb") as file:
        file.truncate(2 * end)


def own_megabytes() -> int:
    """Return this process's memory in MiB, without the pages of mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) // 1024


def watch(peak: list[int]) -> None:
    """Keep this process's peak memory in MiB in `peak[0]`, without end."""
    while True:
        peak[0] = max(peak[0], own_megabytes())
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000_000)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        directory = Path(temporary)
        for name in ("src", "tgt"):
            write_side(directory, name, options.pairs)
        peak = [0]
        threading.Thread(target=watch, args=(peak,), daemon=True).start()
        began, cpu = time.perf_counter(), time.process_time()
        sides = [store.open_side(directory, name, VOCABULARY) for name in ("src", "tgt")]
        corpus = store.Corpus(directory, {}, sides[0], sides[1])
        plan = BatchPlan(corpus, schema.Training(tokens_per_step=TOKENS_PER_STEP), 8)
        sentences = [len(batch) for batch in plan.micro_batches_of(0)]
        spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU"
        print(f"{options.pairs:,} pairs: first step after {spent}; {plan.steps_per_epoch:,} steps; {sentences}")
        began = time.perf_counter()
        for step in range(1, 101):
            plan.micro_batches_of(step * plan.steps_per_epoch // 101)
        print(
            f"another step: {(time.perf_counter() - began) * 10:.1f} ms; "
            f"99.9 % of the source sentences have at most {corpus.seen_tokens} tokens"
        )
        print(f"memory without pages of files: {own_megabytes():,} MiB held, peak {peak[0]:,} MiB")


if __name__ == "__main__":
    main()
