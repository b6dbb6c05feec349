"""The doctor on runs that really were made wrong: it names the right cause first, and says nothing of a sound run."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ENGLISH, GERMAN, TINY
from test_cli import complaint, nmt

from nmt_cli import recipe
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import read_lines
from nmt_cli.errors import DataError, MissingError, NmtError
from nmt_cli.reporting.doctor import ABOUT, ALL, HARMLESS, Finding, Record, examine, gather, text
from nmt_cli.reproduce import ReproduceOptions, reproduce
from nmt_cli.scoring.paper_bleu import moses_tokenize

SOUND = [
    *(f"model.{knob}" for knob in ("d_model=64", "d_ff=128", "d_k=32", "d_v=32", "dropout=0")),
    *(f"training.{knob}" for knob in ("steps=150", "tokens_per_step=1200", "micro_batches=1", "warmup_steps=50")),
    *(f"training.{knob}" for knob in ("cooldown_steps=75", "validate_every=15", "checkpoint_every=5", "log_every=10")),
    *("training.validate_bleu=20", "decoding.beam=4"),
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
    """Return a run of that recipe with changes, after reproducing it: reproduced("name", "decoding.beam=1")."""

    def make(name: str, *changes: str) -> Path:
        settings, run = recipe.load(place / "tiny.yaml", [*SOUND, *changes]), place / "runs" / name
        assert reproduce(settings, ReproduceOptions(place / "data" / "numbers", run, workers=1)) == 0
        return run

    return make


@pytest.fixture(scope="module")
def sound(reproduced: Reproduce) -> Path:
    """A run with nothing wrong. Do not change it: it is shared."""
    return reproduced("sound")


def copied(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.parent / name))


def findings(run: Path, *files: Path | None) -> list[Finding]:
    data, hypothesis, reference = [*files, None, None, None][:3]
    return examine(gather(run, data, hypothesis, reference))


def first(found: list[Finding]) -> str:
    return found[0].id if found else "nothing"


# --- a sound run, and five that are not ------------------------------------------------------------------------------


def test_a_sound_run_is_left_alone(sound: Path) -> None:
    record = gather(sound, None, None, None)
    assert [finding for finding in examine(record) if finding.cost[1] > HARMLESS] == []
    assert record.unchecked == []
    assert record.bleu is not None
    assert record.bleu > 80
    assert text(record, [], 80).endswith("\nNothing was found that is known to cost BLEU.")


def test_no_averaging(sound: Path, reproduced: Reproduce) -> None:
    run = copied(sound, "alone")
    found = findings(reproduced(run.name, "averaging.last=1"))
    assert (first(found), len(found)) == ("averaging", 1)
    assert "update 150 alone" in found[0].what


def test_an_eighth_of_the_tokens_per_step(reproduced: Reproduce) -> None:
    found = findings(reproduced("eighth", "training.tokens_per_step=150"))
    assert first(found) == "tokens-per-update"
    assert "output-length" in [finding.id for finding in found]  # a symptom, whatever it costs, comes after its cause


def test_beam_1(sound: Path, reproduced: Reproduce) -> None:
    run = copied(sound, "greedy")
    found = findings(reproduced(run.name, "decoding.beam=1"))
    assert (first(found), len(found)) == ("search", 1)
    assert "beam 1" in found[0].what


def test_translations_of_another_test_set(sound: Path, tmp_path: Path) -> None:
    dev = sound / "dev.hyp"
    found = findings(sound, None, dev)
    assert (first(found), len(found)) == ("test-set", 1)
    assert "of the dev set" in found[0].what
    short = tmp_path / "short.hyp"
    short.write_text("".join(f"{line}\n" for line in read_lines(sound / "test.hyp")[:-1]))
    found = findings(sound, None, short)
    assert (first(found), len(found)) == ("test-set", 1)
    assert "39 lines, the reference 40" in found[0].what


def test_another_reference_than_the_corpus_test_set(sound: Path, place: Path) -> None:
    found = findings(sound, None, sound / "dev.hyp", place / "data" / "numbers" / "dev.tgt")
    assert (first(found), len(found)) == ("test-set", 1)
    assert "but its dev set" in found[0].what


def test_the_test_set_in_another_form(sound: Path, place: Path, tmp_path: Path) -> None:
    lines = read_lines(place / "data" / "numbers" / "test.tgt")
    (tmp_path / "upper").write_text("".join(f"{line.upper()} .\n" for line in lines))
    assert {finding.id for finding in findings(sound, None, None, tmp_path / "upper")} >= {"metric"}
    (tmp_path / "same").write_text("\n".join(lines))  # without the last line feed
    assert findings(sound, None, None, tmp_path / "same") == []


def test_the_filtered_newstest2014(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "hyp").write_text("Ein Satz.\n" * 2737)
    record = gather(sound, None, tmp_path / "hyp", None)
    found = [f for f in examine(dataclasses.replace(record, near="base")) if f.id == "test-set"]
    assert "filtered newstest2014" in found[0].what
    assert found[0].cost == (1, 3)


def test_shifted_lines(sound: Path, tmp_path: Path) -> None:
    lines = read_lines(sound / "test.hyp")
    (tmp_path / "shifted").write_text("".join(f"{line}\n" for line in [*lines[1:], lines[0]]))
    found = findings(sound, None, tmp_path / "shifted")
    assert (first(found), len(found)) == ("test-set", 1)
    assert "line by line" in found[0].what


@pytest.mark.parametrize(("line", "says"), [("", "are empty"), (None, "are copies of their source")])
def test_a_model_that_says_nothing_is_not_taken_for_another_test_set(
    sound: Path, place: Path, tmp_path: Path, line: str | None, says: str
) -> None:
    sources = read_lines(place / "data" / "numbers" / "test.src")
    (tmp_path / "hyp").write_text("".join(f"{source if line is None else line}\n" for source in sources))
    found = findings(sound, None, tmp_path / "hyp")
    assert (first(found), found[0].cost) == ("output", ALL)
    assert found[0].what == f"40 of 40 translations {says}."


def test_a_corpus_with_another_tokenizer(sound: Path, place: Path) -> None:
    settings = recipe.load(place / "tiny.yaml", ["corpus.tokenizer.vocabulary_size=310"])
    other = prepare(settings.corpus, place / "data" / "other", PrepareOptions(workers=1))
    found = findings(sound, other)
    assert first(found) == "tokenizer"
    assert str(other / "tokenizer.model") in found[0].what
    assert len(found) == 1


def test_a_model_with_another_tokenizer(sound: Path) -> None:
    run = copied(sound, "swapped")
    (run / "model" / "tokenizer.model").write_bytes(spm.train(["another text of other words"], 300))
    found = findings(run)
    assert (first(found), len(found)) == ("tokenizer", 1)


def test_a_corpus_prepared_with_a_tokenizer_of_other_text(sound: Path, place: Path) -> None:
    (place / "capitals.model").write_bytes(spm.train(["ONLY CAPITALS ARE KNOWN"], 300))
    settings = recipe.load(place / "tiny.yaml", [f"corpus.tokenizer.file={place / 'capitals.model'}"])
    other = prepare(settings.corpus, place / "data" / "capitals", PrepareOptions(workers=1))
    assert [finding.id for finding in findings(sound, other)] == ["tokenizer", "strange-pieces"]


def test_a_corpus_prepared_anew(sound: Path, place: Path) -> None:
    settings = recipe.load(place / "tiny.yaml", ["corpus.limit=1400", f"corpus.tokenizer.file={sound}/tokenizer.model"])
    other = prepare(settings.corpus, place / "data" / "fewer", PrepareOptions(workers=1))
    assert first(findings(sound, other)) == "corpus"


def test_a_search_changed_after_translating(sound: Path) -> None:
    run = copied(sound, "research")
    changed = (run / "recipe.yaml").read_text().replace("alpha: 0.6", "alpha: 1.0")
    (run / "recipe.yaml").write_text(changed)
    assert [finding.id for finding in findings(run)] == ["old-translations"]


# --- what the output shows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says", "change"),
    [
        ("output", "are empty", lambda hyp, src: ""),
        ("output", "copies of their source", lambda hyp, src: src),
        ("output", "an unknown piece", lambda hyp, src: f"{hyp} ⁇"),
        ("output", "four times in a row", lambda hyp, src: f"{hyp} eins zwei eins zwei eins zwei eins zwei"),
    ],
)
def test_bad_lines_of_output(
    sound: Path, place: Path, tmp_path: Path, name: str, says: str, change: Callable[[str, str], str]
) -> None:
    lines, sources = read_lines(sound / "test.hyp"), read_lines(place / "data" / "numbers" / "test.src")
    wrong = [change(h, s) if i < 8 else h for i, (h, s) in enumerate(zip(lines, sources, strict=True))]
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in wrong))
    found = [f for f in findings(sound, None, tmp_path / "hyp") if f.id == name]
    assert len(found) == 1
    assert says in found[0].what
    assert 5 < found[0].cost[1] < 40


def test_short_output(sound: Path, tmp_path: Path) -> None:
    lines = [line.rpartition(" ")[0] or line for line in read_lines(sound / "test.hyp")]
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in lines))
    found = findings(sound, None, tmp_path / "hyp")
    assert first(found) == "output-length"


def test_tokenised_and_lower_cased_output(sound: Path, tmp_path: Path) -> None:
    references = ['Das ist „gut“, sagt er: "Ja."'] * 40
    tokens = [moses_tokenize(line, "de") for line in references]
    for name, lines in (("refs", references), ("tok", tokens), ("low", [line.lower() for line in references])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    record = gather(sound, None, tmp_path / "tok", tmp_path / "refs")
    without = dataclasses.replace(record, corpus=None, validations=[])
    found = [f for f in examine(without) if f.id == "metric"]
    assert "look tokenised" in found[0].what
    lowered = dataclasses.replace(gather(sound, None, tmp_path / "low", tmp_path / "refs"), corpus=None, validations=[])
    found = [f for f in examine(lowered) if f.id == "metric"]
    assert found[0].what.startswith("The translations are lower-cased")


# --- curves ----------------------------------------------------------------------------------------------------------


def curve(losses: list[float | None], every: int = 10) -> list[dict[str, object]]:
    return [{"step": every * i, "nll": loss, "tgt_tokens_per_step": 1200} for i, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([5, 3, 2, 1.5, 1.2, 1, 3, 4, 4, 4, 4, 4, 4, 4, 4], "diverged: its loss was 1.00, and is 4.00"),
        ([2.4] * 15, "never took off"),
        ([2, 1, None, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], "not finite"),
    ],
)
def test_curves_that_go_wrong(sound: Path, losses: list[float | None], says: str) -> None:
    found = examine(dataclasses.replace(gather(sound, None, None, None), updates=curve(losses)))
    assert first(found) == "diverged"
    assert says in found[0].what


def test_a_run_that_gave_up(sound: Path) -> None:
    run = copied(sound, "crashed")
    (run / "crash.json").write_text('{"step": 155, "sentences": []}')
    assert [(finding.id, finding.cost) for finding in findings(run)] == [("diverged", ALL)]
    (run / "crash.json").write_text('{"step": 95, "sentences": []}')  # it was resumed, and went on to the end
    assert findings(run) == []


def test_dev_curves(sound: Path) -> None:
    record = gather(sound, None, None, None)

    def with_dev(losses: list[float], bleus: list[float]) -> list[str]:
        pairs = enumerate(zip(losses, bleus, strict=True), 1)
        dev = [{"step": 15 * i, "dev_nll": loss, "dev_bleu": bleu} for i, (loss, bleu) in pairs]
        return [finding.id for finding in examine(dataclasses.replace(record, validations=dev))]

    good = [50.0, 80, 90, 95, 97, 97, 97, 97, 97, 97]
    assert with_dev([1, 0.5, 0.4, 0.3, 0.25, 0.22, 0.21, 0.2, 0.2, 0.2], good) == []
    assert with_dev([1, 0.5, 0.4, 0.3, 0.25, 0.22, 0.4, 0.5, 0.6, 0.7], good) == []  # BLEU does not mind
    assert with_dev([1, 0.5, 0.4, 0.3, 0.25, 0.22, 0.4, 0.5, 0.6, 0.7], [*good[:-1], 90]) == ["overfitting"]
    assert with_dev([3, 2.5, 2.3, 2.1, 2, 1.9, 1.8, 1.7, 1.6, 1.5], good) == ["still-falling"]


# --- compared with the paper -----------------------------------------------------------------------------------------


def of_the_paper(record: Record, *changes: str) -> Record:
    """Return a record of a finished run of base.yaml with changes; its data is not there."""
    settings = recipe.load(Path("recipes/base.yaml"), changes)
    steps = settings.training.steps
    tokens = settings.training.tokens_per_step
    updates = [{"step": steps, "nll": 1.5, "tgt_tokens_per_step": tokens, "skipped": 0}]
    averaged = list(range(steps - 1500 * (settings.averaging.last - 1), steps + 1, 1500))
    return dataclasses.replace(
        record, settings=settings, near="base", corpus=None, updates=updates, validations=[], step=steps,
        averaged=averaged, hypothesis=None, reference=None, triples=[], bleu=None,
    )  # fmt: skip


def test_the_papers_own_recipe_is_left_alone(sound: Path) -> None:
    assert examine(of_the_paper(gather(sound, None, None, None))) == []


@pytest.mark.parametrize(
    ("change", "name", "cost"),
    [
        ("training.tokens_per_step=3125", "tokens-per-update", (1.5, 6)),
        ("training.steps=50000", "updates", (0.5, 1)),
        ("training.steps=5000", "updates", (4, 20)),
        ("averaging.last=1", "averaging", (0.3, 1)),
        ("training.warmup_steps=100", "warm-up", (1, 20)),
        ("model.dropout=0.0", "model", (1.2, 1.2)),
        ("training.label_smoothing=0.0", "model", (0.5, 0.5)),
        ("model.num_layers=2", "model", (2.1, 2.1)),
        ("model.positions=learned", "model", (0.1, 0.1)),
        ("model.norm=pre", "norm", (0.3, 0.6)),
        ("decoding.beam=1", "search", (0.3, 1)),
        ("decoding.alpha=0", "search", (0, 0.3)),
        ("training.clip_norm=1", "details", (0, HARMLESS)),
        ("training.precision=bf16", "details", (0, HARMLESS)),
    ],
)
def test_departures_from_the_paper(sound: Path, change: str, name: str, cost: tuple[float, float]) -> None:
    found = examine(of_the_paper(gather(sound, None, None, None), change))
    assert [finding.id for finding in found] == [name]
    assert found[0].cost == pytest.approx(cost)


def test_larger_updates_make_up_for_fewer(sound: Path) -> None:
    changes = ("training.steps=25000", "training.tokens_per_step=100000")
    assert examine(of_the_paper(gather(sound, None, None, None), *changes)) == []


def test_the_data_of_the_paper(sound: Path) -> None:
    record = gather(sound, None, None, None)
    mine = dataclasses.replace(of_the_paper(record), corpus=record.corpus)
    found = {finding.id: finding for finding in examine(mine)}
    assert list(found) == ["data", "vocabulary"]  # 1,500 pairs and 320 pieces
    assert found["data"].cost[0] > 5


def test_most_costly_first(sound: Path) -> None:
    changes = ("decoding.alpha=0", "averaging.last=1", "model.num_layers=2", "training.tokens_per_step=3125")
    found = examine(of_the_paper(gather(sound, None, None, None), *changes))
    assert [finding.id for finding in found] == ["tokens-per-update", "model", "averaging", "search"]


# --- said well, or not at all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_finding_is_explained_within_the_width(sound: Path, width: int) -> None:
    record = gather(sound, None, None, None)
    found = [Finding(name, f"This is so, {name}.", ALL if i % 2 else (0.25, 1)) for i, name in enumerate(ABOUT)]
    shown = text(record, found, width)
    assert all(f"This is so, {name}." in " ".join(shown.split()) for name in ABOUT)
    assert all(len(line) <= width for line in shown.split("\n") if str(sound) not in line)


def test_the_command(sound: Path, place: Path) -> None:
    done = nmt("doctor", "runs/sound", cwd=place)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().endswith("\nNothing was found that is known to cost BLEU.\n")
    done = nmt("doctor", "runs/sound", "--hypothesis", "runs/sound/dev.hyp", "--json", cwd=place)
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    assert [(row["id"], row["cost"]) for row in told["findings"]] == [("test-set", None)]
    assert {"what", "paper", "source", "do"} <= told["findings"][0].keys()


def test_it_does_not_wait_for_torch(sound: Path, place: Path) -> None:
    done = nmt("doctor", "runs/sound", cwd=place, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.decode().split("\n")}
    assert done.returncode == 0
    assert "sacrebleu" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("recipe.yaml", None, 66),
        ("recipe.yaml", b"training: [", 65),
        ("recipe.yaml", b"training: {steps: many}", 65),
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 3}\n', 65),
        ("metrics.jsonl", b'["step"]\n', 65),
        ("metrics.jsonl", b'{"step": 1, "nll": "low"}\n', 65),
        ("corpus.json", b"{", 65),
        ("model/manifest.json", b"", 65),
        ("model/manifest.json", b'{"steps": 3}', 65),
        ("translations.json", b"[]", 65),
        ("test.hyp", b"\xff\n", 65),
    ],
)
def test_damaged_runs(sound: Path, tmp_path: Path, file: str, content: bytes | None, code: int) -> None:
    run = Path(shutil.copytree(sound, tmp_path / "run"))
    data = sound.parent.parent / "data" / "numbers"
    (run / file).unlink()
    if content is not None:
        (run / file).write_bytes(content)
    with pytest.raises(NmtError) as caught:
        findings(run, data)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)
    assert file.rpartition("/")[2] in str(caught.value) or content is None


def test_what_is_missing(sound: Path, tmp_path: Path) -> None:
    assert "no run in nowhere" in complaint(nmt("doctor", "nowhere", cwd=tmp_path), 66)
    for files in ((tmp_path / "no", None), (None, tmp_path / "no"), (None, None, tmp_path / "no")):
        with pytest.raises(MissingError):
            findings(sound, *files)


def test_a_damaged_corpus(sound: Path, place: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(place / "data" / "numbers", tmp_path / "numbers"))
    (data / "test.tgt").write_text("shorter\n")
    with pytest.raises(DataError, match=r"test\.tgt is damaged"):
        findings(sound, data)


def test_a_run_on_its_way(sound: Path) -> None:
    record = gather(sound, None, None, None)
    for step, cost in ((149, None), (100, (0.5, 4)), (60, (2, 10)), (10, (4, 20))):
        found = examine(dataclasses.replace(record, step=step, averaged=[]))
        assert [(finding.id, finding.cost) for finding in found] == ([("updates", cost)] if cost else [])
    assert found[0].what == "10 updates of the 150 planned."


def test_a_run_that_has_only_begun(sound: Path, place: Path, tmp_path: Path) -> None:
    run = tmp_path / "begun"
    run.mkdir()
    for name in ("recipe.yaml", "corpus.json", "tokenizer.model"):
        shutil.copy(sound / name, run)
    record = gather(run, place / "data" / "numbers", None, None)
    assert examine(record) == []
    assert [line.partition(":")[0] for line in record.unchecked] == [
        "loss curve",
        "averaging",
        "output, test set and metric",
    ]
