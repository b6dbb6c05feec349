"""Check near-duplicate counts against TAME-MT on real text; measure recall, time and memory on generated text.

TAME-MT (PyPI: tame-mt 0.2.2) compares character n-grams. Here each folded word becomes one character and n is 1, so
that TAME-MT's exact search should give the counts of `nmt prepare`. Run from the repository root:

    pip install --no-deps tame-mt
    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/near_twins.py --compare --pairs 4500000 --workers 2
"""

import argparse
import gzip
import importlib.util
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet

from nmt_cli.corpus import near_duplicates, stages

Sides = tuple[list[str], list[str]]
FIRST, LAST = 0xF0000, 0x10FFFD  # private-use characters, which normalization never changes


def multi30k(corpora: Path, stem: str) -> Sides:
    packed = [(corpora / "multi30k" / f"{stem}.{code}.gz").read_bytes() for code in ("en", "de")]
    en, de = (gzip.decompress(data).decode().split("\n")[:-1] for data in packed)
    return en, de


def news(corpora: Path, pair: str, split: str) -> Sides:
    """Return the English lines and the lines of the other language of one split of wmt14-mini."""
    files = sorted((corpora / "wmt14-mini" / pair).glob(f"{split}-*.parquet"))
    rows = [row for file in files for row in pyarrow.parquet.read_table(file)["translation"].to_pylist()]
    return [row["en"] for row in rows], [row[pair[:2]] for row in rows]


def ours(train: Sides, held_out: Sides) -> list[int]:
    flags, _ = near_duplicates.HeldOutIndex(*held_out).look_up(*train)
    return [int(np.count_nonzero(flags & 1 << bit)) for bit in range(6)]


def tame(train: Sides, held_out: Sides) -> list[int]:
    """Return TAME-MT's counts of held-out lines whose source, target or pair is in training, then near-duplicates."""
    import tame_mt
    from tame_mt.exposure import compute_exposure

    characters: dict[str, str] = {}

    def encode(lines: list[str]) -> list[str]:
        return [
            "".join(characters.setdefault(w, chr(FIRST + len(characters))) for w in near_duplicates.fold(x))
            for x in lines
        ]

    encoded = [encode(lines) for lines in (*train, *held_out)]
    assert len(characters) < LAST - FIRST
    config = tame_mt.ScoreConfig(
        similarity=tame_mt.SimilarityConfig(ngram_orders=(1,)),
        index=tame_mt.IndexConfig(mode="native_exact"),
        bins=tame_mt.BinConfig(leak_thresholds=(0.6,)),
        pair=tame_mt.PairConfig(exact_thresholds=True),
    )
    rows = compute_exposure(encoded[0], encoded[1], encoded[2], [encoded[3]], config)
    return [
        sum(row.source_exact for row in rows),
        sum(bool(row.target_exact) for row in rows),
        sum(bool(row.pair_exact) for row in rows),
        sum(row.source_exposure >= 0.6 for row in rows),
        sum((row.target_exposure or 0) >= 0.6 for row in rows),
        sum(any((row.pair_exact_at_threshold or {}).values()) for row in rows),
    ]


def compare(corpora: Path) -> None:
    cases = [
        (f"Multi30k {stem}", multi30k(corpora, "train"), multi30k(corpora, stem))
        for stem in ("val", "test_2016_flickr")
    ]
    for pair in ("de-en", "fr-en"):
        for split in ("validation", "test"):
            cases.append((f"wmt14-mini {pair} {split}", news(corpora, pair, "train"), news(corpora, pair, split)))
    print("equal lines by source, target, pair; near-duplicates by source, target, pair")
    for name, train, held_out in cases:
        theirs = tame(train, held_out) if importlib.util.find_spec("tame_mt") else None
        print(f"{name}: ours {ours(train, held_out)}, TAME-MT {theirs}", flush=True)


def generated(corpora: Path, pairs: int, planted: list[tuple[int, str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield chunks of random news with real word frequencies and line lengths, including the planted pairs."""
    rng = np.random.default_rng(1)
    sides = news(corpora, "de-en", "train")
    words = [np.array(" ".join(lines).split(), object) for lines in sides]
    lengths = [np.array([len(line.split()) for line in lines]) for lines in sides]
    waiting = sorted(planted)[::-1]
    for start in range(0, pairs, stages.CHUNK):
        count = min(stages.CHUNK, pairs - start)
        rows = rng.integers(len(lengths[0]), size=count)
        chunk = []
        for side in range(2):
            sizes = lengths[side][rows]
            drawn = words[side][rng.integers(len(words[side]), size=sizes.sum())]
            ends = np.cumsum(sizes)
            chunk.append([" ".join(drawn[end - size : end]) for size, end in zip(sizes, ends, strict=True)])
        while waiting and waiting[-1][0] < start + count:
            index, src, tgt = waiting.pop()
            chunk[0][index - start], chunk[1][index - start] = src, tgt
        yield chunk[0], chunk[1]


def plant(held_out: Sides, pairs: int) -> list[tuple[int, str, str]]:
    """Return a near-duplicate of every held-out pair, with a random position among `pairs` pairs.

    On both sides, the digits and the case differ, and the first two words are swapped.
    """
    rng = np.random.default_rng(2)
    positions = rng.choice(pairs, len(held_out[0]), replace=False)
    planted = []
    for position, *lines in zip(positions, *held_out, strict=True):
        changed = []
        for line in lines:
            words = line.translate(str.maketrans("0123456789", "1234567890")).swapcase().split()
            words[:2] = words[1::-1]
            changed.append(" ".join(words))
        planted.append((int(position), *changed))
    return planted


def _peak_mb() -> int:
    """Return this process's peak memory in MiB. getrusage would report at least the peak of the parent process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().split("\n") if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def _look_up(directory: Path, chunk: tuple[list[str], list[str]]) -> tuple[near_duplicates.Flags, int]:
    return stages.load_held_out(directory, True, "de").look_up(*chunk)[0], _peak_mb()


def measure(corpora: Path, pairs: int, workers: int) -> None:
    held_out = {split: news(corpora, "de-en", name) for split, name in (("dev", "validation"), ("test", "test"))}
    planted = plant(held_out["test"], pairs)
    with tempfile.TemporaryDirectory() as directory:
        for split, sides in held_out.items():
            for side, lines in zip(("src", "tgt"), sides, strict=True):
                Path(directory, f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
        flags = np.zeros(sum(len(sides[0]) for sides in held_out.values()), np.uint8)
        begin, generating, most = time.monotonic(), 0.0, 0

        def chunks() -> Iterator[tuple[list[str], list[str]]]:
            nonlocal generating
            source, start = generated(corpora, pairs, planted), time.monotonic()
            for chunk in source:
                generating += time.monotonic() - start
                yield chunk
                start = time.monotonic()

        with stages.Pool(workers) as pool:
            for found, megabytes in pool.map(partial(_look_up, Path(directory)), chunks()):
                flags |= found
                most = max(most, megabytes)
        took = time.monotonic() - begin
        counts = near_duplicates.summary(Path(directory), flags)
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    test = counts["test"]
    print(f"{pairs:,} pairs, {len(flags):,} held out, {workers} workers")
    print(f"seconds: {took:.0f}; generating text {generating:.0f}; CPU time {cpu:.0f}")
    print(f"peak MB of this process, which generates the text, and of the largest worker: {_peak_mb()}, {most}")
    print(
        f"planted {len(planted):,}: near-duplicates by source, target, pair {test['near']}; dev {counts['dev']['near']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true", help="also compare with TAME-MT, which takes minutes")
    parser.add_argument("--pairs", type=int, default=200_000, help="number of generated pairs")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    corpora = Path(os.environ["NMT_CORPORA"])
    if options.compare:
        compare(corpora)
    measure(corpora, options.pairs, options.workers)


if __name__ == "__main__":
    main()
