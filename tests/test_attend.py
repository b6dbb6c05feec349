"""Attention as it is shown: equal to the plain reference, and a page that holds exactly that."""

import base64
import math
import struct
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Reference, batch_of, random_model, random_pairs, tiny
from small_run import HOSTILE, make_run, page_data

from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.toy import generate
from nmt_cli.errors import MissingError, UsageError
from nmt_cli.reporting import antecedents
from nmt_cli.reporting.antecedents import followers, word_spans
from nmt_cli.reporting.attend import AttendOptions, attend, png_bytes, terminal_map
from nmt_cli.reporting.attention_maps import attention_scores, flow, sharpness, softmax
from nmt_cli.transformer.weights import load_model

BLOCKS = {
    "encoder": "encoder.{}.self_attention",
    "decoder": "decoder.{}.self_attention",
    "cross": "decoder.{}.cross_attention",
}


def plain_weights(model, src, tgt) -> dict[str, np.ndarray]:
    """Return what the plain reference computes, L x H x queries x keys by role."""
    reference = Reference(model)
    reference.logits([(src, tgt)])
    found = {}
    for role, name in BLOCKS.items():
        rows, columns = len(src) if role == "encoder" else len(tgt), len(tgt) if role == "decoder" else len(src)
        layers = [reference.attended[name.format(n)][0, :, :rows, :columns] for n in range(model.settings.num_layers)]
        found[role] = torch.stack(layers).detach().numpy()
    return found


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"attention_bias": True}, {"positions": "learned"}])
@pytest.mark.parametrize("lengths", [(7, 5), (1, 1)])
def test_weights_are_those_of_the_plain_reference(changes, lengths):
    model = random_model(tiny(**changes), 30)
    ((src, tgt),) = random_pairs(3, 30, [lengths])
    plain, scores = plain_weights(model, src, tgt), attention_scores(model, src, tgt)
    for role, expected in plain.items():
        weights = softmax(scores[role])
        assert weights.shape == expected.shape
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-12)
    above = np.triu(np.ones((lengths[1], lengths[1]), bool), 1)
    assert (softmax(scores["decoder"])[..., above] == 0).all()  # exactly
    assert (softmax(scores["decoder"])[..., ~above] > 0).all()


def test_looking_changes_nothing():
    model = random_model(tiny(), 30)
    pairs = random_pairs(1, 30, [(5, 4)])
    before = model(batch_of(pairs))
    attention_scores(model, *pairs[0])
    assert torch.equal(model(batch_of(pairs)), before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_the_scale_does():
    scores = np.array([[1.0, 2.0, 4.0]])
    bare = np.exp(3 * scores[0]) / np.exp(3 * scores[0]).sum()  # d_k = 9: q k^T is three times as large
    np.testing.assert_allclose(softmax(scores, 3)[0], bare)
    largest, entropy, left = sharpness(np.full((2, 8), 1 / 8))
    assert (largest, entropy, left) == (1 / 8, 3, 1 - 1 / 8)
    assert sharpness(np.array([[1.0, 0.0], [0.5, 0.5]])) == (0.5, 1, 0.5)  # the first row has no choice
    assert sharpness(np.array([[1.0]])) == (1, 0, 0)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 1000))
def test_flow_loses_nothing(layers, heads, places, seed):
    draw = np.random.default_rng(seed)
    weights = softmax(draw.normal(size=(layers, heads, places, places)) * 5)
    levels = flow(weights, softmax(draw.normal(size=places)))
    assert levels.shape == (layers + 1, places)
    np.testing.assert_allclose(levels.sum(-1), 1)


def test_flow_of_one_layer():
    weights = np.array(
        [[[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]]
    )  # the first place looks half at the second
    np.testing.assert_allclose(flow(weights, np.array([1.0, 0.0])), [[1, 0], [0.75, 0.25]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("small"))[0] / "model"


def test_the_page_holds_what_the_reference_computes(model, tmp_path, capsys):
    texts, output = ["test en 3, it is", HOSTILE[0]], tmp_path / "a.html"
    assert attend(texts, AttendOptions(model, output, layer=1, head=2)) == 0
    data = page_data(output.read_text())
    loaded = load_model(model)
    tokenizer = spm.Tokenizer(loaded.tokenizer_file)
    assert (data["layers"], data["heads"], data["d_k"], data["layer"], data["head"]) == (2, 2, 8, 1, 2)
    for text, sentence in zip(texts, data["sentences"], strict=True):
        src, tgt = ([*ids, spm.EOS] for ids in tokenizer.encode([text, sentence["translation"]]))
        assert sentence["text"] == text
        assert len(sentence["src"]) == len(src)
        assert len(sentence["says"]) == len(sentence["said"]) == len(tgt)
        for role, expected in plain_weights(loaded.model, src, tgt).items():
            drawn = np.frombuffer(base64.b64decode(sentence["weights"][role]), "<u2").reshape(expected.shape) / 65535
            np.testing.assert_allclose(drawn, expected, rtol=0, atol=1e-4)
            np.testing.assert_allclose(drawn.sum(-1), 1, rtol=0, atol=1e-3)
        assert (np.triu(drawn_of(sentence, "decoder", 4, len(tgt)), 1) == 0).all()
    assert data["sentences"][0]["src"][data["sentences"][0]["focus"]["encoder"]] == "it"
    out, err = capsys.readouterr()
    assert out.startswith("encoder self-attention, layer 1, head 2\n")
    marks = [line for line in out.splitlines() if " → " in line]
    assert len(marks) == sum(len(sentence["src"]) for sentence in data["sentences"])
    assert "\x1b" not in out
    assert str(output) in err
    assert output.stat().st_size < 2_000_000


def drawn_of(sentence: dict, role: str, heads: int, size: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(sentence["weights"][role]), "<u2").reshape(heads, size, size)


def test_a_given_translation_is_looked_at(model, tmp_path):
    output = tmp_path / "a.html"
    attend(["test en 3"], AttendOptions(model, output, translation="test de 3", role="decoder"))
    sentence = page_data(output.read_text())["sentences"][0]
    assert sentence["translation"] == "test de 3"
    assert sentence["said"] == ["‹start›", *sentence["says"][:-1]]
    assert sentence["says"][-1] == "‹end›"


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a"], {"role": "self"}, "--role must be one of encoder, decoder, cross"),
        (["a"], {"layer": 3}, "--layer 3 is not there: this model has 2 layers of 2 heads"),
        (["a"], {"head": 3}, "--head 3 is not there: this model has 2 layers of 2 heads"),
        ([" "], {"translation": "a"}, "empty"),
        (["a"], {"translation": ""}, "empty"),
        (["a", "b"], {"translation": "a"}, "exactly one text"),
        (["q x " * 100], {"translation": "a"}, "too many for one page"),
    ],
)
def test_refusals(model, tmp_path, texts, options, message):
    output = tmp_path / "a.html"
    with pytest.raises(UsageError, match=message):
        attend(texts, AttendOptions(model, output, **options))
    assert not output.exists()


def test_a_picture_needs_matplotlib(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = AttendOptions(model, tmp_path / "a.html", tmp_path / "a.png")
    with pytest.raises(MissingError, match=r"pip install 'nmt-cli\[plot\]'"):
        attend(["test en 3"], options)
    assert options.output.exists()


def test_a_picture(model, tmp_path):
    pytest.importorskip("matplotlib")
    attend(["$test$ en_3"], AttendOptions(model, tmp_path / "a.html", tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_png_bytes():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = png_bytes(pixels)
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert rows == b"\0" + pixels[0].tobytes() + b"\0" + pixels[1].tobytes()
    assert zlib.crc32(data[37 : 41 + length]) == struct.unpack(">I", data[41 + length : 45 + length])[0]


def test_the_map_in_the_terminal():
    scores = np.log(np.array([[[[0.96, 0.04], [0.31, 0.69]]]]))
    pair = types.SimpleNamespace(
        sides=lambda role: (["it", "漢字\u202e"], ["ab", "\u202ecd"]), scores={"encoder": scores}
    )
    lines = terminal_map("title", pair, "encoder", 1, 1, colour=False)
    header = [f"    {a} {b}" for a, b in zip("      ab", "\\u202ecd", strict=True)]  # downwards
    assert lines == ["title", *header, "it  ██   → ab 0.96", "漢字▒▒▓▓ → \\u202ecd 0.69"]
    coloured = terminal_map("title", pair, "encoder", 1, 1, colour=True)
    assert "\x1b[1;36m██\x1b[0m" in coloured[9]


@pytest.mark.parametrize(("width", "cells"), [(100, 1), (160, 2), (50, 0)])
def test_the_map_of_a_long_sentence_fits_the_terminal(width, cells):
    names = [f"piece{i}" for i in range(60)]
    pair = types.SimpleNamespace(sides=lambda role: (names, names), scores={"encoder": np.zeros((1, 1, 60, 60))})
    title, *header, first = terminal_map("title", pair, "encoder", 1, 1, colour=False, width=width)[: -len(names) + 1]
    assert max(map(len, [title, *header, first])) <= width
    assert first == "piece0".ljust(8) + " " * 60 * cells + " → piece0 0.02"
    if cells:
        across = ["".join(line[8 + cells * i :][:1] or " " for line in header).strip() for i in range(60)]
        assert across == names
    else:
        assert header == []


def test_word_spans():
    assert word_spans(["▁The", "▁stre", "et", "▁it", "."]) == [[0], [1, 2], [3, 4]]
    assert word_spans(["a", "▁b"]) == [[0], [1]]


GENDERS = {"er": {"Der", "den"}, "sie": {"Die", "die"}, "es": {"Das", "das"}}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory):
    """The generated language's held-out text, and a tokenizer for it."""
    made = generate(1, train=400, dev=60, test=60)
    file = tmp_path_factory.mktemp("toy") / "tokenizer.model"
    file.write_bytes(spm.train([line for pair in made.train for line in pair], 420))
    lines = {split: tuple(map(list, zip(*getattr(made, split), strict=True))) for split in ("dev", "test")}
    return types.SimpleNamespace(lines=lambda split: lines[split]), spm.Tokenizer(file)


def test_antecedents_are_found_where_grammar_puts_them(toy):
    corpus, tokenizer = toy
    cases = list(antecedents._cases(corpus, "test", tokenizer))
    assert len(cases) > 5
    for case in cases:
        src = tokenizer.pieces(case.src)
        place, right, wrong = case.places["it"]
        assert tokenizer.decode([case.src[place:]])[0].startswith("it ")
        first, other = sorted((right, wrong))
        assert (right == first) == case.first
        phrases = ["".join(src[p] for p in phrase).replace("▁", " ").split() for phrase in (first, other)]
        assert [phrase[0] for phrase in phrases] == ["The", "the"]
        place, right, _ = case.places["own"]
        pronoun = tokenizer.decode([case.tgt[place:]])[0].split()[0]
        article = tokenizer.decode([[case.tgt[p - 1] for p in right]])[0].split()[0]  # read one place later
        assert article in GENDERS[pronoun]


def test_a_head_that_knows_is_found(toy, monkeypatch):
    """Layer 2, head 3 of the cross-attention looks at the antecedent; every other head looks at the first noun."""
    corpus, tokenizer = toy
    by_src = {
        tuple(case.src): case for split in ("dev", "test") for case in antecedents._cases(corpus, split, tokenizer)
    }

    def oracle(model, src, tgt):
        case = by_src[tuple(src)]
        scores = {}
        for query, (role, _) in antecedents.QUERIES.items():
            place, right, wrong = case.places[query]
            size = (2, 4, len(src) if role == "encoder" else len(tgt), len(tgt) if role == "decoder" else len(src))
            scores[role] = np.zeros(size)
            scores[role][:, :, place, min(right, wrong)] = 9
            if role == "cross":
                scores[role][1, 2, place] = 0
                scores[role][1, 2, place, right] = 9
        return scores

    monkeypatch.setattr(antecedents, "attention_scores", oracle)
    threads = torch.get_num_threads()
    found = {f.query: f for f in followers(None, corpus, tokenizer)}
    assert torch.get_num_threads() == threads
    best = found[antecedents.QUERIES["pronoun"][1]]
    assert (best.layer, best.head, best.right) == (2, 3, best.total)
    other = found[antecedents.QUERIES["it"][1]]
    assert other.right == other.always_first < other.total
    assert math.isclose(other.total, best.total)


def test_no_such_sentences(toy):
    _, tokenizer = toy
    assert followers(None, types.SimpleNamespace(lines=lambda split: (["a b c"], ["d e f"])), tokenizer) == []
