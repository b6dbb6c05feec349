"""The attention page and the map in the terminal show the attention weights of the plain reference."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import Reference, random_model, random_pairs, tiny
from small_run import HOSTILE, make_run, page_data
from test_report import check_harmless

from nmt_cli import Translator
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.reporting.attend import attend, terminal_map
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.weights import load_model

BLOCKS = {
    "encoder": "encoder.{}.self_attention",
    "decoder": "decoder.{}.self_attention",
    "cross": "decoder.{}.cross_attention",
}


def plain_weights(model, src, tgt):
    """Return the plain reference's attention weights by role, each of shape layers x heads x queries x keys."""
    reference = Reference(model)
    reference.logits([(src, tgt)])
    encoder_layers, decoder_layers = model.settings.depths
    depths = {"encoder": encoder_layers, "decoder": decoder_layers, "cross": decoder_layers}
    weights = {}
    for role, name in BLOCKS.items():
        rows, columns = len(src) if role == "encoder" else len(tgt), len(tgt) if role == "decoder" else len(src)
        layers = [reference.attended[name.format(n)][0, :, :rows, :columns] for n in range(depths[role])]
        weights[role] = torch.stack(layers).detach().numpy()
    return weights


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre"}, {"attention_bias": True}, {"positions": "learned"}, {"encoder_layers": 3}]
)
@pytest.mark.parametrize("lengths", [(7, 5), (1, 1)])
def test_weights_equal_the_plain_reference(changes, lengths):
    model = random_model(tiny(**changes), 30)
    ((src, tgt),) = random_pairs(3, 30, [lengths])
    plain, scores = plain_weights(model, src, tgt), attention_scores(model, src, tgt)
    for role, expected in plain.items():
        weights = torch.softmax(scores[role], -1)
        assert weights.shape == expected.shape
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
    with pytest.raises(IndexError):  # longer than the model's positions
        attention_scores(model, [5] * 33, tgt)
    assert not any(module._forward_pre_hooks for module in model.modules()), "hooks are removed"
    above = np.triu(np.ones((lengths[1], lengths[1]), bool), 1)
    weights = torch.softmax(scores["decoder"], -1).numpy()
    assert (weights[..., above] == 0).all()  # exactly
    assert (weights[..., ~above] > 0).all()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("small"))[0] / "model"


def test_the_page_has_the_weights_of_the_reference(model, tmp_path, capsys):
    texts, output = ["test en 3, it is", HOSTILE[0], HOSTILE[2]], tmp_path / "a.html"
    assert attend(texts, model, output, layer=1, head=2) == 0
    check_harmless(output.read_text(), scripts=2)
    assert output.stat().st_size < 2_000_000
    data = page_data(output.read_text())
    loaded = load_model(model)
    tokenizer = spm.Tokenizer(loaded.tokenizer_file)
    assert data["layers"] == {"encoder": 2, "decoder": 2, "cross": 2}
    assert [data[name] for name in ("heads", "d_k", "layer", "head", "role")] == [2, 8, 1, 2, "encoder"]
    assert "<title>Attention: test en 3, it is</title>" in output.read_text()
    for text, sentence in zip(texts[:2], data["sentences"], strict=False):
        src, tgt = ([*ids, spm.EOS] for ids in tokenizer.encode([text, sentence["translation"]]))
        assert sentence["text"] == text
        for role, expected in plain_weights(loaded.model, src, tgt).items():
            assert [len(side) for side in sentence["names"][role]] == list(expected.shape[2:])
            rows, columns = sentence["names"][role]
            assert rows[-1] == "‹end›"
            previous_tokens = {"decoder": ["‹start›", *rows[:-1]]}
            assert columns == previous_tokens.get(role, sentence["names"]["encoder"][0])
            np.testing.assert_allclose(np.array(sentence["weights"][role]) / 10_000, expected, rtol=0, atol=5.1e-5)
        assert not np.triu(sentence["weights"]["decoder"], 1).any()
    out = capsys.readouterr().out
    marks = [line for line in out.split("\n") if " → " in line]
    assert len(marks) == sum(len(sentence["names"]["encoder"][0]) for sentence in data["sentences"])
    shown = np.array(data["sentences"][0]["weights"]["encoder"])[0, 1] / 10_000  # layer 1, head 2
    assert [float(line.rpartition(" ")[2]) for line in marks[: len(shown)]] == pytest.approx(shown.max(-1), abs=0.0051)
    assert "\x1b" not in out


@pytest.mark.parametrize(("kind", "sides"), [("sinusoidal", 1), ("learned", 2)])
def test_positions_are_on_the_page_as_integers(tmp_path, kind, sides):
    model, output = make_run(tmp_path, f"model.positions={kind}")[0] / "model", tmp_path / "a.html"
    attend(["test en 3"], model, output, translation="test de 3")
    positions = page_data(output.read_text())["positions"]
    assert len(positions) == sides
    for side, each in zip(("src", "tgt"), positions, strict=False):
        expected = load_model(model).model.positions(side)[:64].detach().numpy()
        assert each["title"] == f"{kind} positions, {side}"
        assert each["largest"] == np.abs(expected).max()
        assert np.abs(each["values"]).max() == 127
        np.testing.assert_allclose(np.array(each["values"]) * each["largest"] / 127, expected, rtol=0, atol=0.005)


def test_a_decoder_without_self_attention_is_refused(tmp_path):
    model = make_run(tmp_path, "model.decoder_cell=ssru")[0] / "model"
    with pytest.raises(UsageError, match=rf"{model} has no decoder self-attention to show"):
        attend(["test en 3"], model, tmp_path / "a.html")


def test_a_given_translation_is_used(model, tmp_path):
    output = tmp_path / "a.html"
    attend(["test en 3"], model, output, translation="test de 3", role="decoder")
    data = page_data(output.read_text())
    (sentence,) = data["sentences"]
    sharpest = 1 + np.array(sentence["weights"]["decoder"])[1].max(-1).mean(-1).argmax()
    assert (data["role"], data["layer"], data["head"]) == ("decoder", 2, sharpest)  # the last layer
    rows, columns = sentence["names"]["decoder"]
    assert sentence["translation"] == "test de 3"
    assert columns == ["‹start›", *rows[:-1]]
    assert rows[-1] == "‹end›"


def test_the_default_head_is_the_most_focused_one(model, tmp_path):
    texts, output = ["test en 3", HOSTILE[4]], tmp_path / "a.html"
    attend(texts, model, output, head=1)
    sharp = [
        {
            (role, layer): 1 + np.array(heads).max(-1).mean(-1).argmax()
            for role, layers in sentence["weights"].items()
            for layer, heads in enumerate(layers, 1)
        }
        for sentence in page_data(output.read_text())["sentences"]
    ]
    role, layer = next(place for place, head in sharp[0].items() if head != sharp[1][place])
    attend(texts, model, output, role=role, layer=layer)
    assert page_data(output.read_text())["head"] == sharp[0][role, layer]


def test_the_limit_on_weights_applies_to_the_whole_page(model, tmp_path, monkeypatch):
    output = tmp_path / "a.html"
    attend(["test en 3"], model, output)
    (sentence,) = page_data(output.read_text())["sentences"]
    monkeypatch.setattr("nmt_cli.reporting.attend.MOST_WEIGHTS", sum(map(np.size, sentence["weights"].values())))
    attend(["test en 3"], model, output)
    with pytest.raises(UsageError, match="too many tokens for one page"):
        attend(["test en 3"] * 2, model, output)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a"], {"layer": 3}, "encoder self-attention has 2 layers, with 2 heads per layer"),
        (["a"], {"head": 3}, "encoder self-attention has 2 layers, with 2 heads per layer"),
        (["a"], {"translation": " "}, "is empty"),
        *((["a", "b"], {"translation": each}, "exactly one text") for each in ("a", "")),
        (["q" * 260], {"translation": "a"}, "too many tokens for one page"),  # longer than the model accepts
        (["a"], {"translation": "q" * 260}, "too many tokens for one page"),
        (["q" * 240], {"translation": "q" * 240}, "too many tokens for one page"),
    ],
)
def test_refusals(model, tmp_path, texts, options, message):
    output = tmp_path / "a.html"
    with pytest.raises(UsageError, match=message):
        attend(texts, model, output, **options)
    assert not output.exists()


def test_the_encoder_may_have_more_layers_than_the_decoder(tmp_path):
    """The page has all layers of every role, and a missing layer is refused."""
    model, output = make_run(tmp_path, "model.decoder_layers=1")[0] / "model", tmp_path / "a.html"
    attend(["test en 3"], model, output, translation="test de 3", layer=2)
    data = page_data(output.read_text())
    assert data["layers"] == {"encoder": 2, "decoder": 1, "cross": 1}
    assert {role: len(layers) for role, layers in data["sentences"][0]["weights"].items()} == data["layers"]
    attend(["test en 3"], model, output, translation="test de 3", role="cross")
    assert page_data(output.read_text())["layer"] == 1
    with pytest.raises(UsageError, match="cross-attention has 1 layer, with 2 heads per layer"):
        attend(["test en 3"], model, output, translation="test de 3", role="cross", layer=2)


def test_a_terminal_with_ascii_only_or_without_an_encoding(model, tmp_path, monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, "ascii"))
    assert attend(["test en 3"], model, tmp_path / "a.html") == 0
    sys.stdout.flush()
    assert re.search(rb"\n\?end\? .* \? .* 0\.\d\d\n", out.getvalue())
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert attend(["test en 3"], model, tmp_path / "a.html") == 0
    assert "\n‹end› " in sys.stdout.getvalue()


def test_the_map_in_the_terminal():
    lines = terminal_map(["it", "漢字"], ["ab", "cde"], torch.tensor([[1.0, 0.0], [0.31, 0.69]]), 100)
    assert lines == ["       c", "     a d", "     b e", "it   ██·  → ab 1.00", "漢字 ▒▒▓▓ → cde 0.69"]
    shades = [0.0, 0.01, 0.04, 0.06, 0.29, 0.31, 0.54, 0.56, 0.79, 0.81]  # blank, then shades from 5%, 30%, 55% and 80%
    (row,) = terminal_map(["a"], [*"0123456789"], torch.tensor([shades]), 100)[1:]
    assert row == "a ·     ░░░░▒▒▒▒▓▓▓▓██ → 9 0.81"
    long = terminal_map(["a" * 20], ["b" * 20], torch.ones(1, 1), 100)
    assert (len(long), long[-1]) == (13, "a" * 14 + "██ → " + "b" * 20 + " 1.00")
    assert long[-2] == " " * 14 + "…", "vertical names are cut"


@pytest.mark.parametrize(("width", "cells"), [(100, 1), (160, 2), (50, 0)])
def test_the_map_of_a_long_sentence_fits_the_terminal(width, cells):
    names = [f"token{i}" for i in range(60)]
    lines = terminal_map(names, names, torch.full((60, 60), 1 / 60), width)
    header, first = lines[:-60], lines[-60]
    assert max(map(len, lines)) <= width
    assert first == "token0".ljust(8) + " " * 60 * cells + " → token0 0.02"
    across = ["".join(line[8 + cells * i :][:1] or " " for line in header).strip() for i in range(60)]
    assert across == (names if cells else [""] * 60)


def test_the_map_leaves_room_for_the_longest_name():
    names = [*"abcdefghi", "the longest of all"]
    assert max(map(len, terminal_map(names, names, torch.eye(10), 48))) <= 48
    assert len(terminal_map(names, names, torch.eye(10), 20)) == 10, "without room there is no header"


@pytest.mark.parametrize("columns", [30, 45, 200])
def test_the_map_has_the_width_of_the_terminal(model, tmp_path, monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    attend(["test en 3"], model, tmp_path / "a.html", translation="test de 3", layer=1, head=1)
    lines = capsys.readouterr().out.split("\n")[1:]
    names = page_data((tmp_path / "a.html").read_text())["sentences"][0]["names"]["encoder"][0]
    weights = attention_scores(load_model(model).model, *_ids(model, "test en 3", "test de 3"))["encoder"]
    expected = terminal_map(names, names, torch.softmax(weights, -1)[0, 0], columns)
    assert lines[: len(expected)] == expected


def _ids(model, src, tgt):
    return spm.Tokenizer(load_model(model).tokenizer_file).encode_pair(src, tgt)


def test_text_without_letters_is_translated_by_the_model(tmp_path: Path) -> None:
    model = make_run(tmp_path)[0] / "model"
    assert attend(["3.14 3"], model, tmp_path / "a.html") == 0
    data = page_data((tmp_path / "a.html").read_text())
    with Translator(model, precision="fp32") as translator:
        [expected] = translator.translate(["3.14 3"], split=False, copy_wordless=False)
    assert data["sentences"][0]["translation"] == expected.text != "3.14 3"


def test_target_tokens_come_from_the_target_tokenizer(tmp_path: Path) -> None:
    """Both tokenizers have the same vocabulary size, because the test's model has one embedding for both languages."""
    for name, words in (("own.model", "test en it is"), ("own.target.model", "und der test de it")):
        lines = [f"{words} {i} {words[::-1]}" for i in range(60)]
        (tmp_path / name).write_bytes(spm.train(lines, 300))
    run, data = make_run(tmp_path / "run", f"corpus.tokenizer.file={tmp_path / 'own.model'}")
    attend(["test en 3"], run / "model", tmp_path / "a.html", translation="und der test")
    [sentence] = page_data((tmp_path / "a.html").read_text())["sentences"]
    both = spm.Tokenizer(data / "tokenizer.model")
    source, target = both.encode_pair("test en 3", "und der test")
    rows, columns = sentence["names"]["cross"]
    assert [name.removeprefix("·") for name in rows[:-1]] == [
        token.removeprefix("▁") or "▁" for token in both.target.tokens(target[:-1])
    ]
    assert rows[:-1] == ["und", "der", "test"]
    assert len(columns) == len(source)
