"""A plain float64 Transformer, written only from the equations of "Attention Is All You Need", without optimizations.

It uses the package's weights by name.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.recipe import schema
from nmt_cli.transformer.model import Batch, Transformer, pack, token_seeds

Pair = tuple[Sequence[int], Sequence[int]]
EPSILON = 1e-5


def batch_of(
    pairs: Sequence[Pair], device: torch.device | str = "cpu", key: Sequence[int] = (), numbers: Any = None
) -> Batch:
    """Pack pairs of source and target ids, which should end with EOS. Dropout needs the sentences' `numbers`."""
    flat = [np.concatenate([np.asarray(pair[side], np.int64) for pair in pairs]) for side in (0, 1)]
    lengths = [np.array([len(pair[side]) for pair in pairs]) for side in (0, 1)]
    seeds = [token_seeds((*key, side), numbers, lengths[side]) for side in (0, 1) if numbers is not None]
    return pack(flat[0], lengths[0], flat[1], lengths[1], device, *seeds)


def random_pairs(seed: int, vocabulary: int, lengths: Sequence[tuple[int, int]]) -> list[Pair]:
    """Return pairs of these lengths with random ids from 3 to vocabulary - 1, and EOS (2) at the end."""
    draw = np.random.default_rng(seed)
    return [
        ([*draw.integers(3, vocabulary, s - 1).tolist(), 2], [*draw.integers(3, vocabulary, t - 1).tolist(), 2])
        for s, t in lengths
    ]


def tiny(**changes: object) -> schema.Model:
    """Return the settings of a small model in which no two sizes are equal."""
    sizes = {"num_layers": 2, "d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 4, "d_v": 5, "max_length": 32}
    return schema.Model(**{**sizes, **changes})  # type: ignore[arg-type]


def random_model(settings: schema.Model, vocabulary: int, seed: int = 0) -> Transformer:
    """Return a float64 model in which no bias is 0 and no scale is 1, so that a forgotten one changes results."""
    torch.manual_seed(seed)
    model = Transformer(settings, vocabulary).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-0.5, 0.5)
                if "norm" in name and name.endswith("weight"):
                    parameter.add_(1)
    return model


class Reference:
    """The model of the paper's section 3 with copies of the weights of `model` that require gradients.

    `masks` are zeros and ones: for each dropout, in the order of the computation, one N_i x D mask per sentence.
    """

    def __init__(self, model: Transformer, masks: Iterator[list[Tensor]] | None = None) -> None:
        self.settings, self.masks = model.settings, masks
        self.weights = {name: p.detach().double().clone().requires_grad_() for name, p in model.named_parameters()}
        self.attended: dict[str, Tensor] = {}  # attention weights of the last call, by layer: B x H x queries x keys

    def logits(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return T x (V - 1) logits per pair, without those of PAD."""
        src, src_keys = self.rectangle([pair[0] for pair in pairs])
        tgt, tgt_keys = self.rectangle([[0, *pair[1][:-1]] for pair in pairs])
        causal = torch.tensor([[j <= i for j in range(tgt.shape[1])] for i in range(tgt.shape[1])])
        x = self.embed(src, "src")
        encoder_layers, decoder_layers = self.settings.depths
        for n in range(encoder_layers):
            x = self.sublayer(x, f"encoder.{n}", 0, self.attention, "self_attention", src_keys)
            x = self.sublayer(x, f"encoder.{n}", 1, self.feed_forward, "feed_forward")
        memory = self.norm(x, "encoder_norm") if self.settings.norm == "pre" else x
        y = self.embed(tgt, "tgt")
        for n in range(decoder_layers):
            if self.settings.decoder_cell == "ssru":
                y = self.sublayer(y, f"decoder.{n}", 0, self.ssru, "recurrence")
            else:
                y = self.sublayer(y, f"decoder.{n}", 0, self.attention, "self_attention", tgt_keys & causal)
            y = self.sublayer(y, f"decoder.{n}", 1, self.attention, "cross_attention", src_keys, memory)
            y = self.sublayer(y, f"decoder.{n}", 2, self.feed_forward, "feed_forward")
        if self.settings.norm == "pre":
            y = self.norm(y, "decoder_norm")
        out = y @ self.embedding("output")[1:].T
        return [out[i, : len(pair[1])] for i, pair in enumerate(pairs)]

    def rectangle(self, sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the padded ids, B x T, and a mask of the real ids, B x 1 x T."""
        # Padding has the id of a real token, so that a missing mask changes results.
        width = max(map(len, sentences)) + 2
        real = torch.tensor([[[i < len(s) for i in range(width)]] for s in sentences])
        return torch.tensor([[*s, *[5] * (width - len(s))] for s in sentences]), real

    def embed(self, ids: Tensor, side: str) -> Tensor:
        # PAD, with which the decoder's input begins, has a vector of zeros, which is never trained.
        vectors = self.embedding(side)[ids] * math.sqrt(self.settings.d_model) * (ids != 0)[:, :, None]
        return self.dropout(vectors + torch.stack([self.position(i, side) for i in range(ids.shape[1])]))

    def embedding(self, side: str) -> Tensor:
        return self.weights.get(f"own_embeddings.{side}.weight", self.weights["embedding.weight"])

    def position(self, pos: int, side: str) -> Tensor:
        if self.settings.positions == "learned":
            return self.weights[f"{side}_positions.weight"][pos]
        d = self.settings.d_model
        angles = [pos / 10000 ** (2 * i / d) for i in range(d // 2)]
        values = [function(angle) for angle in angles for function in (math.sin, math.cos)]
        return torch.tensor(values, dtype=torch.float64).float().double()  # the package's table is float32

    def dropout(self, x: Tensor) -> Tensor:
        if self.masks is None:
            return x
        scaled = torch.zeros_like(x)
        for i, mask in enumerate(next(self.masks)):
            scaled[i, : len(mask)] = x[i, : len(mask)] * mask / (1 - self.settings.dropout)
        return scaled

    def sublayer(self, x: Tensor, layer: str, i: int, function: Callable[..., Tensor], name: str, *rest: Any) -> Tensor:
        norm, name = f"{layer}.residuals.{i}.norm", f"{layer}.{name}"
        if self.settings.norm == "pre":
            return x + self.dropout(function(self.norm(x, norm), name, *rest))
        return self.norm(x + self.dropout(function(x, name, *rest)), norm)

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        standard = (x - mean) / torch.sqrt(variance + EPSILON)
        return standard * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def matrices(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """Return the weight and bias of the query, key and value projections, all heads together."""
        parts = ("query", "key_value") if f"{name}.query.weight" in self.weights else ("query_key_value",)
        weight = torch.cat([self.weights[f"{name}.{part}.weight"] for part in parts])
        bias = torch.zeros(len(weight), dtype=torch.float64)
        if self.settings.attention_bias:
            bias = torch.cat([self.weights[f"{name}.{part}.bias"] for part in parts])
        sizes = [self.settings.num_heads * size for size in (self.settings.d_k, self.settings.d_k, self.settings.d_v)]
        return list(zip(weight.split(sizes), bias.split(sizes), strict=True))

    def attention(self, x: Tensor, name: str, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        s = self.settings
        memory = x if memory is None else memory
        (w_q, b_q), (w_k, b_k), (w_v, b_v) = self.matrices(name)
        heads, weights = [], []
        for i in range(s.num_heads):
            keys, values = slice(i * s.d_k, (i + 1) * s.d_k), slice(i * s.d_v, (i + 1) * s.d_v)
            q = x @ w_q[keys].T + b_q[keys]
            k = memory @ w_k[keys].T + b_k[keys]
            v = memory @ w_v[values].T + b_v[values]
            scores = q @ k.transpose(1, 2) / math.sqrt(s.d_k)
            scores = torch.where(mask, scores, torch.tensor(-math.inf, dtype=torch.float64))
            scores = torch.exp(scores - scores.max(-1, keepdim=True).values)
            weights.append(scores / scores.sum(-1, keepdim=True))
            heads.append(weights[-1] @ v)
        self.attended[name] = torch.stack(weights, 1)
        out = torch.cat(heads, -1) @ self.weights[f"{name}.output.weight"].T
        return out + self.weights[f"{name}.output.bias"] if s.attention_bias else out

    def ssru(self, x: Tensor, name: str) -> Tensor:
        """Return the output of a recurrent unit, one position after the other."""
        w, state, outputs = self.weights, torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            forget = 1 / (1 + torch.exp(-(x[:, t] @ w[f"{name}.forget.weight"].T + w[f"{name}.forget.bias"])))
            state = forget * state + (1 - forget) * (x[:, t] @ w[f"{name}.value.weight"].T)
            outputs.append(torch.clamp(state, min=0))
        return torch.stack(outputs, 1)

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        w = self.weights
        inner = x @ w[f"{name}.inner.weight"].T + w[f"{name}.inner.bias"]
        if self.settings.activation == "relu":
            inner = torch.clamp(inner, min=0)
        elif self.settings.activation == "swish":
            inner = inner / (1 + torch.exp(-inner))
        else:
            inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        return inner @ w[f"{name}.outer.weight"].T + w[f"{name}.outer.bias"]
