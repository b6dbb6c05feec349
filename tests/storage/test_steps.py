"""Single steps of writing: syncing, cleaning up after an error, and sparing the files of others."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt_cli.storage import artefact
from nmt_cli.storage.artefact import MANIFEST, beside, locked, read_json, read_json_list, staged, verify
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208


def test_json_may_be_exactly_as_large_as_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for objects and for lists. Each reader refuses the other type."""
    file = tmp_path / "x.json"
    for read, right, other, kind in (
        (read_json, '{"a": 1}', "[1, 2]", "object"),
        (read_json_list, "[1, 2]", "{}", "list"),
    ):
        with pytest.raises(MissingError, match=r"x\.json is missing"):
            read(file)
        file.write_text(right)
        monkeypatch.setattr(artefact, "MAX_JSON_BYTES", len(right))
        assert read(file)
        monkeypatch.setattr(artefact, "MAX_JSON_BYTES", len(right) - 1)
        with pytest.raises(DataError, match=rf"x\.json is too large: the limit for JSON is {len(right) - 1} bytes"):
            read(file)
        monkeypatch.undo()
        for wrong in (other, "{", "[" * 100_000):
            file.write_text(wrong)
            with pytest.raises(DataError, match=rf"x\.json is damaged: it is not a JSON {kind}$"):
                read(file)
        file.unlink()
    assert artefact.MAX_JSON_BYTES == 32 << 20  # a vocabulary of a million tokens fits


def test_each_new_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "sync", synced := Mock())
    artefact.make_directory(tmp_path / "a" / "b")
    assert [call.args[0] for call in synced.call_args_list] == [tmp_path, tmp_path / "a"]
    synced.side_effect = OSError(errno.ENOSPC, "No space left")
    with pytest.raises(OSError, match="No space left"):
        artefact.make_directory(tmp_path / "c")
    with pytest.raises(OutputError, match=r"^cannot create /proc/none/x: No such file or directory\. Choose another"):
        artefact.make_directory(Path("/proc/none/x"))


def test_a_new_file_never_replaces_another_and_an_error_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before = tmp_path / "x", descriptors()
    artefact.write_file(file, b"1")
    with pytest.raises(FileExistsError):
        artefact.write_file(file, b"2")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        artefact.replace_file(file, b"3")
    assert ([*tmp_path.iterdir()], file.read_bytes()) == ([file], b"1")
    assert descriptors() == before


def test_names_beside_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert beside(Path("a/b"), ".x-", "-y") == Path("a/.x-b-y")
    assert beside(Path(), ".x-") == tmp_path.with_name(f".x-{tmp_path.name}")
    first, second = artefact.temporary(tmp_path / "a"), artefact.temporary(tmp_path / "a")
    assert first != second
    assert all(artefact.TEMPORARY.fullmatch(each.name) for each in (first, second))


def test_a_link_in_the_place_of_the_old_artefact_is_not_followed(tmp_path: Path) -> None:
    for name in ("thing", "other"):
        with staged(tmp_path / name, "thing", {}):
            pass
    (tmp_path / ".old-thing").symlink_to(tmp_path / "other")
    assert artefact.present(tmp_path / "thing")
    assert (tmp_path / ".old-thing").is_symlink()
    shutil.rmtree(tmp_path / "thing")
    assert not artefact.present(tmp_path / "thing")
    assert verify(tmp_path / "other", "thing")
    (tmp_path / ".old-thing").unlink()
    (tmp_path / ".old-thing" / MANIFEST).mkdir(parents=True)  # a directory in its place
    assert not artefact.present(tmp_path / "thing")
    with staged(tmp_path / "thing", "thing", {}):
        pass  # a new artefact that replaces no old one
    assert (tmp_path / ".old-thing" / MANIFEST).is_dir()


def test_a_directory_is_renamed_before_its_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(artefact.shutil, "rmtree", removed := Mock())
    artefact.remove_tree(tmp_path / "a")
    [trash] = tmp_path.iterdir()
    assert artefact.TEMPORARY.fullmatch(trash.name)
    assert removed.call_args.args == (trash,)
    artefact.remove_tree(tmp_path / "none")


def test_a_directory_that_appears_beside_a_new_artefact_is_kept(tmp_path: Path) -> None:
    def make(steps: int, aside: bool) -> None:
        with staged(tmp_path / "thing", "thing", {"steps": steps}, overwrite=True):
            if aside:
                (tmp_path / ".old-thing").mkdir()
                (tmp_path / ".old-thing" / "thesis").touch()

    make(1, False)
    with pytest.raises(OutputError, match=r"\.old-thing exists, but nmt did not create it"):
        make(2, True)
    assert (tmp_path / ".old-thing" / "thesis").exists()
    assert verify(tmp_path / "thing", "thing")["steps"] == 1


def test_a_manifest_is_checked_before_its_files(tmp_path: Path) -> None:
    with staged(tmp_path / "thing", "thing", {}):
        pass
    manifest = read_json(tmp_path / "thing" / MANIFEST)
    wrong = {"files": {"../thing": {"bytes": 0, "sha256": "0" * 64}}}
    (tmp_path / "thing" / MANIFEST).write_bytes(artefact.json_bytes(manifest | wrong))
    with pytest.raises(DataError, match=r"manifest\.json is damaged: files must be a name inside the directory"):
        verify(tmp_path / "thing", "thing")


def test_another_process_may_move_the_old_artefact_back_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with staged(tmp_path / "thing", "thing", {}):
        pass
    (tmp_path / "thing").rename(tmp_path / ".old-thing")
    monkeypatch.setattr(Path, "rename", Mock(side_effect=FileNotFoundError))
    artefact.restore(tmp_path / "thing")


@pytest.mark.parametrize("code", [errno.EEXIST, errno.ENOTEMPTY, errno.EACCES])
def test_a_commit_is_retried_if_a_reader_has_moved_the_old_artefact_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """File systems report a directory in the way with one of two codes. Other errors leave the old artefact."""
    with staged(tmp_path / "thing", "thing", {"steps": 1}):
        pass
    rename, failed = Path.rename, list[Path]()

    def fail_once(path: Path, target: Path) -> Path:
        if path.name.startswith(".tmp") and target.name == "thing" and not failed:
            failed.append(path)
            raise OSError(code, os.strerror(code))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)

    def make() -> None:
        with staged(tmp_path / "thing", "thing", {"steps": 2}, overwrite=True) as stage:
            artefact.write_file(stage / "a", b"1")

    if code == errno.EACCES:
        with pytest.raises(PermissionError):
            make()
        assert (tmp_path / "thing" / MANIFEST).is_file()
    else:
        make()
    assert verify(tmp_path / "thing", "thing")["steps"] == (1 if code == errno.EACCES else 2)
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_a_lock_file_is_never_a_link_and_follows_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / artefact.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"), locked(tmp_path / "a", "the run"):
        pass
    assert not (tmp_path / "precious").exists()
    old = os.umask(0o002)
    try:
        with locked(tmp_path / "b", "the run"):
            file = tmp_path / "b" / artefact.LOCK
            assert stat.S_IMODE(file.stat().st_mode) == 0o664
            assert file.read_text().startswith(f"host {artefact.HOST}, process {os.getpid()}, since 20")
    finally:
        os.umask(old)
    for error in (PermissionError(errno.EACCES, "locked"), BlockingIOError(errno.EAGAIN, "locked")):
        monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=error))
        with pytest.raises(BusyError, match=r"^the run .*/b is in use by host .* since 20.*\. Wait or choose another"):
            with locked(tmp_path / "b", "the run"):
                pass


def test_files_in_deep_directories_are_synced_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[str](), artefact.sync
    monkeypatch.setattr(artefact, "sync", lambda path: synced.append(path.name) or sync(path))

    def make() -> Any:
        with staged(tmp_path / "new" / "x", "thing", {}) as stage:
            (stage / "b" / "c").mkdir(parents=True)
            (stage / "b" / "c" / "d").write_bytes(b"1")
            (stage / "a").write_bytes(b"22")
            synced.clear()
        return verify(tmp_path / "new" / "x", "thing")["files"]

    assert {name: each["bytes"] for name, each in make().items()} == {"a": 2, "b/c/d": 1}
    assert synced[:3] == ["a", "d", MANIFEST]
    assert synced[3].startswith(".tmp-nmt-x-")
    assert synced[4:] == ["new"]
    (tmp_path / "new" / "x" / "a").unlink()
    (tmp_path / "new" / "x" / "a").mkdir()
    with pytest.raises(DataError, match="a is damaged or missing"):
        verify(tmp_path / "new" / "x", "thing", content=False)
