"""If workers are killed, fail or change in number, the output still has every line exactly once."""

import errno
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import shouting
import texts
from shouting import begin, expected, work

from nmt_cli.sharding import inputs, job, proof, worker
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError

TEXT = b"".join(b"line %d\n" % number for number in range(95))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.en").write_bytes(TEXT)
    return tmp_path / "text.en"


def joined(some_job: job.Job, name: str = "text.en") -> bytes:
    assert not [*proof.problems(some_job)]
    proof.join(some_job, None)
    return (some_job.store.path / name).read_bytes()


@pytest.mark.parametrize("shards", [["1/1"], ["1/3", "2/3", "3/3"], ["7/9", "2/2"], ["3/3"], ["40/40"]])
def test_any_set_of_shards_translates_every_line_once(tmp_path: Path, file: Path, shards: list[str]) -> None:
    (tmp_path / "more.gz").write_bytes(gzip.compress(TEXT + b"no line feed"))
    (tmp_path / "empty").touch()
    files = [file, tmp_path / "more.gz", tmp_path / "empty"]
    for shard in shards:
        work(some_job := begin(tmp_path / "out", *files), shard)
    assert joined(some_job) == expected(TEXT)
    assert gzip.decompress((tmp_path / "out/more.gz").read_bytes()) == expected(TEXT + b"no line feed")
    assert (tmp_path / "out/empty").read_bytes() == b""
    assert not [*(tmp_path / "out").rglob("*.claim")]
    assert not [*(tmp_path / "out/units/parts").iterdir()]


def test_finished_units_are_not_translated_again(tmp_path: Path, file: Path) -> None:
    work(begin(tmp_path / "out", file))
    again = work(begin(tmp_path / "out", file), "2/5", lambda *_: pytest.fail("translated again"))
    assert again.lines == 0


def test_workers_begin_in_their_shares_and_help_far_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has finished its share begins in the middle of the longest run of units that none has begun."""
    monkeypatch.setattr(worker, "LANES", 1)
    (tmp_path / "t").write_bytes(b"x\n" * 100)
    some_job = begin(tmp_path / "out", tmp_path / "t", lines=1)
    assert some_job.claim(some_job.units[60])  # claimed by another worker, which was killed
    order = list[int]()

    def translate(source: int, target: int, first: int, _: object) -> None:
        order.append(first - 1)
        shouting.shout(source, target, first)

    work(some_job, "1/4", translate)
    assert order[:63] == [*range(25), *range(80, 100), *range(42, 60)]
    assert order[-1] == 60
    assert sorted(order) == list(range(100))


def test_workers_that_run_together_share_the_work(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x\n" * 120)
    done = list[int]()

    def slow(source: int, target: int, first: int, _: object) -> None:
        shouting.shout(source, target, first, pause=0.005)
        done.append(first)

    def one(shard: str) -> None:
        work(begin(tmp_path / "out", tmp_path / "t", lines=2), shard, slow)

    threads = [threading.Thread(target=one, args=[f"{number}/3"]) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(done) == set(range(1, 121, 2))
    assert len(done) <= 60 + 3 * worker.LANES  # only the last units are begun twice
    assert joined(begin(tmp_path / "out", tmp_path / "t", lines=2), "t") == expected(b"x\n" * 120)


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    """Workers get SIGKILL at random times, and their number is random in each round."""
    text = b"".join(b"line %d\n" % number for number in range(2000))
    (tmp_path / "text.en").write_bytes(text)
    draw = random.Random(11)
    command = [sys.executable, texts.ROOT / "tests/helpers/shouting.py", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": f"{texts.ROOT}:{texts.ROOT / 'tests/helpers'}"}
    for _ in range(4):
        count = draw.randint(1, 3)
        workers = [
            subprocess.Popen([*command, f"{index}/{count}", "0.003", tmp_path / "text.en"], env=environment)
            for index in range(1, count + 1)
        ]
        time.sleep(draw.uniform(0.2, 0.7))
        for process in workers:
            process.send_signal(signal.SIGKILL)
            process.wait()
    subprocess.run([*command, "1/1", "0", tmp_path / "text.en"], env=environment, check=True, timeout=60)
    assert joined(begin(tmp_path / "out", tmp_path / "text.en")) == expected(text)


def test_a_unit_that_fails_is_recorded_and_the_others_are_done(tmp_path: Path) -> None:
    lines = TEXT.replace(b"line 34\n", b"poison\n")
    (tmp_path / "text.en").write_bytes(lines)
    some_job = begin(tmp_path / "out", tmp_path / "text.en")
    found = work(some_job)
    assert [(unit.first, failure.exit_code) for unit, failure in found.failures] == [(31, 70)]
    assert found.lines == 85
    reason = "failed: the model's scores are not finite"
    assert [(unit.first, why) for unit, why in proof.problems(some_job)] == [(31, reason)]
    with pytest.raises(DataError, match=r"text.en, lines 31 to 40: failed: the model's scores"):
        proof.join(some_job, None)
    assert not (tmp_path / "out/text.en").exists()
    assert not work(begin(tmp_path / "out", tmp_path / "text.en"), "10/10").failures  # not in its share
    healthy = lambda _, target, *__: os.write(target, b"x\n" * 10)  # noqa: E731
    assert work(begin(tmp_path / "out", tmp_path / "text.en"), translate=healthy).lines == 10
    assert not [*(tmp_path / "out").rglob("*.failed")]
    assert not [*proof.problems(some_job)]


def test_a_missing_line_fails_its_unit(tmp_path: Path, file: Path) -> None:
    found = work(begin(tmp_path / "out", file), translate=lambda _, target, *__: os.write(target, b"x\n" * 9))
    assert [failure.reason for _, failure in found.failures[:1]] == ["10 lines have 9 translations"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda sidecar, output: sidecar.write_text("{"), "it is not a JSON object"),
        (lambda sidecar, output: sidecar.write_text("{}"), "input is missing"),
        (lambda sidecar, output: sidecar.write_bytes(b""), "it is not a JSON object"),
        (lambda sidecar, output: output.unlink(), "is missing"),
        (lambda sidecar, output: output.write_bytes(output.read_bytes()[:-1] + b"x"), "is damaged"),
        (lambda sidecar, output: sidecar.write_text(sidecar.read_text().replace("000-", "001-")), "is missing"),
        (
            lambda sidecar, output: sidecar.write_text(sidecar.read_text().replace('"lines": 10', '"lines": 9')),
            "it belongs to other lines",
        ),
    ],
)
def test_damage_is_named_and_repaired(
    tmp_path: Path, file: Path, capfd: pytest.CaptureFixture[str], damage: Any, message: str
) -> None:
    work(some_job := begin(tmp_path / "out", file))
    folder = tmp_path / "out/units/000"
    sidecar = folder / "0000000.json"
    damage(sidecar, folder / json.loads(sidecar.read_text())["output"])
    assert [(unit.number, message in why) for unit, why in proof.problems(some_job)] == [(0, True)]
    with pytest.raises(DataError, match="lines 1 to 10"):
        proof.join(some_job, None)
    assert work(begin(tmp_path / "out", file)).lines == 10
    warnings = capfd.readouterr().err.split("\n")
    assert [message in line and "translated again" in line for line in warnings if "warning" in line] == [True]
    assert joined(some_job) == expected(TEXT)


def test_other_options_and_other_inputs_are_refused(tmp_path: Path, file: Path) -> None:
    begin(tmp_path / "out", file)
    with pytest.raises(OutputError, match=r"another job \(model was capitals, now small\)"):
        begin(tmp_path / "out", file, model="small")
    with pytest.raises(OutputError, match="beam was None, now 4"):
        begin(tmp_path / "out", file, beam="4")
    with pytest.raises(OutputError, match="unit_lines was 10, now 20"):
        begin(tmp_path / "out", file, lines=20)
    assert job.begin(str(tmp_path / "out"), inputs.find([str(file)]), {"model": "capitals"}, None).digest
    file.write_bytes(TEXT + b"x")
    with pytest.raises(OutputError, match=r"1 input file added, removed or resized: text\.en"):
        begin(tmp_path / "out", file)
    with pytest.raises(DataError, match="of other input files"):
        job.resume(str(tmp_path / "out"), inputs.find([str(file)]))
    with pytest.raises(MissingError, match="has no units"):
        job.resume(str(tmp_path / "none"), inputs.find([str(file)]))


def test_a_unit_of_another_job_is_refused(tmp_path: Path, file: Path) -> None:
    """Such a unit appears if two jobs begin at once in an object store without exclusive creation."""
    work(begin(tmp_path / "out", file))
    work(begin(tmp_path / "other", file, model="small"))
    (tmp_path / "other/units/000/0000003.json").replace(tmp_path / "out/units/000/0000003.json")
    for index in ("1/1", "1/2"):
        with pytest.raises(OutputError, match="another model or other options"):
            work(begin(tmp_path / "out", file), index)


def test_an_input_that_changed_in_place_is_detected(tmp_path: Path, file: Path) -> None:
    work(some_job := begin(tmp_path / "out", file))
    file.write_bytes(TEXT.replace(b"line 17", b"LINE 17"))
    assert [(unit.first, why) for unit, why in proof.problems(some_job)] == [
        (11, "the input has changed since these lines were translated")
    ]


def test_inputs_and_outputs_are_kept_apart(tmp_path: Path, file: Path) -> None:
    with pytest.raises(OutputError, match="is in the output directory"):
        begin(tmp_path, file)
    (tmp_path / "in/units").mkdir(parents=True)
    (tmp_path / "in/units/x").touch()
    with pytest.raises(UsageError, match="units/x must be renamed"):
        begin(tmp_path / "out", tmp_path / "in")


def test_a_full_disk_ends_the_worker_and_leaves_no_claim(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_job = begin(tmp_path / "out", file)

    def full(path: Path) -> None:
        if any(tmp_path.rglob("*.json")) and "part" in path.name and len([*tmp_path.rglob("0*.json")]) > 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(artefact, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        work(some_job)
    monkeypatch.undo()
    assert not [*(tmp_path / "out").rglob("*.claim")]
    work(begin(tmp_path / "out", file))
    assert joined(some_job) == expected(TEXT)


def test_a_stopped_worker_releases_its_units(tmp_path: Path, file: Path) -> None:
    some_job = begin(tmp_path / "out", file)
    stop = threading.Event()

    def translate(source: int, target: int, first: int, _: object) -> None:
        if first > 40:
            if first == 41:
                os.kill(os.getpid(), signal.SIGINT)  # interrupts the main thread, as Ctrl-C does
            assert stop.wait(20)
            raise UsageError("this Translator is closed")
        shouting.shout(source, target, first)

    stopped = worker.Worker(some_job, shouting.parse("1/1"), translate, one_line=True, stop=stop.set)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(shouting.Progress("", None, "lines"))
    assert stop.is_set()
    assert not [*(tmp_path / "out").rglob("*.claim")]
    assert not [*(tmp_path / "out").rglob("*.failed")]
    work(begin(tmp_path / "out", file))
    assert joined(some_job) == expected(TEXT)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_the_suffix_of_an_output_selects_its_compression(tmp_path: Path, file: Path, suffix: str) -> None:
    work(some_job := begin(tmp_path / "out", file))
    name = tmp_path / f"new/joined.de{suffix}"
    assert proof.join(some_job, str(name)) == [str(name)]
    with inputs.opened(inputs.find([str(name)])[0]) as read:
        assert read.read() == expected(TEXT)
    first = name.read_bytes()
    proof.join(some_job, str(name))
    assert name.read_bytes() == first
    assert [each.name for each in name.parent.iterdir()] == [name.name]


def test_outputs_of_several_files_need_a_directory(tmp_path: Path, file: Path) -> None:
    (tmp_path / "more").write_bytes(b"x\n")
    work(some_job := begin(tmp_path / "out", file, tmp_path / "more"))
    with pytest.raises(UsageError, match="there are 2 outputs"):
        proof.join(some_job, str(file))
    paths = proof.join(some_job, str(tmp_path / "new"))
    assert paths == [str(tmp_path / "new/more"), str(tmp_path / "new/text.en")]
    proof.join(begin(tmp_path / "out", file, tmp_path / "more"), str(tmp_path / "new"))
    work(one := begin(tmp_path / "one", file))
    assert proof.join(one, str(tmp_path / "new")) == [str(tmp_path / "new/text.en")]


def test_units_in_an_fsspec_store(tmp_path: Path, file: Path) -> None:
    out = f"file://{tmp_path}/out"
    first = begin(out, f"file://{file}")
    work(first, "2/3")
    assert work(begin(out, f"file://{file}"), "1/1").lines == 0
    with pytest.raises(OutputError, match="another job"):
        begin(out, f"file://{file}", model="small")
    assert not [*proof.problems(first)]
    assert proof.join(first, None) == [f"{out}/text.en"]
    proof.join(first, f"file://{tmp_path}/joined.gz")
    assert gzip.decompress((tmp_path / "joined.gz").read_bytes()) == expected(TEXT)
    assert (tmp_path / "out/text.en").read_bytes() == expected(TEXT)
    assert not [*(tmp_path / "out").rglob("*.claim")]
