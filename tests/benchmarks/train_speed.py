"""How fast `nmt train` is beside the loop one would write: the same corpus, subwords, model and tokens per step.

Each system works in a process of its own; they take turns in windows, and medians count. The corpus is Multi30k from
the directory NMT_CORPORA. Marian takes part where transformers is installed. From the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/train_speed.py --cases small:bf16 base:bf16
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from training_systems import DEVICE, SIZES, Marian, Textbook, default_corpus, ours, plain_loop, settings_of
from training_systems import sorted_batches as padded_batches

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training.estimate import flops
from nmt_cli.training.metrics import peak_memory_mb


def work(system: str, case: str, data: Path, tokens: int, seconds: float) -> None:
    """Be one system for a window, after three steps to warm up, and print what it did."""
    size, precision = case.split(":")
    corpus = open_corpus(data)
    settings = settings_of(size, precision, corpus, tokens)
    with tempfile.TemporaryDirectory() as directory:
        if system == "ours":
            step, _ = ours(settings, data, Path(directory))
        else:
            kind = {"textbook": Textbook, "marian": Marian}[system.removesuffix("+compile")]
            model = kind(settings.model, int(corpus.manifest["vocabulary_size"])).to(DEVICE).train()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
            run = torch.compile(model, dynamic=True) if system.endswith("+compile") else model
            step = plain_loop(run, padded_batches(corpus, tokens), optimizer, precision)  # type: ignore[arg-type]
        for _ in range(3):
            step()
        start, cpu, done, steps = time.perf_counter(), time.process_time(), 0, 0
        while not steps or time.perf_counter() - start < seconds:
            done, steps = done + step(), steps + 1
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
        took = time.perf_counter() - start
        used = (time.process_time() - cpu) / steps
        print(
            json.dumps({"rate": done / took, "step": took / steps, "cpu": used, "memory": peak_memory_mb()}), flush=True
        )
        os._exit(0)  # threads that prepare further batches are not waited for


def window(system: str, case: str, data: Path, options: argparse.Namespace) -> dict[str, float] | None:
    """Run `work` in a process; None where it failed, after saying why."""
    arguments = ["--worker", system, "--cases", case, "--corpus", str(data)]
    arguments += ["--tokens", str(options.tokens), "--seconds", str(options.seconds)]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"    {system} failed: {done.stderr.strip().split(chr(10))[-1][:300]}", flush=True)
        return None
    return dict(json.loads(done.stdout.strip().split("\n")[-1]))


def compare(options: argparse.Namespace, data: Path) -> None:
    corpus = open_corpus(data)
    for case in options.cases:
        model = settings_of(*case.split(":"), corpus, options.tokens).model
        vocabulary = int(corpus.manifest["vocabulary_size"])
        per_token = flops(model, vocabulary, corpus.src.lengths(), corpus.tgt.lengths()) / len(corpus.tgt.ids)
        print(
            f"\n{case}: {per_token / 1e6:.1f} MFLOP per target token; {options.rounds} windows of {options.seconds:g} s"
        )
        windows: dict[str, list[dict[str, float]]] = {system: [] for system in options.systems}
        for _ in range(options.rounds):
            for system, results in windows.items():
                results += [w for w in [window(system, case, data, options)] if w]
        medians = {s: statistics.median(w["rate"] for w in own) for s, own in windows.items() if own}
        for system, rate in medians.items():
            rates = [w["rate"] for w in windows[system]]
            ratio = (
                f"  ours is {medians['ours'] / rate:.2f} times as fast"
                if "ours" in medians and system != "ours"
                else ""
            )
            memory = max(w["memory"] for w in windows[system])
            print(
                f"{system:18} {rate:9,.0f} tokens/s ({min(rates):,.0f} to {max(rates):,.0f})  "
                f"{rate * per_token / 1e9:,.0f} GFLOP/s  peak {memory:,.0f} MB{ratio}"
            )


def arguments(description: str | None, cases: list[str], systems: list[str], tokens: int) -> argparse.ArgumentParser:
    """Return a parser of what both speed benchmarks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=cases, metavar="SIZE:PRECISION", help=f"of {list(SIZES)}")
    parser.add_argument("--systems", nargs="+", default=systems, help="ours, textbook, marian; +compile")
    parser.add_argument("--tokens", type=int, default=tokens, help="target tokens per step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window; at least one step is done")
    parser.add_argument("--corpus", type=Path, help="a prepared corpus [default: Multi30k from NMT_CORPORA]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    systems = ["ours", "textbook", *(["marian"] if importlib.util.find_spec("transformers") else [])]
    options = arguments(__doc__, ["small:bf16", "base:bf16", "small:fp32", "base:fp32"], systems, 4096).parse_args()
    if options.worker:
        work(options.worker, options.cases[0], options.corpus, options.tokens, options.seconds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        compare(options, options.corpus or default_corpus(Path(directory)))


if __name__ == "__main__":
    main()
