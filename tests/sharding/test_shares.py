"""Workers step by step, units of every size, the worker numbers of all schedulers, and stores of other kinds."""

import errno
import gzip
import hashlib
import io
import os
import random
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import shouting
from shouting import begin, expected, work

from nmt_cli.sharding import inputs, store, units
from nmt_cli.sharding import worker as worker_module
from nmt_cli.sharding.job import Failure
from nmt_cli.sharding.store import Directory, store_of
from nmt_cli.sharding.units import Reader
from nmt_cli.sharding.worker import Worker
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.system.shard import Shard, parse

TEXT = "".join(f"line {number}\n" for number in range(25)).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.en").write_bytes(TEXT)
    return tmp_path / "text.en"


def worker_of(some_job: Any, translate: Any, one_line: bool = True) -> Worker:
    return Worker(some_job, parse("1/1"), translate, one_line=one_line, stop=lambda: None)


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_worker_reports_units_and_closes_its_files(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed units are named and advance the progress, but their lines do not count as translated."""
    file.write_bytes(TEXT.replace(b"line 12\n", b"poison\n"))
    some_job, before = begin(tmp_path / "out", file), descriptors()

    def translate(source: int, target: int, first: int, _: object) -> None:
        assert (tmp_path / f"out/units/000/000000{first // 10}.claim").exists()
        shouting.shout(source, target, first)

    worker, progress = worker_of(some_job, translate), Mock()
    worker.run(progress)
    assert sorted(call.args[0] for call in progress.advance.call_args_list) == [5, 10, 10]
    assert (worker.lines, [unit.first for unit, _ in worker.failures]) == (15, [11])
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert [line.partition("warning: ")[2] for line in warnings] == [
        "text.en, lines 11 to 20 failed: the model's scores are not finite",
    ]
    assert worker_of(some_job, shouting.shout).do_unit(some_job.units[1]) == Failure(
        "the model's scores are not finite", 70
    )
    assert worker_of(some_job, pytest.fail).do_unit(some_job.units[0]) is None
    assert descriptors() == before
    old = os.umask(0o027)
    try:
        work(begin(tmp_path / "other", file))
    finally:
        os.umask(old)
    [lines] = (tmp_path / "other/units/000").glob("0000000-*")
    assert stat.S_IMODE(lines.stat().st_mode) == 0o640


@pytest.mark.parametrize(("lines", "one_line", "reason"), [
    (9, True, "10 lines have 9 translations"), (11, True, "10 lines have 11 translations"),
    (9, False, None), (0, False, None),
])  # fmt: skip
def test_each_line_has_one_output_line_if_asked(
    tmp_path: Path, file: Path, lines: int, one_line: bool, reason: str | None
) -> None:
    some_job = begin(tmp_path / "out", file)
    worker = worker_of(some_job, lambda _, target, *__: os.write(target, b"x\n" * lines), one_line)
    found = worker.do_unit(some_job.units[1])
    assert found == (reason and Failure(reason, DataError.exit_code))
    assert some_job.failure(some_job.units[1]) == found
    sidecar = some_job.sidecar(some_job.units[1])
    assert (sidecar and sidecar.output_lines) == (None if reason else lines)


def test_disk_errors_name_the_file_and_free_the_unit(tmp_path: Path, file: Path) -> None:
    some_job, before = begin(tmp_path / "out", file), descriptors()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def other(*_: Any) -> None:
        raise OSError(errno.EIO, "broken", "elsewhere")

    for translate, name in ((full, "units/parts/.tmp-nmt-part-"), (other, "elsewhere")):
        with pytest.raises(OSError, match=r"No space left|broken") as caught:
            work(some_job, translate=translate)
        assert name in caught.value.filename
        assert not [path for path in (tmp_path / "out/units").rglob("*") if path.suffix in (".claim", ".failed")]
        assert not [*(tmp_path / "out/units/parts").iterdir()]
    assert descriptors() == before


def test_a_unit_that_another_worker_has_finished_meanwhile_keeps_its_result(tmp_path: Path, file: Path) -> None:
    some_job = begin(tmp_path / "out", file)
    faster = begin(tmp_path / "out", file)

    def translate(source: int, target: int, first: int, _: object) -> None:
        assert worker_of(faster, shouting.shout).do_unit(faster.units[0]) is None
        os.write(target, b"other\n" * 10)

    assert worker_of(some_job, translate).do_unit(some_job.units[0]) is None
    [lines] = (tmp_path / "out/units/000").glob("0000000-*")
    assert lines.read_bytes() == expected(TEXT[:70])


def test_a_sidecar_that_disappears_is_made_again(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work(some_job := begin(tmp_path / "out", file))
    monkeypatch.setattr(type(some_job), "sidecar", lambda *_: None)
    assert work(begin(tmp_path / "out", file)).lines == 25
    assert capsys.readouterr().err.count("its sidecar is missing. These lines are translated again") == 3


@pytest.mark.parametrize(
    ("shard", "order"), [("1/3", [0, 1, 2, 3, 4]), ("2/3", [1, 2, 3, 4, 0]), ("3/3", [3, 4, 0, 1, 2])]
)
def test_units_of_killed_workers_are_done_by_any_other(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, shard: str, order: list[int]
) -> None:
    """Any worker translates all of these units after the others. Each worker begins at a different unit."""
    monkeypatch.setattr(worker_module, "LANES", 1)
    some_job, seen = begin(tmp_path / "out", file, lines=5), list[int]()
    assert all(map(some_job.claim, some_job.units))

    def translate(source: int, target: int, first: int, _: object) -> None:
        seen.append(first // 5)
        shouting.shout(source, target, first)

    assert work(some_job, shard, translate).lines == 25
    assert seen == order


@pytest.mark.parametrize("claimed", [True, False])
def test_units_that_others_finish_meanwhile_are_not_begun(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    monkeypatch.setattr(worker_module, "LANES", 1)
    some_job, seen = begin(tmp_path / "out", file, lines=5), list[int]()
    assert not claimed or all(map(some_job.claim, some_job.units))

    def translate(source: int, target: int, first: int, _: object) -> None:
        seen.append(first)
        if first == 1:
            assert work(begin(tmp_path / "out", file, lines=5), "1/1").lines == 25
        shouting.shout(source, target, first)

    work(some_job, translate=translate)
    assert seen == [1]


def test_the_next_unit_begins_when_the_lines_of_one_are_read(tmp_path: Path, file: Path) -> None:
    """One unit at a time keeps the search threads busy until few of its lines are left."""
    both, inside = threading.Barrier(2), list[int]()

    def translate(source: int, target: int, first: int, all_read: Callable[[], None]) -> None:
        inside.append(first)
        if first == 1:
            time.sleep(0.2)
            assert inside == [1]
            all_read()
            all_read()  # a second call changes nothing
        if first < 21:
            both.wait(10)
        shouting.shout(source, target, first)

    assert work(begin(tmp_path / "out", file), translate=translate).lines == 25
    assert inside == [1, 11, 21]


def test_a_unit_that_fails_before_it_is_read_ends_its_turn(tmp_path: Path, file: Path) -> None:
    def translate(source: int, target: int, first: int, _: object) -> None:
        raise DataError("damaged")

    assert [unit.first for unit, _ in work(begin(tmp_path / "out", file), translate=translate).failures] == [1, 11, 21]


def test_failed_units_are_left_to_the_next_run_of_their_share(tmp_path: Path, file: Path) -> None:
    """Other workers do not translate the failed units, and no unit is translated twice."""
    some_job = begin(tmp_path / "out", file, lines=5)
    some_job.fail(some_job.units[4], Failure("before"))
    seen = list[int]()

    def translate(source: int, target: int, first: int, _: object) -> None:
        seen.append(first)
        shouting.shout(source, target, first)

    assert not work(some_job, "1/2", translate).failures
    assert sorted(seen) == [1, 6, 11, 16]
    work(some_job, "2/2", translate)
    assert sorted(seen) == [1, 6, 11, 16, 21]


def test_units_with_long_lines_are_read_as_they_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut line has five bytes before its line end. Hashes and sizes are those of the uncut file."""
    draw = random.Random(4)
    monkeypatch.setattr(units, "MAX_UNIT_BYTES", 12)
    monkeypatch.setattr(units, "MAX_LINE_BYTES", 4)
    for number in range(80):
        data = b"".join(b"x" * draw.choice([0, 1, 4, 5, 6, 9, 30]) + b"\n" for _ in range(draw.randrange(1, 9)))
        data += draw.choice([b"", b"y", b"y" * 5, b"y" * 6, b"y" * 40])
        (tmp_path / f"{number}").write_bytes(data)
        files = inputs.find([str(tmp_path / f"{number}")])
        found = units.numbered([units.count(files[0], draw.choice([1, 3, 50]))])
        with Reader(files) as reader:
            for unit in found:
                content, whole = reader.read(unit), data[unit.offset : unit.offset + unit.bytes]
                cut = b"".join(
                    line if len(line) <= 5 + line.endswith(b"\n") else line[:5] + b"\n" for line in io.BytesIO(whole)
                )
                assert content.data == (whole if unit.bytes <= 16 else cut)
                assert content.sha256 == hashlib.sha256(whole).hexdigest()
        if len(data) > 16 and found[-1].bytes > 16:
            (tmp_path / f"{number}").write_bytes(data[:-1])
            with Reader(files) as reader, pytest.raises(DataError, match="has changed since its lines were counted"):
                reader.read(found[-1])


def test_a_long_unit_with_other_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_UNIT_BYTES", 12)
    monkeypatch.setattr(units, "MAX_LINE_BYTES", 4)
    file, data = tmp_path / "t", b"a\n" + b"x" * 30 + b"\n"
    file.write_bytes(data)
    files = inputs.find([str(file)])
    [unit] = units.numbered([units.count(files[0], 50)])
    file.write_bytes(b"ax" + data[2:])
    with Reader(files) as reader, pytest.raises(DataError, match="has changed since its lines were counted"):
        reader.read(unit)


def test_a_reader_may_be_used_again(file: Path) -> None:
    files, before = inputs.find([str(file)]), descriptors()
    found = units.numbered([units.count(files[0], 10)])
    with Reader(files) as reader:
        first = reader.read(found[0])
    assert descriptors() == before
    with reader:
        assert reader.read(found[0]) == first
    assert descriptors() == before


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_reader_has_one_file_open(tmp_path: Path, suffix: str) -> None:
    for name in "ab":
        (tmp_path / f"{name}{suffix}").write_bytes(gzip.compress(TEXT) if suffix else TEXT)
    files = inputs.find([str(tmp_path)])
    found = units.numbered([units.count(each, 10) for each in files])
    with Reader(files) as reader:
        reader.read(found[0])
        before = len(descriptors())
        for unit in (found[4], found[3], found[1]):
            assert reader.read(unit).data == TEXT[unit.offset : unit.offset + unit.bytes]
            assert len(descriptors()) == before


@pytest.mark.parametrize(
    ("text", "variables", "shard"),
    [
        *(
            ("auto/7", {name: "2"}, (3, 7))
            for name in ("JOB_COMPLETION_INDEX", "BATCH_TASK_INDEX", "PBS_ARRAY_INDEX", "HQ_TASK_ID")
        ),
        ("auto", {"AWS_BATCH_JOB_ARRAY_INDEX": "1", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}, (2, 4)),
        ("auto", {"CLOUD_RUN_TASK_INDEX": "1", "CLOUD_RUN_TASK_COUNT": "4"}, (2, 4)),
        ("auto", {"BATCH_TASK_INDEX": "1", "BATCH_TASK_COUNT": "4"}, (2, 4)),
        ("auto", {"SGE_TASK_ID": "5", "SGE_TASK_FIRST": "3", "SGE_TASK_LAST": "6"}, (3, 4)),
        ("auto", {"SGE_TASK_ID": "9", "SGE_TASK_FIRST": "5", "SGE_TASK_LAST": "12", "SGE_TASK_STEPSIZE": "2"}, (3, 4)),
        ("auto", {"LSB_JOBINDEX": "1", "LSB_JOBINDEX_END": "4"}, (1, 4)),
        ("auto/7", {"LSB_JOBINDEX": "3"}, (3, 7)),
        ("auto", {"LSB_JOBINDEX": "0", "LSB_JOBINDEX_END": "0", "RANK": "1", "WORLD_SIZE": "2"}, (2, 2)),
        ("auto", {"LSB_JOBINDEX": "7", "LSB_JOBINDEX_END": "7", "LSB_JOBINDEX_STEP": "3"}, (3, 3)),
        ("auto/4", {"LSB_JOBINDEX": "8", "LSB_JOBINDEX_END": "8", "LSB_JOBINDEX_STEP": "1"}, (4, 4)),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "6",
                "SLURM_ARRAY_TASK_MIN": "2",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            (3, 3),
        ),
        ("auto/9", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_COUNT": "8"}, (4, 9)),
        *(
            ("auto", {rank: "2", size: "3"}, (3, 3))
            for rank, size in (
                ("SLURM_PROCID", "SLURM_NTASKS"),
                ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                ("PMI_RANK", "PMI_SIZE"),
                ("RANK", "WORLD_SIZE"),
            )
        ),
        ("auto", {"SLURM_PROCID": "5", "SLURM_NTASKS": "0", "RANK": "1", "WORLD_SIZE": "2"}, (2, 2)),
        ("auto/2", {"RANK": "2", "WORLD_SIZE": "3"}, (1, 2)),
        ("auto/1", {}, (1, 1)),
        ("auto/2", {"PBS_ARRAY_INDEX": "1", "RANK": "1", "WORLD_SIZE": "3"}, (5, 6)),
        ("auto/3", {"PBS_ARRAY_INDEX": "²", "RANK": "1" * 10}, (1, 3)),
        ("1/1", {}, (1, 1)),
        ("8/8", {}, (8, 8)),
    ],
)
def test_every_scheduler_numbers_its_workers(text: str, variables: dict[str, str], shard: tuple[int, int]) -> None:
    assert parse(text, variables) == shard
    assert str(Shard(*shard)) == f"{shard[0]}/{shard[1]}"


@pytest.mark.parametrize(
    "text", ["1234567890/1234567891", "1/2/3", "-1/2", "auto/", "auto/00x", " 1/2", "1/2\n", "x" * 99]
)
def test_a_shard_has_one_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"--shard must be I/N, auto or auto/N, not .*such as --shard 1/8") as caught:
        parse(text, {})
    assert "x" * 41 not in str(caught.value)


def test_shares_differ_by_one_unit_at_most() -> None:
    shares = [(Shard(number, 4).start(10), Shard(number, 4).end(10)) for number in (1, 2, 3, 4)]
    assert shares == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_remote_patterns_name_files_below_their_fixed_part() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for name in ("in/a/x.en", "in/b/x.en", "in/b/.y.en", "in/.c/x.en", "in/b/sub.en/z"):
        files.pipe_file(f"/shares/{name}", name.encode())
    for word, names in (
        ("memory://shares/in/*/*.en", ["a/x.en", "b/x.en"]),
        ("memory://shares/in/[b]/x.e?", ["b/x.en"]),
        ("memory://shares/in/", ["a/x.en", "b/sub.en/z", "b/x.en"]),
        ("memory://shares/in/b/x.en", ["x.en"]),
    ):
        found = inputs.find([word])
        assert [each.name for each in found] == names
        assert [each.bytes for each in found] == [files.size(each.place.removeprefix("memory://")) for each in found]
        with inputs.opened(found[-1]) as stream:
            assert stream.read().decode().endswith(names[-1])
    files.rm("/shares", recursive=True)


def test_patterns_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("z/a.en", "b.en", "c.en.gz", "gz", "z/b.en"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert [each.name for each in inputs.find(["*.en", "z/a.e?"])] == ["a.en", "b.en"]
    assert [each.place for each in inputs.find(["[bc].en", "./b.en"][:1])] == ["b.en"]
    assert [each.compressed for each in inputs.find(["c.en.gz", "gz", "b.en"])] == [False, True, False]
    with pytest.raises(UsageError, match=r"^b\.en and z/b\.en would have the same output\. Pass the directory"):
        inputs.find(["b.en", "z/b.en"])


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EIO])
def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(code, os.strerror(code))))
    directory = Directory(tmp_path, "parts")
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            directory.create("a", b"1")
    else:
        assert [directory.create("a", b"1"), directory.create("a", b"2")] == [True, False]
        assert (tmp_path / "a").read_bytes() == b"1"
    assert not [*(tmp_path / "parts").iterdir()]


def test_a_directory_as_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing folder has no names, missing files can be removed, and a file is synced before it is renamed.

    A folder that cannot be read is an error, because it may have names.
    """
    directory = store_of(str(tmp_path), "some/parts")
    assert isinstance(directory, Directory)
    directory.remove_leftovers()
    assert directory.names("none") == set()
    directory.remove("none")
    assert directory.claim("deep/er/x", b"content")
    assert (tmp_path / "deep/er/x").read_bytes() == b"content"
    assert directory.names("deep/er") == {"x"}
    with pytest.raises(NotADirectoryError):
        directory.names("deep/er/x")
    steps = list[Any]()
    monkeypatch.setattr(artefact, "sync", lambda path: steps.append((path, (tmp_path / "new/y").exists())))
    part = directory.part()
    assert part.parent == tmp_path / "some/parts"
    part.write_bytes(b"1")
    steps.clear()
    directory.keep(part, "new/y")
    assert steps == [(tmp_path, False), (part, False), (tmp_path / "new", True)]
    monkeypatch.setattr(store.artefact, "sync", Mock(side_effect=OSError(errno.EIO, "broken")))
    for act in (directory.replace, directory.create):
        with pytest.raises(OSError, match="broken"):
            act("new/z", b"1")
    assert directory.names("new") == {"y"}
    assert directory.names("some/parts") == set()
