"""The Transformer against a plain reference, Table 3 of the paper, and what it owes its readers."""

import copy
import itertools
import math

import pytest
import torch
from reference import Pair, Reference, batch_of, random_model, random_pairs, tiny
from torch import Tensor, nn

from nmt_cli import recipe
from nmt_cli.transformer.attention import Attention
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import PAD, Masks, Transformer, layer_norm, parameter_count, sinusoids

V = 23
RAGGED = [(3, 7), (1, 1), (9, 2), (4, 4), (5, 6), (5, 6)]
VARIANTS = {
    "paper": {},
    "equal d_k and d_v": {"d_k": 4, "d_v": 4},
    "pre": {"norm": "pre"},
    "learned": {"positions": "learned"},
    "biases": {"attention_bias": True},
    "swish": {"activation": "swish"},
    "gelu": {"activation": "gelu"},
    "one head": {"num_heads": 1, "d_k": 7, "d_v": 3},
    "all options": {"norm": "pre", "positions": "learned", "attention_bias": True, "activation": "gelu"},
}


def logits_of(model: Transformer, pairs: list[Pair], masks: Masks | None = None) -> list[Tensor]:
    """Return each pair's logits by the package, T x V."""
    batch = batch_of(pairs)
    return list(model.logits(model(batch, masks)).split(batch.tgt.lengths_B.tolist()))


def close(a: list[Tensor], b: list[Tensor], tolerance: float) -> None:
    assert [x.shape for x in a] == [x.shape for x in b]
    assert max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True)) < tolerance


# --- the whole model against the plain reference --------------------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_the_plain_reference(changes: dict) -> None:
    model = random_model(tiny(**changes), V)
    pairs = random_pairs(1, V, RAGGED)
    expected = Reference(model).logits(pairs)
    actual = logits_of(model, pairs)
    close([x[:, 1:] for x in actual], expected, 1e-10)
    assert all(torch.isneginf(x[:, PAD]).all() for x in actual)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_where_the_paper_puts_it_and_scaled(norm: str) -> None:
    # The reference drops the embedding sums and each sub-layer's output before it is added, and nothing else.
    model = random_model(tiny(norm=norm, dropout=0.3), V)
    pairs = random_pairs(3, V, RAGGED)
    generator = torch.Generator().manual_seed(5)
    packed, split = [], []
    for side, places in enumerate(model.dropout_places()):
        lengths = [len(pair[side]) for pair in pairs]
        mask_LND = (torch.rand(places, sum(lengths), 12, generator=generator) < 0.7).double()
        packed.append(mask_LND)
        split.append([list(place.split(lengths)) for place in mask_LND])
    reference = Reference(model, (split[0], split[1]))
    expected = reference.logits(pairs)
    assert reference.places == dict(zip(("src", "tgt"), model.dropout_places(), strict=True)) == {"src": 5, "tgt": 7}
    close([x[:, 1:] for x in logits_of(model, pairs, Masks(*packed))], expected, 1e-10)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_gradient_equals_the_plain_references(norm: str) -> None:
    model = random_model(tiny(norm=norm, positions="learned", attention_bias=True), V)
    pairs = random_pairs(4, V, RAGGED)
    labels = torch.tensor([token for _, tgt in pairs for token in tgt])
    reference = Reference(model)
    nn.functional.cross_entropy(torch.cat(reference.logits(pairs)), labels - 1, reduction="sum").backward()
    nn.functional.cross_entropy(torch.cat(logits_of(model, pairs)), labels, reduction="sum").backward()
    for name, parameter in model.named_parameters():
        expected = reference.weights[name].grad
        assert parameter.grad is not None, name
        assert expected is not None, name
        assert float((parameter.grad - expected).abs().max()) < 1e-10, name


# --- what a token may depend on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "positions": "learned"}], ids=["post", "pre"])
def test_a_sentence_does_not_depend_on_its_company(changes: dict) -> None:
    model = random_model(tiny(**changes), V)
    pairs = random_pairs(6, V, [(3, 4), (16, 17), (1, 1), (8, 2)])
    together = logits_of(model, pairs)
    alone = [logits_of(model, [pair])[0] for pair in pairs]
    close([x[:, 1:] for x in together], [x[:, 1:] for x in alone], 1e-12)
    order = [2, 0, 3, 1]
    shuffled = logits_of(model, [pairs[i] for i in order])
    close([x[:, 1:] for x in shuffled], [together[i][:, 1:] for i in order], 1e-12)


@pytest.mark.parametrize("lengths", [RAGGED, [(6, 7)] * 3], ids=["ragged", "full"])
def test_no_token_sees_what_it_should_say_or_what_comes_later(lengths: list) -> None:
    model = random_model(tiny(), V)
    pairs = random_pairs(8, V, lengths)
    before = logits_of(model, pairs)
    for t in range(len(pairs[0][1]) - 1):
        changed = list(pairs[0][1])
        changed[t] = 3 if changed[t] != 3 else 4
        after = logits_of(model, [(pairs[0][0], changed), *pairs[1:]])
        assert torch.equal(after[0][: t + 1], before[0][: t + 1]), "token t must not move its own logits"
        moved = (after[0][t + 1 :, 1:] - before[0][t + 1 :, 1:]).abs().amax(1)
        assert (moved > 1e-6).all(), "every later position sees token t"
        assert all(torch.equal(a, b) for a, b in zip(after[1:], before[1:], strict=True)), "other sentences"


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_sentence_longer_than_the_model_is_refused_not_wrapped(positions: str) -> None:
    model = random_model(tiny(positions=positions, max_length=8), V)
    logits_of(model, random_pairs(1, V, [(8, 8)]))
    for lengths in ((9, 3), (3, 9)):
        with pytest.raises(IndexError):
            logits_of(model, random_pairs(1, V, [lengths]))


def test_sinusoids_are_the_papers() -> None:
    table = sinusoids(50, 512)
    assert table.shape == (50, 512)
    assert torch.equal(table[0], torch.tensor([0.0, 1.0]).repeat(256)), "sines and cosines interleave"
    golden = {0: 0.841471, 1: 0.540302, 2: 0.821856, 3: 0.569695, 510: 1.036633e-4, 511: 1.0}
    for place, value in golden.items():
        assert float(table[1, place]) == pytest.approx(value, rel=1e-5)
    for pos, i in itertools.product((3, 49), (0, 17, 255)):
        angle = pos / 10000 ** (2 * i / 512)
        assert table[pos, 2 * i : 2 * i + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-7)


# --- weights --------------------------------------------------------------------------------------------------------


BASE = 65_073_152
# Row: changes, exact count without attention biases, with them and the 2017 code's 32 x d space embedding.
TABLE_3 = {
    "base": ({}, BASE, 65_126_400),
    "A 1 head": ({"num_heads": 1, "d_k": 512, "d_v": 512}, BASE, 65_126_400),
    "A 32 heads": ({"num_heads": 32, "d_k": 16, "d_v": 16}, BASE, 65_126_400),
    "B d_k 16": ({"d_k": 16}, 57_995_264, 58_034_688),
    "B d_k 32": ({"d_k": 32}, 60_354_560, 60_398_592),
    "C 2 layers": ({"num_layers": 2}, 35_672_064, 35_700_736),
    "C 4 layers": ({"num_layers": 4}, 50_372_608, 50_413_568),
    "C 8 layers": ({"num_layers": 8}, 79_773_696, 79_839_232),
    "C d_model 256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 27_830_272, 27_856_896),
    "C d_model 1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 167_870_464, 167_976_960),
    "C d_ff 1024": ({"d_ff": 1024}, 52_477_952, 52_531_200),
    "C d_ff 4096": ({"d_ff": 4096}, 90_263_552, 90_316_800),
    "E learned": ({"positions": "learned"}, BASE + 2 * 1024 * 512, 65_126_400 + 2 * 1024 * 512),
    "big": ({"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 218_226_688, 218_333_184),
}


@pytest.mark.parametrize(("changes", "plain", "released"), TABLE_3.values(), ids=TABLE_3)
def test_every_row_of_table_3_has_the_closed_forms_parameters(changes: dict, plain: int, released: int) -> None:
    for settings, expected in (
        (recipe.Model(**changes), plain),
        (recipe.Model(**changes, attention_bias=True), released - 32 * changes.get("d_model", 512)),
    ):
        with torch.device("meta"):
            model = Transformer(settings, 40_960)
        assert sum(p.numel() for p in model.parameters()) == parameter_count(settings, 40_960) == expected


def test_one_matrix_embeds_the_source_the_target_and_makes_the_logits() -> None:
    model = random_model(tiny(), V)
    model.to(torch.float32).to(torch.float64)
    for each in (model, copy.deepcopy(model), for_inference(model, torch.float64)):
        assert [name for name, tensor in each.state_dict().items() if V in tensor.shape] == ["embedding.weight"]
        pairs = random_pairs(1, V, [(3, 3)])
        before = logits_of(each, pairs)[0].detach()
        with torch.no_grad():
            each.embedding.weight[pairs[0][0][0]] += 1  # a token of the source
        assert not torch.equal(logits_of(each, pairs)[0], before)


def test_initial_weights_are_the_released_codes() -> None:
    torch.manual_seed(3)
    settings = recipe.Model(num_layers=1, d_model=128, d_ff=300, num_heads=4, d_k=24, d_v=40, attention_bias=True)
    model = Transformer(settings, 3000)
    assert not model.embedding.weight[PAD].any()
    table = model.embedding.weight[1:].detach()
    assert float(table.std()) == pytest.approx(128**-0.5, rel=0.02)
    assert abs(float(table.mean())) < 1e-3
    matrices: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, Attention):
            shapes = [(4 * 24, 128), (4 * 24, 128), (4 * 40, 128), (128, 4 * 40)]
            assert [tuple(w.shape) for w in module.projections()] == shapes
            matrices += module.projections()
    for layer in (model.encoder[0], model.decoder[0]):
        matrices += [layer.feed_forward.inner.weight, layer.feed_forward.outer.weight]
    assert len(matrices) == 3 * 4 + 2 * 2
    for matrix in matrices:
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.98 * bound < float(matrix.detach().abs().max()) <= bound
        assert float(matrix.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            expected = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            assert (parameter == expected).all(), name


# --- numbers --------------------------------------------------------------------------------------------------------


def test_layer_norm_statistics_are_float32_whatever_the_arithmetic() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(1024, eps=1e-5)
    x = (torch.randn(8, 1024) + 30).bfloat16()
    exact = nn.functional.layer_norm(x.double(), (1024,), eps=1e-5)
    actual = layer_norm(x, norm)
    assert actual.dtype == torch.bfloat16
    error = (actual.detach().double() - exact).abs()
    assert (error <= exact.abs() * 2**-8 + 1e-5).all(), "only the result is rounded"


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_bfloat16_arithmetic_is_close_and_leaves_the_weights_alone(norm: str) -> None:
    torch.manual_seed(0)
    settings = recipe.Model(num_layers=2, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32, norm=norm)
    model = Transformer(settings, 100)
    batch = batch_of(random_pairs(2, 100, [(1, 1), (9, 12), (30, 25)]))
    exact = model.logits(model(batch))[:, 1:]
    rounded = model(batch, None, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    error = (model.logits(rounded)[:, 1:].float() - exact).abs()
    assert float(error.mean()) < 1e-2
    assert float(error.max()) < 1e-1
    rounded.float().square().sum().backward()
    assert all(p.dtype == torch.float32 and p.grad.dtype == torch.float32 for p in model.parameters())


def test_weights_keep_their_names() -> None:
    # Saved models are read by these names.
    names = {name for name, _ in Transformer(tiny(num_layers=1, norm="pre", attention_bias=True), V).named_parameters()}
    attention = {f"{m}.{w}" for m in ("query_key_value", "output") for w in ("weight", "bias")}
    cross = {f"{m}.{w}" for m in ("query", "key_value", "output") for w in ("weight", "bias")}
    forward = {f"{m}.{w}" for m in ("inner", "outer") for w in ("weight", "bias")}
    expected = {"embedding.weight"} | {f"{s}_norm.{w}" for s in ("encoder", "decoder") for w in ("weight", "bias")}
    for stack, norms in (("encoder", 2), ("decoder", 3)):
        expected |= {f"{stack}.0.self_attention.{n}" for n in attention}
        expected |= {f"{stack}.0.feed_forward.{n}" for n in forward}
        expected |= {f"{stack}.0.residuals.{i}.norm.{w}" for i in range(norms) for w in ("weight", "bias")}
    expected |= {f"decoder.0.cross_attention.{n}" for n in cross}
    assert names == expected
