"""Cases in which two readings of a rule would differ: several problems and failures, and the paths in messages."""

import errno
import gzip
import os
from pathlib import Path

import pytest
from shouting import begin, work

from nmt_cli.sharding import inputs, proof
from nmt_cli.sharding.job import Failure
from nmt_cli.sharding.store import Directory
from nmt_cli.system.errors import DataError, OutputError

TEXT = b"".join(b"line %d\n" % number for number in range(45))


def test_a_file_is_refused_as_the_directory_of_units_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.en").write_bytes(b"x\n")
    for name in ("file", "file.d"):
        (tmp_path / name).write_bytes(b"kept")
        with pytest.raises(OutputError, match=rf"{name} is a file, but units need a directory"):
            begin(tmp_path / name, tmp_path / "text.en")
        assert (tmp_path / name).read_bytes() == b"kept"


def test_every_unit_without_a_result_is_listed_in_order(tmp_path: Path) -> None:
    """The list covers all files and gives each unit's reason. Joining stops at the first of these units."""
    for name in ("a.en", "b.en"):
        (tmp_path / name).write_bytes(TEXT)
    some_job = begin(tmp_path / "out", tmp_path / "a.en", tmp_path / "b.en")
    work(some_job)
    folder = tmp_path / "out" / "units" / "000"
    [lines] = folder.glob("0000008-*")
    lines.write_bytes(b"other")
    (folder / "0000001.json").unlink()
    (folder / "0000004.json").unlink()
    some_job.fail(some_job.units[4], Failure("no room", 74))
    [gone] = folder.glob("0000006-*")
    gone.unlink()
    (folder / "0000009.json").write_text("{}")
    assert [(unit.number, why) for unit, why in proof.problems(some_job)][:4] == [
        (1, "not translated"),
        (4, "failed: no room"),
        (6, f"{gone.name} is missing"),
        (8, f"{lines.name} is damaged"),
    ]
    assert [unit.number for unit, _ in proof.problems(some_job)] == [1, 4, 6, 8, 9]
    with pytest.raises(DataError, match=r"^a\.en, lines 11 to 20: not translated\. Run nmt translate"):
        proof.join(some_job, None)


def test_every_failure_of_a_worker_is_kept(tmp_path: Path) -> None:
    (tmp_path / "text.en").write_bytes(TEXT)

    def translate(_source: int, target: int, first: int, _: object) -> None:
        os.write(target, b"x\n" * (9 if first in (11, 41) else 10 - first // 41 * 5))

    found = work(some_job := begin(tmp_path / "out", tmp_path / "text.en"), translate=translate)
    assert sorted((unit.first, failure.reason) for unit, failure in found.failures) == [
        (11, "10 lines have 9 translations"),
        (41, "5 lines have 9 translations"),
    ]
    assert found.lines == 30
    assert some_job.states().failed == {1, 4}


def test_an_input_of_another_kind_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(gzip.compress(b"x"))
    [file] = inputs.find([str(tmp_path / "in")])
    with pytest.raises(DataError, match=str(tmp_path / "in" / "a.txt")), inputs.opened(file) as stream:
        stream.read()


def test_a_unit_is_finished_only_when_its_lines_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.en").write_bytes(TEXT)
    some_job = begin(tmp_path / "out", tmp_path / "text.en")
    keep = Directory.keep

    def full(store: Directory, part: Path, name: str) -> None:
        if "-" in Path(name).name:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        keep(store, part, name)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "keep", full)
        with pytest.raises(OSError, match="No space left"):
            work(some_job)
    states = some_job.states()
    assert (states.done, states.failed, states.claimed) == (set(), set(), set())
    some_job.fail(some_job.units[0], Failure("before"))
    work(some_job)
    states = some_job.states()
    assert (states.done, states.failed, states.claimed) == ({0, 1, 2, 3, 4}, set(), set())
