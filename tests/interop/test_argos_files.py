"""Argos packages: their members and limits, and the files of an exported package."""

import errno
import json
import warnings
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from nmt_cli.interop import argos_export, argos_package
from nmt_cli.interop.argos_export import prepare_package, write_archive
from nmt_cli.interop.argos_files import read_argos
from nmt_cli.interop.argos_package import metadata_of, unpack
from nmt_cli.system.errors import DataError, MissingError, OutputError


def package(path: Path, *names: str, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    metadata = json.dumps({"from_code": "en", "to_code": "de"})
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", kind) as archive:
        warnings.simplefilter("ignore")  # zipfile warns of a second member with the same name
        for name in ("p/metadata.json", *names):
            archive.writestr(name, metadata)
    return path


def test_every_file_of_a_package_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the error does not call the package damaged."""
    vocabularies = [f"model/{side}_vocabulary" for side in ("shared", "source", "target")]
    names = ["sentencepiece.model", "bpe.model", "model/model.bin", "model/config.json"]
    names += [f"{name}.{end}" for name in vocabularies for end in ("json", "txt")]
    path = package(tmp_path / "a.argosmodel", *(f"p/{name}" for name in names), "p/other..name")
    (tmp_path / "out").mkdir()
    unpack(path, tmp_path / "out")
    found = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.*")}
    assert found == {"metadata.json", *names}
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(argos_package.shutil, "copyfileobj", Mock(side_effect=full))
    (tmp_path / "full").mkdir()
    with pytest.raises(OSError, match="No space left") as caught:
        unpack(path, tmp_path / "full")
    assert caught.value is full


def test_packages_with_too_many_or_wrong_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.argosmodel"
    monkeypatch.setattr(argos_package, "MAX_MEMBERS", 3)
    assert metadata_of(package(path, "p/a", "p/b"))["to_code"] == "de"
    for names in (("p/a", "p/b", "p/c"), ("p/a", "p/a")):
        with pytest.raises(DataError, match="it has too many files, or two with the same name"):
            metadata_of(package(path, *names))
    data = bytearray(package(path).read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"metadata\.json is encrypted, or compressed in an unusual way"):
        metadata_of(path)
    package(path, "p/sentencepiece.model")
    with pytest.raises(MissingError, match=r"the package has no model/model\.bin"):
        read_argos(path)


def test_an_exported_package_has_language_codes_names_and_the_prefix(tmp_path: Path) -> None:
    """argostranslate does not end sources with EOS, so config.json must tell CTranslate2 to do it."""
    for number, (src, tgt, prefix, codes, names) in enumerate(
        (
            ("pt-BR", "zh-TW", "", ("pb", "zt"), ("Portuguese (Brazil)", "Chinese (Taiwan)")),
            ("de_DE", "fr", ">>x<<", ("de", "fr"), None),
        )
    ):
        folder = tmp_path / str(number) / "translate"
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "tokenizer.model").write_bytes(b"spm")
        (folder / "model" / "config.json").write_text('{"b": 1, "add_source_eos": false}')
        prepare_package(folder, src, tgt, prefix)
        metadata = json.loads((folder / "metadata.json").read_text())
        version = metadata.pop("made_by")
        from_name, to_name = metadata.pop("from_name"), metadata.pop("to_name")
        assert version.startswith("nmt-cli ")
        assert from_name != to_name
        assert metadata == {
            "package_version": "1.0", "argos_version": "1.9", "type": "translate", "from_code": codes[0],
            "to_code": codes[1], **({"target_prefix": prefix} if prefix else {}),
        }  # fmt: skip
        assert from_name.startswith("Portuguese" if names else "German")
        assert to_name.startswith("Chinese" if names else "French")
        assert json.loads((folder / "model" / "config.json").read_text()) == {"b": 1, "add_source_eos": True}
        assert (folder / "sentencepiece.model").read_bytes() == b"spm"
        assert not (folder / "model" / "tokenizer.model").exists()


def test_an_archive_appears_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "translate", tmp_path / "a.argosmodel"
    (folder / "model").mkdir(parents=True)
    for name in ("b", "model/a"):
        (folder / name).write_bytes(bytes(900))
    write_archive(folder, out)
    with zipfile.ZipFile(out) as archive:
        assert archive.namelist() == ["translate/b", "translate/model/a"]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    before = out.read_bytes()
    with pytest.raises(OutputError, match=r"another process has created \S*a\.argosmodel"):
        write_archive(folder, out)
    monkeypatch.setattr(argos_export.artefact, "sync", Mock(side_effect=OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_archive(folder, tmp_path / "b.argosmodel")
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.argosmodel", "translate"]
