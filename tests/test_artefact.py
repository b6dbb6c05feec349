"""Artefacts appear whole or not at all, and no changed byte gets past a loader."""

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli import __version__, artefact
from nmt_cli.artefact import (
    MANIFEST,
    clear_temporaries,
    digest,
    json_bytes,
    locked,
    read_json,
    remove_tree,
    replace_file,
    staged,
    verify,
    write_file,
)
from nmt_cli.errors import BusyError, DataError, MissingError, OutputError


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A small artefact of kind "thing"."""
    target = tmp_path / "thing"
    with staged(target, "thing", {"steps": 3}) as stage:
        (stage / "a.bin").write_bytes(bytes(range(256)))
        (stage / "deep").mkdir()
        (stage / "deep" / "b.txt").write_text("text\n")
        (stage / "empty").write_bytes(b"")
    return target


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".tmp-")]


# --- staged ---------------------------------------------------------------------------------------------------------


def test_an_artefact_describes_itself(made: Path) -> None:
    manifest = verify(made, "thing")
    assert (manifest["format"], manifest["kind"], manifest["nmt"], manifest["steps"]) == (1, "thing", __version__, 3)
    assert sorted(manifest["files"]) == ["a.bin", "deep/b.txt", "empty"]
    assert manifest["files"]["a.bin"] == {
        "bytes": 256,
        "sha256": "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880",
    }
    assert leftovers(made.parent) == []


def test_facts_may_be_added_while_it_is_being_filled(tmp_path: Path) -> None:
    about: dict = {}
    with staged(tmp_path / "x", "thing", about) as stage:
        write_file(stage / "a", b"1")
        about["pairs"] = 7
    assert verify(tmp_path / "x", "thing")["pairs"] == 7


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "x"
    with staged(target, "thing", {}) as stage:
        assert stage.parent == target.parent, "one file system, so that a rename is enough"
        assert not target.exists()
        assert not (stage / MANIFEST).exists()
    assert target.is_dir()


def fails(target: Path, error: BaseException, *, overwrite: bool) -> None:
    """Begin an artefact and fail half-way."""

    def begin() -> None:
        with staged(target, "thing", {}, overwrite=overwrite) as stage:
            (stage / "half").write_text("written")
            raise error

    with pytest.raises(type(error), match="on purpose"):
        begin()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    fails(tmp_path / "x", error("on purpose"), overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_artefact_is_only_replaced_when_told(made: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        with staged(made, "thing", {}):
            pytest.fail("no work is begun")
    with staged(made, "thing", {}, overwrite=True) as stage:
        write_file(stage / "new", b"new")
        assert (made / "a.bin").exists(), "the old one is whole until the new one is"
    assert sorted(p.name for p in made.iterdir()) == [MANIFEST, "new"]
    assert leftovers(made.parent) == []


def test_where_names_cannot_be_exchanged_the_old_one_steps_aside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSuchCall:
        pass

    monkeypatch.setattr(artefact.ctypes, "CDLL", lambda _name: NoSuchCall())
    with staged(made, "thing", {"steps": 4}, overwrite=True) as stage:
        write_file(stage / "new", b"new")
    assert verify(made, "thing")["steps"] == 4
    assert sorted(p.name for p in made.iterdir()) == [MANIFEST, "new"]
    assert leftovers(made.parent) == []


def test_a_reader_always_finds_one_whole_artefact_while_it_is_replaced(made: Path) -> None:
    rounds = 40
    child = multiprocessing.get_context("fork").Process(target=_replace_often, args=(made, rounds))
    child.start()
    reads = 0
    while child.is_alive():
        handle = os.open(made, os.O_RDONLY)  # as an open directory, so that a swap does not tear this one read
        try:
            data = os.open("manifest.json", os.O_RDONLY, dir_fd=handle)
            assert json.loads(os.read(data, 1 << 16))["kind"] == "thing"
            os.close(data)
            reads += 1
        except FileNotFoundError:  # the old one was deleted between the two opens
            assert (made / MANIFEST).exists()
        finally:
            os.close(handle)
    child.join()
    assert child.exitcode == 0
    assert reads
    assert verify(made, "thing")["steps"] == rounds - 1


def _replace_often(target: Path, rounds: int) -> None:
    for i in range(rounds):
        with staged(target, "thing", {"steps": i}, overwrite=True) as stage:
            write_file(stage / "a", bytes([i]))


def test_a_failed_replacement_keeps_the_old_one(made: Path) -> None:
    fails(made, ValueError("on purpose"), overwrite=True)
    assert leftovers(made.parent) == []
    assert verify(made, "thing")["steps"] == 3


def test_two_processes_making_one_artefact_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def both() -> None:
        with staged(target, "thing", {"who": "slow"}) as stage:
            write_file(stage / "slow", b"1")
            with staged(target, "thing", {"who": "fast"}) as other:
                write_file(other / "fast", b"1")

    with pytest.raises(OutputError, match="meanwhile"):
        both()
    assert verify(target, "thing")["who"] == "fast"
    assert not (target / "slow").exists()
    assert leftovers(tmp_path) == []


def test_facts_that_are_no_json_numbers_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        with staged(tmp_path / "x", "thing", {"loss": float("nan")}):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    old = os.umask(mask)
    try:
        with staged(tmp_path / "x", "thing", {}) as stage:
            write_file(stage / "private", b"1")
            (stage / "private").chmod(0o600)  # as safetensors does
    finally:
        os.umask(old)
    for name in ("private", MANIFEST):
        assert stat.S_IMODE((tmp_path / "x" / name).stat().st_mode) == mode


def test_everything_is_on_the_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(handle: int) -> None:
        events.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    with staged(tmp_path / "x", "thing", {}) as stage:
        (stage / "a").write_text("1")
        (stage / "b").write_text("2")
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    before = before[before.index("a") :]
    assert before[:2] == ["a", "b"]
    assert before[2] == MANIFEST
    assert before[3].startswith(".tmp-x-")
    assert after == [tmp_path.name]


# --- verify ---------------------------------------------------------------------------------------------------------


def edited(directory: Path, change) -> None:  # type: ignore[no-untyped-def]
    manifest = json.loads((directory / MANIFEST).read_text())
    change(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest))


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 255), flip=st.integers(1, 255))
def test_a_single_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, flip: int) -> None:
    made = tmp_path_factory.mktemp("flip") / "thing"
    with staged(made, "thing", {}) as stage:
        write_file(stage / "a.bin", bytes(range(256)))
    data = bytearray((made / "a.bin").read_bytes())
    data[place] ^= flip
    (made / "a.bin").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.bin is damaged"):
        verify(made, "thing")
    verify(made, "thing", content=False)  # sizes alone do not show it


@pytest.mark.parametrize("content", [True, False])
def test_missing_short_and_long_files_are_found(made: Path, content: bool) -> None:
    data = (made / "a.bin").read_bytes()
    for other in (data[:-1], data + b"x", b""):
        (made / "a.bin").write_bytes(other)
        with pytest.raises(DataError, match=r"a\.bin is damaged"):
            verify(made, "thing", content=content)
    (made / "a.bin").unlink()
    with pytest.raises(DataError, match=r"a\.bin is missing"):
        verify(made, "thing", content=content)
    (made / "a.bin").mkdir()
    with pytest.raises(DataError, match=r"a\.bin is missing"):
        verify(made, "thing", content=content)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "deep/../../outside", "deep/../a.bin"])
def test_no_artefact_may_name_a_file_outside_itself(made: Path, name: str) -> None:
    (made.parent / "outside").write_text("x")
    edited(made, lambda m: m["files"].update({name: {"bytes": 1, "sha256": artefact.sha256(made.parent / "outside")}}))
    with pytest.raises(DataError, match="outside itself"):
        verify(made, "thing")


def test_a_link_is_no_file_of_the_artefact(made: Path) -> None:
    (made / "a.bin").rename(made.parent / "elsewhere")
    (made / "a.bin").symlink_to(made.parent / "elsewhere")
    with pytest.raises(DataError, match="outside itself"):
        verify(made, "thing")


def test_a_linked_folder_is_no_part_of_the_artefact(made: Path) -> None:
    (made / "deep").rename(made.parent / "elsewhere")
    (made / "deep").symlink_to(made.parent / "elsewhere")
    with pytest.raises(DataError):
        verify(made, "thing")


def test_pipes_and_devices_are_not_read(made: Path) -> None:
    (made / "a.bin").unlink()
    os.mkfifo(made / "a.bin")
    with pytest.raises(DataError, match="missing"):
        verify(made, "thing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=2), "has format 2"),
        (lambda m: m.update(format="1"), "has format 1"),
        (lambda m: m.pop("format"), "has format None"),
        (lambda m: m.update(kind="corpus"), "holds a corpus, not a thing"),
        (lambda m: m.update(files=["a.bin"]), "lists no files"),
        (lambda m: m.pop("files"), "lists no files"),
        (lambda m: m["files"]["a.bin"].update(sha256="0" * 64), "damaged"),
        (lambda m: m["files"]["a.bin"].pop("sha256"), "damaged"),
        (lambda m: m["files"]["a.bin"].update(bytes=True), "damaged"),
        (lambda m: m["files"].update({"a.bin": None}), "damaged"),
        (lambda m: m["files"].update({"a.bin": "x"}), "damaged"),
        (lambda m: m["files"].update({"a\u0000b": {}}), "damaged|missing|outside"),
        (lambda m: m["files"].update({"": {}}), "damaged|missing|outside"),
    ],
)
def test_a_manifest_that_was_tampered_with(made: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    edited(made, change)
    with pytest.raises(DataError, match=message):
        verify(made, "thing")


def test_no_artefact_at_all(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="not there"):
        verify(tmp_path / "x", "thing")
    with pytest.raises(MissingError, match=r"manifest\.json is missing"):
        verify(tmp_path, "thing")


# --- strict JSON ----------------------------------------------------------------------------------------------------


NO_STRICT_OBJECT = {
    "empty": b"",
    "a list": b"[]",
    "a number": b"3",
    "cut off": b'{"a": 1',
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice inside": b'{"x": {"a": 1, "a": 1}}',
    "no utf-8": b'{"a": "\xff"}',
    "a pickle": b"\x80\x04\x95",
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "many digits": b'{"a": ' + b"9" * 5000 + b"}",
    "large": b" " * (16 << 20) + b"{}",
}


@pytest.mark.parametrize("data", NO_STRICT_OBJECT.values(), ids=NO_STRICT_OBJECT)
def test_what_is_no_strict_json_object(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_json(path)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_missing_json_file(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        read_json(tmp_path / "x.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), json_values, max_size=4))
def test_json_reads_back_the_same_and_digests_ignore_order(
    tmp_path_factory: pytest.TempPathFactory, value: dict
) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    try:
        path.write_bytes(json_bytes(value))
    except UnicodeEncodeError:  # half a surrogate pair is no text
        return
    assert read_json(path) == value
    assert digest(value) == digest(dict(reversed(value.items())))
    assert digest(value) != digest({**value, "one more": 1})


# --- single files ---------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    replace_file(path, b"old")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old", "who reads has one or the other, never a mixture"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["best.json"]


def test_a_failed_replacement_of_a_file_keeps_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.json"
    replace_file(path, b"old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["best.json"]


def test_a_new_file_follows_no_planted_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "out", b"x")
    replace_file(tmp_path / "out", b"x")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_removed_tree_is_gone_and_so_is_its_name(made: Path) -> None:
    remove_tree(made)
    assert list(made.parent.iterdir()) == []


# --- what dead processes left ---------------------------------------------------------------------------------------


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_only_what_dead_processes_left_is_cleared(tmp_path: Path) -> None:
    dead, alive, host = dead_pid(), os.getpid(), artefact._host()
    for left in (f"x-{host}-{dead}", f"x-{host}-{alive}", f"x-{host}-1", f"a-b-{host}-{dead}"):
        name = f".tmp-{left}-ab12"
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / f".tmp-f-{host}-{dead}-cd34").write_text("x")
    others = [f".tmp-x-{host}-notapid-ab12", f".tmp-x-elsewhere-{dead}-ab12", "model", "tmp-x-1-2", f"x.tmp-{dead}-ab"]
    for name in others:
        (tmp_path / name).mkdir()
    clear_temporaries(tmp_path)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == sorted([f".tmp-x-{host}-{alive}-ab12", f".tmp-x-{host}-1-ab12", *others])


def test_clearing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    (tmp_path / f".tmp-x-{artefact._host()}-{dead_pid()}-ab12").symlink_to(tmp_path / "victim")
    clear_temporaries(tmp_path)
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["victim"]


def test_a_killed_writer_leaves_nothing_that_the_next_one_keeps(tmp_path: Path) -> None:
    target = tmp_path / "x"
    code = (
        "import os, signal, sys; from pathlib import Path; from nmt_cli.artefact import staged\n"
        "with staged(Path(sys.argv[1]), 'thing', {}) as stage:\n"
        "    (stage / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code, str(target)], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(leftovers(tmp_path)) == 1
    with staged(target, "thing", {}) as stage:
        write_file(stage / "whole", b"x")
    assert leftovers(tmp_path) == []
    assert sorted(p.name for p in target.iterdir()) == [MANIFEST, "whole"]


# --- locks ----------------------------------------------------------------------------------------------------------


def _hold(directory: Path, ready, release) -> None:  # type: ignore[no-untyped-def]
    with locked(directory, "the run"):
        ready.set()
        release.wait(60)


def test_a_directory_has_one_holder_and_the_others_are_told_who(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "run", ready, release))
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(BusyError, match=f"the run .*run is in use by host .*, process {holder.pid}, since"):
            with locked(tmp_path / "run", "the run"):
                pytest.fail("two holders")
        release.set()
        holder.join(30)
        with locked(tmp_path / "run", "the run"):
            pass
    finally:
        release.set()
        holder.join(30)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready, release))
    holder.start()
    assert ready.wait(30)
    holder.kill()
    holder.join(30)
    start = time.monotonic()
    with locked(tmp_path, "the run"):
        assert time.monotonic() - start < 30
