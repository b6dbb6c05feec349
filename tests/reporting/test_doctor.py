"""The doctor names the right cause first, and finds nothing wrong with a healthy run."""

import dataclasses
import io
import json
import math
import shutil
from functools import reduce

import pytest
from small_run import make_run

from nmt_cli.corpus.readers import read_lines
from nmt_cli.recipe import loading, schema
from nmt_cli.reporting.doctor import doctor, examine, gather
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, OutputError
from nmt_cli.training.run import NEWER, translations_id


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run without problems, whose translations are the references, and its corpus. Tests share both."""
    run, data = make_run(tmp_path_factory.mktemp("doctor"), "averaging.last=2")
    shutil.copy(data / "test.tgt", run / "test.hyp")
    return run, data


@pytest.fixture
def copy(healthy, tmp_path):
    return shutil.copytree(healthy[0], tmp_path / "runs/small"), shutil.copytree(healthy[1], tmp_path / "data")


@pytest.fixture(scope="module")
def record(healthy):
    return gather(*healthy, None, None)


def findings(record, settings="", **run):
    """Return the findings after changes to the recipe's settings and to fields of the run."""
    values = reduce(loading.merge, map(loading.override, settings.split()), record.run.settings.model_dump())
    changed = dataclasses.replace(record.run, settings=loading.from_plain(values, "test"), **run)
    return [f"{f.severity}: {f.what}" for f in examine(dataclasses.replace(record, run=changed))]


def found(run, data, hypothesis=None, reference=None):
    return findings(gather(run, data, hypothesis, reference))


def test_a_healthy_run_has_no_findings(record, healthy, capsys):
    assert findings(record) == []
    assert record.bleu == pytest.approx(100)
    doctor(*healthy, None, None, False)
    out = capsys.readouterr().out
    assert out.endswith("100.00 BLEU on test by sacreBLEU\n\nFound no problem that is known to lower BLEU.\n")


def test_bleu_uses_the_tokenizer_of_the_target_language(tmp_path):
    run, data = make_run(tmp_path, "corpus.src=en", "corpus.tgt=zh")
    lines, references = ["我们看了两场电影。"] * 7, tmp_path / "references"
    references.write_text("我们看了一场电影。\n" * 7)
    (run / "test.hyp").write_text("".join(f"{line}\n" for line in lines))
    scores = [corpus_bleu(lines, ["我们看了一场电影。"] * 7, language=language)[0] for language in ("zh", "en")]
    assert gather(run, data, None, references).bleu == scores[0] != scores[1]


def test_findings_of_a_real_run_of_30_steps(reference_run, numbers_corpus):
    listed = found(reference_run, numbers_corpus)
    assert listed[1] == "costly: 30 steps (2 epochs) are too few"
    assert listed[2].startswith("costly: a step has 4")
    assert "costly: the dev loss was still falling at the end, from " in listed[3]


@pytest.mark.parametrize(
    ("averaged", "settings", "says"),
    [
        ([9], "expect.paper_dev_bleu=25", "1 checkpoint averaged, the last from step 9 of 200"),
        ([170, 180], "", None),
        ([170, 179], "", "2 checkpoints averaged, the last from step 179 of 200"),
        ([170, 180], "averaging.last=3", "2 checkpoints averaged, the last from step 180 of 200"),
        ([9], "averaging.best=true", None),  # the recipe selects the best one
        ([200], "averaging.last=1", "1 checkpoint averaged, the last from step 200 of 200"),
        ([200], "averaging.last=1 expect.paper_dev_bleu=25", None),  # as in the paper's Table 3
    ],
)
def test_too_few_or_too_early_checkpoints_averaged(record, averaged, settings, says):
    listed = findings(record, settings, model={**record.run.model, "steps": averaged})
    assert listed == [f"costly: {says}"] * bool(says)


@pytest.mark.parametrize(
    ("step", "planned", "epochs", "says"),
    [
        (179, 200, 2.0, "179 of 200 steps"),
        (180, 200, 2.0, None),
        (100, 100, 1.0, None),
        (100, 100, 0.98, "100 steps (0.98 epochs) are too few"),
        (99, 99, 20.0, "99 steps (20 epochs) are too few"),
    ],
)
def test_too_few_steps(record, step, planned, epochs, says):
    logged, short = [{**record.run.steps[-1], "epoch": epochs}], dataclasses.replace(record, step=step)
    listed = findings(short, f"training.steps={planned}", steps=logged, validations=[])
    assert listed == [f"costly: {says}"] * bool(says)


@pytest.mark.parametrize(
    ("losses", "settings", "says"),
    [
        ([2.0, 1.5, 1.5, 1.5], "training.patience=2", None),  # no validation improved
        ([2.0, 1.5, 1.5, 1.5 * 0.998**2], "training.patience=2", None),  # improved by 0.2% twice at most
        ([2.0, 1.5, 1.497, 1.4935], "training.patience=2", "100 of 200 steps"),
        ([1.5, 1.5], "training.patience=2", "100 of 200 steps"),
        ([1.5, None, None], "training.patience=2", None),  # not finite
        ([2.0, 1.5, 1.5, 1.5], "", "100 of 200 steps"),
    ],
)
def test_early_stopping_is_not_a_lack_of_steps(record, losses, settings, says):
    validations = [{"step": 25 * i, "dev_nll": loss} for i, loss in enumerate(losses, 1)]
    short, model = dataclasses.replace(record, step=100), {**record.run.model, "steps": [90, 100]}
    logged = [{**record.run.steps[-1], "step": 100, "epoch": 0.5}]
    listed = findings(short, settings, steps=logged, validations=validations, model=model)
    assert listed == [f"costly: {says}"] * bool(says)


@pytest.mark.parametrize(("skipped", "step", "says"), [(3, 3999, 0), (4, 3999, 1), (5, 5000, 0), (6, 5000, 1)])
def test_a_step_in_a_thousand_may_be_skipped(record, skipped, step, says):
    steps = [{**record.run.steps[-1], "step": i, "skipped": count} for i, count in ((9, skipped), (step, 0))]
    model = {**record.run.model, "steps": [step, step]}
    listed = findings(
        dataclasses.replace(record, step=step), f"training.steps={step}", steps=steps, validations=[], model=model
    )
    assert listed == [f"costly: {skipped} steps were skipped: values were not finite"] * says


@pytest.mark.parametrize(
    ("losses", "settings", "logged", "says"),
    [
        ([5, 3, 1, 3, 3, 4, 5], "", {}, "wrong: training diverged: the loss rose from 1.00 to 4.00"),
        ([5, 3, 1, 3, 2, 2, 2], "", {}, None),
        ([5, 1, 4, 4, 4], "", {}, None),
        ([5, 1, 4, 4, 4, 4], "", {}, "wrong: training diverged: the loss rose from 1.00 to 4.00"),
        ([2.4] * 15, "training.warmup_steps=199", {}, "wrong: training never took off: the loss stays at 2.40"),
        ([2.4] * 15, "training.warmup_steps=200", {}, None),
        ([2.4] * 15, "training.warmup_steps=199 training.init_from=start", {}, None),
        ([7.7, 4, 3, 2.2, 2.2, 2.15, 2.15], "training.warmup_steps=1", {}, None),
        ([3, 3, 3, 2.5, 2.4, 2.4, 2.4], "training.warmup_steps=1", {}, None),
        ([2, 2, None, 2, 2, 2, 2], "training.warmup_steps=1", {"skipped": 3}, None),
        ([2, 1, None], "", {"skipped": 4}, "costly: 4 steps were skipped: values were not finite"),
        ([2, 1], "", {"tgt_tokens_per_step": 17_500}, None),
        ([2], "", {"tgt_tokens_per_step": 17_499},
         "costly: a step has 17,499 target tokens on average; training.tokens_per_step is 25,000"),
        ([2, 1], "training.tokens_per_step=1200", {"tgt_tokens_per_step": 1000}, None),
        ([2], "training.tokens_per_step=20", {"tgt_tokens_per_step": 20},
         "costly: a step has 20 target tokens on average; training.tokens_per_step is 20"),
    ],
)  # fmt: skip
def test_bad_training_curves(record, losses, settings, logged, says):
    steps = [{"step": 10 * i, "nll": loss, "epoch": 2.0, **logged} for i, loss in enumerate(losses, 1)]
    assert findings(record, settings, steps=steps) == [says] * bool(says)


@pytest.mark.parametrize(("warmup", "step", "says"), [(1, 100, 0), (1, 101, 1), (150, 150, 0), (150, 151, 1)])
def test_the_loss_may_stay_high_in_the_first_steps(record, warmup, step, says):
    logged = [{**record.run.steps[-1], "step": i, "nll": 2.4, "epoch": 2.0} for i in range(step - 9, step + 1)]
    early, model = dataclasses.replace(record, step=step), {**record.run.model, "steps": [step, step]}
    settings = f"training.steps={step} training.warmup_steps={warmup}"
    listed = findings(early, settings, steps=logged, validations=[], model=model)
    assert listed == ["wrong: training never took off: the loss stays at 2.40"] * says


@pytest.mark.parametrize(
    ("earlier", "last", "settings", "says"),
    [
        ([(160, 0.6)], 0.5, "", None),
        ([(160, 0.62)], 0.5, "", "the dev loss was still falling at the end, from 0.62 to 0.50"),
        ([(161, 0.62)], 0.5, "", None),  # over less than a fifth of the steps
        ([(10, 2.0), (150, 0.62), (160, 0.58)], 0.5, "", None),  # it fell earlier
        ([(10, 2.0), (160, 0.62)], 0.5, "", "the dev loss was still falling at the end, from 0.62 to 0.50"),
        ([(10, 2.0)], 0.5, "training.steps=223", None),  # not at the end yet
        ([(10, 0.5)], 0.6, "", None),
        ([(10, 0.5)], 0.62, "", "the dev loss rose from 0.50 to 0.62"),
        ([(10, 0.7), (50, 0.5), (100, 0.54), (150, 0.58)], 0.62, "", "the dev loss rose from 0.50 to 0.62"),  # slowly
        ([(10, 0.5)], 0.5, "expect.dev_perplexity=[9,3.99,1]", "dev perplexity 5.00, expected 3.99 at step 200"),
        ([(10, 0.5)], 0.5, "expect.dev_perplexity=[9,4,1]", None),
        ([(10, 0.5)], 0.5, "expect.dev_bleu=[9,23.1,40]", "dev BLEU 20.0, expected 23.1 at step 200"),
        ([(10, 0.5)], 0.5, "expect.dev_bleu=[9,23,40]", None),
    ],
)
def test_the_dev_scores_against_the_expected_ones(record, earlier, last, settings, says):
    scores, others = {"dev_bleu": 20.0, "dev_perplexity": 5.0}, {"dev_bleu": 30.0, "dev_perplexity": 1.0}
    validations = [{"step": step, "dev_nll": nll, **others} for step, nll in earlier]
    validations.append({"step": 200, "dev_nll": last, **scores})
    validations.append({"step": 200, "dev_nll": None, "dev_perplexity": None, "dev_bleu": None})  # not finite
    listed = findings(record, f"expect.dev_steps=[100,200,201] {settings}", steps=[], validations=validations)
    assert [finding for finding in listed if "of 223 steps" not in finding] == [f"costly: {says}"] * bool(says)


def test_a_run_that_gave_up(copy):
    (copy[0] / "crash.json").write_text('{"step": 200, "sentences": []}')
    assert found(*copy) == ["wrong: training gave up: values were not finite"]
    (copy[0] / "crash.json").write_text('{"step": 199, "sentences": []}')  # resumed and finished
    assert found(*copy) == []


def test_a_corpus_with_another_tokenizer(healthy, tmp_path):
    _, other = make_run(tmp_path, "corpus.tokenizer.vocabulary_size=335")
    (corpus,) = examine(gather(healthy[0], other, None, None))
    assert (corpus.severity, corpus.where) == ("wrong", other)
    assert "the run was trained on another corpus, whose token ids may stand for other tokens" in corpus.what


def test_the_evidence_of_a_run(copy, tmp_path):
    """It has the given hypotheses or the run's, the last step in any file, and BLEU on the corpus's tokens."""
    run, data = copy
    references = read_lines(data / "test.tgt")
    (tmp_path / "other").write_text("".join(f"{line} ( x )\n" for line in references))
    own, other = gather(run, data, None, None), gather(run, data, tmp_path / "other", None)
    assert (own.hypothesis, own.hypotheses, own.references, own.step) == (run / "test.hyp", references, references, 200)
    assert (other.hypothesis, other.hypotheses) == (tmp_path / "other", read_lines(tmp_path / "other"))
    plain, moses = (corpus_bleu(other.hypotheses, references, tokenized=each)[0] for each in (False, True))
    assert other.bleu == plain != moses
    log, model = (run / "metrics.jsonl").read_text(), run / "model" / "manifest.json"
    (run / "metrics.jsonl").write_text(f'{log}{{"step": 230, "dev_nll": 2.0}}\n')
    assert gather(run, data, None, None).step == 230
    model.write_text(model.read_text().replace("200\n", "250\n"))
    assert gather(run, data, None, None).step == 250
    recipe_file = run / "recipe.yaml"
    recipe_file.write_text(recipe_file.read_text().replace("moses: false", "moses: true"))
    assert gather(run, data, tmp_path / "other", None).bleu == moses
    assert gather(run, data, recipe_file, None).bleu is None  # its number of lines is wrong
    (tmp_path / "empty").touch()
    assert gather(run, data, tmp_path / "empty", tmp_path / "empty").bleu is None
    recipe_file.write_text(recipe_file.read_text().replace("format: text", "format: trees"))
    assert gather(run, data, None, None).bleu is None


def test_a_score_of_zero_is_checked(copy, capsys):
    (copy[0] / "test.hyp").write_text("x\n" * 7)
    doctor(*copy, None, None, True)
    report = json.loads(capsys.readouterr().out)
    assert (report["bleu"], report["unchecked"], report["run"], report["steps"]) == (0, [], str(copy[0]), 200)
    assert [finding["what"] for finding in report["findings"]] == [
        "0.00 BLEU on test but 12.50 on dev: these may be translations of another test set",
        "the translations have 0.13 times as many words as the references",
    ]


def test_a_run_without_a_validation_has_a_loss_to_check(copy, capsys):
    log = copy[0] / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "dev_nll" not in line))
    (copy[0] / "test.hyp").unlink()
    doctor(*copy, None, None, True)
    assert json.loads(capsys.readouterr().out)["unchecked"] == ["output"]


def test_settings_of_the_search_changed_after_translating(copy, tmp_path):
    (copy[0] / "recipe.yaml").write_text((copy[0] / "recipe.yaml").read_text().replace("alpha: 0.6", "alpha: 1.0"))
    assert found(*copy) == ["wrong: the translations are from another model or other decoding settings"]
    assert found(*copy, (copy[0] / "test.hyp").rename(tmp_path / "test.hyp")) == []  # their origin is unknown


def test_missing_files_are_not_compared(record, copy):
    assert findings(dataclasses.replace(record, hypotheses=[], bleu=None)) == []
    assert findings(dataclasses.replace(record, references=[], bleu=None)) == []
    (copy[0] / "recipe.yaml").write_text((copy[0] / "recipe.yaml").read_text().replace("alpha: 0.6", "alpha: 1.0"))
    (copy[0] / "test.hyp").unlink()  # from the old settings
    assert found(*copy) == []


def test_fewer_pairs_than_expected_and_many_dropped(record, copy):
    corpus = dataclasses.replace(record.run.corpus, directory=copy[1])
    most = math.floor(len(corpus.src) / 0.9)  # the corpus then has nine tenths of this number

    def listed(kept, expected, *warnings):
        cleaning = {"read": 3000, "kept": kept, "warnings": warnings}
        (copy[1] / "cleaning.json").write_bytes(artefact.json_bytes(cleaning))
        return findings(record, f"expect.pairs=[{expected},9999]", corpus=corpus)

    assert listed(2100, most) == []
    assert listed(2099, most + 1, "another language") == [
        "costly: nmt prepare warned: another language",
        "costly: 30% of the pairs were dropped",
        f"costly: {len(corpus.src)} training pairs instead of {most + 1}",
    ]


def test_less_bleu_than_expected(record):
    def listed(bleu, dev=45.0, **changes):
        validations = [{**record.run.validations[-1], "dev_bleu": each} for each in (1.0, dev, None)]
        return findings(dataclasses.replace(record, bleu=bleu, **changes), validations=validations)

    assert listed(10.0) == []
    assert listed(9.99, 44.0) == ["costly: 9.99 BLEU on test; the recipe expects 10 to 20"]
    assert listed(9.99, 44.0, references=[*record.references[:-1], "x"]) == []  # another test set has no expected score
    strange = "wrong: 10.00 BLEU on test but 45.10 on dev: these may be translations of another test set"
    assert listed(10.0, 45.1) == [strange]
    assert listed(None, hypotheses=record.hypotheses[1:]) == ["wrong: there are 6 translations, but 7 references"]


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("are empty", lambda line: ""),
        ("are copies of their source", lambda line: f"source {line}"),
        ("repeat themselves", lambda line: f"{line} eins zwei drei" + " eins zwei drei" * 5),
    ],
)
def test_bad_translations(record, says, change):
    def listed(bad, count, same=False):
        texts = [f"der Satz {i}" for i in range(count)]
        lines = [change(line) if i < bad else line for i, line in enumerate(texts)]
        references = lines if same else texts
        changed = dataclasses.replace(record, hypotheses=lines, references=references, bleu=50.0)
        corpus = dataclasses.replace(record.run.corpus)
        object.__setattr__(corpus, "lines", lambda _: ([f"source {line}" for line in texts], []))
        return [finding for finding in findings(changed, corpus=corpus) if "times as many words" not in finding]

    assert listed(4, 5, same=True) == listed(1, 4) == listed(2, 400) == listed(4, 4, same=True) == []
    assert listed(2, 4) == [f"costly: 2 of 4 translations {says}"]
    assert listed(3, 4) == [f"wrong: 3 of 4 translations {says}"]
    assert listed(3, 400) == [f"costly: 3 of 400 translations {says}"]


def test_names_may_be_copied(record):
    """A line of one word may equal its source, and so may a line whose reference does."""
    texts = ["Berlin", "two words", "same here"]
    corpus = dataclasses.replace(record.run.corpus)
    changes = {"hypotheses": texts * 3, "references": ["Wien", "two words", "here same"] * 3, "bleu": 50.0}
    for prefix in ("", ">>de<< "):
        sources = [prefix + text for text in texts * 3]
        object.__setattr__(corpus, "lines", lambda _, sources=sources: (sources, []))
        assert findings(dataclasses.replace(record, **changes), corpus=corpus) == [
            "costly: 3 of 9 translations are copies of their source"
        ]


@pytest.mark.parametrize(("words", "says"), [(94, "0.94"), (95, None), (105, None), (106, "1.06")])
def test_short_and_long_output(record, words, says):
    lines = {"hypotheses": [" ".join(map(str, range(words)))], "references": [" ".join(map(str, range(100)))]}
    expected = [f"costly: the translations have {says} times as many words as the references"] * bool(says)
    assert findings(dataclasses.replace(record, bleu=50.0, **lines)) == expected


def test_findings_are_printed_most_serious_first(copy, capsys):
    for name in ("metrics.jsonl", "model/manifest.json", "translations.json"):
        (copy[0] / name).unlink()
    (copy[0] / "test.hyp").write_text("\n".join(["", "", *read_lines(copy[0] / "test.hyp")[2:], ""]))
    (copy[0] / "corpus.json").write_text('{"corpus": "another"}')
    (copy[0] / "crash.json").write_text('{"step": 205}')
    doctor(*copy, None, None, False)
    lines = capsys.readouterr().out.split("\n")
    starts = [line[:22] for line in lines if line[:1].isdigit()]
    assert starts[:3] == ["1. wrong: the run was ", "2. wrong: training gav", "3. costly: 2 of 7 tran"]
    assert lines[7] == f"   in {copy[0]}/crash.json"
    assert lines[8].startswith("   fix: use a lower training.rate_factor")
    assert lines[-2] == "These checks were not possible: loss, averaging."
    doctor(*copy, None, None, True)
    report = json.loads(capsys.readouterr().out)
    assert (report["unchecked"], report["steps"]) == (["loss", "averaging"], 0)
    finding = report["findings"][1]
    assert finding.keys() == {"severity", "what", "where", "do"}
    assert (finding["severity"], finding["where"]) == ("wrong", str(copy[0] / "crash.json"))


@pytest.mark.parametrize(
    ("encoding", "quoted"), [("ascii", r"\u201cWhat usually costs BLEU\u201d"), (None, "“What usua")]
)
def test_findings_are_printed_in_the_encoding_of_stdout(copy, monkeypatch, encoding, quoted):
    (copy[0] / "test.hyp").write_text("x\n" * 7)
    out = io.TextIOWrapper(io.BytesIO(), encoding) if encoding else io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    doctor(*copy, None, None, False)
    out.seek(0)
    assert quoted in out.read()


def test_a_run_without_its_corpus_is_examined_as_far_as_possible(copy, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(copy[1])
    doctor(copy[0], None, None, None, True)
    told = json.loads(capsys.readouterr().out)
    assert (told["bleu"], told["findings"], told["unchecked"]) == (None, [], ["data", "output"])
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OutputError, match="stdout is closed"):
        doctor(copy[0], None, None, None, True)


def test_missing_or_damaged_files(copy, tmp_path):
    run, data, no = *copy, tmp_path / "no"
    for files in ((no, data), (run, no), (run, data, no), (run, data, run / "test.hyp", no)):
        with pytest.raises(MissingError):
            found(*files)
    (data / "test.tgt").write_text("shorter\n")
    with pytest.raises(DataError, match=r"test\.tgt is damaged"):
        found(run, data)


def test_translations_of_older_versions_stay_valid() -> None:
    """Settings that older versions did not have count only if they differ from their defaults."""
    manifest = {"files": {"model.safetensors": {"sha256": "0" * 64}}}
    decoding = schema.Decoding()
    older = {name: value for name, value in decoding.model_dump().items() if name not in NEWER}
    assert translations_id(manifest, decoding) == artefact.digest(["0" * 64, older])
    for name, value in (("case", "off"), ("spelling", "off"), ("target_prefix", "x"), ("beam", 9)):
        assert translations_id(manifest, decoding.model_copy(update={name: value})) != translations_id(
            manifest, decoding
        )
    assert {name: value for name, value in decoding.model_dump().items() if name in NEWER} == NEWER
