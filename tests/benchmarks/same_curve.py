"""Whether fast arithmetic learns what plain float32 does: the dev loss of one recipe trained both ways.

Same initial weights, same sentences in the same order, same dropout masks; only the arithmetic differs. Exits with 1
where the last dev losses differ by more than 0.02 nats. A third run, float32 from another seed, shows what noise is.
Trains on Multi30k where NMT_CORPORA says where that is, else on the generated language. From the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/same_curve.py
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from training_systems import Job, default_corpus

from nmt_cli.training.start import open_run
from nmt_cli.training.train import TrainOptions, accelerator_for
from nmt_cli.training.validation import dev_nll

TOLERANCE = 0.02


def curve(name: str, job: Job, steps: int, every: int) -> list[float]:
    """Train and return the dev nll after every `every` updates, and print them."""
    settings, data = job.settings, Path(job.corpus)
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        accelerator = accelerator_for(settings, TrainOptions(data, Path(directory)))
        run = open_run(settings, data, Path(directory), 0, accelerator)
        trainer, start = run.trainer, time.monotonic()
        for step in range(1, steps + 1):
            parts, _, tgt_tokens = trainer.parts(step - 1)
            nll, _ = trainer.update(step, parts, tgt_tokens)
            if step % every == 0 or step == steps:
                losses.append(dev_nll(trainer.transformer, trainer.dtype, run.dev))
                train, took = float(nll) / tgt_tokens, time.monotonic() - start
                text = f"update {step:5}  train nll {train:.4f}  dev nll {losses[-1]:.4f}  {took:.0f} s"
                print(f"{name:18} {text}", flush=True)
    return losses


def same_curve(job: Job, steps: int, noise: bool) -> bool:
    """Print the curves and whether bf16 ends where fp32 does."""
    overrides = ("training.warmup_steps=1000", *job.overrides)
    every = max(1, steps // 6)
    curves = {
        p: curve(p, Job("ours", job.size, p, job.corpus, job.tokens, overrides), steps, every) for p in ("fp32", "bf16")
    }
    if noise:
        other = Job("ours", job.size, "fp32", job.corpus, job.tokens, (*overrides, "training.seed=2"))
        curves["noise"] = curve("fp32, other seed", other, steps, every)
    gaps = {name: losses[-1] - curves["fp32"][-1] for name, losses in curves.items() if name != "fp32"}
    good = abs(gaps["bf16"]) <= TOLERANCE
    seed = f" (another seed: {gaps['noise']:+.4f})" if noise else ""
    print(f"bf16 - fp32 after {steps} updates: {gaps['bf16']:+.4f} nats{seed}; at most {TOLERANCE}: {good}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens per update")
    parser.add_argument("--corpus", type=Path, help="a prepared corpus with dev text")
    parser.add_argument("--no-noise", action="store_true", help="leave out the run from another seed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a knob of the recipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        corpus = options.corpus or default_corpus(Path(directory))
        job = Job("ours", options.size, "fp32", str(corpus), options.tokens, tuple(options.set))
        good = same_curve(job, options.steps, not options.no_noise)
    sys.exit(not good)


if __name__ == "__main__":
    main()
