"""A teacher that translates text in units, as one of many workers."""

from pathlib import Path
from typing import Any

import pytest

from nmt_cli.commands import teacher
from nmt_cli.corpus.synthetic import TEXT, TRANSLATIONS
from nmt_cli.sharding.job import FOLDER
from nmt_cli.system.errors import DataError
from nmt_cli.system.shard import Shard
from nmt_cli.translation import sharded
from nmt_cli.translation.options import Sampling, SearchOptions


class Job:
    """Stands in for a sharded translation: records how it was made and run."""

    def __init__(self, done: list[Any], failed: int, *given: Any, **options: Any) -> None:
        (self.files, self.out, how), self.done, self.failed = given, done, failed
        done.append((how.models, how.search, options["unit_lines"]))

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("closed")

    def run(self, shard: Shard) -> int:
        Path(self.out).mkdir(exist_ok=True)
        self.done.append(shard)
        return self.failed


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls = list[Any]()
    monkeypatch.setattr(sharded, "ShardedTranslation", lambda *given, **options: Job(calls, 0, *given, **options))
    monkeypatch.setattr(sharded, "join", lambda *given: calls.append(given))
    return calls


@pytest.mark.parametrize(
    ("size", "lines"), [(100, 100), (100 * 101 - 1, 100), (100 * 101, 101), (100 * 9999, 9999), (100 * 10_002, 10_000)]
)
def test_units_of_text_have_100_to_10000_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: list[Any], size: int, lines: int
) -> None:
    monkeypatch.setattr(teacher, "TARGET_UNITS", 1)
    (tmp_path / TEXT).write_bytes(b"x" * (size - 1) + b"\n")
    for sampling in (None, Sampling()):
        teacher.translate_units(Path("m"), tmp_path, 7, sampling is not None, Shard(2, 3))
        assert done[0] == ((Path("m"),), SearchOptions(beam=7, sampling=sampling), lines)
        assert done[1:] == [Shard(2, 3), "closed"], "others may still translate, so nothing is joined"
        done.clear()
    assert (tmp_path / TEXT).exists()


def test_the_last_worker_joins_the_units_and_removes_them(tmp_path: Path, done: list[Any]) -> None:
    text, out = tmp_path / TEXT, tmp_path / FOLDER
    text.write_text("a\n")
    teacher.translate_units(Path("m"), tmp_path, 4, False, None)
    assert done[1:] == [Shard(1, 1), "closed", ([str(text)], str(out), str(tmp_path / TRANSLATIONS))]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_unit_removes_nothing_and_finished_text_is_not_translated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: list[Any]
) -> None:
    (tmp_path / TEXT).write_text("a\n")
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "ShardedTranslation", lambda *given, **options: Job(done, 1, *given, **options))
        for worker in (None, Shard(1, 2)):
            with pytest.raises(DataError, match=f"nmt translate {tmp_path / TEXT} --check {tmp_path / FOLDER}"):
                teacher.translate_units(Path("m"), tmp_path, 4, False, worker)
    assert {path.name for path in tmp_path.iterdir()} == {TEXT, FOLDER}
    done.clear()
    (tmp_path / TRANSLATIONS).write_text("b\n")
    teacher.translate_units(Path("m"), tmp_path, 4, False, None)
    assert done == []
    assert not (tmp_path / TEXT).exists(), "a kill just after joining had left this file"
