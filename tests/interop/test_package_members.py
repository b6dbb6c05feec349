"""Members and metadata of Argos packages, and shortlists over two vocabularies."""

import errno
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.interop import argos_package, model_kinds
from nmt_cli.interop.argos_package import metadata_of, unpack
from nmt_cli.interop.formats import content_key, firefox_pair, is_argos_package
from nmt_cli.interop.marian_lexicon import MAGIC, read_lexicon
from nmt_cli.interop.model_kinds import find_models
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

METADATA = json.dumps({"from_code": "en", "to_code": "de"}).encode()


def package(tmp_path: Path, kind: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    """Write a package; `__` in a name stands for a slash, and `_dot_` for a dot."""
    path = tmp_path / "a.argosmodel"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return path


def test_only_members_that_are_read_are_unpacked(tmp_path: Path) -> None:
    path = package(
        tmp_path, p__metadata_dot_json=METADATA, p__sentencepiece_dot_model=b"s", p__model__model_dot_bin=b"m",
        p__model__other=b"no", p__stanza__x__metadata_dot_json=b"no", model__model_dot_bin=b"no",
        p__model__target_vocabulary_dot_txt=b"t", p__model__config_dot_json=b"{}",
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    unpack(path, out)
    found = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert found == {
        "metadata.json": METADATA, "sentencepiece.model": b"s", "model/model.bin": b"m",
        "model/target_vocabulary.txt": b"t", "model/config.json": b"{}",
    }  # fmt: skip


def test_weights_are_not_read_for_a_description(tmp_path: Path) -> None:
    weights = b"weights" * 99
    path = package(tmp_path, zipfile.ZIP_STORED, p__metadata_dot_json=METADATA, p__model__model_dot_bin=weights)
    path.write_bytes(path.read_bytes().replace(weights, weights[:-1] + b"x"))
    assert metadata_of(path) == {"from_code": "en", "to_code": "de", "target_prefix": ""}
    [model] = find_models(tmp_path)
    assert (model.directions[0][:2], model.bytes, model.parameters) == (("en", "de"), path.stat().st_size, 0)
    with pytest.raises(DataError, match="damaged or not an Argos package"):
        unpack(path, tmp_path)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, r"it must have exactly one top-level folder with metadata\.json, but has 0"),
        ({"metadata_dot_json": METADATA}, r"one top-level folder with metadata\.json, but has 0"),
        ({"p__metadata_dot_json": METADATA, "q__metadata_dot_json": METADATA}, r"with metadata\.json, but has 2"),
        ({"p__metadata_dot_json": METADATA, "p__config_dot_json": b"", "p__..__x": b""}, "a file with the unsafe name"),
        ({"p__metadata_dot_json": b"1" * 21}, r"metadata\.json would have 21 bytes"),
    ],
)
def test_archives_that_are_no_packages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: Any, reason: str
) -> None:
    if "would have" in reason:
        monkeypatch.setattr(artefact, "MAX_JSON_BYTES", 20)
    with pytest.raises(DataError, match=rf"a\.argosmodel is damaged or not an Argos package: .*{reason}"):
        metadata_of(package(tmp_path, **members))


def test_each_kind_of_member_has_its_own_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "MAX_JSON_BYTES", 100)
    monkeypatch.setattr(argos_package, "MAX_MEMBERS", 3)
    for weights, other, fits in ((1000, 100, True), (30_000, 100, False), (1000, 101, False)):
        path = package(
            tmp_path, p__metadata_dot_json=METADATA, p__model__model_dot_bin=b"m" * weights,
            p__model__config_dot_json=b"c" * other,
        )  # fmt: skip
        if fits:
            assert metadata_of(path)["from_code"] == "en"
        else:
            with pytest.raises(DataError, match=r"(model\.bin would have 30,000|config\.json would have 101) bytes"):
                metadata_of(path)
    with pytest.raises(DataError, match="too many files"):
        metadata_of(package(tmp_path, p__metadata_dot_json=METADATA, a=b"", b=b"", c=b""))
    with pytest.raises(DataError, match="compressed in an unusual way"):
        metadata_of(package(tmp_path, zipfile.ZIP_BZIP2, p__metadata_dot_json=METADATA))


@pytest.mark.parametrize("name", ["from_code", "to_code", "target_prefix"])
def test_texts_of_metadata_are_bounded(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    for value, fits in (("x" * 100, True), ("x" * 101, False), ("a\x1b[1m", False), (None, False)):
        values = {"from_code": "en", "to_code": "de", "type": "translate", name: value}
        (folder / "metadata.json").write_text(json.dumps(values))
        if fits:
            assert metadata_of(folder)[name] == value
        else:
            with pytest.raises(DataError, match=rf"metadata\.json is damaged: {name} must be text of at most 100"):
                metadata_of(folder)


def test_packages_and_firefox_models_are_recognized_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.argosmodel").mkdir()
    assert not is_argos_package(tmp_path / "a.argosmodel")
    folder = tmp_path / "installed"
    (folder / "model").mkdir(parents=True)
    (folder / "metadata.json").write_bytes(METADATA)
    assert not is_argos_package(folder)
    key = content_key(folder)
    (folder / "model" / "model.bin").write_bytes(b"m")
    assert is_argos_package(folder)
    assert key != content_key(folder) == content_key(folder)
    (folder / "metadata.json").rename(folder / "other.json")
    assert not is_argos_package(folder)
    (folder / "other.json").rename(folder / "metadata.json")
    (folder / "model" / "model.bin").rename(folder / "model" / "other.bin")
    assert content_key(folder) != key
    assert [(each.kind, each.bytes) for each in find_models(tmp_path)] == []
    firefox = tmp_path / "firefox"
    firefox.mkdir()
    for name, data in (("lex.50.50.fren.s2t.bin", b"\xf5"), ("model.ende.intgemm.bin", (1).to_bytes(8, "little"))):
        (firefox / name).write_bytes(data + bytes(8))
    assert firefox_pair(firefox) == ("en", "de")
    (firefox / "sub").mkdir()
    (firefox / "sub" / "x").write_bytes(bytes(5))
    assert [(each.kind, each.bytes) for each in find_models(tmp_path)] == [("firefox", 9 + 16 + 5)]


def test_a_shortlist_over_two_vocabularies(tmp_path: Path) -> None:
    """Tokens list themselves only if both sides share a vocabulary. A list may contain the last token or all tokens."""
    offsets, entries = [0, 1, 1, 3], [3, 0, 2]
    header = struct.pack("<6Q", MAGIC, 0, 4, 9, len(offsets), len(entries))
    (tmp_path / "lex.bin").write_bytes(header + struct.pack(f"<{len(offsets)}Q{len(entries)}I", *offsets, *entries))
    source, target = [3, 1, 0, 2], [4, 1, 0, 2, 3]
    found = read_lexicon(tmp_path / "lex.bin", [source, target])
    assert (found.frequent.tolist(), found.ends.tolist(), found.targets.tolist()) == (
        [1, 2, 3, 4],
        [0, 0, 1, 3],
        [4, 2, 3],
    )
    shared = read_lexicon(tmp_path / "lex.bin", [target, target])
    assert shared.ends.tolist() == [0, 1, 3, 6, 7]
    assert shared.targets.tolist() == [1, 4, 2, 2, 3, 3, 4]


def test_a_model_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied", str(path / "model.json"))

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(model_kinds, "kind_of", fail)
    assert find_models(tmp_path) == []
    [line] = capsys.readouterr().err.splitlines()
    assert (
        f"{tmp_path / 'a'} is skipped: cannot create or open ({tmp_path / 'a'}/model.json): Permission denied" in line
    )
    assert "Errno" not in line
