"""Minutes of training until a dev BLEU: the updates of `nmt train` beside those of a textbook loop, in one run.

Both train a recipe's model on its corpus from the same initial weights, with its rates, dropout, smoothing and tokens
per update: ours as `nmt train` does, the other with torch.nn.Transformer, autocast, padded batches sorted by length and
fused Adam (training_systems.py), in bf16. They take turns, `--every` updates each, so that both meet the same machine.
After each turn the weights, in our model, translate the dev set as the recipe decodes; that time is not counted. The
minute of a BLEU is interpolated between the two validations around it. Run from the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/time_to_quality.py --bleu 30 35
"""

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_systems import Job, Textbook, default_corpus, sorted_batches

from nmt_cli import recipe
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import PAD, Tokenizer
from nmt_cli.training.batches import Updates
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.start import open_run
from nmt_cli.training.train import TrainOptions, accelerator_for
from nmt_cli.training.validation import dev_set, validate
from nmt_cli.transformer.attention import Attention
from nmt_cli.transformer.model import Transformer

Train = Callable[[int], float]  # do so many updates and return the seconds they took
Check = Callable[[], tuple[float, float]]  # dev nll and dev BLEU


def ours(settings: recipe.Recipe, data: Path, directory: Path) -> tuple[Train, Check]:
    run = open_run(settings, data, directory, 0, accelerator_for(settings, TrainOptions(data, directory)))
    trainer, state = run.trainer, run.state

    def train(updates: int) -> float:
        start = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            upcoming = pool.submit(trainer.parts, state.step)
            for left in range(updates, 0, -1):
                parts, _, tgt_tokens = upcoming.result()
                if left > 1:
                    upcoming = pool.submit(trainer.parts, state.step + 1)
                trainer.update(state.step + 1, parts, tgt_tokens)
                state.step += 1
        return time.monotonic() - start

    def check() -> tuple[float, float]:
        result = validate(trainer.transformer, trainer.dtype, run.tokenizer, run.dev, settings)
        return result.nll, result.bleu or 0.0

    return train, check


def same_weights(model: Transformer, other: Textbook) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight of our model with the same one of the textbook's."""
    yield model.embedding.weight, other.embedding.weight
    stacks = ((model.encoder, other.transformer.encoder.layers), (model.decoder, other.transformer.decoder.layers))
    for layer, theirs in (pair for mine, other_stack in stacks for pair in zip(mine, other_stack, strict=True)):
        yield from _same_attention(layer.self_attention, theirs.self_attn)
        if hasattr(layer, "cross_attention"):
            yield from _same_attention(layer.cross_attention, theirs.multihead_attn)
        feed_forward = ((layer.feed_forward.inner, theirs.linear1), (layer.feed_forward.outer, theirs.linear2))
        norms = ((r.norm, getattr(theirs, f"norm{i}")) for i, r in enumerate(layer.residuals, 1))
        for a, b in (*feed_forward, *norms):
            yield a.weight, b.weight
            yield a.bias, b.bias


def _same_attention(mine: Attention, theirs: nn.MultiheadAttention) -> Iterator[tuple[Tensor, Tensor]]:
    parts = [mine.query, mine.key_value] if hasattr(mine, "query") else [mine.query_key_value]
    start = 0
    for part in parts:
        rows = slice(start, start + part.out_features)
        yield part.weight, theirs.in_proj_weight[rows]
        yield part.bias, theirs.in_proj_bias[rows]
        start = rows.stop
    yield mine.output.weight, theirs.out_proj.weight
    yield mine.output.bias, theirs.out_proj.bias


def textbook_model(settings: recipe.Model, model: Transformer) -> Textbook:
    """Return torch's model of the same equations, with the weights of ours."""
    other = Textbook(settings, model.vocabulary_size)
    # torch adds a norm at the end of each stack, and dropout inside of sub-layers: the paper has neither.
    other.transformer.encoder.norm = other.transformer.decoder.norm = None
    for module in other.transformer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout = nn.Identity()
    with torch.no_grad():
        for mine, theirs in same_weights(model, other):
            theirs.copy_(mine)
    return other


def textbook(settings: recipe.Recipe, data: Path, _: Path) -> tuple[Train, Check]:
    training, corpus = settings.training, open_corpus(data)
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, attention_bias=True))
    tokenizer = Tokenizer(corpus.tokenizer_file)
    dev = dev_set(corpus, tokenizer, settings)
    torch.manual_seed(training.seed)
    model = Transformer(settings.model, tokenizer.vocabulary_size)
    other = textbook_model(settings.model, model).train()
    optimizer = adam(other, training)
    per_epoch = Updates(corpus, training.tokens_per_step, training.micro_batches, training.seed).per_epoch
    batches = sorted_batches(Job("textbook", "small", "bf16", str(data), round(len(corpus.tgt.ids) / per_epoch)), 1)
    step = 0

    def train(updates: int) -> float:
        nonlocal step
        start = time.monotonic()
        for _ in range(updates):
            step += 1
            ((src, tgt_in, tgt_out),) = next(batches)
            with torch.autocast("cpu", torch.bfloat16):
                scores = other(src, tgt_in).flatten(0, 1)
                loss = F.cross_entropy(
                    scores, tgt_out.flatten(), ignore_index=PAD, label_smoothing=training.label_smoothing
                )
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = noam_rate(step, settings.model.d_model, training)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return time.monotonic() - start

    def check() -> tuple[float, float]:
        with torch.no_grad():
            for mine, theirs in same_weights(model, other):
                mine.copy_(theirs)
        result = validate(model, torch.bfloat16, tokenizer, dev, settings)
        return result.nll, result.bleu or 0.0

    return train, check


SYSTEMS = {"ours": ours, "textbook": textbook}


def work(system: str, file: Path, data: Path) -> None:
    """Be one system: for each line "updates check" on stdin train, validate where asked, and answer with JSON."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as directory:
        train, check = SYSTEMS[system](recipe.load(file), data, Path(directory))
        for line in sys.stdin:
            updates, wanted = map(int, line.split())
            seconds = train(updates)
            print(json.dumps([seconds, *(check() if wanted else (math.nan, math.nan))]), file=answers)


def crossing(points: list[tuple[int, float, float]], bleu: float) -> tuple[float, float] | None:
    """Return at which update and minute a BLEU was reached, from (update, seconds, BLEU); None where it was not."""
    for (u, s, b), (v, t, c) in pairwise(points):
        if b < bleu <= c:
            share = (bleu - b) / (c - b)
            return u + share * (v - u), (s + share * (t - s)) / 60
    return None


def race(options: argparse.Namespace, data: Path) -> None:
    names, goal = options.systems, max(options.bleu)
    arguments = [str(options.recipe), "--corpus", str(data), "--worker"]
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, *arguments, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for name in names
    }
    points: dict[str, list[tuple[int, float, float]]] = {name: [(0, 0.0, 0.0)] for name in names}
    for step in range(options.every, recipe.load(options.recipe).training.steps + 1, options.every):
        running = [name for name in names if points[name][-1][2] < goal]
        for name in running:
            print(options.every, int(step >= options.first), file=workers[name].stdin)
            seconds, nll, bleu = json.loads(workers[name].stdout.readline())  # type: ignore[union-attr]
            seconds += points[name][-1][1]
            points[name].append((step, seconds, 0.0 if math.isnan(bleu) else bleu))
            shown = f"  dev nll {nll:.3f}  BLEU {bleu:.2f}" if step >= options.first else ""
            print(f"{name:10} update {step:5}  {seconds / 60:6.2f} min{shown}", flush=True)
        if not running:
            break
    for worker in workers.values():
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()
    for bleu in options.bleu:
        reached = {name: crossing(points[name], bleu) for name in names}
        for name, at in reached.items():
            print(f"dev BLEU {bleu:g}: {name:10}", f"update {at[0]:,.0f}, {at[1]:.1f} min" if at else "not reached")
        if all(reached.values()) and len(names) == 2:
            mine, theirs = (reached[name][1] for name in names)  # type: ignore[index]
            print(f"dev BLEU {bleu:g}: {theirs / mine:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/multi30k.yaml"))
    parser.add_argument("--bleu", type=float, nargs="+", default=[30.0, 35.0])
    parser.add_argument("--every", type=int, default=100, help="updates of a turn")
    parser.add_argument("--first", type=int, default=700, help="update of the first validation")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--corpus", type=Path, help="the corpus, prepared [default: Multi30k from NMT_CORPORA]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.recipe, options.corpus)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        race(options, options.corpus or default_corpus(Path(directory)))


if __name__ == "__main__":
    main()
