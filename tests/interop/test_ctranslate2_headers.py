"""CTranslate2's model.bin in each version, the attributes of older versions, and config.json."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from binary_ctranslate2 import binary_bytes, name_bytes, written

from nmt_cli.interop import ctranslate2_config
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.ctranslate2_config import read_config, read_vocabularies
from nmt_cli.interop.ctranslate2_files import rounding
from nmt_cli.interop.ctranslate2_variables import FEATURES, check_features, with_current_names
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError

FLOATS = np.array([[1.5, -2], [0, 4]], np.float32)
BYTES = np.array([[100, -50], [0, 127]], np.int8)
SHORTS = np.array([[1000, -500], [0, 3000]], np.int16)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: int) -> None:
    variables = {
        "f": FLOATS,
        "b": BYTES,
        "b_scale": np.array([10, 127], np.float32),
        "s": SHORTS,
        "e": np.zeros((0, 2), np.int8),
    }
    binary = written(tmp_path / "model.bin", variables, {"a": "b"}, version=version, revision=5)
    assert (binary.spec, binary.revision) == (("TransformerSpec", 5) if version > 1 else ("", 1))
    assert binary.variables.keys() - {"a", "a_scale"} == variables.keys()
    assert ("a" in binary.variables) == (version >= 3)
    for name in ("f", "b", "s"):
        assert np.array_equal(binary.values(name), variables[name])
    for name in ("b", "a") if version >= 3 else ("b",):
        assert binary.weights(name).tolist() == [[10, -5], [0, 1]], "a scale for each row"
    assert binary.weights("s").tolist() == [[1, -0.5], [0, 3]], "the scale of old files"
    assert binary.weights("f").tolist() == FLOATS.tolist()


def test_numbers_of_all_types_are_read_and_integers_need_scales(tmp_path: Path) -> None:
    half = FLOATS.astype(np.float16)
    brain = (FLOATS.view(np.uint32) >> 16).astype(np.uint16)
    variables: dict[str, Any] = {
        "h": half, "w": brain, "s": SHORTS, "s_scale": np.array([500], np.float32), "n": BYTES, "m": BYTES,
        "m_scale": np.array([1, 2, 3], np.float32), "i": BYTES, "i_scale": np.array([1, 2], np.int8),
        "l": BYTES.astype(np.int32),
        "t": SHORTS, "t_scale": np.array([1, 2], np.float32), "one": np.array([[[7]]], np.int16),
    }  # fmt: skip
    binary = written(tmp_path / "model.bin", variables)
    assert binary.weights("h").tolist() == binary.weights("w").tolist() == FLOATS.tolist()
    assert {binary.weights(name).dtype for name in "hws"} == {np.dtype(np.float32)}
    assert binary.weights("s").tolist() == [[2, -1], [0, 6]]
    for name in ("n", "m", "i", "l", "t"):
        with pytest.raises(DataError, match=rf"model\.bin is damaged: {name} has no scales that fit its integers"):
            binary.weights(name)
    assert (binary.number("one", 3), binary.number("none", 3)) == (7, 3)
    with pytest.raises(DataError, match="its attribute s is not a number"):
        binary.number("s", 3)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"model\.bin was truncated while it was read"):
        binary.values("h")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (binary_bytes({}) + b"\0\0", "2 bytes belong to no variable"),
        (binary_bytes({})[:-1], "it ends too early, at byte 33"),
        (binary_bytes({"a": BYTES}, {"b": "c"}), "b cannot be an alias of c"),
        (binary_bytes({"a": BYTES, "b": BYTES}, {"b": "a"}), "b cannot be an alias of a"),
        (binary_bytes({"a": np.array(1, np.float16)}, version=3)[:-11] + b"\3" + bytes(10), "numbers of 3 bytes"),
        (binary_bytes({"a": np.zeros((1,) * 5, np.int8)}), "a has 5 dimensions"),
        (binary_bytes({"a" * 512: BYTES}), "a name has 513 bytes"),
        (binary_bytes({}, version=7), "its version is 7, not 1 to 6"),
        (struct.pack("<I", 0), "its version is 0, not 1 to 6"),
        (binary_bytes({})[:-8] + struct.pack("<II", 0, 100_001), "it would have 100,001 aliases"),
        (struct.pack("<I", 6) + name_bytes("x\u200b"), "the name 'x"),
    ],
)  # fmt: skip
def test_a_wrong_header_is_an_error_with_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(DataError, match=rf"model\.bin is damaged or not a model of CTranslate2: .*{reason}"):
        read_binary(tmp_path / "model.bin")


def test_names_of_older_revisions_become_current_names(tmp_path: Path) -> None:
    """Attributes of the whole model become those of both sides, unless a side has its own."""
    number = np.array(1, np.int8)
    old = {
        "num_heads": np.array(4, np.int8), "pre_norm": number, "activation": number, "embeddings_merge": number,
        "alignment_layer": number, "alignment_heads": number, "encoder/embeddings/weight": FLOATS,
        "encoder/embeddings/weight_scale": number, "encoder/embeddings/multiply_by_sqrt_depth": number,
        "decoder/embeddings/multiply_by_sqrt_depth": number, "decoder/num_heads": np.array(2, np.int8),
    }  # fmt: skip
    binary = with_current_names(written(tmp_path / "model.bin", old))
    assert binary.variables.keys() == {
        *(f"{side}/{name}" for side in ("encoder", "decoder") for name in ("num_heads", "pre_norm", "activation")),
        *("encoder/embeddings_merge", "decoder/alignment_layer", "decoder/alignment_heads"),
        *("encoder/embeddings_0/weight", "encoder/embeddings_0/weight_scale"),
        *("encoder/scale_embeddings", "decoder/scale_embeddings"),
    }
    assert [binary.number(f"{side}/num_heads", 8) for side in ("encoder", "decoder")] == [4, 2]
    assert binary.weights("encoder/embeddings_0/weight").tolist() == FLOATS.tolist()


LAYERS = {f"decoder/layer_{i}/ffn/linear_0/weight": FLOATS for i in range(3)}


@pytest.mark.parametrize("part", [*FEATURES])
def test_each_unsupported_feature_is_named(tmp_path: Path, part: str) -> None:
    binary = written(tmp_path / "model.bin", {f"encoder/x_{part}": np.array(3, np.int16)})
    with pytest.raises(DataError, match="does not support ") as caught:
        check_features(binary)
    assert str(caught.value).endswith(f"does not support {FEATURES[part]}")


def test_attributes_without_effect_or_in_their_range_are_accepted(tmp_path: Path) -> None:
    def check(name: str, value: Any) -> None:
        heads = {"decoder/num_heads": np.array(4, np.int16)}
        check_features(written(tmp_path / "model.bin", {**LAYERS, **heads, name: value}))

    off, on = np.array(0, np.int8), np.array(1, np.int8)
    for name in ("encoder/alibi", "decoder/multi_query_attention"):
        check(name, off)
        with pytest.raises(DataError, match=r"does not support (ALiBi|multi-query attention)"):
            check(name, on)
    for name in ("scale_alibi", "alibi_use_positive_positions", "with_source_bos", "unk_token"):
        check(f"encoder/{name}", on)
    for name, low, high in (
        ("encoder/embeddings_merge", 0, 1),
        ("decoder/alignment_layer", -3, 2),
        ("decoder/alignment_heads", 0, 4),
    ):
        for number in (low, high):
            check(name, np.array(number, np.int16))
        for wrong in (np.array(low - 1, np.int16), np.array(high + 1, np.int16), np.array(low, np.float32)):
            with pytest.raises(DataError, match=rf"{name} must be a whole number from {low} to {high}"):
                check(name, wrong)
    with pytest.raises(DataError, match="does not support the variable encoder/strange"):
        check("encoder/strange", on)


def config_of(tmp_path: Path, version: int = 5, **attributes: Any) -> dict[str, Any]:
    """Return the configuration of a model whose model.bin has these attributes."""
    values = {name: value if isinstance(value, str) else np.array(value, np.int8) for name, value in attributes.items()}
    return read_config(tmp_path, written(tmp_path / "model.bin", values, version=version))


def test_the_configuration_of_old_versions_is_in_the_weights(tmp_path: Path) -> None:
    plain = {"unk_token": "<unk>", "eos_token": "</s>", "add_source_bos": False, "add_source_eos": False}
    assert config_of(tmp_path) == {**plain, "decoder_start_token": "<s>"}
    texts = {"unk_token": "UNK", "bos_token": "BOS", "eos_token": "EOS"}
    assert config_of(tmp_path, 4, **texts, with_source_eos=1) == {
        **plain, **texts, "decoder_start_token": "BOS", "add_source_eos": True,
    }  # fmt: skip
    assert config_of(tmp_path, with_target_bos=0)["decoder_start_token"] == "</s>"
    assert config_of(tmp_path, with_target_bos=0, eos_token="EOS")["decoder_start_token"] == "EOS"
    for attribute, feature in (
        ("with_source_bos", "add_source_bos"),
        ("user_decoder_start_tokens", "decoder_start_token"),
    ):
        with pytest.raises(DataError, match=feature):
            config_of(tmp_path, **{attribute: 1})
    for wrong in ("x" * 513, np.array([1], np.int16)):
        with pytest.raises(DataError, match="its attribute unk_token is not text"):
            read_config(tmp_path, written(tmp_path / "model.bin", {"unk_token": wrong}, version=5))
    with pytest.raises(MissingError, match=r"config\.json"):
        config_of(tmp_path, 6)
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token": "X", "unk_token": "", "eos_token": None}))
    assert config_of(tmp_path, 5, bos_token="BOS") == {**plain, "decoder_start_token": "X"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"multi_query_attention": True}, "does not support multi-query attention"),
        ({"quantization_type": 1}, "does not support this kind of quantization"),
        ({"add_source_bos": 0}, "a BOS token before the source"),
        ({"decoder_start_token": ["<s>"]}, "a decoder without a start token"),
        ({"eos_token": ["</s>"]}, "eos_token must be a str"),
        ({"add_source_eos": 1}, "add_source_eos must be a bool"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    right = {
        "decoder_start_token": "<s>",
        "layer_norm_epsilon": 1e-5,
        "quantization_type": 0,
        "multi_query_attention": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(right))
    binary = written(tmp_path / "model.bin", {})
    assert read_config(tmp_path, binary)["layer_norm_epsilon"] == 1e-5
    (tmp_path / "config.json").write_text(json.dumps(right | change))
    with pytest.raises(DataError, match=rf"config\.json .*{reason}"):
        read_config(tmp_path, binary)


TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "a"]


def vocabularies(
    tmp_path: Path, config: dict[str, Any], bias: list[float] | None = None, rows: int = 5, source_rows: int = 0
) -> list[list[int]]:
    variables: dict[str, Any] = {
        f"{name}/weight": np.zeros((rows, 2), np.float32) for name in ("encoder/embeddings_0", "decoder/embeddings")
    }
    variables["encoder/embeddings_0/weight"] = np.zeros((source_rows or rows, 2), np.float32)
    if bias:
        variables["decoder/projection/bias"] = np.array(bias, np.float32)
    binary = written(tmp_path / "model.bin", variables)
    return read_vocabularies(tmp_path, binary, {"unk_token": "<unk>", "eos_token": "</s>", **config}).id_maps


def test_a_pad_is_added_unless_the_decoder_starts_from_one_that_it_never_writes(tmp_path: Path) -> None:
    """Our order is <pad>, <unk>, </s>, then the others by their numbers."""
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(TOKENS))
    never, ever, rounded = [0, 0, 0, -1e9, 0], [0, 0, 0, -5, 0], [0, 0, 0, -0.99e9, 0]  # bfloat16 rounds
    for start, bias, ids in (
        ("<pad>", never, [3, 0, 2, 1, 4]),
        ("<pad>", rounded, [3, 0, 2, 1, 4]),
        ("<pad>", ever, [5, 0, 2, 1, 3, 4]),
        ("<pad>", None, [5, 0, 2, 1, 3, 4]),
        ("<pad>", never[:3], [5, 0, 2, 1, 3, 4]),
        ("<s>", never, [5, 0, 2, 1, 3, 4]),
    ):
        assert vocabularies(tmp_path, {"decoder_start_token": start}, bias) == [ids] * 2
    (tmp_path / "shared_vocabulary.json").rename(tmp_path / "source_vocabulary.json")
    (tmp_path / "target_vocabulary.json").write_text(json.dumps([*TOKENS[:3], "b", "a"]))
    assert vocabularies(tmp_path, {"decoder_start_token": "<pad>"}, never) == [[5, 0, 2, 1, 3, 4]] * 2
    (tmp_path / "target_vocabulary.json").write_text(json.dumps(["<unk>", "<pad>", "</s>", "b", "a"]))
    assert vocabularies(tmp_path, {"decoder_start_token": "<pad>"}, [0, -1e9, 0, 0, 0]) == [
        [3, 0, 2, 1, 4],
        [1, 0, 2, 3, 4],
    ]
    (tmp_path / "source_vocabulary.json").rename(tmp_path / "shared_vocabulary.json")
    ids = vocabularies(tmp_path, {"decoder_start_token": "<s>", "unk_token": "a", "eos_token": "<s>"})
    assert ids == [[5, 4, 1, 0, 2, 3]] * 2, "the configuration names the special tokens"


def test_vocabularies_in_text_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"decoder_start_token": "<s>"}
    with pytest.raises(MissingError, match=r"needs shared_vocabulary\.json, or both source_vocabulary\.json and"):
        vocabularies(tmp_path, config)
    (tmp_path / "source_vocabulary.txt").write_bytes("\r\n".join([*TOKENS[:4], "b", ""]).encode())
    with pytest.raises(MissingError, match=r"or both source_vocabulary\.json and target_vocabulary\.json"):
        vocabularies(tmp_path, config)
    (tmp_path / "target_vocabulary.txt").write_bytes("\n".join(["x\r", *TOKENS[:3]]).encode())
    assert vocabularies(tmp_path, config) == [[5, 0, 2, 1, 3, 4], [5, 1, 3, 0, 2, 4]]
    found = read_vocabularies(
        tmp_path, read_binary(tmp_path / "model.bin"), {"unk_token": "<unk>", "eos_token": "</s>", **config}
    )
    assert (found.tokens[0][4], found.tokens[1][0]) == ("b", "x\r")
    with pytest.raises(DataError, match="must be distinct and below 5"):
        vocabularies(tmp_path, config, rows=4)
    assert vocabularies(tmp_path, config, rows=4, source_rows=6) == [[6, 0, 2, 1, 3, 4, 5], [4, 1, 3, 0, 2]]
    monkeypatch.setattr(artefact, "MAX_JSON_BYTES", 10)
    monkeypatch.setattr(ctranslate2_config.artefact, "MAX_JSON_BYTES", 10)
    with pytest.raises(DataError, match=r"source_vocabulary\.txt is too large: the limit is 10 bytes"):
        vocabularies(tmp_path, config)
    monkeypatch.undo()
    for tokens, reason in (([*TOKENS, "a"], "a token occurs twice"), ([*TOKENS[:4], 5], "a token is not text"),
                           ([*TOKENS[:4], "\ud800"], "a token is not text")):  # fmt: skip
        (tmp_path / "shared_vocabulary.json").write_text(json.dumps(tokens))
        with pytest.raises(DataError, match=rf"shared_vocabulary\.json is damaged: {reason}"):
            vocabularies(tmp_path, config)


def test_rows_that_the_engine_requantizes_are_counted_once(tmp_path: Path) -> None:
    """The rows of all 8-bit matrices are counted. Rows of zeros stay unchanged, and aliases add no rows."""
    whole = np.array([[127, 1], [-127, 0], [0, 0]], np.int8)
    other = np.array([[126, 1], [-128, 0], [127, 127]], np.int8)
    vector = np.array([5, 6], np.int8)
    for matrices, text in (
        ({"f": FLOATS, "s": SHORTS, "v": vector}, ""),
        ({"a": whole, "v": vector}, "In int8, the engine uses the integers of the file unchanged."),
        ({"a": whole, "b": other, "f": FLOATS}, "In int8, the engine requantizes 2 of the 6 rows of weights."),
    ):
        aliases = {"c": "b"} if "b" in matrices else None
        assert rounding(written(tmp_path / "model.bin", matrices, aliases)) == text
