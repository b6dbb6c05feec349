"""How fast `nmt train` is beside other toolkits: the same corpus, subwords, model and tokens per update, in one run.

Every system works in a process of its own, one at a time, in windows that take turns; see training_systems.py for
what each does. The corpus is Multi30k from the directory NMT_CORPORA. transformers and eole take part where they are
installed. Run from the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/train_speed.py
    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/train_speed.py --cases base:bf16 --systems ours marian
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_systems import SIZES, Job, default_corpus

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training.estimate import flops

WORKER = Path(__file__).with_name("training_systems.py")
NEEDS = {"marian": "transformers", "fairseq": "fairseq", "eole": "eole"}
LIMITS = ("products", "square")
CASES = ("small:bf16", "base:bf16", "small:fp32", "base:fp32")
WARM_UP = 3.0


class Worker:
    """A system's process."""

    def __init__(self, job: Job) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process is)
        self.system = job.system
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(dataclasses.asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
        )

    def work(self, seconds: float) -> dict[str, float] | None:
        """Return what it did in about so many seconds; None where it died, after saying why."""
        try:
            self.process.stdin.write(f"{seconds}\n")  # type: ignore[union-attr]
            answer = self.process.stdout.readline()  # type: ignore[union-attr]
        except OSError:
            answer = ""
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
        self.log.seek(0)
        last = (self.log.read().strip() or "nothing was said").split("\n")[-1]
        print(f"    {self.system} failed: {last[:300]}", flush=True)
        return None

    def close(self) -> None:
        """End it and wait for it."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def take_turns(jobs: list[Job], rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Return each system's windows; the limits get a third of a window."""
    workers: dict[str, Worker] = {}
    windows: dict[str, list[dict[str, float]]] = {}
    try:
        for job in jobs:
            worker = workers[job.system] = Worker(job)
            first = worker.work(WARM_UP)
            if first is None:
                workers.pop(job.system).close()
            else:
                print(f"    {job.system} is warm: {first['seconds']:.1f} s for {first['updates']} updates", flush=True)
        for _ in range(rounds):
            for system, worker in list(workers.items()):
                result = worker.work(seconds / 3 if system in LIMITS else seconds)
                if result is not None:
                    windows.setdefault(system, []).append(result)
                else:
                    workers.pop(system).close()
    finally:
        for worker in workers.values():
            worker.close()
    return windows


def usable(systems: list[str]) -> list[str]:
    """Return the systems whose packages are installed, and name the others."""
    missing = {s: NEEDS[s.split("+")[0]] for s in systems if s.split("+")[0] in NEEDS}
    missing = {s: package for s, package in missing.items() if importlib.util.find_spec(package) is None}
    for system, package in missing.items():
        print(f"{system} is left out: {package} is not installed")
    return [s for s in systems if s not in missing]


def rates(windows: list[dict[str, float]]) -> list[float]:
    return [w["tgt_tokens"] / w["seconds"] for w in windows]


def report(job: Job, windows: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Print one case's table and return the median target tokens/s of each system."""
    corpus, model = open_corpus(Path(job.corpus)), job.settings.model
    work = flops(model, job.vocabulary_size, corpus.src.lengths(), corpus.tgt.lengths()) / len(corpus.tgt.ids)
    # As many source as target tokens, and no attention: what `products` computes for each of its tokens.
    one = np.ones(1, np.int64)
    scores = 6 * model.num_layers * model.num_heads * (model.d_k + model.d_v) * 3
    bare = flops(model, job.vocabulary_size, one, one) - scores
    peak = statistics.median(rates(windows["square"])) if "square" in windows else float("nan")
    limit = statistics.median(rates(windows["products"])) * bare if "products" in windows else float("nan")
    print(f"\n{job.size}, {job.precision}: {work / 1e6:.1f} MFLOP per target token (with its source)")
    print(
        f"one large product {peak / 1e9:,.0f} GFLOP/s; this model's products alone {limit / 1e9:,.0f} GFLOP/s, ", end=""
    )
    print(f"which would be {limit / work:,.0f} tokens/s")
    print(f"{'':24}{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'ms/update':>11}{'GFLOP/s':>9}", end="")
    print(f"{'of large':>10}{'of products':>13}{'peak MB':>9}{'ours is':>9}")
    medians = {s: statistics.median(rates(w)) for s, w in windows.items() if s not in LIMITS}
    for system, rate in medians.items():
        own, speed = windows[system], rates(windows[system])
        update = 1000 * statistics.median(w["seconds"] / w["updates"] for w in own)
        share = f"{rate * work / peak:>10.0%}{rate * work / limit:>13.0%}"
        ratio = f"{medians['ours'] / rate:>8.2f}x" if "ours" in medians and system != "ours" else ""
        print(f"{system:24}{rate:>10,.0f}{min(speed):>10,.0f}{max(speed):>10,.0f}{update:>11,.0f}", end="")
        print(f"{rate * work / 1e9:>9,.0f}{share}{max(w['memory'] for w in own):>9,.0f}{ratio}")
    if "ours" in windows:
        pads = statistics.mean(w["pads"] for w in windows["ours"])
        print(f"ours: {pads:.0%} of attention's places are pads; {windows['ours'][-1]['parts']} parts per update")
    return medians


def compare(cases: list[str], corpus: Path, tokens: int, options: argparse.Namespace) -> None:
    """Run all cases, then print how ours compares across precisions."""
    systems, medians = [*usable(options.systems), *LIMITS], {}
    for case in cases:
        size, precision = case.split(":")
        print(f"\n{case}: up to {options.rounds} windows of {options.seconds:g} s each of {', '.join(systems)}")
        jobs = [Job(system, size, precision, str(corpus), tokens, tuple(options.set)) for system in systems]
        windows = take_turns(jobs, options.rounds, options.seconds)
        medians.update({(size, precision, s): rate for s, rate in report(jobs[0], windows).items()})
    print()
    for size in SIZES:
        ours = {p: medians[size, p, "ours"] for p in ("bf16", "fp32") if (size, p, "ours") in medians}
        others = {(p, s): rate for (z, p, s), rate in medians.items() if z == size and s != "ours"}
        if ours and others:
            mine, theirs = max(ours, key=lambda p: ours[p]), max(others, key=lambda o: others[o])
            ratio = ours[mine] / others[theirs]
            print(f"{size}: ours ({mine}) is {ratio:.2f} times the fastest other, {theirs[1]} ({theirs[0]})")


def arguments(description: str | None, cases: tuple[str, ...], systems: list[str]) -> Any:
    """Return a parser of what both speed benchmarks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(cases), metavar="SIZE:PRECISION", help=f"of {list(SIZES)}")
    parser.add_argument("--systems", nargs="+", default=systems, help="+eager, +compile, +mallopt: see Job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window; at least one update is done")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a knob of our recipe")
    return parser


def main() -> None:
    parser = arguments(__doc__, CASES, ["ours", "marian", "textbook", "fairseq", "eole"])
    parser.add_argument("--corpus", type=Path, help="a prepared corpus [default: Multi30k from NMT_CORPORA]")
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens per update")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        corpus = options.corpus or default_corpus(Path(directory))
        print(f"corpus: {corpus.name}; {options.tokens:,} target tokens per update")
        compare(options.cases, corpus, options.tokens, options)


if __name__ == "__main__":
    main()
