"""Minutes of training until a dev BLEU: the steps of `nmt train` beside those of a textbook loop, in one run.

Both train a recipe's model on its corpus from the same initial weights, with its rates, dropout, smoothing and tokens
per step, in bf16: ours as `nmt train` does, the other with torch.nn.Transformer, autocast, padded batches sorted by
length and fused Adam (training_systems.py). They take turns of `--every` steps in one process, so that both meet the
same machine and the same memory allocator. After each turn the weights, in our model, translate the dev set as the
recipe decodes; that time is not counted. The minute of a BLEU is interpolated. From the repository root:

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/time_to_quality.py --bleu 30 35
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from training_systems import Step, Textbook, default_corpus, ours, plain_loop, sorted_batches

from nmt_cli import recipe
from nmt_cli.corpus.store import open_corpus
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.validation import DevSet, validate
from nmt_cli.transformer.attention import Attention
from nmt_cli.transformer.model import Transformer


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


def textbook(settings: recipe.Recipe, data: Path) -> tuple[Step, Callable[[], Transformer]]:
    """Return the steps of the other loop, and a function that gives its weights as our model."""
    training, corpus = settings.training, open_corpus(data)
    shape = settings.model.model_copy(update={"attention_bias": True})
    torch.manual_seed(training.seed)
    model = Transformer(shape, int(corpus.manifest["vocabulary_size"]))
    other = textbook_model(shape, model).train()
    plan = BatchPlan(corpus, training.tokens_per_step, training.micro_batches, training.seed)
    batches = sorted_batches(corpus, round(len(corpus.tgt.ids) / plan.steps_per_epoch))

    def ours_again() -> Transformer:
        with torch.no_grad():
            for mine, theirs in same_weights(model, other):
                mine.copy_(theirs)
        return model

    def rate(step: int) -> float:
        return noam_rate(step, shape.d_model, training)

    return plain_loop(other, batches, adam(other, training), "bf16", rate), ours_again


def crossing(points: list[tuple[int, float, float]], bleu: float) -> tuple[float, float] | None:
    """Return at which step and minute a BLEU was reached, from (step, seconds, BLEU); None where it was not."""
    for (u, s, b), (v, t, c) in pairwise(points):
        if b < bleu <= c:
            share = (bleu - b) / (c - b)
            return u + share * (v - u), (s + share * (t - s)) / 60
    return None


def race(options: argparse.Namespace, data: Path, directory: Path) -> None:
    settings = recipe.load(options.recipe, ["training.precision=bf16"])
    dev = DevSet(open_corpus(data), settings)
    our_step, run = ours(settings, data, directory)
    their_step, their_model = textbook(settings, data)
    systems: dict[str, tuple[Step, Callable[[], Transformer]]] = {
        "ours": (our_step, lambda: run.transformer),
        "textbook": (their_step, their_model),
    }
    points: dict[str, list[tuple[int, float, float]]] = {name: [(0, 0.0, 0.0)] for name in systems}
    for done in range(options.every, settings.training.steps + 1, options.every):
        for name in [name for name in systems if points[name][-1][2] < max(options.bleu)]:
            step, model = systems[name]
            start = time.monotonic()
            for _ in range(options.every):
                step()
            seconds = points[name][-1][1] + time.monotonic() - start
            bleu = 0.0
            if done >= options.first:
                bleu = validate(model(), torch.bfloat16, dev, settings)[0]["dev_bleu"]
            points[name].append((done, seconds, bleu))
            print(f"{name:10} step {done:5}  {seconds / 60:6.2f} min  BLEU {bleu:.2f}", flush=True)
    for bleu in options.bleu:
        reached = {name: crossing(points[name], bleu) for name in systems}
        for name, at in reached.items():
            print(f"dev BLEU {bleu:g}: {name:10}", f"step {at[0]:,.0f}, {at[1]:.1f} min" if at else "not reached")
        if reached["ours"] and reached["textbook"]:
            print(f"dev BLEU {bleu:g}: {reached['textbook'][1] / reached['ours'][1]:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/multi30k.yaml"))
    parser.add_argument("--bleu", type=float, nargs="+", default=[30.0, 35.0])
    parser.add_argument("--every", type=int, default=100, help="steps of a turn")
    parser.add_argument("--first", type=int, default=700, help="step of the first validation")
    parser.add_argument("--corpus", type=Path, help="the corpus, prepared [default: Multi30k from NMT_CORPORA]")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        race(options, options.corpus or default_corpus(Path(directory)), Path(directory))


if __name__ == "__main__":
    main()
