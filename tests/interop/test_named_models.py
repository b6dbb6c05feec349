"""Names of models: files that are recognized, names on the hub, keys in the cache, and imports in another process."""

import gzip
import json
import os
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from tiny_model import make_model

from nmt_cli.interop import formats, hub, importing, named_models
from nmt_cli.interop.foreign import foreign_recipe
from nmt_cli.interop.formats import content_key, files_like, firefox_pair, read_unpacked
from nmt_cli.interop.importing import import_cached, import_model
from nmt_cli.interop.model_kinds import find_models, list_models
from nmt_cli.interop.named_models import model_directories
from nmt_cli.system.errors import BusyError, DataError, DownloadError, MissingError, NmtError

MARIAN = (1).to_bytes(8, "little")


def test_languages_are_those_of_the_first_binary_model(tmp_path: Path) -> None:
    """Files are ordered by name. Directories, other files, and names without two codes of two letters do not count."""
    for name, data in (
        ("a.xxyy.bin", b"other"),
        ("model.alphas.bin", MARIAN),
        ("model.fren.bin", MARIAN),
        ("model.ende.bin", MARIAN),
    ):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "a.aabb.bin").mkdir()
    assert firefox_pair(tmp_path) == ("en", "de")
    assert [file.name for file in files_like(tmp_path, "*.bin")] == [
        *("a.xxyy.bin", "model.alphas.bin", "model.ende.bin", "model.fren.bin")
    ]
    for name in ("model.fren.bin", "model.ende.bin"):
        (tmp_path / name).unlink()
    assert firefox_pair(tmp_path) is None
    assert formats.has_marian_binary(tmp_path)


def test_an_unpacked_file_may_have_twenty_times_the_size(tmp_path: Path) -> None:
    file, noise = tmp_path / "model.bin.gz", random.Random(1).randbytes(2000)
    zeros = 40_000
    while len(data := noise + bytes(zeros)) < 20 * len(packed := gzip.compress(data, mtime=0)):
        zeros += 20 * len(packed) - len(data)
    assert len(data) == 20 * len(packed)
    file.write_bytes(packed)
    assert read_unpacked(file) == data
    data += bytes(200)
    file.write_bytes(gzip.compress(data, mtime=0))
    assert len(data) > 20 * file.stat().st_size
    with pytest.raises(DataError, match=r"bin\.gz is damaged: it unpacks to more than 20 times its size"):
        read_unpacked(file)
    (tmp_path / "plain").write_bytes(b"x")
    assert read_unpacked(tmp_path / "plain") == b"x"


def test_the_key_in_the_cache_follows_from_names_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It covers the files of a directory and its subdirectory `model` in any order, but no times and no other files."""
    (tmp_path / "model").mkdir()
    first, second = tmp_path / "a", tmp_path / "model" / os.fsdecode(b"\xff")
    for file in (first, second):
        file.write_bytes(b"1")
    keys, iterdir = [content_key(tmp_path)], Path.iterdir
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda path: reversed([*iterdir(path)]))
        assert content_key(tmp_path) == keys[0]
    for change in (
        lambda: first.write_bytes(b"2"),
        lambda: second.write_bytes(b"2"),
        lambda: first.rename(tmp_path / "b"),
        lambda: second.rename(tmp_path / "model" / "c"),
    ):
        change()
        keys.append(content_key(tmp_path))
    assert len({*keys}) == 5
    assert all(key.startswith("local--") and len(key) == 39 for key in keys)
    copy = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy")))
    (copy / "model" / "deep").mkdir()
    (copy / "model" / "deep" / "x").touch()
    assert content_key(copy) == keys[-1]
    for name in ("x", "y"):
        (copy / name).write_bytes(b"same")
    assert content_key(copy / "x") != content_key(copy / "y")


def test_local_models_of_other_toolkits_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other directories are opened as they are. Other names are names on the hub, except below runs/ or models/."""
    monkeypatch.chdir(tmp_path)
    for name, data in (("ct2/model.bin", b"\6\0\0\0"), ("firefox/model.xx.bin", MARIAN), ("own/model.json", b"")):
        file = tmp_path / name
        file.parent.mkdir()
        file.write_bytes(data)
    (tmp_path / "a.argosmodel").touch()
    monkeypatch.setattr(named_models, "imported", lambda model: ("imported", model))
    monkeypatch.setattr(importing, "import_cached", lambda name: ("hub", name))
    for name, found in (
        ("ct2", ("imported", Path("ct2"))),
        ("firefox", ("imported", Path("firefox"))),
        ("a.argosmodel", ("imported", Path("a.argosmodel"))),
        ("own", Path("own")),
        ("own/nothing", Path("own/nothing")),
        ("owner/name", ("hub", "owner/name")),
        ("owner/name@refs/pr/1", ("hub", "owner/name@refs/pr/1")),
        ("runs/x", Path("runs/x")),
        ("models/x", Path("models/x")),
        ("a/b/c", Path("a/b/c")),
    ):
        assert model_directories([Path(name)]) == (found,), name


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("owner/name", True), ("a-b/c.d_e", True), ("owner/name@v1.0", True), ("owner/name@refs/pr/1", True),
        (".a/b", False), ("./a", False), ("a/b/c", False), ("a", False), ("a/b@", False), ("a/b c", False),
        ("../a", False), ("/a", False), ("a/", False),
    ],
)  # fmt: skip
def test_names_on_the_hub(name: str, valid: bool, tmp_path: Path) -> None:
    assert bool(hub.HUB_NAME.fullmatch(name)) == valid
    if not valid and name != "../a":
        with pytest.raises(MissingError, match="To import from the hub, pass OWNER/NAME"):
            import_model(name, tmp_path / "out")


def test_a_cached_import_has_the_name_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importing, "import_model", Mock())
    assert import_cached("owner/opus@refs/pr/1").name == "owner--opus--refs--pr--1"


KINDS = [
    (65, b"log\nnmt: error: x is damaged\n", DataError, "x is damaged"),
    (66, b"nmt: warning: a\nnmt: error: no file: error: b", MissingError, "no file: error: b"),
    (69, b"nmt: error: no network\n", DownloadError, "no network"),
    (75, b"nmt: error: in use\n", BusyError, "in use"),
    (99, b"nmt: error: strange \xff\n", DataError, "strange \ufffd"),
    (-9, b"", DataError, "the import of m failed with code -9"),
]


@pytest.mark.parametrize(("code", "stderr", "kind", "message"), KINDS)
def test_a_failed_import_in_another_process_is_the_same_error_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, stderr: bytes, kind: type[NmtError], message: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").touch()
    run = Mock(return_value=SimpleNamespace(returncode=code, stderr=stderr))
    monkeypatch.setattr(named_models.subprocess, "run", run)
    with pytest.raises(kind) as caught:
        named_models.imported(Path("m"))
    assert (type(caught.value), str(caught.value)) == (kind, message)


def test_another_process_imports_a_model_with_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is imported once, and the log is passed on. If a third process was faster, its import is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-m").touch()
    out = tmp_path / "cache" / "nmt" / "models" / content_key(Path("-m"))

    def run(*_: Any, **__: Any) -> Any:
        out.mkdir(parents=True)
        (out / "manifest.json").write_text("{}")
        return SimpleNamespace(returncode=73, stderr=b"nmt: warning: first\nlast\n")

    monkeypatch.setattr(named_models.subprocess, "run", started := Mock(side_effect=run))
    assert named_models.imported(Path("-m")) == out
    assert named_models.imported(Path("-m")) == out
    command = [sys.executable, "-P", "-m", "nmt_cli", "import", "--out", str(out), "--", "-m"]
    environment = os.environ | {"PYTHONPATH": f"{named_models.PACKAGE}{os.pathsep}/before"}
    assert started.call_args_list == [call(command, stderr=-1, env=environment, check=False)]
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["first", "last"]


def test_nmt_model_is_used_only_if_no_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_MODEL", "runs/x")
    assert model_directories([]) == (Path("runs/x"),)
    assert model_directories([Path("runs/y")]) == (Path("runs/y"),)
    monkeypatch.setenv("NMT_MODEL", "")
    assert model_directories([]) == ()


@pytest.mark.parametrize(
    ("card", "found"),
    [
        ("---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("\n---  \nlicense: mit\n--- \t", "mit"),
        ("---\nlicense: mit\n---\nlicense: gpl\n---\n", "mit"),
        ("text\n---\nlicense: mit\n---\n", "not named; see its page on the hub"),
        ("---\nlicense: mit\n----\n", "not named; see its page on the hub"),
        ('---\nlicense: "a\\e[2J"\n---\n', r"a\x1b[2J"),
    ],
)
def test_licenses_in_the_front_matter_of_a_card(tmp_path: Path, card: str, found: str) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert hub.license_of(tmp_path) == found


def test_a_failed_download_names_the_local_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "runs" / "mine")
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=ValueError(" no name \nand more")))
    with pytest.raises(DownloadError) as caught:
        hub.download("owner/name")
    assert str(caught.value).startswith(
        "no directory owner/name here, and the model cannot be downloaded from the hub: no name . "
        "Models here: runs/mine"
    )
    assert "\n" not in str(caught.value)


def test_models_of_nmt_0_1_are_listed_and_corpora_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model directories of nmt 0.1 have a recipe but no model.json."""
    model = make_model(tmp_path / "run")
    [described] = find_models(tmp_path)
    manifest = json.loads((model / "manifest.json").read_text())
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "manifest.json").write_text(json.dumps({**manifest, "kind": "corpus"}))
    del manifest["files"]["model.json"]
    (model / "manifest.json").write_text(json.dumps(manifest))
    (model / "model.json").unlink()
    [found] = find_models(tmp_path)
    assert (found.path, found.directions, found.parameters) == (
        *(tmp_path / "run", described.directions, described.parameters),
    )
    assert capsys.readouterr().err == ""
    with pytest.raises(MissingError, match=r"^no model in runs/ or models/\."):
        list_models([])


def test_a_binary_model_of_marian_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may even be model.bin, like CTranslate2's weights. Beside a config.json, the file counts as CTranslate2's."""
    (tmp_path / "model.bin").write_bytes(MARIAN + bytes(8))
    kinds = zip(importing.FORMATS, ("argos", "marian", "ctranslate2"), strict=True)
    formats_read = [(matches, Mock(side_effect=LookupError(name))) for (matches, _), name in kinds]
    monkeypatch.setattr(importing, "FORMATS", formats_read)
    with pytest.raises(LookupError, match="marian"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").touch()
    with pytest.raises(LookupError, match="ctranslate2"):
        import_model(tmp_path, tmp_path / "out")


def test_the_error_for_an_invalid_recipe_names_its_source() -> None:
    with pytest.raises(DataError, match=r"/there.*num_layers.*\. Such a model cannot be imported$"):
        foreign_recipe({"model": {"num_layers": 0}}, "/there")
