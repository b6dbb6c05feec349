"""Count the GPU calls of training steps of a full-size recipe on the null GPU. Prints JSON with counts for each step.

    eval "$(PYTHON device.py PYTHON)"; PYTHONPATH=. PYTHON tests/benchmarks/null_gpu/steps.py base --steps 6

The steps are those of real training: `Trainer.take_step`, batches from a thread, and a copy of the norm to the host.
Sentences are random tokens with the lengths of WMT14. The output has one line per recipe.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo.utils
from accelerate.state import AcceleratorState

from nmt_cli.corpus.store import Corpus, Side
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.recipe import loading, schema

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "benchmarks"))
from device import Counters  # noqa: E402
from gpu_train_speed import wmt14_lengths  # noqa: E402
from nmt import choose_compiler  # noqa: E402

from nmt_cli.training.accelerator import make_accelerator  # noqa: E402
from nmt_cli.training.trainer import start_trainer  # noqa: E402
from nmt_cli.transformer.hardware import ToHost  # noqa: E402


def random_corpus(directory: Path, vocabulary: int, pairs: int) -> Corpus:
    """Return a corpus of random tokens with the sentence lengths of WMT14."""
    rng, sides = np.random.default_rng(1), []
    for lengths in wmt14_lengths(pairs, rng):
        ids = rng.integers(EOS + 1, vocabulary, lengths.sum()).astype(np.uint32)
        ids[lengths.cumsum() - 1] = EOS
        sides.append(Side(ids, np.append(0, lengths.cumsum())))
    return Corpus(directory, {"vocabulary_size": vocabulary, "files": {}}, *sides)


def kernels_of(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    changed = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in sorted(changed.items(), key=lambda x: -x[1]) if count}


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def measure(settings: schema.Recipe, directory: Path, steps: int, pairs: int, *, replays: bool) -> dict[str, Any]:
    """Return the counts of each step, the kernels of the last step, memory, and host times.

    The host times are medians in milliseconds: of steps launched kernel by kernel, and of replays.
    """
    counters, began = Counters(), time.perf_counter()
    corpus = random_corpus(directory, settings.corpus.tokenizer.vocabulary_size, pairs)
    with counters.during() as start:
        run = start_trainer(settings, corpus, make_accelerator(settings, directory), directory, 0)
        run.graphs = run.graphs if replays else None
    seconds, rows, milliseconds, graphs = time.perf_counter() - began, [], [], []
    with run.batch_thread() as pool:
        upcoming = pool.submit(run.step_batch, 0)
        for step in range(1, steps + 1):
            batch, before, began = upcoming.result(), counters.kernels(), time.perf_counter()
            with counters.during() as counts:
                upcoming = pool.submit(run.step_batch, step)
                _, norm = run.take_step(step, batch)
                copied = ToHost({"norm": norm})
                milliseconds.append(1e3 * (time.perf_counter() - began))
                upcoming.result()
            del copied
            kernels = kernels_of(before, counters.kernels())
            rows.append({**counts, "passes": len(batch.passes)})
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    kinds = [(row["captures"], row["replays"]) for row in rows]
    launched, replayed = (
        median([each for each, kind in zip(milliseconds[2:], kinds[2:], strict=True) if kind == wanted])
        for wanted in ((0, 0), (0, 1))
    )
    return {
        "start": start,
        "seconds": seconds,
        "steps": rows,
        "tokens": batch.tgt_tokens,
        "host_ms": launched,
        "replay_ms": replayed,
        "all_ms": [round(each, 1) for each in milliseconds],
        "graphs": graphs,
        "peak_mb": torch.cuda.max_memory_allocated() >> 20,
        "reserved_mb": torch.cuda.max_memory_reserved() >> 20,
        "kernels": kernels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="names of recipes, without .yaml")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--no-replays", action="store_true", help="launch the kernels of every step")
    parser.add_argument("--set", action="append", default=[], help="change a setting: training.precision=fp32")
    options = parser.parse_args()
    choose_compiler()
    for name in options.recipes:
        settings = loading.load(ROOT / "recipes" / f"{name}.yaml", options.set)
        with tempfile.TemporaryDirectory() as directory:
            found = measure(settings, Path(directory), options.steps, options.pairs, replays=not options.no_replays)
        print(json.dumps(found), flush=True)
        AcceleratorState._reset_state(reset_partial_state=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
