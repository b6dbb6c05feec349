"""The doctor: it names the right cause first, and says nothing of a sound run."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import make_run

from nmt_cli import artefact
from nmt_cli.__main__ import main
from nmt_cli.corpus.readers import read_lines
from nmt_cli.errors import DataError, MissingError, NmtError
from nmt_cli.reporting.doctor import Finding, Record, doctor, examine, gather
from nmt_cli.scoring.paper_bleu import moses_tokenize


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with nothing wrong, whose translations are the references, and its corpus. They are shared."""
    run, data = make_run(tmp_path_factory.mktemp("doctor"), "averaging.last=2")
    shutil.copy(data / "test.tgt", run / "test.hyp")
    return run, data


@pytest.fixture
def copy(sound, tmp_path) -> tuple[Path, Path]:
    """A copy of them that a test may change."""
    return shutil.copytree(sound[0], tmp_path / "runs/small"), shutil.copytree(sound[1], tmp_path / "data")


@pytest.fixture
def record(sound) -> Record:
    return gather(*sound, None, None)


def findings(run: Path, data: Path, *files: Path) -> list[Finding]:
    hypothesis, reference = [*files, None, None][:2]
    return examine(gather(run, data, hypothesis, reference))


def only(listed: list[Finding]) -> str:
    """Return what the only finding says, after its severity."""
    assert len(listed) == 1, listed
    return f"{listed[0].severity}: {listed[0].what}"


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_sound_run_is_left_alone(record, sound, capsys):
    assert examine(record) == []
    assert record.bleu == pytest.approx(100)
    doctor(*sound, None, None, False)
    out = capsys.readouterr().out
    assert out.endswith("100.00 BLEU on test by sacreBLEU\n\nNothing was found that is known to cost BLEU.\n")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([200], "costly: averaged over 1 of the checkpoints, the last of step 200 of 200"),
        ([50, 60], "costly: averaged over 2 of the checkpoints, the last of step 60 of 200"),
    ],
)
def test_checkpoints_that_were_not_averaged(record, steps: list[int], says: str):
    run = dataclasses.replace(record.run, model={**record.run.model, "steps": steps})
    assert only(examine(dataclasses.replace(record, run=run))) == says


def test_a_run_on_its_way(record):
    run = dataclasses.replace(record.run, model=None)
    assert only(examine(dataclasses.replace(record, run=run, step=100, hypotheses=[], bleu=None))) == (
        "costly: 100 of 200 steps"
    )


@pytest.mark.parametrize(
    ("losses", "tokens", "says"),
    [
        ([5, 3, 2, 1.5, 1.2, 1, 3, 4, 4, 4, 4, 4], 25_000, "wrong: training diverged: its loss was 1.00, and is 4.00"),
        ([2.4] * 15, 25_000, "wrong: training never took off: the loss stays at 2.40"),
        ([2, 1, None, 0.5, 0.4, 0.3, 0.2], 25_000, "costly: 0 steps were skipped: numbers were not finite"),
        ([2, 1], 150, "costly: a step has 150 target tokens, and the recipe 25,000"),
        ([5, 3, 2], 25_000, None),
    ],
)
def test_curves_that_go_wrong(record, losses: list[float | None], tokens: int, says: str | None):
    steps = [{"step": 10 * i, "nll": loss, "tgt_tokens_per_step": tokens} for i, loss in enumerate(losses, 1)]
    training = record.run.settings.training.model_copy(update={"warmup_steps": 100})
    settings = record.run.settings.model_copy(update={"training": training})
    run = dataclasses.replace(record.run, settings=settings, steps=steps)
    assert [f"{f.severity}: {f.what}" for f in examine(dataclasses.replace(record, run=run))] == [says] * bool(says)


def test_a_run_that_gave_up(copy):
    (copy[0] / "crash.json").write_text('{"step": 205, "sentences": []}')
    assert only(findings(*copy)) == "wrong: training gave up: numbers were not finite"
    (copy[0] / "crash.json").write_text('{"step": 95, "sentences": []}')  # it was resumed, and went on to the end
    assert findings(*copy) == []


def test_a_corpus_with_another_tokenizer(sound, tmp_path):
    _, other = make_run(tmp_path, "corpus.tokenizer.vocabulary_size=335")
    (corpus,) = findings(sound[0], other)
    assert (corpus.severity, corpus.where) == ("wrong", other)
    assert "the run was trained on another corpus; where the tokenizer differs" in corpus.what


def test_settings_of_the_search_changed_after_translating(copy):
    (copy[0] / "recipe.yaml").write_text((copy[0] / "recipe.yaml").read_text().replace("alpha: 0.6", "alpha: 1.0"))
    assert only(findings(*copy)) == "wrong: another model or other decoding settings made these"


def test_fewer_pairs_than_expected_and_many_dropped(record, copy):
    cleaning = {"read": 3000, "kept": 1500, "warnings": ["another language"]}
    (copy[1] / "cleaning.json").write_bytes(artefact.json_bytes(cleaning))
    expect = record.run.settings.expect.model_copy(update={"pairs": [2000, 2100]})
    settings = record.run.settings.model_copy(update={"expect": expect})
    corpus = dataclasses.replace(record.run.corpus, directory=copy[1])
    run = dataclasses.replace(record.run, settings=settings, corpus=corpus)
    assert [finding.what for finding in examine(dataclasses.replace(record, run=run))] == [
        "nmt prepare warned: another language",
        "50% of the pairs were dropped",
        f"{len(corpus.src)} training pairs, not 2,000",
    ]


def test_translations_of_another_test_set(sound, tmp_path):
    lines = read_lines(sound[0] / "test.hyp")
    short = written(tmp_path / "short", lines[:-1])
    assert only(findings(*sound, short)) == "wrong: 6 translations and 7 references"
    other = written(tmp_path / "other", ["ganz andere Wörter als dort"] * 7)
    assert "line by line, these are not translations of the test set" in findings(*sound, other)[0].what


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("are empty", lambda hyp, src: ""),
        ("are copies of their source", lambda hyp, src: src),
        ("repeat themselves", lambda hyp, src: f"{hyp} eins zwei drei" + " eins zwei drei" * 5),
    ],
)
@pytest.mark.parametrize("count", [2, 6])
def test_bad_lines_of_output(sound, tmp_path, says: str, change: Callable[[str, str], str], count: int):
    lines, sources = read_lines(sound[0] / "test.hyp"), read_lines(sound[1] / "test.src")
    wrong = [change(h, s) if i < count else h for i, (h, s) in enumerate(zip(lines, sources, strict=True))]
    first = findings(*sound, written(tmp_path / "hyp", wrong))[0]
    assert (first.severity, first.what) == ("wrong" if count == 6 else "costly", f"{count} of 7 translations {says}")


def test_short_output(sound, tmp_path):
    lines = [line.rpartition(" ")[0] or line for line in read_lines(sound[0] / "test.hyp")]
    assert "times the words of their references" in only(findings(*sound, written(tmp_path / "hyp", lines)))


def test_tokenised_and_lower_cased_output(sound, tmp_path):
    references = written(tmp_path / "refs", ['Das ist „gut“, sagt er: "Ja."'] * 40)
    for says, change in (("look tokenised", lambda line: moses_tokenize(line, "de")), ("are lower-cased", str.lower)):
        lines = [change(line) for line in read_lines(references)]
        listed = findings(*sound, written(tmp_path / "hyp", lines), references)
        assert f"40 of 40 translations {says}" in [finding.what for finding in listed]


def test_the_command(copy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (copy[0] / "crash.json").write_text('{"step": 205}')
    monkeypatch.setattr("sys.argv", ["nmt", "doctor", "runs/small", "--data", "data", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code  # 0 whatever it finds
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert finding.keys() == {"severity", "what", "where", "do"}
    assert (finding["severity"], finding["where"]) == ("wrong", "runs/small/crash.json")
    assert told["unchecked"] == []


def test_every_finding_is_said_within_the_width_most_serious_first(copy, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    (copy[0] / "metrics.jsonl").unlink()
    written(copy[0] / "test.hyp", ["", "", *read_lines(copy[0] / "test.hyp")[2:]])
    (copy[0] / "crash.json").write_text('{"step": 205}')
    doctor(*copy, None, None, False)
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert said.index("1. wrong training gave up") < said.index("costly 2 of 7 translations are empty")
    assert "recipes/README.md" in shown
    assert "Not checked, for there is nothing yet: loss." in said
    assert all(len(line) <= 60 for line in shown.split("\n") if "/" not in line)


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("recipe.yaml", None, 66),
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 3}\n', 65),
        ("corpus.json", b"{", 65),
        ("model/manifest.json", b"", 65),
        ("test.hyp", b"\xff\n", 65),
    ],
)
def test_damaged_runs(copy, file: str, content: bytes | None, code: int):
    (copy[0] / file).unlink()
    if content is not None:
        (copy[0] / file).write_bytes(content)
    with pytest.raises(NmtError) as caught:
        findings(*copy)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)


def test_what_is_missing_or_damaged(copy, tmp_path):
    run, data, no = *copy, tmp_path / "no"
    for files in ((no, data), (run, no), (run, data, no), (run, data, run / "test.hyp", no)):
        with pytest.raises(MissingError):
            findings(*files)
    (data / "test.tgt").write_text("shorter\n")
    with pytest.raises(DataError, match=r"test\.tgt is damaged"):
        findings(run, data)


def test_a_run_that_has_only_begun(copy, capsys):
    for name in ("metrics.jsonl", "test.hyp", "model/manifest.json"):
        (copy[0] / name).unlink()
    doctor(*copy, None, None, False)
    assert "Not checked, for there is nothing yet: loss, averaging, output." in capsys.readouterr().out
