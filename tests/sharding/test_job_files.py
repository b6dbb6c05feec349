"""The files of a job, its limits, and the records that other workers read."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from shouting import begin, expected, work

from nmt_cli import __version__
from nmt_cli.sharding import inputs, job, proof, units
from nmt_cli.sharding.job import Failure, Job
from nmt_cli.sharding.units import Unit
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, OutputError, UsageError

TEXT = "".join(f"line {number}\n" for number in range(25)).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.en").write_bytes(TEXT)
    return tmp_path / "text.en"


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def begin_job(path: Path | str, lines: int | None, **identity: Any) -> Job:
    return job.begin(str(path), inputs.find([str(Path(path).parent / "text.en")]), identity, lines)


def test_the_files_of_a_job_and_their_content(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.en").write_bytes("ä\n".encode() * 3)
    some_job = begin(tmp_path / "out", tmp_path / "a.en", file)
    assert names(tmp_path / "out") == ["units/job.json"]
    assert json.loads((tmp_path / "out/units/job.json").read_text()) == {
        "format": 1, "identity": {"model": "capitals"}, "unit_lines": 10,
        "files": [{"name": "a.en", "bytes": 9}, {"name": "text.en", "bytes": len(TEXT)}],
    }  # fmt: skip
    monkeypatch.setattr(job, "PER_FOLDER", 2)
    work(some_job)
    shouts = [expected(TEXT).splitlines(keepends=True)[start : start + 10] for start in (0, 10, 20)]
    outputs = [expected("ä\n".encode() * 3), *map(b"".join, shouts)]
    stored = names(tmp_path / "out/units")
    assert [name for name in stored if "-" not in name] == [
        *("000/0000000.json", "000/0000001.json", "001/0000002.json", "001/0000003.json"),
        *("counts/00000.json", "counts/00001.json", "job.json", "plan.json"),
    ]
    sizes = [[[3, 9]], [[10, 70], [10, 80], [5, 40]]]
    assert (tmp_path / "out/units/plan.json").read_text() == json.dumps({"counts": sizes}).replace(" ", "") + "\n"
    assert json.loads((tmp_path / "out/units/counts/00001.json").read_text()) == {"counts": [sizes[1]]}
    data = [("a.en", 1, 3, "ä\n".encode() * 3), ("text.en", 1, 10, TEXT[:70])]
    for number, (name, first, lines, source) in enumerate(data):
        hashes = [artefact.hashlib.sha256(each).hexdigest() for each in (source, outputs[number])]
        output = f"000000{number}-{hashes[1][:16]}"
        assert json.loads((tmp_path / f"out/units/000/000000{number}.json").read_text()) == {
            "input": name, "first_line": first, "lines": lines, "input_sha256": hashes[0], "output": output,
            "output_bytes": len(outputs[number]), "output_lines": lines, "output_sha256": hashes[1],
            "job": some_job.digest, "nmt": __version__,
        }  # fmt: skip
        assert (tmp_path / "out/units/000" / output).read_bytes() == outputs[number]
    assert some_job.states().done == {0, 1, 2, 3}
    assert [some_job.lines_of(unit) for unit in some_job.units[1:]] == [
        *("text.en, lines 1 to 10", "text.en, lines 11 to 20", "text.en, lines 21 to 25"),
    ]


def test_names_of_units_have_seven_digits_in_folders_of_a_thousand(tmp_path: Path, file: Path) -> None:
    some_job = begin(tmp_path / "out", file)
    unit = Unit(12_345, 0, 1_001, 2_000, 0, 1)
    assert some_job.claim(unit)
    assert not some_job.claim(unit)
    assert names(tmp_path / "out") == ["units/012/0012345.claim", "units/job.json"]
    some_job.fail(unit, Failure("because", 70))
    assert names(tmp_path / "out") == ["units/012/0012345.failed", "units/job.json"]
    assert json.loads((tmp_path / "out/units/012/0012345.failed").read_text()) == {"reason": "because", "exit_code": 70}
    assert some_job.failure(unit) == Failure("because", 70)
    assert some_job.lines_of(unit) == "text.en, lines 1,001 to 3,000"
    for code, fits in ((1, True), (255, True), (0, False), (256, False)):
        (tmp_path / "out/units/012/0012345.failed").write_text(json.dumps({"reason": "r", "exit_code": code}))
        if fits:
            assert some_job.failure(unit) == Failure("r", code)
        else:
            with pytest.raises(DataError, match=r"0012345\.failed is damaged: exit_code must be from 1 to 255"):
                some_job.failure(unit)


def test_states_are_read_from_names(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in every folder. Files with other names are ignored."""
    monkeypatch.setattr(job, "PER_FOLDER", 2)
    some_job = begin(tmp_path / "out", file, lines=5)
    for name in ("000/0000000.json", "000/0000001.failed", "001/0000002.claim", "001/0000003.json", "002/0000004.json"):
        (tmp_path / "out/units" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out/units" / name).touch()
    for name in ("x.json", "0000001.json.tmp", "0000001-0123", "0000001", ".json", "0000001.txt"):
        (tmp_path / "out/units/000" / name).touch()
    states = some_job.states()
    assert (states.done, states.failed, states.claimed) == ({0, 3, 4}, {1}, {2})


def test_the_lines_of_each_file_are_counted_once_whichever_file_is_first(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b.en", "c.en"):
        (tmp_path / name).write_bytes(TEXT[:7])
    files = [file, tmp_path / "b.en", tmp_path / "c.en"]
    (some_job := begin(tmp_path / "out", *files)).plan(1)
    assert [unit.file for unit in some_job.units] == [0, 1, 2, 2, 2]
    counted = [line.rpartition("/")[2] for line in capsys.readouterr().err.splitlines()]
    assert counted == ["c.en", "text.en", "b.en"]
    (tmp_path / "out/units/plan.json").unlink()
    (tmp_path / "out/units/counts/00001.json").unlink()
    assert [unit.file for unit in begin(tmp_path / "out", *files).units] == [0, 1, 2, 2, 2]
    assert [line.rpartition("/")[2] for line in capsys.readouterr().err.splitlines()] == ["c.en"]
    again = begin(tmp_path / "out", *files)
    assert [(unit.number, unit.first, unit.offset) for unit in again.units] == [
        *((0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 11, 70), (4, 21, 150)),
    ]
    assert capsys.readouterr().err == ""


def test_the_number_of_units_is_limited_over_all_files(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.en").write_bytes(TEXT[:7])
    for most, fits in ((4, True), (3, False)):
        monkeypatch.setattr(job, "MAX_UNITS", most)
        some_job = begin(tmp_path / f"out{most}", file, tmp_path / "b.en")
        if fits:
            assert len(some_job.units) == 4
        else:
            with pytest.raises(UsageError, match=r"there are more than 3 units\. Use a larger --unit-lines"):
                some_job.plan()
    monkeypatch.undo()
    assert (job.MAX_UNITS, job.MAX_JSON_BYTES) == (1_000_000, 64 << 20)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"counts": []}', r"units/plan\.json is damaged. Delete it: the next worker counts the lines again"),
        ('{"counts": [[], []]}', r"units/plan\.json is damaged. Delete it"),
        ('{"counts": [[[1, 2], [1, 2, 3]]]}', r"units/plan\.json is damaged. Delete it"),
        ('{"counts": [[[0, 5]]]}', r"units/plan\.json is damaged: counts\.0\.0\.0 must be at least 1"),
        ("[]", r"units/plan\.json is damaged: it is not a JSON object. Delete it"),
        ("[" * 100_000, r"units/plan\.json is damaged: it is not a JSON object. Delete it"),
        ("null", r"units/plan\.json is damaged: it is not a JSON object. Delete it"),
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, file: Path, text: str, reason: str) -> None:
    some_job = begin(tmp_path / "out", file)
    (tmp_path / "out/units/plan.json").write_text(text)
    with pytest.raises(DataError, match=rf"{tmp_path}/out/{reason}"):
        some_job.plan()


def test_the_limit_on_the_size_of_a_record_is_exact(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path / "out", file).plan()
    size = (tmp_path / "out/units/plan.json").stat().st_size
    monkeypatch.setattr(job, "MAX_JSON_BYTES", max(size, (tmp_path / "out/units/job.json").stat().st_size))
    some_job = begin(tmp_path / "out", file)
    monkeypatch.setattr(job, "MAX_JSON_BYTES", size)
    some_job.plan()
    monkeypatch.setattr(job, "MAX_JSON_BYTES", size - 1)
    with pytest.raises(DataError, match=r"plan\.json is damaged: it is not a JSON object"):
        some_job.plan()


@pytest.mark.parametrize("change", [{"input": "b.en"}, {"first_line": 2}, {"lines": 9}])
def test_a_sidecar_of_other_lines_is_damaged(tmp_path: Path, file: Path, change: dict[str, Any]) -> None:
    work(some_job := begin(tmp_path / "out", file))
    sidecar = tmp_path / "out/units/000/0000000.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    with pytest.raises(DataError, match=r"/out/units/000/0000000\.json is damaged: it belongs to other lines"):
        some_job.sidecar(some_job.units[0])
    wrong = {"output": "../x"}
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | wrong))
    with pytest.raises(DataError, match="output must be a name inside the directory"):
        some_job.sidecar(some_job.units[0])


def test_a_job_keeps_its_unit_lines_and_compares_the_rest(tmp_path: Path, file: Path) -> None:
    """Values are compared in their JSON form. Each difference is named once, with both values."""
    out = tmp_path / "out"
    first = begin_job(out, 7, search={"beam": 1, "n": (1, 2)}, model="a")
    assert begin_job(out, None, search={"beam": 1, "n": (1, 2)}, model="a").digest == first.digest
    assert begin_job(out, 7, search={"beam": 1, "n": [1, 2]}, model="a").description.unit_lines == 7
    for identity, differences in (
        ({"search": {"beam": 2, "n": [1, 2]}, "model": "a"}, "search beam was 1, now 2"),
        ({"search": {"n": [1, 2]}, "model": "b"}, "search beam was 1, now None; model was a, now b"),
        ({"search": 5, "model": "a"}, r"search was \{'beam': 1, 'n': \[1, 2\]\}, now 5"),
        ({"search": {"beam": 1, "n": [1, 2]}, "model": "a", "new": "x" * 99}, f"new was None, now {'x' * 60}"),
    ):
        with pytest.raises(OutputError, match=rf"holds units of another job \({differences}\)\. Choose another --out"):
            begin_job(out, None, **identity)
    digests = {begin_job(tmp_path / f"of{lines}", lines).digest for lines in (7, 8)}
    file.write_bytes(TEXT + b"x")
    digests.add(begin_job(tmp_path / "changed", 7).digest)
    file.write_bytes(TEXT)
    assert len(digests) == 3, "the digest covers the whole description"
    assert begin_job(tmp_path / "second", None).description.unit_lines == 10_000
    description = json.loads((out / "units/job.json").read_text())
    (out / "units/job.json").write_text(json.dumps(description | {"format": 2}))
    with pytest.raises(OutputError, match=r"another job \(format was 2, now 1\)"):
        begin_job(out, None, search={"beam": 1, "n": (1, 2)}, model="a")
    with pytest.raises(DataError, match=r"other input files \(format was 2, now 1\)"):
        job.resume(str(out), inputs.find([str(file)]))


def test_input_files_that_differ_are_named(tmp_path: Path, file: Path) -> None:
    (tmp_path / "b.en").write_bytes(TEXT)
    begin(tmp_path / "out", file)
    for files, text in (
        ([file, tmp_path / "b.en"], r"1 input file added, removed or resized: b\.en"),
        ([tmp_path / "b.en"], r"2 input files added, removed or resized: b\.en, text\.en"),
    ):
        with pytest.raises(OutputError, match=text):
            begin(tmp_path / "out", *files)
        with pytest.raises(DataError, match=rf"has units of other input files \({text}\)"):
            job.resume(str(tmp_path / "out"), inputs.find([str(each) for each in files]))
    work(begin(tmp_path / "out", file))
    resumed = job.resume(str(tmp_path / "out"), inputs.find([str(file)]))
    assert resumed.digest == begin(tmp_path / "out", file).digest
    assert not [*proof.problems(resumed)]


def test_a_description_that_another_worker_writes_meanwhile_is_compared(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = job.Directory.create

    def late(store: Any, name: str, data: bytes) -> bool:
        other = json.loads(data) | {"identity": {"model": "other"}}
        assert create(store, name, json.dumps(other).encode())
        return create(store, name, data)

    monkeypatch.setattr(job.Directory, "create", late)
    with pytest.raises(OutputError, match="model was other, now capitals"):
        begin(tmp_path / "out", file)


def test_outputs_and_inputs_must_be_separate(tmp_path: Path, file: Path) -> None:
    """Links are followed. Directories whose names only begin alike are separate. Every input is checked."""
    (tmp_path / "out.d").mkdir()
    (tmp_path / "out.d" / "x").write_bytes(b"x\n")
    begin(tmp_path / "out", tmp_path / "out.d" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "out.d")
    for output, inside in (
        (tmp_path / "link", tmp_path / "out.d" / "x"),
        (tmp_path / "out.d", tmp_path / "link" / "x"),
    ):
        with pytest.raises(OutputError, match=f"the input {inside} is in the output directory {output}"):
            begin(output, file, inside)
    with pytest.raises(OutputError, match=r"text\.en is a file, but units need a directory\. Choose another --output"):
        begin(file, tmp_path / "out.d" / "x")
    (tmp_path / "in" / "units").mkdir(parents=True)
    for name in ("a", "units/b"):
        (tmp_path / "in" / name).touch()
    with pytest.raises(UsageError, match=r"^units/b must be renamed, because units is the directory of the units"):
        begin(tmp_path / "new", tmp_path / "in")
    assert not (tmp_path / "new").exists()


def test_leftovers_of_ended_workers_are_removed_by_the_next(tmp_path: Path, file: Path) -> None:
    some_job = begin(tmp_path / "out", file)
    part = some_job.store.part()
    part.with_name(part.name.replace(f"-{job.os.getpid()}-", "-4194303-")).touch()
    begin(tmp_path / "out", file)
    assert [*part.parent.iterdir()] == []


def test_the_summary_of_a_file_covers_all_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "BLOCK", 4)
    (tmp_path / "x").write_bytes(b"a\nb\nc\nd\ne")
    assert job.summary(tmp_path / "x") == (artefact.sha256(tmp_path / "x"), 9, 4)


def test_units_of_the_default_size(tmp_path: Path) -> None:
    """A unit ends after 10,000 lines, or with the line that reaches 16 MiB."""
    (tmp_path / "a").write_bytes(b"\n" * 10_001)
    (tmp_path / "b").write_bytes((b"x" * ((1 << 20) - 1) + b"\n") * 17)
    begun = job.begin(str(tmp_path / "out"), inputs.find([str(tmp_path / name) for name in "ab"]), {}, None)
    assert [(unit.lines, unit.bytes >> 20) for unit in begun.units] == [(10_000, 0), (1, 0), (16, 16), (1, 1)]


def test_joined_files_are_named_as_a_user_would_name_them(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work(some_job := begin("out", "text.en"))
    for output, places in (
        ("joined", ["joined"]),
        ("./joined", ["joined"]),
        ("new/", ["new/text.en"]),
        ("new", ["new/text.en"]),
        (str(tmp_path / "abs"), [str(tmp_path / "abs")]),
        (None, ["out/text.en"]),
    ):
        assert proof.join(some_job, output) == places
        assert Path(places[0]).read_bytes() == expected(TEXT)
    (tmp_path / "b").write_bytes(b"x\n")
    work(two := begin("two", "b", "text.en"))
    monkeypatch.setattr(proof, "store_of", roots := Mock(side_effect=LookupError))
    for each, output in ((two, "/"), (two, "/joined/"), (some_job, "/joined")):
        with pytest.raises(LookupError):
            proof.join(each, output)
    assert roots.call_args_list == [call("/"), call("/joined"), call("/")]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert proof.join(two, "some/deep") == ["some/deep/b", "some/deep/text.en"]
    assert [Path(name).read_bytes() for name in ("some/deep/b", "some/deep/text.en")] == [b"1 X\n", expected(TEXT)]


def test_nothing_is_joined_if_a_later_file_lacks_a_line(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "z.en").write_bytes(TEXT)
    work(some_job := begin(tmp_path / "out", file, tmp_path / "z.en"))
    (tmp_path / "out/units/000/0000004.json").unlink()
    assert [reason for _, reason in proof.problems(some_job)] == ["not translated"]
    advice = r"z\.en, lines 11 to 20: not translated\. Run nmt translate \.\.\. --check to list all missing"
    for output, place in ((None, tmp_path / "out"), (str(tmp_path / "new"), tmp_path / "new")):
        with pytest.raises(DataError, match=advice):
            proof.join(some_job, output)
        assert not [path for path in place.rglob("*") if path.is_file() and "units" not in path.parts]
    assert not [*(tmp_path / "out/units/parts").iterdir()]
    work(some_job := begin(tmp_path / "out", file, tmp_path / "z.en"))
    [lines] = (tmp_path / "out/units/000").glob("0000002-*")
    lines.write_bytes(b"changed")
    monkeypatch.setattr(proof, "damage_of", lambda *_: "")
    with pytest.raises(DataError, match=r"text\.en, lines 21 to 25 changed while they were joined\. Join them again"):
        proof.join(some_job, None)
