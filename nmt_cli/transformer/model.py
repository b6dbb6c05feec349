"""The Transformer, in the order of section 3 of the paper, with three-way tied embeddings and residual dropout.

Shapes: B sentences, S source length, T target length, N tokens in a packed batch, D d_model, V vocabulary. Layer norm
epsilon is 1e-5: the paper gives none, the released code had 1e-6; other toolkits load the exported model with 1e-5.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli import recipe
from nmt_cli.transformer.attention import Attention, Int64s, Layout, block_bounds, linear, score_biases

PAD = 0  # no piece of text: it has no logit, and its zero embedding row is the decoder's first input
LAYER_NORM_EPSILON = 1e-5
LEVELS = 1 << 16  # dropout probabilities are multiples of this fraction
GOLDEN = -1640531527  # 2^32 / golden ratio, as 32 bits: multiples of it are far apart
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


@dataclass(frozen=True)
class Batch:
    src_N: Tensor  # source ids, each sentence closed by EOS
    src: Layout
    tgt_in_N: Tensor  # target ids shifted right by one, each sentence opened by PAD
    tgt_out_N: Tensor  # target ids, each sentence closed by EOS: what the decoder must say
    tgt: Layout
    src_seeds_N: Tensor | None = None  # as `token_seeds` returns them; None: no dropout
    tgt_seeds_N: Tensor | None = None


def pack(
    src_N: Int64s, src_lengths: Int64s, tgt_N: Int64s, tgt_lengths: Int64s, device: torch.device | str = "cpu"
) -> Batch:
    """Return a batch from ids that lie end to end, each sentence closed by EOS."""
    tgt_in_N = np.empty_like(tgt_N)
    tgt_in_N[1:] = tgt_N[:-1]
    tgt_in_N[np.cumsum(tgt_lengths) - tgt_lengths] = PAD
    src_T, in_T, out_T = (torch.from_numpy(x).to(device, non_blocking=True) for x in (src_N, tgt_in_N, tgt_N))
    bounds = block_bounds(src_lengths, tgt_lengths)
    return Batch(src_T, Layout(src_lengths, device, bounds), in_T, out_T, Layout(tgt_lengths, device, bounds))


def mix_(x: Tensor) -> Tensor:
    """Hash 32-bit integers in place by the last steps of MurmurHash3; `&` makes the shifts logical."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(-2048144789)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(-1028477387)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def token_seeds(key: Sequence[int], sentences: Int64s, layout: Layout) -> Tensor:
    """Return 32 bits for each token, a hash of the key, the number of its sentence in the corpus and its position."""
    start = int(np.random.SeedSequence(list(key)).generate_state(1, np.uint32)[0])
    numbers_B = mix_(torch.from_numpy((sentences * GOLDEN + start).astype(np.int32)))
    seeds_N = numbers_B.numpy()[layout.rows_N] + layout.places_N * GOLDEN
    return mix_(torch.from_numpy(seeds_N.astype(np.int32))).to(layout.device, non_blocking=True)


def dropout_mask(seeds_N: Tensor, width: int, probability: float, dtype: torch.dtype) -> Tensor:
    """Return N x width zeros, with this probability, and ones; each hash of 32 bits decides two channels."""
    keep = min(round((1 - probability) * LEVELS), LEVELS - 1)
    channels_C = mix_(torch.arange((width + 1) // 2, dtype=torch.int32, device=seeds_N.device) * GOLDEN)
    bits_ND = mix_(seeds_N[:, None] + channels_C).view(torch.int16)
    return bits_ND.lt_(keep - LEVELS // 2)[:, :width].to(dtype)


class Dropout:
    """Residual dropout of one stack: what is dropped is a hash of the token's seed, the place in the model and the
    channel, the same on every device and beside any other sentences. Without seeds, no dropout."""

    def __init__(self, seeds_N: Tensor | None = None, probability: float = 0.0) -> None:
        self.seeds_N, self.probability = seeds_N if probability else None, probability

    def add(self, x_ND: Tensor | None, y_ND: Tensor) -> Tensor:
        """Return x + dropout(y), or dropout(y) alone, and go on to the next place."""
        if self.seeds_N is None:
            return y_ND if x_ND is None else x_ND + y_ND
        self.seeds_N, scale = mix_(self.seeds_N + GOLDEN), 1 / (1 - self.probability)
        mask_ND = dropout_mask(self.seeds_N, y_ND.shape[1], self.probability, y_ND.dtype)
        return y_ND * mask_ND * scale if x_ND is None else torch.addcmul(x_ND, y_ND, mask_ND, value=scale)


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return the positional encodings of section 3.5, length x d_model: sines at even, cosines at odd places."""
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    angles = positions / 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()


def layer_norm(x_ND: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Normalise each token; the statistics are float32 whatever the arithmetic of `x_ND`."""
    weight: Tensor = norm.weight
    bias: Tensor = norm.bias
    if x_ND.is_cuda:  # the CUDA kernel takes no mixed types
        weight, bias = weight.to(x_ND.dtype), bias.to(x_ND.dtype)
    return F.layer_norm(x_ND, norm.normalized_shape, weight, bias, norm.eps)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2)."""

    def __init__(self, settings: recipe.Model) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.d_model, settings.d_ff)
        self.outer = nn.Linear(settings.d_ff, settings.d_model)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x_ND: Tensor) -> Tensor:
        return linear(self.activation(linear(x_ND, self.inner)), self.outer)


class Residual(nn.Module):
    """Section 3.1: norm(x + dropout(sublayer(x))), "post"; or x + dropout(sublayer(norm(x))), "pre"."""

    def __init__(self, settings: recipe.Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
        self.pre = settings.norm == "pre"

    def forward(self, x_ND: Tensor, sublayer: Callable[[Tensor], Tensor], dropout: Dropout) -> Tensor:
        if self.pre:
            return dropout.add(x_ND, sublayer(layer_norm(x_ND, self.norm)))
        return layer_norm(dropout.add(x_ND, sublayer(x_ND)), self.norm)


class Layer(nn.Module):
    def __init__(self, settings: recipe.Model, *, cross: bool) -> None:
        super().__init__()
        sizes = settings.d_model, settings.num_heads, settings.d_k, settings.d_v
        self.self_attention = Attention(*sizes, bias=settings.attention_bias, cross=False)
        if cross:
            self.cross_attention = Attention(*sizes, bias=settings.attention_bias, cross=True)
        self.feed_forward = FeedForward(settings)
        self.residuals = nn.ModuleList(Residual(settings) for _ in range(2 + cross))

    def forward(self, x_ND: Tensor, attends: list[Callable[[Tensor], Tensor]], dropout: Dropout) -> Tensor:
        for residual, sublayer in zip(self.residuals, [*attends, self.feed_forward], strict=True):
            x_ND = residual.forward(x_ND, sublayer, dropout)
        return x_ND


def layers(stack: nn.ModuleList) -> list[Layer]:
    return cast("list[Layer]", list(stack))


class Transformer(nn.Module):
    """The encoder-decoder of figure 1 with one embedding matrix for source, target and output. PAD counts in V."""

    def __init__(self, settings: recipe.Model, vocabulary_size: int) -> None:
        super().__init__()
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, settings.d_model, padding_idx=PAD)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size)) if settings.output_bias else None
        if settings.positions == "learned":
            self.src_positions = nn.Embedding(settings.max_length, settings.d_model)
            self.tgt_positions = nn.Embedding(settings.max_length, settings.d_model)
        else:
            self.register_buffer("sinusoids", sinusoids(settings.max_length, settings.d_model), persistent=False)
        self.encoder = nn.ModuleList(Layer(settings, cross=False) for _ in range(settings.num_layers))
        self.decoder = nn.ModuleList(Layer(settings, cross=True) for _ in range(settings.num_layers))
        if settings.norm == "pre":
            self.encoder_norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
            self.decoder_norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw weights as the released code of 2017: Glorot uniform matrices, N(0, 1/d_model) embeddings."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, Attention):
                for weight in module.projections():
                    nn.init.xavier_uniform_(weight)
            elif isinstance(module, FeedForward):
                nn.init.xavier_uniform_(module.inner.weight)
                nn.init.xavier_uniform_(module.outer.weight)
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0, self.settings.d_model**-0.5)
        self.embedding.weight[PAD].zero_()

    def positions(self, side: str) -> Tensor:
        if self.settings.positions == "sinusoidal":
            return self.get_buffer("sinusoids")
        return self.get_parameter(f"{side}_positions.weight")

    def embed(self, ids_N: Tensor, positions_N: Tensor, side: str) -> Tensor:
        """Return embeddings x sqrt(d_model) plus positions, float32 (sections 3.4 and 3.5)."""
        scaled_ND = self.embedding(ids_N) * math.sqrt(self.settings.d_model)
        return scaled_ND + F.embedding(positions_N, self.positions(side))  # type: ignore[no-any-return]

    def encode(self, src_N: Tensor, src: Layout, dtype: torch.dtype, seeds_N: Tensor | None = None) -> Tensor:
        """Return memory_ND, the encoder's output, computed in `dtype`."""
        dropout = Dropout(seeds_N, self.settings.dropout)
        x_ND = dropout.add(None, self.embed(src_N, src.positions_N, "src")).to(dtype)
        biases = score_biases(src, dtype, causal=False)
        for layer in layers(self.encoder):
            x_ND = layer(x_ND, [partial(layer.self_attention, layout=src, biases=biases)], dropout)
        return layer_norm(x_ND, self.encoder_norm) if self.settings.norm == "pre" else x_ND

    def decode(self, batch: Batch, memory_ND: Tensor) -> Tensor:
        """Return hidden_ND, the decoder's output before the logits, for known target prefixes."""
        dropout = Dropout(batch.tgt_seeds_N, self.settings.dropout)
        x_ND = dropout.add(None, self.embed(batch.tgt_in_N, batch.tgt.positions_N, "tgt")).to(memory_ND.dtype)
        causal = score_biases(batch.tgt, x_ND.dtype, causal=True)
        memory = {"biases": score_biases(batch.src, x_ND.dtype, causal=False), "memory": (memory_ND, batch.src)}
        for layer in layers(self.decoder):
            attend = partial(layer.self_attention, layout=batch.tgt, biases=causal)
            attend_memory = partial(layer.cross_attention, layout=batch.tgt, **memory)
            x_ND = layer(x_ND, [attend, attend_memory], dropout)
        return layer_norm(x_ND, self.decoder_norm) if self.settings.norm == "pre" else x_ND

    def forward(self, batch: Batch, dtype: torch.dtype | None = None) -> Tensor:
        """Return hidden_ND for every target token of a batch, computed in `dtype`; default: that of the weights."""
        dtype = dtype or self.embedding.weight.dtype
        return self.decode(batch, self.encode(batch.src_N, batch.src, dtype, batch.src_seeds_N))

    def output_terms(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is multiplied for the logits: hidden states and embedding matrix, with a column for the bias."""
        if self.output_bias is None:
            return hidden_ND, self.embedding.weight
        return F.pad(hidden_ND, (0, 1), value=1.0), torch.cat([self.embedding.weight, self.output_bias[:, None]], 1)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV by the tied embedding matrix; PAD's is -inf."""
        hidden_ND, weight_VD = self.output_terms(hidden_ND)
        logits_NV = F.linear(hidden_ND, weight_VD.to(hidden_ND.dtype))
        logits_NV[:, PAD] = -torch.inf
        return logits_NV


def parameter_count(settings: recipe.Model, vocabulary_size: int) -> int:
    """Return how many numbers are trained, by the closed form of sections 3.1-3.4."""
    d, h = settings.d_model, settings.num_heads
    attention = 2 * d * h * (settings.d_k + settings.d_v)
    if settings.attention_bias:
        attention += 2 * h * settings.d_k + h * settings.d_v + d
    feed_forward = 2 * d * settings.d_ff + settings.d_ff + d
    layers = settings.num_layers * (3 * attention + 2 * feed_forward + 5 * 2 * d)
    final_norms = 4 * d * (settings.norm == "pre")
    positions = 2 * settings.max_length * d * (settings.positions == "learned")
    return layers + final_norms + positions + vocabulary_size * (d + settings.output_bias)
