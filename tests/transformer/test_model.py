"""The Transformer (Table 3 of "Attention Is All You Need", and a plain reference), tensor names, devices and dtypes."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import Pair, Reference, batch_of, random_model, random_pairs, tiny
from torch import Tensor, nn

from nmt_cli.engine.layout import tensor_shapes
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.training.loss import LossModel
from nmt_cli.transformer import hardware
from nmt_cli.transformer.attention import Attention
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.cache import DecoderCache, for_inference
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import (
    PAD,
    Transformer,
    dropout,
    dropout_mask,
    layer_norm,
    next_dropout_site,
    sinusoids,
    token_seeds,
    without_eos,
)
from nmt_cli.transformer.weights import SkipInit, load_into
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segments import Segment

V = 23
RAGGED = [(3, 7), (1, 1), (9, 2), (4, 4), (5, 6), (5, 6)]
OWN = {"source_vocabulary": V + 3, "tied_output": False}
VARIANTS = {
    "paper": {},
    "pre": {"norm": "pre"},
    "equal d_k and d_v, swish": {"d_k": 4, "d_v": 4, "activation": "swish"},
    "one head": {"num_heads": 1, "d_k": 7, "d_v": 3},
    "all options": {"norm": "pre", "positions": "learned", "attention_bias": True, "activation": "gelu"},
    "own matrices": OWN,
    "3 + 1 layers": {"encoder_layers": 3, "decoder_layers": 1},
    "recurrent decoder": {"decoder_cell": "ssru", "attention_bias": True},
}


def logits_of(model: Transformer, pairs: list[Pair], **seeds: Any) -> list[Tensor]:
    """Return the package's logits for each pair, T x V."""
    batch = batch_of(pairs, **seeds)
    return list(model.logits(model(batch)).split(batch.tgt.lengths_B.tolist()))


def hashed(x: int) -> int:
    """Apply the published finalizer of MurmurHash3."""
    x &= 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16


def plain_mask(key: tuple[int, ...], sentence: tuple[int, int], site: int, width: int, probability: float) -> Tensor:
    """Compute the dropout mask of a sentence, given its number and length, one token at a time."""
    golden, start = 0x9E3779B9, int(np.random.SeedSequence(key).generate_state(1)[0])
    rows = []
    for position in range(sentence[1]):
        token = hashed(hashed(sentence[0] * golden + start) + position * golden)
        for _ in range(site + 1):
            token = hashed(token + golden)
        pairs = [hashed(token + hashed(i * golden)) for i in range(width // 2)]
        halves = [half for x in pairs for half in (x & 0xFFFF, x >> 16)]  # signed
        rows.append([float((half ^ 0x8000) < (1 - probability) * 2**16) for half in halves])
    return torch.tensor(rows, dtype=torch.float64)


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    assert [x.shape for x in a] == [y.shape for y in b]
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


# --- the whole model against the plain reference --------------------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_the_plain_reference(changes: dict) -> None:
    model = random_model(tiny(**changes), V)
    for lengths in (RAGGED, [(6, 7)] * 3, [(4, 2)], [(2, 3), (1, 3)], [(9, 5)], [(3, 9)]):
        pairs = random_pairs(1, V, lengths)
        actual = logits_of(model, pairs)
        assert difference([x[:, 1:] for x in actual], Reference(model).logits(pairs)) < 1e-10
        assert all(torch.isneginf(x[:, PAD]).all() for x in actual)


@pytest.mark.parametrize(
    ("norm", "changes"),
    [("post", {}), ("pre", OWN), ("post", VARIANTS["3 + 1 layers"]), ("pre", {"decoder_cell": "ssru"})],
)
def test_dropout_and_every_gradient_are_those_of_the_plain_reference(norm: str, changes: dict) -> None:
    # In the reference, only embedding sums and the outputs of sub-layers drop out.
    model = random_model(tiny(norm=norm, dropout=0.3, positions="learned", attention_bias=True, **changes), V)
    pairs, numbers, masks = random_pairs(3, V, RAGGED), np.array([70, 3, 1, 2**33, 4, 5]), []
    encoder_layers, decoder_layers = model.settings.depths
    for side, sites in enumerate((1 + 2 * encoder_layers, 1 + 3 * decoder_layers)):
        sentences = [(int(n), len(pair[side])) for n, pair in zip(numbers, pairs, strict=True)]
        masks += [[plain_mask((9, side), s, site, 12, 0.3) for s in sentences] for site in range(sites)]
    drawn = iter(masks)
    reference, labels_N = Reference(model, drawn), batch_of(pairs).tgt_out_N.long()
    expected = reference.logits(pairs)
    assert next(drawn, None) is None, "the reference has fewer dropouts than the package"
    actual = logits_of(model, pairs, key=(9,), numbers=numbers)
    assert difference([x[:, 1:] for x in actual], expected) < 1e-10
    nn.functional.cross_entropy(torch.cat(expected), labels_N - 1, reduction="sum").backward()
    nn.functional.cross_entropy(torch.cat(actual), labels_N, reduction="sum").backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert difference([parameter.grad], [reference.weights[name].grad]) < 1e-10, name


@pytest.mark.parametrize(("probability", "width"), [(0.1, 512), (0.3, 511), (0.99, 512), (1e-6, 512)])
def test_the_drop_rate_is_the_probability(probability: float, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds_N = torch.from_numpy(token_seeds((1, 2), np.arange(10), np.full(10, 70)))
    masks = dropout_mask(seeds_N, width, probability, torch.bfloat16)
    if width % 2:
        traced = torch.compile(dropout_mask, backend="aot_eager", dynamic=True)
        assert torch.equal(traced(seeds_N, width, probability, torch.bfloat16), masks)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # other code for compilers
    assert torch.equal(dropout_mask(seeds_N, width, probability, torch.bfloat16), masks)
    assert masks.shape == (700, width)
    assert masks.dtype == torch.bfloat16
    assert set(masks.unique().tolist()) <= {0.0, 1.0}
    sigma = math.sqrt(probability * (1 - probability) / masks.numel())
    assert float(1 - masks.double().mean()) == pytest.approx(probability, abs=4 * sigma + 2**-16)


def test_nothing_drops_out_at_a_probability_of_0() -> None:
    """`dropout_mask` raises a probability of 0 to 2^-16, so the model must not use it then."""
    model = random_model(tiny(dropout=0.0, d_model=64), V)
    pairs = random_pairs(1, V, [(20, 20)] * 60)
    plain, dropped = logits_of(model, pairs), logits_of(model, pairs, key=(9,), numbers=np.arange(60))
    assert difference([x[:, 1:] for x in plain], [x[:, 1:] for x in dropped]) == 0


def test_tokens_layers_and_channels_drop_out_independently() -> None:
    def masks(*key: int) -> Tensor:
        seeds = [next_dropout_site(torch.from_numpy(token_seeds(key, np.arange(40, 56), np.full(16, 16))))]
        while len(seeds) < 4:
            seeds.append(next_dropout_site(seeds[-1]))
        return torch.stack([dropout(torch.ones(256, 64), each, 0.3).view(16, 16, 64) * 0.7 for each in seeds])

    keys = [[[masks(seed, step, side) for side in (0, 1)] for step in (0, 1, 2)] for seed in (1, 2)]
    z = (torch.stack([torch.stack([torch.stack(c) for c in b]) for b in keys]) - 0.7) / 0.21**0.5
    assert z.shape == (2, 3, 2, 4, 16, 16, 64), "seed, step, side, layer, sentence, position, channel"
    for dim, size in enumerate(z.shape):
        for lag in {1, size // 2}:
            products = z.narrow(dim, 0, size - lag) * z.narrow(dim, lag, size - lag)
            assert abs(float(products.mean())) < 4 / products.numel() ** 0.5, (dim, lag)
    channels_NC = z.flatten(0, -2)
    correlations = (channels_NC.T @ channels_NC / len(channels_NC)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 5 / len(channels_NC) ** 0.5, "two channels are correlated"


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_sentence_longer_than_the_model_is_refused_not_wrapped(positions: str) -> None:
    model = random_model(tiny(positions=positions, max_length=8), V)
    logits_of(model, random_pairs(1, V, [(8, 8)]))
    for lengths in ((9, 3), (3, 9)):
        with pytest.raises(IndexError):
            logits_of(model, random_pairs(1, V, [lengths]))


# --- compilation for GPUs, without a GPU ----------------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Set the backend of torch.compile, and forget all compiled functions."""

    def set_backend(backend: Any) -> None:
        monkeypatch.setattr(hardware, "BACKEND", backend)
        for function in (hardware.compiled, hardware.can_compile):
            function.cache_clear()

    torch._dynamo.reset()
    yield set_backend
    set_backend("inductor")


def test_layers_of_a_kind_share_one_graph_for_all_sizes(backend: Callable[[Any], None]) -> None:
    backend("eager")
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = LossModel(Transformer(tiny(decoder_layers=3, d_k=8, d_v=8, dropout=0.1), V).to("meta"), 0.1, torch.bfloat16)
    for lengths in ([(5, 5)] * 5, RAGGED, [(7, 2), (1, 3), (31, 30)], [(2, 9)] * 9):
        batch = batch_of(random_pairs(1, V, lengths), "meta", (1,), np.arange(len(lengths)))
        model(batch)[0].backward()
    assert counters["stats"]["unique_graphs"] == 5, "not just the trial, the input, a layer of each kind and the loss"
    assert not counters["graph_break"]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_one_warning_if_nothing_can_be_compiled(
    backend: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("Cannot find a working triton installation")

    backend(missing)
    assert [hardware.compiled(f, torch.device("meta"), f) for f in (min, max)] == [min, max]
    assert hardware.compiled(min, torch.device("cpu"), max) is max
    (warning,) = capsys.readouterr().err.strip().split("\n")
    assert "triton" in warning


# --- weights --------------------------------------------------------------------------------------------------------


# Settings, and the exact number of parameters without and with attention biases.
TABLE_3 = {
    "base": ({}, 65_073_152, 65_110_016),
    "B d_k 16": ({"d_k": 16}, 57_995_264, 58_018_304),
    "E learned": ({"positions": "learned"}, 66_121_728, 66_158_592),
    "big": ({"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 218_226_688, 218_300_416),
    "pre, bias of logits": ({"norm": "pre", "output_bias": True}, 65_116_160, 65_153_024),
    "6 + 1 layers": ({"decoder_layers": 1}, 44_073_472, 44_089_856),
    "untied": ({"source_vocabulary": 10_000, "tied_output": False}, 91_164_672, 91_201_536),
}


@pytest.mark.parametrize(("changes", "plain", "biased"), TABLE_3.values(), ids=TABLE_3)
def test_rows_of_table_3_have_exactly_these_parameters(changes: dict, plain: int, biased: int) -> None:
    for biases, expected in ((False, plain), (True, biased)):
        settings = schema.Model(**changes, attention_bias=biases)
        with SkipInit():
            model = Transformer(settings, 40_960)
        assert sum(p.numel() for p in model.parameters()) == parameter_count(settings, 40_960) == expected


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_layout_lists_every_tensor_of_the_network(changes: dict) -> None:
    for more in ({}, {"output_bias": True, "attention_bias": True, "norm": "pre", "positions": "learned"}):
        settings = tiny(**{**changes, **more})
        shapes = {name: tuple(tensor.shape) for name, tensor in Transformer(settings, V).state_dict().items()}
        assert tensor_shapes(settings, V) == shapes


def test_initial_weights_follow_the_released_code() -> None:
    torch.manual_seed(3)
    settings = schema.Model(num_layers=1, d_model=128, d_ff=300, num_heads=4, d_k=24, d_v=40, attention_bias=True)
    model = Transformer(settings, 3000)
    untied = Transformer(settings.model_copy(update={"source_vocabulary": 2000, "tied_output": False}), 3000)
    matrices = [model.embedding_of("output"), *(untied.embedding_of(side) for side in ("src", "tgt", "output"))]
    for weight_VD in (matrix.weight.detach() for matrix in matrices):
        assert not weight_VD[PAD].any()
        assert float(weight_VD[1:].std()) == pytest.approx(128**-0.5, rel=0.02)
        assert abs(float(weight_VD[1:].mean())) < 1e-3
    assert [len(matrix.weight) for matrix in matrices] == [3000, 2000, 3000, 3000]
    assert len({id(matrix) for matrix in matrices}) == 4
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    matrices = [weight for attention in attentions for weight in attention.projections()]
    assert [tuple(w.shape) for w in matrices] == [(4 * 24, 128), (4 * 24, 128), (4 * 40, 128), (128, 4 * 40)] * 3
    for layer in (model.encoder[0], model.decoder[0]):
        matrices += [layer.feed_forward.inner.weight, layer.feed_forward.outer.weight]
    for matrix in matrices:
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.98 * bound < float(matrix.detach().abs().max()) <= bound
        assert float(matrix.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            expected = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            assert (parameter == expected).all(), name


def test_an_empty_source_keeps_its_eos() -> None:
    """This holds for models that read sources without EOS."""
    ids, lengths = without_eos(np.array([5, 2, 2, 6, 7, 2]), np.array([2, 1, 3]))
    assert (ids.tolist(), lengths.tolist()) == ([5, 2, 6, 7], [1, 1, 2])
    segment = Segment([2], SearchOptions())
    assert (segment.source(True), segment.source(False)) == ([2], [2])
    assert Segment([5, 2], SearchOptions()).source(False) == [5]


def test_two_channels_have_marians_positions() -> None:
    """The only pair has the wavelength 2 pi of a first pair, not 10000 x 2 pi like a last one."""
    assert torch.equal(sinusoids(9, 2, "marian"), sinusoids(9, 2))
    four = sinusoids(9, 4, "marian")
    assert torch.allclose(four[:, 2], (torch.arange(9) / 10_000).sin())


def test_states_of_a_recurrent_decoder_are_not_rounded() -> None:
    model = for_inference(random_model(tiny(decoder_cell="ssru"), V), torch.bfloat16)
    assert {x.dtype for states in DecoderCache([model], torch.bfloat16, 2).past for x in states} == {torch.float32}


def test_scores_of_attention_leave_no_hooks() -> None:
    """An error leaves none, either."""
    model = random_model(tiny(), V)
    attention_scores(model, [5, 6, 2], [7, 2])
    with pytest.raises(IndexError):
        attention_scores(model, [V + 1, 2], [7, 2])
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_layer_norm_statistics_are_float32_in_bf16() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(1024, eps=1e-5)
    x = (torch.randn(8, 1024) + 30).bfloat16()
    exact = nn.functional.layer_norm(x.double(), (1024,), eps=1e-5)
    actual = layer_norm(x, norm)
    assert actual.dtype == torch.bfloat16
    error = (actual.detach().double() - exact).abs()
    assert (error <= exact.abs() * 2**-8 + 1e-5).all(), "more than the result is rounded"


def test_tensors_that_do_not_fit_are_refused_by_name() -> None:
    model, other = random_model(tiny(), V), random_model(tiny(), V, seed=1)
    weights, name, where = other.state_dict(), "decoder.1.cross_attention.query.weight", Path("here")
    for tensors, wrong in (
        (weights | {"more": torch.zeros(2)}, "more"),
        (weights | {name: weights[name][:-1]}, name),
        ({key: value for key, value in weights.items() if key != name}, name),
    ):
        with pytest.raises(DataError, match=f"here .*{wrong}"):
            load_into(model, tensors, where)
    load_into(model, weights, where)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())


def test_weights_keep_their_names() -> None:
    # Stored models use these names. This is the digest of their list.
    model = Transformer(tiny(num_layers=1, norm="pre", positions="learned", attention_bias=True, output_bias=True), V)
    names = sorted(name for name, _ in model.named_parameters())
    assert hashlib.sha256("\n".join(names).encode()).hexdigest().startswith("65c58e1fa30feff2"), names


def test_the_bias_of_logits_is_a_column_and_columns_are_a_multiple_of_eight() -> None:
    model = random_model(tiny(output_bias=True), V)
    hidden_ND, bias_V = torch.randn(3, model.settings.d_model, dtype=torch.float64), model.output_bias
    assert bias_V is not None
    expected = hidden_ND @ model.embedding.weight.t() + bias_V
    assert torch.allclose(model.logits(hidden_ND)[:, 1:], expected[:, 1:], rtol=0, atol=1e-12)
    assert [term.shape[1] % 8 for term in model.output_terms(hidden_ND)] == [0, 0]


# --- hardware -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "capability", "flags", "bf16"),
    [
        ("cpu", "AVX512", "avx512_bf16", True),
        ("cpu", "AVX512", "amx_bf16 avx512_vnni", True),
        ("cpu", "AVX512", "avx_vnni avx512_bf16x", False),
        ("cpu", "AVX2", "avx512_bf16", False),
        ("cuda", "AVX2", "avx_vnni", True),
        ("cuda", "AVX512", "avx512_bf16 emulated", False),
    ],
)
def test_precision_depends_on_the_hardware(
    monkeypatch: pytest.MonkeyPatch, device: str, capability: str, flags: str, bf16: bool
) -> None:
    torch_device = torch.device(device)
    monkeypatch.setattr(Path, "read_text", lambda _: f"flags : sse {flags} ssse3")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)
    assert choose_dtype("fp32", torch_device) is torch.float32
    assert choose_dtype("auto", torch_device) is (torch.bfloat16 if bf16 else torch.float32)
    with contextlib.nullcontext() if bf16 else pytest.raises(UsageError, match="does not support"):
        assert choose_dtype("bf16", torch_device) is torch.bfloat16


def test_unknown_hardware_has_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(Path, "read_text", refused)
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32


def test_copies_on_the_host_do_not_see_later_changes() -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(2, requires_grad=True)}
    copies = hardware.ToHost(tensors)
    for tensor in tensors.values():
        tensor.detach().zero_()
    assert {name: tensor.tolist() for name, tensor in copies.get().items()} == {"a": [1.0] * 3, "b": [1.0] * 2}
    assert not any(tensor.requires_grad for tensor in copies.get().values())


@pytest.mark.parametrize(
    ("gpus", "rank", "on_cpu", "device"),
    [
        (0, "1", "", "cpu"),
        (3, "", "", "cuda:0"),
        (3, "2", "", "cuda:2"),
        (3, "4", "0", "cuda:1"),
        (3, "", "True", "cpu"),
    ],
)
def test_each_process_uses_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, rank: str, on_cpu: str, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in (("LOCAL_RANK", rank), ("ACCELERATE_USE_CPU", on_cpu)):
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    assert choose_device() == torch.device(device)
