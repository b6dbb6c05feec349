"""Units of many workers give the same bytes as one `nmt translate`, with every option for lines."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model
from translators import one_at_a_time

from nmt_cli import Terms, Translator
from nmt_cli.documents import choose
from nmt_cli.sharding import inputs
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DivergedError, NmtError, OutputError, UsageError
from nmt_cli.system.shard import Shard
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation import backends, sharded
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import Backend
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.sharded import ShardedTranslation
from nmt_cli.translation.shortlist import Shortlist
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
def test_units_give_the_bytes_of_one_command(
    model: Path, file: Path, search: SearchOptions, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = TranslateOptions(models=(model,), search=search, format=form, workers=1)
    assert translate(replace(options, input=file, output=file.with_name("plain"))) == 0
    plain = file.with_name("plain").read_bytes()
    assert len(plain) > len(DATA) // 4
    capsys.readouterr()
    assert sharded_output(file, options, [(2, 3), (1, 2)]) == plain
    assert "tokens/s" not in capsys.readouterr().err, "a unit prints no summary, unlike a command"


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
    """The unit of such a line is reported, the other units are translated, and the next run tries it again."""

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
    ("change", "message"), [({"prefix": Path("x")}, "--prefix"), ({"score_pairs": Path("x")}, "--score-pairs")]
)
def test_options_for_other_files_are_refused(file: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"--shard does not support {message}"):
        ShardedTranslation(inputs.find([str(file)]), "out", TranslateOptions(**change))


def begin(file: Path, options: TranslateOptions) -> None:
    with ShardedTranslation(inputs.find([str(file)]), str(file.parent / "out"), options):
        pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"terms": Terms.parse(["Hund\tKatze"])}, {"terms": Terms.parse(["Hund\tBaum"])}),
        ({"terms": Terms.parse(["Hund\tKatze"])}, {}),
        ({"sampling": Sampling(seed=1)}, {"sampling": Sampling(seed=2)}),
        ({"sampling": Sampling(top_k=1)}, {"sampling": Sampling(top_k=2)}),
    ],
)
def test_other_values_of_an_option_are_refused(
    model: Path, file: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    options = TranslateOptions(models=(model,), workers=1)
    begin(file, replace(options, search=SearchOptions(**first)))
    begin(file, replace(options, search=SearchOptions(**first)))
    with pytest.raises(OutputError, match="another job"):
        begin(file, replace(options, search=SearchOptions(**second)))


def test_a_job_stores_every_option_of_the_search(model: Path, file: Path) -> None:
    begin(file, TranslateOptions(models=(model,), workers=1))
    stored = json.loads((file.parent / "out/units/job.json").read_text())
    assert set(stored["identity"]["search"]) == {field.name for field in fields(SearchOptions)}


def test_every_model_of_an_ensemble_and_each_shortlist_counts(model: Path, file: Path, tmp_path: Path) -> None:
    """A job is refused with another model or shortlist, and its Translator is closed."""
    other = make_model(tmp_path / "other", seed=2)
    begin(file, TranslateOptions(models=(model, model), workers=1))
    closed = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "close", lambda _: closed.append(1))
        with pytest.raises(OutputError, match=r"another job \(model was"):
            begin(file, TranslateOptions(models=(model, other), workers=1))
    assert closed == [1]
    shutil.rmtree(file.parent / "out")
    options = TranslateOptions(models=(other,), search=SearchOptions(shortlist=True), workers=1)
    for target in (5, 6):
        data = Shortlist([target], [0] * 340, []).to_bytes(other / "tokenizer.model")
        (other / "shortlist.bin").write_bytes(data)
        if target == 5:
            begin(file, options)
    with pytest.raises(OutputError, match="shortlist was"):
        begin(file, options)


def test_workers_on_other_processors_may_help(model: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They must compute with the same precision."""
    options = TranslateOptions(models=(model,), precision="fp32", workers=1)
    begin(file, options)
    files, three = inputs.find([str(file)]), replace(options, workers=3)
    with ShardedTranslation(files, str(file.parent / "out"), three) as job:
        assert len(job.translator.backend.searches) == 3
    monkeypatch.setenv("NMT_ENGINE", "base")
    begin(file, options)
    with pytest.raises(OutputError, match="arithmetic was fp32, now int8"):
        begin(file, replace(options, precision="int8"))


@pytest.mark.parametrize("earlier", [False, True])
def test_a_recipe_counts_where_there_is_no_model_json(model: Path, file: Path, tmp_path: Path, earlier: bool) -> None:
    """Models of nmt 0.1 have none. Their recipe holds the settings that other models have in model.json."""
    source = Path(__file__).parents[1] / "data/models/plain" if earlier else model
    directories = [Path(shutil.copytree(source, tmp_path / name)) for name in ("one", "two")]
    recipe, manifest = directories[1] / "recipe.yaml", directories[1] / "manifest.json"
    recipe.write_text(recipe.read_text() + "# a comment\n")
    entries = json.loads(manifest.read_text())
    entries["files"]["recipe.yaml"] = {"bytes": recipe.stat().st_size, "sha256": artefact.sha256(recipe)}
    manifest.write_text(json.dumps(entries))
    begin(file, TranslateOptions(models=(directories[0],), workers=1))
    with pytest.raises(OutputError, match="model was") if earlier else contextlib.nullcontext():
        begin(file, TranslateOptions(models=(directories[1],), workers=1))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_task_of_datatrove_is_one_shard(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    datatrove_step = pytest.importorskip("nmt_cli.translation.datatrove_step")
    seen = list[Any]()

    class Job:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seen.append((arguments, options))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append("closed")

        def run(self, shard: Shard) -> int:
            seen.append(shard)
            return rank % 2

    monkeypatch.setattr(datatrove_step, "ShardedTranslation", Job)
    monkeypatch.setattr(datatrove_step.inputs, "find", lambda names: [f"found {name}" for name in names])
    options = TranslateOptions(workers=5)
    step = datatrove_step.TranslateFiles(["a", "b"], "out", options, unit_lines=7)
    if rank % 2:
        with pytest.raises(NmtError, match=r"a unit failed with code 1\..* see out/units/\*\.failed"):
            step.run("data", rank, 4)
    else:
        assert step.run("data", rank, 4) == "data"
    assert seen == [((["found a", "found b"], "out", options), {"unit_lines": 7}), Shard(rank + 1, 4), "closed"]
