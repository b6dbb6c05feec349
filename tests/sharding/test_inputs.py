"""The files that words on the command line name, and the names of their outputs."""

import gzip
from pathlib import Path

import pytest

from nmt_cli.sharding import inputs
from nmt_cli.system.errors import DataError, MissingError, UsageError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/c.txt", "a/d.txt", ".hidden", "a/.git/x", "a/b/e.en"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["b.txt"], ["b.txt"]),
        (["a/c.txt"], ["c.txt"]),
        (["a"], ["b/e.en", "c.txt", "d.txt"]),
        (["."], ["a/b/e.en", "a/c.txt", "a/d.txt", "b.txt"]),
        (["*/*.txt"], ["a/c.txt", "a/d.txt"]),
        (["a/*.txt", "b.txt"], ["b.txt", "c.txt", "d.txt"]),
        (["a/**/*.en"], ["b/e.en"]),
        (["**/*.en"], ["a/b/e.en"]),
        (["b.txt", "b.txt"], ["b.txt"]),
    ],
)
def test_files_directories_and_patterns(directory: Path, scheme: str, words: list[str], names: list[str]) -> None:
    found = inputs.find([f"{scheme}{directory}/{word}".removesuffix("/.") for word in words])
    assert [each.name for each in found] == names
    for each in found:
        with inputs.opened(each) as file:
            assert file.read().decode().endswith(each.name)
        assert each.bytes == len(Path(each.place.removeprefix("file://")).read_bytes())


@pytest.mark.parametrize("word", ["none", "*.none", "none/x", "file:///none/x", "a/.git"])
def test_a_word_that_names_no_file_is_refused(directory: Path, word: str) -> None:
    (directory / "a/.git/x").unlink()
    with pytest.raises(MissingError, match="matches no file"):
        inputs.find([word if "://" in word else str(directory / word)])


def test_a_pattern_may_begin_at_the_root(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs.glob, "glob", lambda *_, **__: [str(directory / "b.txt")])
    assert [each.name for each in inputs.find(["/*.txt"])] == [str(directory / "b.txt")[1:]]


def test_a_hidden_file_is_found_by_its_name(directory: Path) -> None:
    assert [each.name for each in inputs.find([str(directory / ".hidden")])] == [".hidden"]
    assert [each.name for each in inputs.find([str(directory / "a/.git")])] == ["x"]
    assert [each.name for each in inputs.find([str(directory / "a/.git/*")])] == ["x"]


def test_a_name_with_wildcards_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").touch()
    (tmp_path / "a1.txt").touch()
    assert [each.name for each in inputs.find([str(tmp_path / "a[1].txt")])] == ["a[1].txt"]


def test_two_files_need_two_outputs(directory: Path) -> None:
    (directory / "c.txt").touch()
    with pytest.raises(UsageError, match="would have the same output"):
        inputs.find([str(directory / "c.txt"), str(directory / "a/c.txt")])


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises((MissingError, UsageError), match="nowhere://"):
        inputs.find(["nowhere://bucket/a"])


@pytest.mark.parametrize(
    ("name", "data"), [("a.txt", gzip.compress(b"x", mtime=0)), ("a.gz", b"x\ny\n"), ("b.zst", b"no")]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"not plain text|truncated or corrupt"):
        with inputs.opened(inputs.find([str(tmp_path / name)])[0]) as file:
            file.read()
