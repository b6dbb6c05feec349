"""Artefacts are complete or absent, and readers notice every changed byte."""

import json
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab import held

from nmt_cli import __version__
from nmt_cli.storage import artefact
from nmt_cli.storage.artefact import (
    MANIFEST,
    digest,
    locked,
    read_json,
    remove_tree,
    replace_file,
    staged,
    verify,
    write_file,
)
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError


def make(target: Path, steps: int, **options: bool) -> None:
    """Write a small artefact of kind "thing"."""
    with staged(target, "thing", {"steps": steps}, **options) as stage:
        (stage / "deep").mkdir()
        (stage / "deep" / "b.txt").write_text("text\n")
        write_file(stage / "a.bin", bytes(range(256)))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make(tmp_path / "thing", 3)
    return tmp_path / "thing"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_artefact_describes_itself(made: Path) -> None:
    manifest = verify(made, "thing")
    assert (manifest["format"], manifest["kind"], manifest["nmt"], manifest["steps"]) == (1, "thing", __version__, 3)
    assert sorted(manifest["files"]) == ["a.bin", "deep/b.txt"]
    sha256 = "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    assert manifest["files"]["a.bin"] == {"bytes": 256, "sha256": sha256}
    assert names(made.parent) == ["thing"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_artefact(made: Path, error: type[BaseException]) -> None:
    for target in (made, made.parent / "new"):
        with pytest.raises(error, match="on purpose"), staged(target, "thing", {}, overwrite=True) as stage:  # noqa: PT012
            (stage / "half").write_text("written")
            raise error("on purpose")
    with pytest.raises(ValueError, match="JSON"), staged(made, "thing", {"loss": float("nan")}, overwrite=True):
        pass
    assert names(made.parent) == ["thing"]
    assert verify(made, "thing")["steps"] == 3


def test_an_existing_artefact_is_only_replaced_with_overwrite(made: Path) -> None:
    with pytest.raises(OutputError, match="exists already"), staged(made, "thing", {}):
        pytest.fail("work has started")
    with pytest.raises(OutputError, match="is a directory"):
        replace_file(made, b"")
    entries = {"steps": 1}
    with staged(made, "thing", entries, overwrite=True) as stage:
        write_file(stage / "new", b"new")
        entries["pairs"] = 7  # entries added inside the block are in the manifest too
        assert stage.parent == made.parent, "not on the same file system"
        assert (made / "a.bin").exists(), "the old artefact was removed before the new one was complete"
    assert (names(made), names(made.parent)) == ([MANIFEST, "new"], ["thing"])
    assert verify(made, "thing")["pairs"] == 7


def test_writing_a_file_creates_its_directory(tmp_path: Path) -> None:
    replace_file(tmp_path / "new" / "file", b"bytes")
    assert (tmp_path / "new" / "file").read_bytes() == b"bytes"


def test_two_writers_of_one_artefact_do_not_mix_their_files(tmp_path: Path) -> None:
    target = tmp_path / "x"
    with pytest.raises(OutputError, match="another process"), staged(target, "thing", {"who": "slow"}) as stage:  # noqa: PT012
        write_file(stage / "slow", b"1")
        with staged(target, "thing", {"who": "fast"}) as other:
            write_file(other / "fast", b"1")
    assert verify(target, "thing")["who"] == "fast"
    assert (names(target), names(tmp_path)) == (["fast", MANIFEST], ["x"])


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o002, 0o664), (0o077, 0o600)])
def test_files_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        with staged(tmp_path / "x", "thing", {}) as stage:
            write_file(stage / "private", b"1")
            (stage / "private").chmod(0o600)  # as safetensors does
    finally:
        os.umask(old)
    for name in ("private", MANIFEST):
        assert stat.S_IMODE((tmp_path / "x" / name).stat().st_mode) == mode


def test_json_is_indented_utf8() -> None:
    assert artefact.json_bytes({"a": "é", "b": [1]}) == '{\n "a": "é",\n "b": [\n  1\n ]\n}\n'.encode()


@pytest.mark.parametrize("content", [True, False])
def test_changed_missing_short_and_long_files_are_errors(made: Path, content: bool) -> None:
    file, data = made / "a.bin", bytes(range(256))
    changed = [b"\1" + data[1:], data[:-1] + b"\xfe"]
    for other in (data[:-1], data + b"x", b"", None, *(changed if content else [])):
        file.unlink() if other is None else file.write_bytes(other)
        with pytest.raises(DataError, match=r"a\.bin is damaged"):
            verify(made, "thing", content=content)
    file.write_bytes(changed[0])
    verify(made, "thing", content=False)  # sizes alone do not reveal it


def test_a_missing_manifest_or_one_of_another_kind_or_format_is_refused(made: Path) -> None:
    with pytest.raises(DataError, match="holds a thing of format 1, not a corpus"):
        verify(made, "corpus")
    (made / MANIFEST).write_text(json.dumps({**read_json(made / MANIFEST), "format": 2}))
    with pytest.raises(DataError, match="of format 2, not"):
        verify(made, "thing")
    for directory in (made.parent, made.parent / "none"):
        with pytest.raises(MissingError, match=r"manifest\.json is missing"):
            verify(directory, "thing")


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b'{"a": 1', b'{"a": "\xff"}', b"\x80\x04\x95", b'{"a":' * 100_000])
def test_a_file_without_a_json_object_is_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        read_json(tmp_path / "x.json")


def test_json_may_have_as_many_bytes_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "MAX_JSON_BYTES", 8)
    (tmp_path / "x.json").write_bytes(b'{"a": 1}')
    assert read_json(tmp_path / "x.json") == {"a": 1}
    (tmp_path / "x.json").write_bytes(b'{"a": 1}\n')
    with pytest.raises(DataError, match=r"x\.json is too large: the limit for JSON is 8 bytes"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("existing", [True, False])
def test_a_failed_replacement_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    if existing:
        (tmp_path / "file").write_bytes(b"old")

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artefact, "sync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"] * existing


def test_digests_ignore_the_order_of_keys() -> None:
    one, other = {"a": [1, 2.5], "é\u2028": None}, {"é\u2028": None, "a": [1, 2.5]}
    assert digest(one) == digest(other) != digest({"a": [1, 2.5]})


def test_only_leftovers_of_ended_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(process: int, _: int) -> None:
        if process != os.getpid():
            raise PermissionError if process == 1 else ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    host, dead, mark = artefact.HOST, 12345, "0123456789abcdef"
    for name in (f".tmp-nmt-x-{host}-{dead}-{mark}", f".tmp-nmt-a\nb-{host}-{dead}-{mark}"):
        (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / f".tmp-nmt-f-{host}-{dead}-{mark}").write_text("x")
    (tmp_path / f".tmp-nmt-link-{host}-{dead}-{mark}").symlink_to(tmp_path / "model")
    others = [f".tmp-nmt-x-{host}-{os.getpid()}-{mark}", f".tmp-nmt-x-{host}-1-{mark}"]
    others += [f".tmp-nmt-x-elsewhere-{dead}-{mark}", "model", "tmp-x-1-2", f"x.tmp-{dead}-ab"]
    # similar names, chosen by other programs
    others += [f".tmp-x-{host}-{dead}-{mark}", f".tmp-nmt-x-{host}-{dead}-ab12", f".tmp-nmt-x-{host}-{dead}-{mark}.bak"]
    others += [f".tmp-a-{host}-x-y", f".tmp-nmt-a-{host}-x-{mark}", f".tmp-nmt-a-{host}-{'9' * 30}-{mark}"]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "work").write_text("user data")
    make(tmp_path / "made", 1)
    assert names(tmp_path) == sorted([*others, "made"])
    assert all((tmp_path / name / "work").exists() for name in others)


def test_directories_that_nmt_did_not_make_are_never_replaced_or_removed(made: Path) -> None:
    """This holds for reading and writing, at the artefact's path and at the path beside it that nmt uses."""
    aside = made.parent / ".old-thing"
    for manifest in (None, "{}", "[]", json.dumps({"name": "of another tool", "files": {}})):
        aside.mkdir(exist_ok=True)
        (aside / "thesis.txt").write_text("two years of work")
        if manifest:
            (aside / MANIFEST).write_text(manifest)
        assert artefact.present(made)
        verify(made, "thing")
        with pytest.raises(OutputError, match=r"\.old-thing exists, but nmt did not create it"):
            make(made, 4, overwrite=True)
        assert not artefact.present(made.parent / "none")
        assert (verify(made, "thing")["steps"], names(made.parent)) == (3, [".old-thing", "thing"])
        assert (aside / "thesis.txt").read_text() == "two years of work"
    make(made.parent / "another", 7)
    remove_tree(aside)
    aside.symlink_to("another")
    assert artefact.present(made)
    with pytest.raises(OutputError, match=r"\.old-thing exists, but nmt did not create it"):
        make(made, 4, overwrite=True)
    assert verify(aside, "thing")["steps"] == 7, "the user's link stays"
    (made / MANIFEST).unlink()
    with pytest.raises(OutputError, match="exists, but nmt did not create it, so it is not replaced"):
        make(made, 4, overwrite=True)
    assert (made / "a.bin").exists()
    remove_tree(aside)
    make(made, 4, overwrite=True, own_name=True)  # only nmt gives this name
    assert verify(made, "thing")["steps"] == 4


def test_an_interrupted_replacement_is_finished_by_the_next_reader_or_writer(made: Path) -> None:
    """The old artefact is removed if the new one exists, and moved back otherwise."""
    aside = made.parent / ".old-thing"
    for act in (artefact.present, artefact.restore, lambda target: verify(target, "thing")):
        shutil.copytree(made, aside)
        act(made)
        assert (names(made.parent), verify(made, "thing")["steps"]) == (["thing"], 3)
        made.rename(aside)
        act(made)
        assert (names(made.parent), verify(made, "thing")["steps"]) == (["thing"], 3)
    made.rename(aside)
    with pytest.raises(OutputError, match="exists already"):
        make(made, 4)


def test_a_link_to_an_artefact_stays_and_its_target_is_replaced(made: Path, tmp_path: Path) -> None:
    link = tmp_path / "run" / "model"
    link.parent.mkdir()
    link.symlink_to(Path("..") / "thing")
    make(link, 4, overwrite=True)
    assert (link.is_symlink(), verify(link, "thing")["steps"], verify(made, "thing")["steps"]) == (True, 4, 4)
    assert (names(link.parent), names(tmp_path)) == (["model"], ["run", "thing"])
    made.rename(tmp_path / ".old-thing")  # as after a kill between the two renames
    assert artefact.present(link)
    remove_tree(link)
    assert (names(link.parent), verify(made, "thing")["steps"]) == ([], 4)


def test_one_process_at_a_time_locks_a_directory(tmp_path: Path) -> None:
    with locked(tmp_path / "run", "the run"):
        pass  # an earlier holder, which the error must not name
    with held(tmp_path / "run") as holder:
        with pytest.raises(BusyError, match=rf"the run .*run is in use by host \S+, process {holder}, since"):
            with locked(tmp_path / "run", "the run"):
                pytest.fail("locked twice")
    with locked(tmp_path / "run", "the run"):
        pass


def test_directories_that_a_process_may_have_locked(tmp_path: Path) -> None:
    for name in ("empty", "held", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "held" / artefact.LOCK).touch()
    (tmp_path / "held" / "work").touch()
    (tmp_path / "full" / "work").touch()
    found = {name: artefact.was_locked(tmp_path / name) for name in ("empty", "held", "full", "gone", "full/work")}
    assert found == {"empty": True, "held": True, "full": False, "gone": True, "full/work": False}


def test_free_space_is_measured_at_the_nearest_existing_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Path]()
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=1_999_999_999, total=9)
    )
    assert [artefact.free_megabytes(path) for path in (tmp_path, tmp_path / "a" / "b")] == [1999, 1999]
    assert asked == [tmp_path] * 2


def test_a_file_where_a_directory_must_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=f"cannot create {path}: .*Choose another path"):
            artefact.make_directory(path)
    artefact.make_directory(tmp_path / "new" / "deep")
    artefact.make_directory(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
