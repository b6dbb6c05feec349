"""Systems for the training benchmarks: `nmt train`, and a plain loop around torch.nn.Transformer or Marian.

Each system is a function that takes one step and returns its number of target tokens, without padding. The plain loop
uses autocast, fused Adam and padded batches, which are sorted by length over the whole corpus and prefetched.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.corpus.store import Corpus, Lengths, open_corpus
from nmt_cli.corpus.tokenizer import EOS, PAD
from nmt_cli.recipe import loading, schema
from nmt_cli.system.console import set_quiet
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer.model import Transformer, sinusoids

Step = Callable[[], int]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"num_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_k": 32, "d_v": 32},
    "small": {"num_layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4},
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16},
}


def default_corpus(directory: Path) -> Path:
    """Prepare Multi30k from $NMT_CORPORA, or generated text if that is not set; return the corpus directory."""
    from nmt_cli.corpus.prepare import PrepareOptions, prepare

    corpora = os.environ.get("NMT_CORPORA")
    name = "multi30k-en-de" if corpora else "toy-en-de"
    settings = loading.from_plain({"corpus": {"name": name}}, "benchmark").corpus
    set_quiet(True)
    return prepare(settings, directory / name, PrepareOptions(Path(corpora) / "multi30k" if corpora else None))


def settings_of(size: str, precision: str, corpus: Corpus, tokens: int) -> schema.Recipe:
    """Return a recipe with `tokens` target tokens per step on average."""
    both = tokens * (len(corpus.src.ids) + len(corpus.tgt.ids)) / (2 * len(corpus.tgt.ids))
    training = {"tokens_per_step": round(both), "precision": precision}
    return loading.from_plain({"name": size, "model": dict(SIZES[size]), "training": training}, "benchmark")


def ours(settings: schema.Recipe, data: Path, directory: Path) -> tuple[Step, Trainer]:
    """Return the steps of `nmt train`, which prefetch one batch, and the trainer."""
    run = start_trainer(settings, open_corpus(data), make_accelerator(settings, directory), directory, 0)
    pool = ThreadPoolExecutor(1)
    upcoming = [pool.submit(run.step_batch, 0)]

    def step() -> int:
        batch = upcoming.pop().result()
        upcoming.append(pool.submit(run.step_batch, run.state.step + 1))
        run.take_step(run.state.step + 1, batch)
        run.state.step += 1
        return batch.tgt_tokens

    return step, run


def products(model: schema.Model, vocabulary_size: int, precision: str, tokens: int, world: int) -> Step:
    """Return steps of only the matrix products with weights, forward and backward, for one process's share of tokens.

    The embedding counts once, for the logits."""
    draw = partial(torch.randn, device=DEVICE, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    shapes = [p.shape for p in Transformer(model, vocabulary_size).parameters() if p.dim() == 2]
    sizes = [(draw(tokens // world, i), draw(tokens // world, o), draw(o, i)) for o, i in shapes]

    def step() -> int:
        for x, y, weight in sizes:
            _ = x @ weight.t(), y @ weight, y.t() @ x
        return tokens

    return step


def _pad(ids_N: Lengths, lengths: Lengths) -> Tensor:
    grid = np.full((len(lengths), lengths.max()), PAD)
    grid[np.arange(lengths.max()) < lengths[:, None]] = ids_N
    return torch.from_numpy(grid).to(DEVICE)


def sorted_batches(corpus: Corpus, tokens: int) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Yield padded (source, target input, target output, target tokens) without end, about `tokens` at a time."""
    lengths = corpus.tgt.lengths()
    order = np.lexsort((corpus.src.lengths(), lengths))
    bounds = np.flatnonzero(np.diff(lengths[order].cumsum() // tokens)) + 1
    batches = [b for b in np.split(order, bounds) if lengths[b].sum() > tokens // 2]
    rng = np.random.default_rng(1)

    def build(sentences: Lengths) -> tuple[Tensor, Tensor, Tensor, int]:
        src, tgt = _pad(*corpus.src.gather(sentences)), _pad(*corpus.tgt.gather(sentences))
        tgt_in = torch.cat([torch.full_like(tgt[:, :1], PAD), tgt[:, :-1]], 1)
        return src, tgt_in, tgt, int(lengths[sentences].sum())

    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(build, batches[0])
        while True:
            for number in rng.permutation(len(batches)):
                ready, upcoming = upcoming, pool.submit(build, batches[number])
                yield ready.result()


def plain_loop(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor, Tensor, int]],
    optimizer: torch.optim.Optimizer,
    precision: str,
    rate: Callable[[int], float] = lambda step: 1e-4,
) -> Step:
    """Return the steps of a plain PyTorch training loop."""
    done = 0

    def step() -> int:
        nonlocal done
        done += 1
        src, tgt_in, tgt_out, tokens = next(batches)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
            scores = model(src, tgt_in).flatten(0, 1)
            loss = F.cross_entropy(scores, tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = rate(done)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return tokens  # counted on the host: nothing waits for a GPU

    return step


class Textbook(nn.Module):
    """torch.nn.Transformer between tied, scaled embeddings."""

    def __init__(self, model: schema.Model, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, model.d_model, PAD)
        nn.init.normal_(self.embedding.weight, 0, model.d_model**-0.5)
        self.register_buffer("positions", sinusoids(model.max_length, model.d_model))
        self.dropout = nn.Dropout(model.dropout)
        sizes = (model.d_model, model.num_heads, *model.depths, model.d_ff, model.dropout)
        self.transformer = nn.Transformer(*sizes, batch_first=True, norm_first=model.norm == "pre")

    def embed(self, ids: Tensor) -> Tensor:
        scaled = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: ids.shape[1]])  # type: ignore[no-any-return]

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        pads = src == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(tgt_in.shape[1], src.device).bool()
        masks: dict[str, Any] = {"tgt_mask": causal, "src_key_padding_mask": pads, "memory_key_padding_mask": pads}
        hidden = self.transformer(self.embed(src), self.embed(tgt_in), **masks, tgt_is_causal=True)
        return F.linear(hidden, self.embedding.weight)


class Marian(nn.Module):
    """MarianMTModel of transformers in the same size."""

    def __init__(self, model: schema.Model, vocabulary_size: int) -> None:
        super().__init__()
        import transformers

        heads, inner = model.num_heads, model.d_ff
        sides = {f"{s}_attention_heads": heads for s in ("encoder", "decoder")}
        sides |= dict(zip(("encoder_layers", "decoder_layers"), model.depths, strict=True))
        sides |= {f"{s}_ffn_dim": inner for s in ("encoder", "decoder")}
        ids = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": EOS}
        config = transformers.MarianConfig(
            vocab_size=vocabulary_size, d_model=model.d_model, max_position_embeddings=model.max_length,
            activation_function="relu", dropout=model.dropout, scale_embedding=True, **sides, **ids,
        )  # fmt: skip
        self.model = transformers.MarianMTModel(config)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Any:
        mask = (src != PAD).long()
        return self.model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in, use_cache=False).logits
