"""The Transformer of "Attention Is All You Need". Numbers of sections, figures and equations refer to this paper.

Shapes: B sentences, N tokens in a packed batch (all sentences one after another, without padding), D d_model, V
vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.recipe import schema
from nmt_cli.transformer.attention import (
    Attention,
    Device,
    Int64s,
    Layout,
    block_bounds,
    has_kernel,
    linear,
    to_device,
    token_positions,
)
from nmt_cli.transformer.hardware import compiled
from nmt_cli.transformer.recurrence import SSRU

Int32s = npt.NDArray[np.int32]
PAD = 0  # never predicted; its embedding is all zeros and is the decoder's first input
LAYER_NORM_EPSILON = 1e-5  # the value that other toolkits assume; the paper does not state one
LEVELS = 1 << 16  # dropout probabilities are rounded to multiples of 1 / LEVELS
GOLDEN = -1640531527  # 2^32 / golden ratio as a signed integer: successive multiples, modulo 2^32, are far apart
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


@dataclass(frozen=True)
class Batch:
    buffer: Tensor  # the memory that all tensors below share
    src_N: Tensor  # source ids, with EOS after each sentence
    src: Layout
    tgt_in_N: Tensor  # target ids shifted right by one, with PAD before each sentence
    tgt_out_N: Tensor  # the labels: target ids, with EOS after each sentence
    tgt: Layout
    src_seeds_N: Tensor | None = None  # from `token_seeds`, or None without dropout
    tgt_seeds_N: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that determine which kernels the batch needs, if attention runs on packed tokens."""
        sides = (self.src_N, self.src), (self.tgt_in_N, self.tgt)
        return tuple(size for ids_N, side in sides for size in (len(ids_N), len(side.lengths_B), side.max_length))


def pack(
    src_N: Int64s, src_lengths: Int64s, tgt_N: Int64s, tgt_lengths: Int64s, device: Device = "cpu", *seeds_N: Int32s
) -> Batch:
    """Return a batch of packed sentences, each of which ends with EOS.

    `seeds_N` is empty without dropout. Otherwise it holds the token seeds of the source and of the target.
    """
    tgt_in_N = np.empty_like(tgt_N)
    tgt_in_N[1:] = tgt_N[:-1]
    tgt_in_N[np.cumsum(tgt_lengths) - tgt_lengths] = PAD
    bounds = block_bounds(src_lengths, tgt_lengths)
    src, tgt = (Layout(lengths, bounds=bounds) for lengths in (src_lengths, tgt_lengths))
    arrays = [src_N, tgt_in_N, tgt_N, *src.integers, *tgt.integers, *seeds_N]
    buffer, (src_ids_N, tgt_in_ids_N, tgt_out_ids_N, *rest) = to_device(arrays, device)
    src.hold(rest[:4])
    tgt.hold(rest[4:8])
    return Batch(buffer, src_ids_N, src, tgt_in_ids_N, tgt_out_ids_N, tgt, *rest[8:])


def without_eos(ids_N: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Remove EOS from each sentence, unless the sentence has no other token. Return the new ids and lengths."""
    longer = lengths > 1
    return np.delete(ids_N, np.cumsum(lengths)[longer] - 1), lengths - longer


def mix_(x: Tensor) -> Tensor:
    """Hash 32-bit integers in place with the finalizer of MurmurHash3. The masks make each shift a logical shift."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(-2048144789)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(-1028477387)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def token_seeds(key: Sequence[int], sentences: Int64s, lengths: Int64s) -> Int32s:
    """Return for each token a 32-bit hash of the key, the sentence's number in the corpus, and the token's position."""
    start = int(np.random.SeedSequence(list(key)).generate_state(1, np.uint32)[0])
    numbers_B = mix_(torch.from_numpy((sentences * GOLDEN + start).astype(np.int32))).numpy()
    sentences_N, positions_N = token_positions(lengths)
    seeds_N = numbers_B[sentences_N] + positions_N * GOLDEN
    return mix_(torch.from_numpy(seeds_N.astype(np.int32))).numpy()


def dropout_mask(seeds_N: Tensor, width: int, probability: float, dtype: torch.dtype) -> Tensor:
    """Return a mask, N x width: 0 with the given probability, and otherwise 1. Two channels share each 32-bit hash."""
    keep = min(round((1 - probability) * LEVELS), LEVELS - 1) - LEVELS // 2
    channels_D = torch.arange(width, dtype=torch.int32, device=seeds_N.device)
    if torch.compiler.is_compiling():  # one hash per channel, not per pair, so that torch can fuse it
        pairs_D = (channels_D // 2).bitwise_and(0x7FFF)  # without this, the compiled product below does not wrap around
        bits_ND = mix_(seeds_N[:, None] + mix_(pairs_D * GOLDEN))
        return ((bits_ND << (1 - channels_D % 2) * 16) >> 16 < keep).to(dtype)
    bits_ND = mix_(seeds_N[:, None] + mix_(channels_D[: (width + 1) // 2] * GOLDEN)).view(torch.int16)
    return bits_ND.lt_(keep)[:, :width].to(dtype)


def next_dropout_site(seeds_N: Tensor | None) -> Tensor | None:
    """Return the seeds for the next dropout operation of the model, or None without dropout."""
    return None if seeds_N is None else mix_(seeds_N + GOLDEN)


def dropout(y_ND: Tensor, seeds_N: Tensor | None, probability: float, x_ND: Tensor | None = None) -> Tensor:
    """Return dropout(y), or x + dropout(y) if `x_ND` is given. If `seeds_N` is None, no values are dropped.

    A hash of the token's seed and the channel decides whether a value is dropped. The decision does not depend on the
    device, or on the other sentences of the batch.
    """
    if seeds_N is None:
        return y_ND if x_ND is None else x_ND + y_ND
    mask_ND, scale = dropout_mask(seeds_N, y_ND.shape[1], probability, y_ND.dtype), 1 / (1 - probability)
    return y_ND * mask_ND * scale if x_ND is None else torch.addcmul(x_ND, y_ND, mask_ND, value=scale)


def scaled_sum(embedded_ND: Tensor, positions_ND: Tensor) -> Tensor:
    return embedded_ND * math.sqrt(embedded_ND.shape[1]) + positions_ND


def dropped_sum(
    embedded_ND: Tensor, positions_ND: Tensor, seeds_N: Tensor | None, probability: float, dtype: torch.dtype
) -> Tensor:
    return dropout(scaled_sum(embedded_ND, positions_ND), seeds_N, probability).to(dtype)


def sinusoids(length: int, d_model: int, kind: str = "sinusoidal") -> Tensor:
    """Return the positional encodings of section 3.5, length x d_model, with sines at even and cosines at odd channels.

    With kind "marian", the longest wavelength is 10000 x 2 pi, as in Marian. In the paper, it is a little shorter.
    """
    pairs = d_model // 2
    last = max(1, pairs - 1) if kind == "marian" else pairs
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    angles = positions / 10000.0 ** (torch.arange(pairs, dtype=torch.float64) / last)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()


def layer_norm(x_ND: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Normalize each token. The mean and the variance are always computed in float32."""
    weight: Tensor = norm.weight
    bias: Tensor = norm.bias
    if not x_ND.is_cpu:  # the CUDA kernel does not accept mixed dtypes
        weight, bias = weight.to(x_ND.dtype), bias.to(x_ND.dtype)
    return F.layer_norm(x_ND, norm.normalized_shape, weight, bias, norm.eps)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2). The settings may replace max(0, ...) with another activation function."""

    def __init__(self, settings: schema.Model) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.d_model, settings.d_ff)
        self.outer = nn.Linear(settings.d_ff, settings.d_model)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x_ND: Tensor) -> Tensor:
        return linear(self.activation(linear(x_ND, self.inner)), self.outer)


class Residual(nn.Module):
    """A residual connection with layer norm.

    Norm "post" (section 3.1): norm(x + dropout(sublayer(x))). Norm "pre": x + dropout(sublayer(norm(x))).
    """

    def __init__(self, settings: schema.Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
        self.pre, self.probability = settings.norm == "pre", settings.dropout

    def forward(self, x_ND: Tensor, sublayer: Callable[[Tensor], Tensor], seeds_N: Tensor | None) -> Tensor:
        if self.pre:
            return dropout(sublayer(layer_norm(x_ND, self.norm)), seeds_N, self.probability, x_ND)
        return layer_norm(dropout(sublayer(x_ND), seeds_N, self.probability, x_ND), self.norm)


class Layer(nn.Module):
    def __init__(self, settings: schema.Model, *, cross: bool) -> None:
        super().__init__()
        sizes = settings.d_model, settings.num_heads, settings.d_k, settings.d_v
        self.recurrent = cross and settings.decoder_cell == "ssru"
        if self.recurrent:
            self.recurrence = SSRU(settings.d_model)
        else:
            self.self_attention = Attention(*sizes, bias=settings.attention_bias, cross=False)
        if cross:
            self.cross_attention = Attention(*sizes, bias=settings.attention_bias, cross=True)
        self.feed_forward = FeedForward(settings)
        self.residuals = nn.ModuleList(Residual(settings) for _ in range(2 + cross))

    def packed(
        self, x_ND: Tensor, layout: Layout, seeds_N: Tensor | None, memory: tuple[Tensor, Layout] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer on packed tokens. Return its output, and the seeds of the last dropout (None without dropout).

        For decoder layers, `memory` holds the encoder's output and its Layout. For encoder layers, it is None.
        """
        if self.recurrent:
            sublayers = [partial(self.recurrence, layout=layout)]
        else:
            sublayers = [partial(self.self_attention, layout=layout, causal=memory is not None)]
        if memory is not None:
            sublayers.append(partial(self.cross_attention, layout=layout, memory=memory))
        return self.forward(x_ND, sublayers, seeds_N)

    def forward(
        self, x_ND: Tensor, sublayers: Sequence[Callable[[Tensor], Tensor]], seeds_N: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the given sublayers, then the feed-forward network. Return the same values as `packed`."""
        for residual, sublayer in zip(self.residuals, [*sublayers, self.feed_forward], strict=True):
            seeds_N = next_dropout_site(seeds_N)
            x_ND = residual(x_ND, sublayer, seeds_N)
        return x_ND, seeds_N


def layers(stack: nn.ModuleList) -> list[Layer]:
    return cast("list[Layer]", list(stack))


class Transformer(nn.Module):
    """The encoder-decoder of figure 1.

    Source, target and output share one embedding matrix, unless the settings request separate ones. V is the size of
    the target vocabulary, including PAD.
    """

    def __init__(self, settings: schema.Model, vocabulary_size: int) -> None:
        super().__init__()
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, settings.d_model, padding_idx=PAD)
        sizes = {"src": settings.source_vocabulary, "output": 0 if settings.tied_output else vocabulary_size}
        own = {side: nn.Embedding(size, settings.d_model, padding_idx=PAD) for side, size in sizes.items() if size}
        self.own_embeddings = nn.ModuleDict(own)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size)) if settings.output_bias else None
        if settings.positions == "learned":
            self.src_positions = nn.Embedding(settings.max_length, settings.d_model)
            self.tgt_positions = nn.Embedding(settings.max_length, settings.d_model)
        else:
            self.register_buffer(
                "sinusoids", sinusoids(settings.max_length, settings.d_model, settings.positions), persistent=False
            )
        encoder_layers, decoder_layers = settings.depths
        self.encoder = nn.ModuleList(Layer(settings, cross=False) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(Layer(settings, cross=True) for _ in range(decoder_layers))
        if settings.norm == "pre":
            self.encoder_norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
            self.decoder_norm = nn.LayerNorm(settings.d_model, LAYER_NORM_EPSILON)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize the weights as in Tensor2Tensor (2017): Glorot uniform matrices, N(0, 1/d_model) embeddings."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, Attention):
                for weight in module.projections():
                    nn.init.xavier_uniform_(weight)
            elif isinstance(module, SSRU):
                nn.init.xavier_uniform_(module.value.weight)
                nn.init.xavier_uniform_(module.forget.weight)
            elif isinstance(module, FeedForward):
                nn.init.xavier_uniform_(module.inner.weight)
                nn.init.xavier_uniform_(module.outer.weight)
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0, self.settings.d_model**-0.5)
        for side in ("src", "tgt", "output"):
            self.embedding_of(side).weight[PAD].zero_()

    def embedding_of(self, side: str) -> nn.Embedding:
        """Return the embedding for `side`: "src", "tgt", or "output" for the computation of the logits."""
        return cast(nn.Embedding, self.own_embeddings[side]) if side in self.own_embeddings else self.embedding

    def positions(self, side: str) -> Tensor:
        if self.settings.positions == "learned":
            return self.get_parameter(f"{side}_positions.weight")
        return self.get_buffer("sinusoids")

    def embed(self, ids_N: Tensor, positions_N: Tensor, side: str) -> Tensor:
        """Return embeddings x sqrt(d_model) plus positional encodings, in float32 (sections 3.4 and 3.5)."""
        return scaled_sum(self.embedding_of(side)(ids_N), F.embedding(positions_N, self.positions(side)))

    def _first_input(
        self, ids_N: Tensor, positions_N: Tensor, side: str, dtype: torch.dtype, seeds_N: Tensor | None
    ) -> Tensor:
        """Return the input of the first layer in `dtype`.

        If gradients are needed, the sum of embeddings and positional encodings is compiled to one kernel. The look-ups
        are not compiled, because compiled code computes their gradients by atomic additions, often to the same few
        rows. Without compilation, torch sorts the ids, which is faster.
        """
        vectors = self.embedding_of(side)(ids_N), F.embedding(positions_N, self.positions(side))
        function = compiled(dropped_sum, ids_N.device, dropped_sum) if torch.is_grad_enabled() else dropped_sum
        if function is not dropped_sum:
            for x_ND in vectors:
                torch._dynamo.mark_static(x_ND, 1)  # only the number of tokens is dynamic
        return cast(Tensor, function(*vectors, seeds_N, self.settings.dropout, dtype))

    def _packed_layer(self, x_ND: Tensor) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """Return Layer.packed, compiled to one graph if gradients are needed and attention runs on packed tokens."""
        fits = torch.is_grad_enabled() and has_kernel(x_ND, self.settings.d_k, self.settings.d_v)
        return compiled(Layer.packed, x_ND.device, Layer.packed) if fits else Layer.packed

    def encode(self, src_N: Tensor, src: Layout, dtype: torch.dtype, seeds_N: Tensor | None = None) -> Tensor:
        """Return memory_ND, the output of the encoder, computed in `dtype`."""
        seeds_N = next_dropout_site(seeds_N) if self.settings.dropout else None
        x_ND = self._first_input(src_N, src.positions_N, "src", dtype, seeds_N)
        forward = self._packed_layer(x_ND)
        for layer in self.encoder:
            x_ND, seeds_N = forward(layer, x_ND, src, seeds_N)
        return layer_norm(x_ND, self.encoder_norm) if self.settings.norm == "pre" else x_ND

    def decode(self, batch: Batch, memory_ND: Tensor) -> Tensor:
        """Return hidden_ND, from which the logits are computed, for every target token of a batch."""
        seeds_N = next_dropout_site(batch.tgt_seeds_N) if self.settings.dropout else None
        x_ND = self._first_input(batch.tgt_in_N, batch.tgt.positions_N, "tgt", memory_ND.dtype, seeds_N)
        forward = self._packed_layer(x_ND)
        if self.settings.decoder_cell == "ssru":  # torch would recompile the SSRU for each number of passes of its loop
            forward = cast(Callable[..., tuple[Tensor, Tensor | None]], Layer.packed)
        for layer in self.decoder:
            x_ND, seeds_N = forward(layer, x_ND, batch.tgt, seeds_N, (memory_ND, batch.src))
        return layer_norm(x_ND, self.decoder_norm) if self.settings.norm == "pre" else x_ND

    def forward(self, batch: Batch, dtype: torch.dtype | None = None) -> Tensor:
        """Return hidden_ND for every target token of a batch, computed in `dtype` (default: the weights' dtype)."""
        dtype = dtype or self.embedding.weight.dtype
        return self.decode(batch, self.encode(batch.src_N, batch.src, dtype, batch.src_seeds_N))

    def output_terms(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states and output embeddings. The first times the transposed second gives the logits.

        An output bias adds one column to each matrix. Columns of zeros then pad the width to a multiple of 8, because
        other widths are slow on GPUs.
        """
        weight_VD = self.embedding_of("output").weight
        if self.output_bias is None:
            return hidden_ND, weight_VD
        zeros = 0, -(hidden_ND.shape[1] + 1) % 8
        columns = F.pad(hidden_ND.new_ones(len(hidden_ND), 1), zeros), F.pad(self.output_bias[:, None], zeros)
        return torch.cat([hidden_ND, columns[0]], 1), torch.cat([weight_VD, columns[1]], 1)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV, with -inf for PAD."""
        hidden_ND, weight_VD = self.output_terms(hidden_ND)
        logits_NV = F.linear(hidden_ND, weight_VD.to(hidden_ND.dtype))
        logits_NV[:, PAD] = -torch.inf
        return logits_NV
