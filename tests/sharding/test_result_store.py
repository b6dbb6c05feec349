"""Files that appear in one step in a directory that workers share."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.sharding.store import Directory
from nmt_cli.system.errors import OutputError


@pytest.mark.parametrize("links", [True, False])
def test_one_of_many_creates_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Without hard links, this holds only if the workers do not begin at the same moment."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    made = [Directory(tmp_path, "parts").create("a/job", b"%d" % number) for number in range(3)]
    assert made == [True, False, False]
    assert (tmp_path / "a/job").read_bytes() == b"0"
    assert not [*(tmp_path / "parts").iterdir()]


@pytest.mark.parametrize("method", ["create", "claim"])
def test_workers_at_once_create_one_file(tmp_path: Path, method: str) -> None:
    start, made = threading.Barrier(8), list[bool]()

    def work() -> None:
        store = Directory(tmp_path, "parts")
        start.wait()
        made.append(getattr(store, method)("a/job", b"x" * 1000))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(made) == [False] * 7 + [True]
    assert (tmp_path / "a/job").read_bytes() == b"x" * 1000


def test_a_directory_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="a is a directory"):
        Directory(tmp_path, "parts").replace("a", b"x")
    assert not [*(tmp_path / "parts").iterdir()]


def test_leftovers_of_ended_processes_are_removed(tmp_path: Path) -> None:
    store = Directory(tmp_path, "parts")
    own = store.part()
    own.touch()
    ended = own.with_name(own.name.replace(f"-{os.getpid()}-", "-4194303-"))
    ended.touch()
    Directory(tmp_path, "parts").remove_leftovers()
    assert [*own.parent.iterdir()] == [own]
