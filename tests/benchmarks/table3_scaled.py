"""Table 3 of the paper in small: does changing the model do here what it did there?

Trains every row that differs from base in size or regularisation alone (all but E, whose positions are learned, and
big, which was trained three times as long), with widths a quarter of the paper's and as many layers, for the same time
each, and lays the order of dev perplexities beside the paper's. Time is CPU time of the one thread that each row has,
spent in updates only, so that other work takes none away. Trains on Multi30k where NMT_CORPORA says where
that is, else on the generated language. Each result is kept as a line of --out as it comes: the same command goes on
where it was stopped, and prints the table again when nothing is left. From the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/table3_scaled.py --jobs 2
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import artefact, recipe
from nmt_cli.corpus.store import open_corpus
from nmt_cli.transformer.model import parameter_count

RECIPES = Path("recipes") / "table3"
ROWS = (
    "base",
    *("a-h1", "a-h4", "a-h16", "a-h32"),
    *("b-dk16", "b-dk32"),
    *("c-n2", "c-n4", "c-n8", "c-d256", "c-d1024", "c-ff1024", "c-ff4096"),
    *("d-drop0", "d-drop2", "d-smooth0", "d-smooth2"),
)
SCALED, SCALE = ("d_model", "d_ff", "d_k", "d_v"), 4
# A few hundred updates are done, not 100,000: the warm-up is shorter alike. The rate's peak is 0.0009 at width 128; at
# 0.0031 six post-norm layers are not stable so early.
TRAINING = {"tokens_per_step": 1024, "micro_batches": 1, "warmup_steps": 100, "rate_factor": 0.1, "validate_bleu": 0}


def scaled(row: str, seed: int) -> recipe.Recipe:
    """Return the recipe of a row with a quarter of its widths and a schedule for minutes."""
    paper = recipe.load(RECIPES / f"{row}.yaml")
    model = {k: v // SCALE if k in SCALED else v for k, v in vars(paper.model).items()}
    training = {**TRAINING, "label_smoothing": paper.training.label_smoothing, "seed": seed}
    return recipe.from_plain({"name": row, "model": model, "training": training}, "benchmark")


def train(row: str, seed: int, seconds: float, data: Path) -> dict[str, Any]:
    """Train a row for so many seconds of CPU time and return what came of it."""
    import torch

    from nmt_cli.training.start import open_run
    from nmt_cli.training.train import TrainOptions, accelerator_for
    from nmt_cli.training.validation import dev_nll

    torch.set_num_threads(1)
    settings, wall = scaled(row, seed), time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        accelerator = accelerator_for(settings, TrainOptions(data, Path(directory)))
        run = open_run(settings, data, Path(directory), 0, accelerator)
        trainer, updates, tokens, spent, train_nll = run.trainer, 0, 0, 0.0, 0.0
        while spent < seconds:
            start = time.process_time()
            parts, _, tgt_tokens = trainer.parts(updates)
            nll, _ = trainer.update(updates + 1, parts, tgt_tokens)
            updates, tokens, train_nll = updates + 1, tokens + tgt_tokens, float(nll) / tgt_tokens
            spent += time.process_time() - start
        dev = dev_nll(trainer.transformer, trainer.dtype, run.dev)
        return {
            "updates": updates,
            "epochs": round(updates / trainer.updates.per_epoch, 2),
            "tgt_tokens": tokens,
            "train_nll": train_nll,
            "dev_nll": dev,
            "cpu_seconds": spent,
            "wall_seconds": time.monotonic() - wall,
            "arithmetic": str(trainer.dtype).removeprefix("torch."),
        }


def key(row: str, seed: int, seconds: float, data: Path) -> str:
    """Return what names a result: all that decides it, but for the machine."""
    return artefact.digest([recipe.to_plain(scaled(row, seed)), seconds, open_corpus(data).identity])[:16]


def kept(out: Path) -> dict[str, dict[str, Any]]:
    """Return the results so far by key; a last line that a kill cut short is no result."""
    found = {}
    for line in out.read_text().split("\n") if out.exists() else []:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        found[result["key"]] = result
    return found


def work(todo: list[tuple[str, int]], options: argparse.Namespace, data: Path) -> bool:
    """Train what is left, `jobs` at a time, each in a process of its own; return whether all succeeded."""
    left, running, good = list(todo), dict[subprocess.Popen[str], tuple[str, int]](), True
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        while left or running:
            while left and len(running) < options.jobs:
                row, seed = left.pop(0)
                command = [sys.executable, __file__, "--train", row, str(seed), "--seconds", str(options.seconds)]
                command += ["--data", str(data)]
                process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                running[process] = row, seed
            time.sleep(0.2)
            for process in [p for p in running if p.poll() is not None]:
                row, seed = running.pop(process)
                said = process.stdout.read() if process.stdout else ""
                if process.returncode:
                    print(f"{row}, seed {seed}: failed with exit code {process.returncode}", flush=True)
                    good = False
                    continue
                result = {"key": key(row, seed, options.seconds, data), "row": row, "seed": seed, **json.loads(said)}
                whole = not options.out.exists() or options.out.read_bytes()[-1:] in (b"", b"\n")
                with options.out.open("a") as file:
                    file.write(("" if whole else "\n") + json.dumps(result) + "\n")
                facts = f"dev nll {result['dev_nll']:.4f} after {result['updates']:,} updates"
                print(f"{row:10} seed {seed}  {facts}, {result['wall_seconds']:.0f} s; {len(left)} wait", flush=True)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return good


def ranks(values: list[float]) -> np.ndarray:
    """Return the rank of each value from 1, equal values sharing the mean of theirs."""
    array = np.array(values)
    return np.array([(array < v).sum() + ((array == v).sum() + 1) / 2 for v in array])


def spearman(a: list[float], b: list[float]) -> float:
    """Return the rank correlation of two columns."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def show(results: dict[str, list[dict[str, Any]]], seconds: float, data: Path) -> None:
    """Print the table, and how far the two orders agree."""
    corpus = open_corpus(data)
    vocabulary = int(corpus.manifest["vocabulary_size"])
    any_result = next(iter(results.values()))[0]
    print(
        f"\n{corpus.manifest['name']}, {len(corpus.src):,} pairs, {vocabulary:,} pieces; {seconds:g} s of CPU time ",
        end="",
    )
    print(f"each, one thread, {any_result['arithmetic']}; widths / {SCALE}; perplexity per piece\n")
    papers = {row: recipe.load(RECIPES / f"{row}.yaml").expect for row in results}
    theirs = {row: expect.dev_perplexity[0] for row, expect in papers.items()}
    ours = {row: float(np.mean([r["dev_nll"] for r in each])) for row, each in results.items()}
    noise = float(np.mean([np.ptp([r["dev_nll"] for r in each]) for each in results.values()]))
    places = [dict(zip(c, ranks(list(c.values())), strict=True)) for c in (ours, theirs)]
    seeds = sorted({r["seed"] for each in results.values() for r in each})
    header = ["row", "parameters", "updates", "epochs", *(f"nll, seed {s}" for s in seeds), "nll", "perplexity"]
    header += ["against base", "place", "paper's place", "paper's perplexity", "paper's BLEU"]
    print("| " + " | ".join(header) + " |\n|--|" + "--:|" * (len(header) - 1))
    for row, each in results.items():
        by_seed = {r["seed"]: f"{r['dev_nll']:.3f}" for r in each}
        cells = [row, f"{parameter_count(scaled(row, 1).model, vocabulary) / 1e6:.2f} M"]
        cells += [f"{np.mean([r['updates'] for r in each]):,.0f}", f"{np.mean([r['epochs'] for r in each]):.1f}"]
        cells += [by_seed.get(s, "") for s in seeds] + [f"{ours[row]:.3f}", f"{math.exp(ours[row]):.2f}"]
        cells += [f"{ours[row] - ours['base']:+.3f}" if "base" in ours else "", f"{places[0][row]:g}"]
        cells += [f"{places[1][row]:g}", f"{theirs[row]:.2f}", f"{papers[row].paper_dev_bleu}"]
        print("| " + " | ".join(cells) + " |")
    print(f"\n{len(seeds)} seeds of a row are {noise:.3f} nats apart in the mean.")
    for name, rows in (
        ("all rows", list(results)),
        ("size (base, A, B, C)", [r for r in results if not r.startswith("d-")]),
        ("depth and width (base, C)", [r for r in results if r == "base" or r.startswith("c-")]),
        ("regularisation (base, D)", [r for r in results if r == "base" or r.startswith("d-")]),
    ):
        if len(rows) > 2:
            perplexity = spearman([ours[r] for r in rows], [theirs[r] for r in rows])
            bleu = spearman([-ours[r] for r in rows], [papers[r].paper_dev_bleu or 0 for r in rows])
            print(f"rank correlation with the paper, {name}: perplexity {perplexity:+.2f}, BLEU {bleu:+.2f}")
    if "base" in ours and len(seeds) > 1:
        clear = [row for row in ours if abs(ours[row] - ours["base"]) > noise]
        same = [r for r in clear if (ours[r] > ours["base"]) == (theirs[r] > theirs["base"])]
        other = [r for r in clear if r not in same]
        print(
            f"{len(clear)} rows differ from base by more than the seeds do: {len(same)} in the paper's direction",
            end="",
        )
        print(f", {len(other)} in the other ({', '.join(other)})" if other else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="of CPU time for the updates of each row")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="rows trained at once, each on one thread")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--out", type=Path, default=Path("table3_scaled.jsonl"), help="results, kept and resumed")
    parser.add_argument("--data", type=Path, help="a prepared corpus [default: made beside --out]")
    parser.add_argument("--train", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train[0], int(options.train[1]), options.seconds, options.data)))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.data is None:
        from training_systems import default_corpus

        options.data = default_corpus(options.out.with_suffix(".data"))
    wanted = {(row, seed): key(row, seed, options.seconds, options.data)
              for seed in range(1, options.seeds + 1) for row in options.rows}  # fmt: skip
    done = kept(options.out)
    todo = [case for case, name in wanted.items() if name not in done]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} are in {options.out}; ", end="")
    print(f"{len(todo)} take {len(todo) * options.seconds / options.jobs / 60:.0f} minutes or more", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the rows being trained end too
    good = work(todo, options, options.data)
    done = kept(options.out)
    results = {
        row: [done[n] for s in range(1, options.seeds + 1) if (n := wanted[row, s]) in done] for row in options.rows
    }
    results = {row: each for row, each in results.items() if each}
    if results:
        show(results, options.seconds, options.data)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
