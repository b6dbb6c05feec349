"""Compare the speed of `nmt train` with a plain PyTorch loop: same corpus, subwords, model and tokens per step.

Systems alternate in timed windows, each in a new process; the script reports medians. "ours" is `nmt train` with its
defaults, which use several processes on a CPU. "products" runs only the model's matrix products with weights, in as
many processes as "ours". "+threads" uses one process with all threads, and "+compile" uses torch.compile. Marian is
included if transformers is installed. Run from the repository root:

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
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
import training_systems
from torch.utils.benchmark import Timer, timer
from training_systems import DEVICE, SIZES, Marian, Step, Textbook, default_corpus, ours, plain_loop, settings_of
from training_systems import sorted_batches as padded_batches

from nmt_cli.corpus.store import open_corpus
from nmt_cli.training.collectives import max_over_processes
from nmt_cli.training.estimate import step_parts
from nmt_cli.training.metrics_log import peak_memory_mb
from nmt_cli.training.processes import in_processes
from nmt_cli.transformer import attention


def square_rate(precision: str) -> float:
    """Return the FLOP/s of one large square matrix product; MFU is relative to this rate."""
    size = 8192 if DEVICE.type == "cuda" else 1024
    x = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    product = Timer("x @ x", globals={"x": x}, num_threads=torch.get_num_threads())
    return 2 * float(size) ** 3 / min(product.blocked_autorange().times)


def profile(step: Step) -> str:
    """Return the ten slowest kernels (on a CPU, operations) of three steps, and the lines where the host waits."""
    with torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, DEVICE.type.upper())]) as profiler:
        for _ in range(3):
            step()
    key = "self_device_time_total" if DEVICE.type == "cuda" else "self_cpu_time_total"
    text = profiler.key_averages().table(sort_by=key, row_limit=10, max_name_column_width=60)
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True, action="always") as caught:
            step()
        waits = Counter(f"{Path(each.filename).name}:{each.lineno} {each.message}" for each in caught)
        text += "\n".join(f"{count} x {line}" for line, count in waits.most_common(10))
    return text


def work(system: str, options: argparse.Namespace) -> int:
    """Run one system for a window after the warm-up, and print its results as JSON."""
    if system.endswith("+flash"):
        attention.SHORT_MAX = 0
    size, precision = options.cases[0].split(":")
    corpus, tokens, world = open_corpus(options.corpus), options.tokens, int(os.environ.get("WORLD_SIZE", 1))
    settings, vocabulary = settings_of(size, precision, corpus, tokens), int(corpus.manifest["vocabulary_size"])
    with tempfile.TemporaryDirectory() as directory:
        run = None
        if system.startswith("ours"):
            step, run = ours(settings, options.corpus, Path(directory))
        elif system.startswith("products"):
            step = training_systems.products(settings.model, vocabulary, precision, tokens, world)
        else:
            kind = {"textbook": Textbook, "marian": Marian}[system.removesuffix("+compile")]
            model = kind(settings.model, vocabulary).to(DEVICE).train()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
            compiled = torch.compile(model, dynamic=True) if system.endswith("+compile") else model
            step = plain_loop(compiled, padded_batches(corpus, tokens), optimizer, precision)  # type: ignore[arg-type]
        for _ in range(options.warmup):
            step()
        start, done, steps, more = timer(), 0, 0, 1  # timer() also waits for the GPU
        while more:
            done, steps = done + step(), steps + 1
            if steps % 10 == 0:
                timer()
            more = int(time.perf_counter() - start < options.seconds)
            more = max_over_processes(run.accelerator, more) if run else more
        took = timer() - start
        result = {"rate": done / took, "step": took / steps, "memory": peak_memory_mb() * world}
        text = profile(step) if options.profile else ""
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps({**result, "profile": text}), flush=True)
        os._exit(0)  # does not wait for the threads that prepare further batches


def window(system: str, case: str, data: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run `work` in a process and return its results; if it fails, print the error and return None."""
    arguments = ["--worker", system, "--cases", case, "--corpus", str(data)]
    arguments += ["--tokens", str(options.tokens), "--seconds", str(options.seconds), "--warmup", str(options.warmup)]
    arguments += ["--profile"] * options.profile
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
        parts = step_parts(model, vocabulary, corpus.src.lengths(), corpus.tgt.lengths())
        per_token, peak = sum(part[0] for part in parts.values()) / len(corpus.tgt.ids), square_rate(case.split(":")[1])
        print(f"\n{case}: {per_token / 1e6:.1f} MFLOP per target token; square product: {peak / 1e9:,.0f} GFLOP/s")
        windows: dict[str, list[dict[str, Any]]] = {system: [] for system in options.systems}
        for _ in range(options.rounds):
            for system, results in windows.items():
                results += [w for w in [window(system, case, data, options)] if w]
        medians = {s: statistics.median(w["rate"] for w in own) for s, own in windows.items() if own}
        for system, rate in medians.items():
            rates = [w["rate"] for w in windows[system]]
            ratio = f"  ours is {medians['ours'] / rate:.2f} times as fast" if "ours" in medians else ""
            memory = max(w["memory"] for w in windows[system])
            step = 1000 * statistics.median(w["step"] for w in windows[system])
            print(
                f"{system:18} {rate:9,.0f} tokens/s ({min(rates):,.0f} to {max(rates):,.0f})  {step:,.1f} ms per step  "
                f"MFU {rate * per_token / peak:.0%}  peak {memory:,.0f} MB{ratio}"
            )
        for system, own in windows.items():
            if own and options.profile:
                print(f"\n{case}, {system}, three steps\n{own[-1]['profile']}")


def arguments(description: str | None, cases: list[str], systems: list[str], tokens: int) -> argparse.ArgumentParser:
    """Return a parser with the options of both training speed benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=cases, metavar="SIZE:PRECISION", help=f"sizes: {list(SIZES)}")
    parser.add_argument("--systems", nargs="+", default=systems, help="ours, ours+flash, products, textbook, marian")
    parser.add_argument("--tokens", type=int, default=tokens, help="target tokens per step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window, which has at least one step")
    parser.add_argument("--warmup", type=int, default=3, help="steps before a window")
    parser.add_argument("--profile", action="store_true", help="print the ten slowest kernels")
    parser.add_argument("--corpus", type=Path, help="prepared corpus [default: Multi30k from NMT_CORPORA]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    systems = ["ours", "ours+threads", "products", "products+threads", "textbook"]
    systems += ["marian"] if importlib.util.find_spec("transformers") else []
    options = arguments(__doc__, ["small:bf16", "base:bf16", "small:fp32", "base:fp32"], systems, 4096).parse_args()
    if options.worker:
        settings = settings_of(*options.cases[0].split(":"), open_corpus(options.corpus), options.tokens)
        settings.training.processes = None if options.worker in ("ours", "products") else 1
        sys.exit(in_processes(settings, partial(work, options.worker, options)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        compare(options, options.corpus or default_corpus(Path(directory)))


if __name__ == "__main__":
    main()
