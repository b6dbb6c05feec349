"""Compare how long `nmt train`, a textbook loop and Marian train, taking turns, until they reach a dev BLEU.

All systems train the recipe's model on its corpus with its vocabulary, learning rates, dropout, label smoothing and
tokens per step. `nmt train` (here in one process) and the textbook loop start from the same weights and use bf16. The
loop is torch.nn.Transformer with autocast, padded batches sorted by length, and fused Adam (training_systems.py).
Marian (the C++ toolkit, if installed) runs in its own process, which is stopped between its turns. It uses float32, its
fastest type on a CPU, one thread per core, batches sorted over the whole corpus, its own initial weights, and no
cooldown.

After each turn of `--every` steps, the system's weights translate the dev set with the recipe's decoding settings. Our
model does this for the textbook loop too; Marian uses its own decoder, which divides scores by length ** alpha.
Validation and loading do not count. The time at which a BLEU is reached is interpolated.

    pip install pymarian
    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/time_to_quality.py --bleu 30 35
"""

import argparse
import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
from marian_toolkit import COMMAND, model_options
from torch import Tensor, nn
from training_systems import Step, Textbook, default_corpus, ours, plain_loop, sorted_batches

from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import normalize
from nmt_cli.recipe import loading, schema
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.validation import DevSet, validate
from nmt_cli.transformer.model import Transformer

System = tuple[Callable[[], object], Callable[[], float]]  # train for a turn; return the dev BLEU
TORCH_NAMES = {
    **{f"{stack}.": f"transformer.{stack}.layers." for stack in ("encoder", "decoder")},
    **{"self_attention.query_key_value.": "self_attn.in_proj_", "self_attention.output": "self_attn.out_proj"},
    **{f"cross_attention.{part}.": "multihead_attn.in_proj_" for part in ("query", "key_value")},
    **{"cross_attention.output": "multihead_attn.out_proj", "feed_forward.inner": "linear1"},
    **{"feed_forward.outer": "linear2", **{f"residuals.{i}.norm": f"norm{i + 1}" for i in range(3)}},
    **{f"{stack}_norm": f"transformer.{stack}.norm" for stack in ("encoder", "decoder")},
}


def same_weights(model: Transformer, other: Textbook) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight of our model with the matching weight, or rows of a weight, of the textbook model."""
    theirs, width = dict(other.named_parameters()), model.settings.d_model
    for name, weight in model.named_parameters():
        rows = slice(width * ("cross_attention.key" in name), width if "cross_attention.query" in name else None)
        for mine, torchs in TORCH_NAMES.items():
            name = name.replace(mine, torchs)
        yield weight, theirs[name][rows]


def textbook(settings: schema.Recipe, corpus: Corpus) -> tuple[Step, Callable[[], Transformer]]:
    """Return steps of torch's model with our equations and initial weights, and a function for validation.

    The function copies the current weights to our model, and returns our model.
    """
    training = settings.training
    shape = settings.model.model_copy(update={"attention_bias": True})
    torch.manual_seed(training.seed)
    model = Transformer(shape, int(corpus.manifest["vocabulary_size"]))
    other = Textbook(shape, model.vocabulary_size).train()
    if shape.norm == "post":  # the paper has no norm after a stack and no dropout inside sublayers
        other.transformer.encoder.norm = other.transformer.decoder.norm = None
    for module in other.transformer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout = nn.Identity()
    with torch.no_grad():
        for mine, theirs in same_weights(model, other):
            theirs.copy_(mine)
    steps = BatchPlan(corpus, training, training.micro_batches).steps_per_epoch
    batches = sorted_batches(corpus, round(len(corpus.tgt.ids) / steps))

    @torch.no_grad()
    def to_ours() -> Transformer:
        for mine, theirs in same_weights(model, other):
            mine.copy_(theirs)
        return model

    step = plain_loop(other, batches, adam(other, training), "bf16", lambda n: noam_rate(n, shape.d_model, training))
    return step, to_ours


def marian_options(settings: schema.Recipe, corpus: Corpus) -> dict[str, object]:
    model, training = settings.model, settings.training
    words = (
        2 * training.tokens_per_step / (1 + len(corpus.tgt.ids) / len(corpus.src.ids))
    )  # Marian counts source tokens
    return {
        **model_options(model) | {"transformer-dropout": model.dropout, "max-length": model.max_length},
        **{"cpu-threads": torch.get_num_threads(), "sync-sgd": True, "seed": training.seed, "overwrite": True},
        **{"mini-batch-words": round(words), "maxi-batch": 1000, "shuffle-in-ram": True},
        **{"lr-warmup": training.warmup_steps, "lr-decay-inv-sqrt": [training.warmup_steps]},
        **{"learn-rate": training.rate_factor * (model.d_model * training.warmup_steps) ** -0.5, "clip-norm": 0},
        **{"cost-type": "ce-mean-words", "label-smoothing": training.label_smoothing, "no-spm-encode": True},
        "optimizer-params": [training.adam_beta1, training.adam_beta2, training.adam_epsilon],
    }


def marian(settings: schema.Recipe, corpus: Corpus, dev: DevSet, directory: Path, every: int) -> System:
    """Return functions that run a turn of Marian's training, and compute BLEU with Marian's decoder."""
    train, vocabulary = [directory / "train.src", directory / "train.tgt"], directory / "vocab.spm"
    for text, side in zip(train, (corpus.src, corpus.tgt), strict=True):
        ids = (side.ids[start : end - 1].tolist() for start, end in pairwise(side.offsets))
        text.write_text("".join(" ".join(dev.tokenizer.tokens(line)) + "\n" for line in ids))
    lines, decoding = dev.lines[: settings.training.validate_bleu], settings.decoding
    source, output, model, log = (directory / name for name in ("dev", "dev.hyp", "model.npz", "log"))
    source.write_text("".join(normalize(line) + "\n" for line in lines))
    vocabulary.write_bytes(corpus.tokenizer_file.read_bytes())
    options = marian_options(settings, corpus) | {"model": str(model), "log": str(log), "save-freq": f"{every}u"}
    options |= {"train-sets": [*map(str, train)], "vocabs": [str(vocabulary)] * 2, "quiet": True}
    (directory / "config.yml").write_text(json.dumps(options))
    command, saved = [sys.executable, "-c", COMMAND], directory / "model.npz.progress.yml"
    process = subprocess.Popen([*command, "train", "--config", directory / "config.yml"])
    atexit.register(process.kill)

    def stop_when(done: Callable[[], bool]) -> None:
        while not done():
            if process.poll() is not None:
                raise SystemExit(f"Marian exited: {log.read_text()[-500:]}")
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)

    def turn() -> None:
        saved.unlink(missing_ok=True)
        process.send_signal(signal.SIGCONT)
        stop_when(saved.exists)  # written after the model

    def bleu() -> float:
        files = f"--models {model} --vocabs {vocabulary} {vocabulary} --input {source} --output {output}"
        batches = f"--cpu-threads {torch.get_num_threads()} --mini-batch 32 --maxi-batch 100 --maxi-batch-sort src"
        search = f"--beam-size {decoding.beam} --normalize {decoding.alpha} --quiet --quiet-translation"
        subprocess.run([*command, "decode", *f"{files} {batches} {search}".split()], check=True)
        return corpus_bleu(output.read_text().split("\n")[:-1], dev.references[: len(lines)])[0]

    stop_when(lambda: log.exists() and "Training started" in log.read_text())
    return turn, bleu


def systems_of(settings: schema.Recipe, data: Path, directory: Path, every: int) -> dict[str, System]:
    corpus = open_corpus(data)
    dev = DevSet(corpus, settings)
    our_step, run = ours(settings, data, directory)
    loops = {"ours": (our_step, lambda: run.transformer), "textbook": textbook(settings, corpus)}

    def system(step: Step, model: Callable[[], Transformer]) -> System:
        bleu = lambda: validate(model(), torch.bfloat16, dev, settings)["dev_bleu"]  # noqa: E731
        return lambda: [step() for _ in range(every)], bleu

    peers = {"Marian": marian(settings, corpus, dev, directory, every)} if find_spec("_pymarian") else {}
    return {name: system(*loop) for name, loop in loops.items()} | peers


def crossing(points: list[tuple[int, float, float]], bleu: float) -> tuple[float, float] | None:
    """Return the step and minute at which a BLEU is reached, or None. `points` are (step, seconds, BLEU or NaN)."""
    for (u, s, b), (v, t, c) in pairwise(points):
        if not b >= bleu and c >= bleu:
            share = (bleu - b) / (c - b) if b == b else 1.0
            return u + share * (v - u), (s + share * (t - s)) / 60
    return None


def race(options: argparse.Namespace, data: Path, directory: Path) -> None:
    settings = loading.load(options.recipe, ["training.precision=bf16", *options.set])
    systems = systems_of(settings, data, directory, options.every)
    points, limit = {name: [(0, 0.0, 0.0)] for name in systems}, 60 * options.minutes
    for done in range(options.every, settings.training.steps + 1, options.every):
        for name in [n for n, (*_, (_, s, b)) in points.items() if not b >= max(options.bleu) and s < limit]:
            turn, dev_bleu = systems[name]
            start = time.monotonic() - points[name][-1][1]
            turn()
            seconds = time.monotonic() - start
            bleu = dev_bleu() if done >= options.first else float("nan")
            points[name].append((done, seconds, bleu))
            print(f"{name:10} step {done:5}  {seconds / 60:6.2f} min  BLEU {bleu:.2f}", flush=True)
    for bleu in options.bleu:
        reached = {name: crossing(points[name], bleu) for name in systems}
        for name, at in reached.items():
            ratio = f", {at[1] / first[1]:.2f} times ours" if at and (first := reached["ours"]) else ""
            print(f"dev BLEU {bleu:g} {name:9}", f"step {at[0]:,.0f}, {at[1]:.1f} min{ratio}" if at else "not reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/multi30k.yaml"))
    parser.add_argument("--bleu", type=float, nargs="+", default=[30.0, 35.0])
    parser.add_argument("--every", type=int, default=100, help="steps per turn")
    parser.add_argument("--first", type=int, default=700, help="step of the first validation")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time limit per system [default: 60]")
    parser.add_argument("--set", nargs="+", default=[], help="overrides of the recipe's settings")
    parser.add_argument("--corpus", type=Path, help="prepared corpus [default: Multi30k from NMT_CORPORA]")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as directory:
        race(options, options.corpus or default_corpus(Path(directory)), Path(directory))


if __name__ == "__main__":
    main()
