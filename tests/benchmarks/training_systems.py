"""The systems that the training benchmarks compare, each in a process of its own that works when it is told to.

A worker is started with one JSON argument (see Job), says that it is ready, and then reads numbers from stdin, one a
line: train for so many seconds. For each it answers with one JSON line: what it did. Other systems than ours get
batches of sentences of one length, sorted over the whole corpus, so that they compute next to no pads.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli import recipe
from nmt_cli.console import set_quiet
from nmt_cli.corpus.store import Lengths, open_corpus
from nmt_cli.corpus.tokenizer import EOS, PAD
from nmt_cli.training.metrics import peak_memory_mb
from nmt_cli.transformer.model import sinusoids

SIZES = {
    "tiny": {"num_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_k": 32, "d_v": 32},
    "small": {"num_layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4},
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16},
}
SMOOTHING = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker does.

    Args:
        system: a key of SYSTEMS; options follow it, each after a plus sign: "marian+eager+compile+mallopt" (attention
            written out, torch.compile, our setting of the allocator), "ours+defaults" (without that setting).
        size: a key of SIZES.
        precision: "fp32" or "bf16"; ours also "auto".
        corpus: a prepared corpus.
        tokens: target tokens per update.
        overrides: knobs of our recipe, as --set takes them.
    """

    system: str
    size: str
    precision: str
    corpus: str
    tokens: int
    overrides: tuple[str, ...] = ()

    @property
    def options(self) -> set[str]:
        return set(self.system.split("+")[1:])

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def settings(self) -> recipe.Recipe:
        """The recipe: defaults, but for the model's size; tokens per update are the mean of both sides."""
        corpus = open_corpus(Path(self.corpus))
        mean = self.tokens * (len(corpus.src.ids) + len(corpus.tgt.ids)) / (2 * len(corpus.tgt.ids))
        training = {"tokens_per_step": round(mean), "precision": self.precision, "label_smoothing": SMOOTHING}
        values: dict[str, Any] = {"name": self.size, "model": dict(SIZES[self.size]), "training": training}
        for text in self.overrides:
            values = recipe.merge(values, recipe.override(text))
        return recipe.from_plain(values, "benchmark")

    @property
    def vocabulary_size(self) -> int:
        return int(open_corpus(Path(self.corpus)).manifest["vocabulary_size"])


def default_corpus(directory: Path) -> Path:
    """Prepare Multi30k from $NMT_CORPORA, or where that is not set the generated language, and return it."""
    from nmt_cli.corpus.prepare import PrepareOptions, prepare

    corpora = os.environ.get("NMT_CORPORA")
    name = "multi30k-en-de" if corpora else "toy-en-de"
    settings = recipe.from_plain({"corpus": {"name": name}}, "benchmark").corpus
    set_quiet(True)
    return prepare(settings, directory / name, PrepareOptions(Path(corpora) / "multi30k" if corpora else None))


def commands() -> Iterator[float]:
    """Yield how many seconds to work for, each time the driver asks."""
    for line in sys.stdin:
        yield float(line)


def answer(updates: int, tgt_tokens: float, seconds: float, **more: object) -> None:
    memory = peak_memory_mb()
    print(json.dumps({"updates": updates, "tgt_tokens": tgt_tokens, "seconds": seconds, "memory": memory, **more}))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def windows(update: Callable[[], int]) -> None:
    """Answer the driver by doing updates; each returns the real target tokens it was of."""
    for seconds in commands():
        start, took, updates, tokens = time.perf_counter(), 0.0, 0, 0
        while not updates or took < seconds:
            tokens, updates = tokens + update(), updates + 1
            synchronize()
            took = time.perf_counter() - start
        answer(updates, tokens, took)


# ---- ours: the updates of `nmt train`, with nothing added or left out


def ours(job: Job) -> None:
    from nmt_cli.training import start
    from nmt_cli.training.estimate import measure
    from nmt_cli.training.train import TrainOptions, accelerator_for

    if "defaults" in job.options:
        start.reuse_memory = lambda: None
    with tempfile.TemporaryDirectory() as directory:
        data, run = Path(job.corpus), Path(directory)
        accelerator = accelerator_for(job.settings, TrainOptions(data, run))
        trainer = start.open_run(job.settings, data, run, 0, accelerator).trainer
        step = 0
        for seconds in commands():
            cpu = time.process_time()
            window, took = measure(trainer, step, seconds)
            cpu = time.process_time() - cpu
            step += window.updates
            pads = round(window.padded / window.places, 4)
            answer(window.updates, window.tgt_tokens, took, pads=pads, cpu=cpu, parts=len(trainer.parts(step)[0]))


# ---- batches for the others


def _pad(ids_N: Lengths, lengths: Lengths) -> Tensor:
    grid = np.full((len(lengths), lengths.max()), PAD)
    grid[np.arange(lengths.max()) < lengths[:, None]] = ids_N
    return torch.from_numpy(grid)


def sorted_batches(job: Job, parts: int) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Yield updates for ever: `parts` batches each of (source, target input, target output), padded."""
    corpus = open_corpus(Path(job.corpus))
    lengths = corpus.tgt.lengths()
    order = np.lexsort((corpus.src.lengths(), lengths))
    bounds = np.flatnonzero(np.diff(lengths[order].cumsum() // job.tokens)) + 1
    updates = [u for u in np.split(order, bounds) if lengths[u].sum() > job.tokens // 2]
    generator = np.random.default_rng(1)

    def build(sentences: Lengths) -> list[tuple[Tensor, Tensor, Tensor]]:
        batches = []
        for part in np.array_split(sentences, parts):
            src, tgt = _pad(*corpus.src.gather(part)), _pad(*corpus.tgt.gather(part))
            tgt_in = torch.cat([torch.full((len(tgt), 1), PAD), tgt[:, :-1]], 1)
            batches.append((src.to(job.device), tgt_in.to(job.device), tgt.to(job.device)))
        return batches

    with ThreadPoolExecutor(1) as pool:  # prepared ahead, as ours are
        upcoming = pool.submit(build, updates[0])
        while True:
            for number in generator.permutation(len(updates)):
                ready, upcoming = upcoming, pool.submit(build, updates[number])
                yield ready.result()


def smoothed_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING)


def plain_loop(
    job: Job,
    model: nn.Module,
    logits: Callable[[Any, Tensor, Tensor], Tensor],
    criterion: Callable[[Tensor, Tensor], Tensor] = smoothed_cross_entropy,
) -> None:
    """Train a model the usual way: padded batches, autocast, cross entropy with label smoothing, fused Adam."""
    model.to(job.device).train()
    if "mallopt" in job.options:
        from nmt_cli.transformer.hardware import reuse_memory

        reuse_memory()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    run = torch.compile(model, dynamic=True) if "compile" in job.options else model
    state = {"parts": 1, "batches": sorted_batches(job, 1)}

    def update() -> int:
        batches = next(state["batches"])
        count = sum(int((tgt_out != PAD).sum()) for _, _, tgt_out in batches)
        try:
            for src, tgt_in, tgt_out in batches:
                with torch.autocast(job.device.type, torch.bfloat16, enabled=job.precision == "bf16"):
                    loss = criterion(logits(run, src, tgt_in).flatten(0, 1), tgt_out.flatten())
                (loss / count).backward()
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            state["parts"] *= 2
            print(f"{job.system}: out of memory, now {state['parts']} parts per update", file=sys.stderr)
            state["batches"] = sorted_batches(job, state["parts"])
            return 0
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return count

    while not update():
        pass
    windows(update)


# ---- the textbook: torch.nn.Transformer


class Textbook(nn.Module):
    """torch.nn.Transformer between tied, scaled embeddings."""

    def __init__(self, model: recipe.Model, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, model.d_model, PAD)
        nn.init.normal_(self.embedding.weight, 0, model.d_model**-0.5)
        self.register_buffer("positions", sinusoids(model.max_length, model.d_model))
        self.dropout = nn.Dropout(model.dropout)
        layers = model.num_layers
        self.transformer = nn.Transformer(
            model.d_model, model.num_heads, layers, layers, model.d_ff, model.dropout, batch_first=True
        )

    def embed(self, ids: Tensor) -> Tensor:
        scaled = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        pads = src == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(tgt_in.shape[1], src.device).bool()
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=causal,
            src_key_padding_mask=pads,
            memory_key_padding_mask=pads,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def textbook(job: Job) -> None:
    plain_loop(job, Textbook(job.settings.model, job.vocabulary_size), lambda model, src, tgt_in: model(src, tgt_in))


# ---- transformers' MarianMTModel


def marian(job: Job) -> None:
    import transformers

    model = job.settings.model
    config = transformers.MarianConfig(
        vocab_size=job.vocabulary_size,
        d_model=model.d_model,
        encoder_layers=model.num_layers,
        decoder_layers=model.num_layers,
        encoder_attention_heads=model.num_heads,
        decoder_attention_heads=model.num_heads,
        encoder_ffn_dim=model.d_ff,
        decoder_ffn_dim=model.d_ff,
        max_position_embeddings=model.max_length,
        activation_function="relu",
        dropout=model.dropout,
        scale_embedding=True,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        attn_implementation="eager" if "eager" in job.options else "sdpa",
    )
    plain_loop(
        job,
        transformers.MarianMTModel(config),
        lambda run, src, tgt_in: (
            run(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt_in, use_cache=False).logits
        ),
    )


# ---- fairseq's Transformer


def fairseq(job: Job) -> None:
    """Its model and its loss in the plain loop; its decoder starts with EOS, as it masks pads even there."""
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel

    model, pieces = job.settings.model, Dictionary()
    for number in range(job.vocabulary_size - len(pieces)):
        pieces.add_symbol(f"piece {number}")
    pieces.pad_index = PAD
    sizes = {
        "embed_dim": model.d_model,
        "ffn_embed_dim": model.d_ff,
        "layers": model.num_layers,
        "attention_heads": model.num_heads,
    }
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    options = argparse.Namespace(dropout=model.dropout, share_all_embeddings=True, **sides)
    task = argparse.Namespace(source_dictionary=pieces, target_dictionary=pieces)

    def logits(run: Any, src: Tensor, tgt_in: Tensor) -> Tensor:
        tgt_in = torch.cat([torch.full_like(tgt_in[:, :1], EOS), tgt_in[:, 1:]], 1)
        return run(src, (src != PAD).sum(1), tgt_in)[0]  # type: ignore[no-any-return]

    def criterion(scores: Tensor, labels: Tensor) -> Tensor:
        log_probs = F.log_softmax(scores, -1, dtype=torch.float32)
        return label_smoothed_nll_loss(log_probs, labels[:, None], SMOOTHING, PAD)[0]  # type: ignore[no-any-return]

    plain_loop(job, TransformerModel.build_model(options, task), logits, criterion)


def eole(job: Job) -> None:
    from eole_system import train

    train(job, commands, answer)


# ---- the limit: the model's matrix products and nothing else


def products(job: Job) -> None:
    """Forward and both backward products of every weight of the model, for an update's tokens; answers FLOP, too."""
    model, width = (
        job.settings.model,
        {"device": job.device, "dtype": {"fp32": torch.float32}.get(job.precision, torch.bfloat16)},
    )
    d, n, layers = model.d_model, job.tokens, model.num_layers
    keys, values = model.num_heads * model.d_k, model.num_heads * model.d_v
    shapes = [
        *[(2 * layers, d, 2 * keys + values), (layers, d, keys), (layers, d, keys + values), (3 * layers, values, d)],
        *[(2 * layers, d, model.d_ff), (2 * layers, model.d_ff, d), (1, d, job.vocabulary_size)],
    ]
    tensors = [
        (count, torch.randn(n, i, **width), torch.randn(o, i, **width), torch.randn(n, o, **width))
        for count, i, o in shapes
    ]

    def update() -> int:
        for count, x_NI, w_OI, g_NO in tensors:
            for _ in range(count):
                x_NI @ w_OI.t(), g_NO @ w_OI, g_NO.t() @ x_NI
        return n

    with torch.inference_mode():
        windows(update)


def square(job: Job) -> None:
    """One large matrix product, 8,192 to each side (2,048 on the CPU): the device's peak. A "token" is one FLOP."""
    side = 8192 if job.device.type == "cuda" else 2048
    dtype = torch.float32 if job.precision == "fp32" else torch.bfloat16
    a, b = (torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2))
    with torch.inference_mode():
        windows(lambda: 2 * side**3 * len([a @ b for _ in range(20 if job.device.type == "cuda" else 1)]))


SYSTEMS = {f.__name__: f for f in (ours, marian, textbook, fairseq, eole, products, square)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="fields of Job, as JSON")
    job = Job(**json.loads(parser.parse_args().job))
    answers = os.dup(1)
    os.dup2(2, 1)  # toolkits print what they like; answers are ours alone
    sys.stdout = os.fdopen(answers, "w", buffering=1)
    SYSTEMS[job.system.split("+")[0]](job)


if __name__ == "__main__":
    main()
