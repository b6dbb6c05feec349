"""Units of many workers give the bytes of one `nmt translate`, for every option for lines."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from translators import one_at_a_time

from nmt_cli import Terms
from nmt_cli.documents import choose
from nmt_cli.sharding import inputs
from nmt_cli.sharding.shard import Shard
from nmt_cli.system.errors import DivergedError, OutputError, UsageError
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation import backends, sharded
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import Backend
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.sharded import ShardedTranslation
from nmt_cli.translation.translate import TranslateOptions, translate

WORDS = ["der", "die", "das", "und", "ist", "nicht", "ein", "mit", "auf", "Haus", "Hund", "Baum", "geht", "rot"]
LINES = [" ".join(WORDS[(i * 7 + j) % 14] for j in range(i % 9)) + " ." * (i % 2) for i in range(45)]
LINES[7:9] = ["3,14", "DER HUND IST NICHT ROT"]
DATA = "".join(f"{line}\n" for line in LINES).encode() + b"das Haus \xff ist rot"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.de").write_bytes(DATA)
    return tmp_path / "text.de"


def sharded_output(file: Path, options: TranslateOptions, shards: Sequence[tuple[int, int]], **more: Any) -> bytes:
    """Return the joined output of workers with 4 lines per unit."""
    files, out = inputs.find([str(file)]), file.parent / "out"
    for shard in shards:
        with ShardedTranslation(files, str(out), options, unit_lines=4, **more) as job:
            assert job.run(Shard(*shard)) == 0
    assert sharded.check([str(file)], str(out)) == 0
    sharded.join([str(file)], str(out), None)
    return (out / file.name).read_bytes()


@pytest.mark.parametrize(
    ("search", "form"),
    [
        (SearchOptions(), "text"),
        (SearchOptions(beam=3, n_best=3), "text"),
        (SearchOptions(beam=2, n_best=2), "jsonl"),
        (SearchOptions(alignments=True, alpha=0.1), "text"),
        (SearchOptions(sampling=Sampling(seed=3), n_best=2), "jsonl"),
        (SearchOptions(terms=Terms.parse(["Hund\tKatze"])), "jsonl"),
    ],
)
def test_units_are_the_bytes_of_one_command(model: Path, file: Path, search: SearchOptions, form: str) -> None:
    options = TranslateOptions(models=(model,), search=search, format=form, workers=1)
    assert translate(replace(options, input=file, output=file.with_name("plain"))) == 0
    plain = file.with_name("plain").read_bytes()
    assert len(plain) > len(DATA) // 4
    assert sharded_output(file, options, [(2, 3), (1, 2)]) == plain


def test_lines_with_markup_are_translated_in_units(model: Path, file: Path) -> None:
    file.write_bytes(b"".join(b"der <b>Hund %d</b> ist {rot}\n" % number for number in range(9)))
    run = choose("text", file, "html", True, [])
    options = TranslateOptions(models=(model,), workers=1)
    assert translate(replace(options, input=file, output=file.with_name("plain")), run) == 0
    found = sharded_output(file, options, [(1, 1)], run=run, marks={"markup": "html"})
    assert found == file.with_name("plain").read_bytes()
    assert found.count(b"<b>") == 9
    with pytest.raises(OutputError, match="markup was html, now None"):
        sharded_output(file, options, [(1, 1)])


def test_single_units_are_translated_by_number(model: Path, file: Path) -> None:
    options = TranslateOptions(models=(model,), workers=1)
    files, out = inputs.find([str(file)]), file.parent / "out"
    with ShardedTranslation(files, str(out), options, unit_lines=4) as job:
        assert job.units == 12
        assert [job.translate(number) for number in reversed(range(12))] == [""] * 12
        with pytest.raises(UsageError, match="no unit 12"):
            job.translate(12)
        times = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
        assert job.translate(3) == ""
        assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert sharded.check([str(file)], str(out)) == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strict": True}, "strict was False, now True"),
        ({"format": "jsonl"}, "format was text, now jsonl"),
        ({"search": SearchOptions(beam=9)}, "beam was .*, now 9"),
    ],
)
def test_other_options_are_refused(model: Path, file: Path, changes: dict[str, Any], reason: str) -> None:
    options = TranslateOptions(models=(model,), workers=1)
    sharded_output(file, options, [(1, 1)])
    with pytest.raises(OutputError, match=reason):
        sharded_output(file, replace(options, **changes), [(1, 1)])


def test_another_model_is_refused(model: Path, file: Path, tmp_path: Path) -> None:
    options = TranslateOptions(models=(model,), workers=1)
    sharded_output(file, options, [(1, 1)])
    stored = load_model(model)
    state = {name: tensor * 1.01 for name, tensor in stored.model.state_dict().items()}
    save_model(tmp_path / "other", state, stored.recipe, model / "tokenizer.model", {"steps": [1]})
    with pytest.raises(OutputError, match=r"another job \(model was"):
        sharded_output(file, replace(options, models=(tmp_path / "other",)), [(1, 1)])
    with pytest.raises(OutputError, match="beam was 2, now 1"):
        sharded_output(file, replace(options, search=SearchOptions(beam=1)), [(1, 1)])


def test_scores_that_are_not_finite_fail_their_unit(
    model: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unit of such a line is reported, the others are there, and the next run tries it again."""

    def found(segment: Segment) -> list[int]:
        if len(segment.ids) > 20:
            raise DivergedError("the model's scores are not finite")
        return segment.ids[:-1]

    monkeypatch.setattr(backends, "choose", lambda *_: Backend([one_at_a_time(found)], "a test's"))
    file.write_bytes(b"der Hund\n" * 6 + b"rot " * 25 + b"\n" + b"der Hund\n" * 6)
    files, out, options = inputs.find([str(file)]), str(file.parent / "out"), TranslateOptions(models=(model,))
    with ShardedTranslation(files, out, options, unit_lines=4) as job:
        assert job.run(Shard(1, 1)) == 70
    assert sharded.check([str(file)], out) == 1
    printed = capsys.readouterr()
    assert printed.out == "text.de\t5\t8\tfailed: the model's scores are not finite\n"
    assert "text.de, lines 5 to 8 failed: the model's scores are not finite" in printed.err
    monkeypatch.setattr(backends, "choose", lambda *_: Backend([one_at_a_time(lambda each: each.ids[:-1])], "a test's"))
    with ShardedTranslation(files, out, options, unit_lines=4) as job:
        assert job.run(Shard(1, 1)) == 0
    assert sharded.check([str(file)], out) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [({"prefix": Path("x")}, "--prefix"), ({"score_pairs": Path("x")}, "--score-pairs")],
)
def test_options_for_other_files_are_refused(file: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"--shard does not take {message}"):
        ShardedTranslation(inputs.find([str(file)]), "out", TranslateOptions(**change))
