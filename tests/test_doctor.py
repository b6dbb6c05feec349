"""The doctor on runs that really were made wrong: it names the right cause first, and says nothing of a sound run."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ENGLISH, GERMAN, TINY

from nmt_cli import recipe
from nmt_cli.__main__ import main
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import read_lines
from nmt_cli.errors import DataError, MissingError, NmtError
from nmt_cli.reporting.doctor import Finding, Record, doctor, examine, gather
from nmt_cli.reproduce import ReproduceOptions, reproduce
from nmt_cli.scoring.paper_bleu import moses_tokenize

SOUND = [
    *(f"model.{change}" for change in ("d_model=64", "d_ff=128", "d_k=32", "d_v=32", "dropout=0")),
    *(f"training.{change}" for change in ("steps=150", "tokens_per_step=1200", "micro_batches=1", "warmup_steps=50")),
    *(f"training.{change}" for change in ("cooldown_steps=75", "validate_every=15", "checkpoint_every=5")),
    *("training.log_every=10", "training.validate_bleu=20", "decoding.beam=4"),
]
Reproduce = Callable[..., Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the text and the recipe of a model that learns numbers of two to four digits in seconds."""
    place, draw, pairs = tmp_path_factory.mktemp("doctor"), random.Random(3), {}
    while len(pairs) < 1580:
        digits = [draw.randrange(10) for _ in range(draw.randint(2, 4))]
        pairs[" ".join(ENGLISH[d] for d in digits)] = " ".join(GERMAN[d] for d in digits)
    for language, lines in (("en", list(pairs)), ("de", list(pairs.values()))):
        for split, part in (("train", lines[:1500]), ("dev", lines[1500:1540]), ("test", lines[1540:])):
            (place / f"{split}.{language}").write_text("".join(f"{line}\n" for line in part))
    (place / "tiny.yaml").write_text(TINY.format(place))
    return place


@pytest.fixture(scope="module")
def reproduced(place: Path) -> Reproduce:
    """Return a run of that recipe with changes, after reproducing it: reproduced("name", "averaging.last=1")."""

    def make(name: str, *changes: str) -> Path:
        settings, run = recipe.load(place / "tiny.yaml", [*SOUND, *changes]), place / "runs" / name
        assert reproduce(settings, ReproduceOptions(place / "data" / "numbers", run, workers=1)) == 0
        return run

    return make


@pytest.fixture(scope="module")
def sound(reproduced: Reproduce) -> Path:
    """A run with nothing wrong. Do not change it: it is shared."""
    return reproduced("sound")


@pytest.fixture
def copy(sound: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(sound, sound.parent / request.node.name.replace("/", "-")))


@pytest.fixture
def record(sound: Path) -> Record:
    return gather(sound, None, None, None)


def findings(run: Path, *files: Path | None) -> list[Finding]:
    data, hypothesis, reference = [*files, None, None, None][:3]
    return examine(gather(run, data, hypothesis, reference))


def only(found: list[Finding]) -> str:
    """Return what the only finding says, after its severity."""
    assert len(found) == 1, found
    return f"{found[0].severity}: {found[0].what}"


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_sound_run_is_left_alone(record: Record, sound: Path, capsys) -> None:
    assert examine(record) == []
    assert record.bleu is not None
    assert record.bleu > 80
    doctor(sound, None, None, None, False)
    out = capsys.readouterr().out
    assert out.endswith("BLEU on test by sacreBLEU\n\nNothing was found that is known to cost BLEU.\n")


# --- how it was trained ----------------------------------------------------------------------------------------------


def test_no_averaging(copy: Path, reproduced: Reproduce) -> None:
    assert only(findings(reproduced(copy.name, "averaging.last=1"))) == (
        "costly: no averaging: it is the checkpoint of step 150"
    )


def test_fewer_checkpoints_than_the_recipe_s_and_a_model_older_than_the_run(record: Record) -> None:
    fewer = dataclasses.replace(record.run, model={**record.run.model, "steps": [145, 150]})
    said = only(examine(dataclasses.replace(record, run=fewer)))
    assert said == "costly: it is the mean of 2 checkpoints, the last of step 150 of 150"
    older = dataclasses.replace(record.run, model={**record.run.model, "steps": [50, 55, 60]})
    assert "the last of step 60 of 150" in only(examine(dataclasses.replace(record, run=older)))


def test_few_tokens_per_step(reproduced: Reproduce) -> None:
    found = findings(reproduced("eighth", "training.tokens_per_step=150"))
    assert any("target tokens, and the recipe 150" in finding.what for finding in found)


def test_a_run_on_its_way(record: Record) -> None:
    run = dataclasses.replace(record.run, model=None)
    assert only(examine(dataclasses.replace(record, run=run, step=100, hypotheses=[], bleu=None))) == (
        "costly: 100 of 150 steps"
    )


def with_steps(record: Record, losses: list[float | None]) -> Record:
    steps = [{"step": 10 * i, "nll": loss, "tgt_tokens_per_step": 1200} for i, loss in enumerate(losses, 1)]
    return dataclasses.replace(record, run=dataclasses.replace(record.run, steps=steps))


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([5, 3, 2, 1.5, 1.2, 1, 3, 4, 4, 4, 4, 4, 4, 4, 4], "wrong: training diverged: its loss was 1.00, and is 4.00"),
        ([2.4] * 15, "wrong: training never took off: the loss stays at 2.40"),
        ([2, 1, None, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.2], "costly: 0 steps were skipped: numbers were not finite"),
    ],
)
def test_curves_that_go_wrong(record: Record, losses: list[float | None], says: str) -> None:
    assert only(examine(with_steps(record, losses))) == says


def test_a_run_that_gave_up(copy: Path) -> None:
    (copy / "crash.json").write_text('{"step": 155, "sentences": []}')
    assert only(findings(copy)) == "wrong: training gave up: numbers were not finite"
    (copy / "crash.json").write_text('{"step": 95, "sentences": []}')  # it was resumed, and went on to the end
    assert findings(copy) == []


# --- what belongs together -------------------------------------------------------------------------------------------


def test_a_corpus_with_another_tokenizer(sound: Path, place: Path) -> None:
    settings = recipe.load(place / "tiny.yaml", ["corpus.tokenizer.vocabulary_size=310"])
    other = prepare(settings.corpus, place / "data" / "other", PrepareOptions(workers=1))
    tokenizer, corpus = findings(sound, other)
    assert (tokenizer.severity, tokenizer.where) == ("wrong", other / "tokenizer.model")
    assert "another tokenizer" in tokenizer.what
    assert (corpus.severity, corpus.where) == ("wrong", other)


def test_a_model_with_another_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.model").write_bytes(spm.train(["another text of other words"], 300))
    assert {finding.where.name for finding in findings(copy)} == {"tokenizer.model"}


def test_a_corpus_prepared_anew(sound: Path, place: Path) -> None:
    changes = ["corpus.limit=1400", f"corpus.tokenizer.file={sound}/tokenizer.model"]
    other = prepare(
        recipe.load(place / "tiny.yaml", changes).corpus, place / "data" / "fewer", PrepareOptions(workers=1)
    )
    assert only(findings(sound, other)) == "wrong: the run was trained on another corpus"


def test_settings_of_the_search_changed_after_translating(copy: Path) -> None:
    (copy / "recipe.yaml").write_text((copy / "recipe.yaml").read_text().replace("alpha: 0.6", "alpha: 1.0"))
    assert only(findings(copy)) == "wrong: another model or other decoding settings made these"


def test_fewer_pairs_than_expected_and_many_dropped(record: Record, place: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(place / "data" / "numbers", tmp_path / "numbers"))
    cleaning = json.loads((data / "cleaning.json").read_text())
    cleaning |= {"read": 3000, "kept": 1500, "warnings": ["the sides look swapped"]}
    (data / "cleaning.json").write_text(json.dumps(cleaning))
    expect = record.run.settings.expect.model_copy(update={"pairs": [2000, 2100]})
    settings = record.run.settings.model_copy(update={"expect": expect})
    run = dataclasses.replace(
        record.run, settings=settings, corpus=dataclasses.replace(record.run.corpus, directory=data)
    )
    assert [finding.what for finding in examine(dataclasses.replace(record, run=run))] == [
        "1,500 training pairs, not 2,000",
        "50% of the pairs were dropped",
        "nmt prepare warned: the sides look swapped",
    ]


# --- the test set and the output -------------------------------------------------------------------------------------


def test_translations_of_another_test_set(sound: Path, place: Path, tmp_path: Path) -> None:
    lines = read_lines(sound / "test.hyp")
    assert "not translations of the test set" in findings(sound, None, sound / "dev.hyp")[0].what
    short = written(tmp_path / "short", lines[:-1])
    assert only(findings(sound, None, short)) == "wrong: 39 translations and 40 references"
    assert "line by line" in only(findings(sound, None, written(tmp_path / "shifted", [*lines[1:], lines[0]])))
    filtered = written(tmp_path / "filtered", ["Ein Satz."] * 2737)
    assert "filtered newstest2014" in only(findings(sound, None, filtered))


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("are empty", lambda hyp, src: ""),
        ("are copies of their source", lambda hyp, src: src),
        ("repeat themselves", lambda hyp, src: f"{hyp} eins zwei drei" + " eins zwei drei" * 5),
    ],
)
@pytest.mark.parametrize("share", [8, 40])
def test_bad_lines_of_output(
    sound: Path, place: Path, tmp_path: Path, says: str, change: Callable[[str, str], str], share: int
) -> None:
    lines, sources = read_lines(sound / "test.hyp"), read_lines(place / "data" / "numbers" / "test.src")
    wrong = [change(h, s) if i < share else h for i, (h, s) in enumerate(zip(lines, sources, strict=True))]
    first = findings(sound, None, written(tmp_path / "hyp", wrong))[0]
    assert (first.severity, first.what) == ("wrong" if share == 40 else "costly", f"{share} of 40 translations {says}")


def test_short_output(sound: Path, tmp_path: Path) -> None:
    lines = [line.rpartition(" ")[0] or line for line in read_lines(sound / "test.hyp")]
    assert "times the words of their references" in only(findings(sound, None, written(tmp_path / "hyp", lines)))


def test_tokenised_and_lower_cased_output(sound: Path, tmp_path: Path) -> None:
    references = written(tmp_path / "refs", ['Das ist „gut“, sagt er: "Ja."'] * 40)
    for says, change in (("look tokenised", lambda line: moses_tokenize(line, "de")), ("are lower-cased", str.lower)):
        lines = [change(line) for line in read_lines(references)]
        record = gather(sound, None, written(tmp_path / "hyp", lines), references)
        found = examine(dataclasses.replace(record, run=dataclasses.replace(record.run, corpus=None, validations=[])))
        assert f"40 of 40 translations {says}" in [finding.what for finding in found]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(sound: Path, place: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.argv", ["nmt", "doctor", "runs/sound", "--hypothesis", "runs/sound/dev.hyp", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code  # 0 whatever it finds
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert finding.keys() == {"severity", "what", "where", "do"}
    assert (finding["severity"], finding["where"]) == ("wrong", "runs/sound/dev.hyp")
    assert told["unchecked"] == []


@pytest.mark.parametrize("width", [60, 80])
def test_every_finding_is_said_within_the_width_most_serious_first(copy: Path, monkeypatch, capsys, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (copy / "metrics.jsonl").unlink()
    lines = read_lines(copy / "test.hyp")
    written(copy / "test.hyp", ["" if i < 4 else line for i, line in enumerate(lines)])
    (copy / "crash.json").write_text('{"step": 155}')
    doctor(copy, None, None, None, False)
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert said.index("1. wrong training gave up") < said.index("costly 4 of 40 translations are empty")
    assert "recipes/README.md" in shown
    assert "Not checked, for there is nothing yet: loss." in said
    assert all(len(line) <= width for line in shown.split("\n") if "/" not in line)


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("recipe.yaml", None, 66),
        ("recipe.yaml", b"training: [", 65),
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 3}\n', 65),
        ("corpus.json", b"{", 65),
        ("model/manifest.json", b"", 65),
        ("translations.json", b"[]", 65),
        ("test.hyp", b"\xff\n", 65),
    ],
)
def test_damaged_runs(copy: Path, file: str, content: bytes | None, code: int) -> None:
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    with pytest.raises(NmtError) as caught:
        findings(copy)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)


def test_what_is_missing_or_damaged(sound: Path, place: Path, tmp_path: Path) -> None:
    for files in ((tmp_path / "no", None), (None, tmp_path / "no"), (None, None, tmp_path / "no")):
        with pytest.raises(MissingError):
            findings(sound, *files)
    with pytest.raises(MissingError, match="no run in nowhere"):
        findings(Path("nowhere"))
    data = Path(shutil.copytree(place / "data" / "numbers", tmp_path / "numbers"))
    (data / "test.tgt").write_text("shorter\n")
    with pytest.raises(DataError, match=r"test\.tgt is damaged"):
        findings(sound, data)


def test_a_run_that_has_only_begun(sound: Path, tmp_path: Path, place: Path, capsys) -> None:
    run = tmp_path / "begun"
    run.mkdir()
    for name in ("recipe.yaml", "corpus.json", "tokenizer.model"):
        shutil.copy(sound / name, run)
    doctor(run, place / "data" / "numbers", None, None, False)
    assert "Not checked, for there is nothing yet: loss, averaging, output." in capsys.readouterr().out
