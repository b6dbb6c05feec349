"""The report page shows everything about a run, runs no text as code, and loads no other file."""

import base64
import dataclasses
import hashlib
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_run import HOSTILE, SAMPLES, make_run, page_data, records

from nmt_cli import __version__
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.reporting import paper
from nmt_cli.reporting.charts import Line, line_chart, log_ticks, ticks
from nmt_cli.reporting.page import TEMPLATES, compared, render
from nmt_cli.reporting.report import _compared, report
from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, printable
from nmt_cli.training.run import read_run

BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FETCHING = {"img", "iframe", "object", "embed", "base", "form", "audio", "video", "source", "use", "image"}


class Reader(HTMLParser):
    """Collects the tags with their attributes, and the text outside the style sheet."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.lasttag != "style":
            self.text += data


def check_harmless(text, scripts=0):
    """Check that a page has this number of scripts, no other code, and loads nothing."""
    reader = Reader(text)
    assert sum(tag == "script" for tag, _ in reader.tags) == scripts
    for tag, attributes in reader.tags:
        assert tag not in FETCHING
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import", text)
    assert not BIDI.search(text)
    return reader


def test_each_run_uses_the_corpus_it_was_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run, data), (other, other_data) = make_run(tmp_path / "a"), make_run(tmp_path / "b", "corpus.limit=30")
    other_data = other_data.rename(tmp_path / "elsewhere")
    for directories in ([data, other_data], [other_data, data]):
        page = report(run, [other], tmp_path / "page.html", directories).read_text()
        assert page.count("tok:13a") == 2, "both are scored"
    report(run, [other], tmp_path / "page.html", [data])  # the other corpus is not at its default path
    with pytest.raises(DataError, match="was trained on another corpus"):
        report(run, [other], tmp_path / "page.html", [other_data])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("small"), "expect.pairs=[40,50]", "expect.parameters=16000")


def change(run, before, after):
    text = (run / "recipe.yaml").read_text()
    assert before in text
    (run / "recipe.yaml").write_text(text.replace(before, after))


def read(path):
    return check_harmless(path.read_text(encoding="utf-8"))


def shown(page):
    """Return the lines of text on a page, with "|" between table cells, without charts and the whole recipe."""
    page = re.sub(
        r"<style>.*?</style>|<svg.*?</svg>|<details><summary>The whole.*?</details>", " ", page, flags=re.DOTALL
    )
    page = re.sub("</?(div|p|pre|h[0-9]|tr|nav|figcaption|section)[^>]*>", "\n", re.sub("</(td|th)>", " | ", page))
    lines = html.unescape(re.sub("<[^>]*>", "", page)).split("\n")
    return [" ".join(line.split()) for line in lines if line.strip()]


@pytest.mark.usefixtures("all_samples")
def test_everything_is_on_the_page_and_no_text_runs_as_code(small, monkeypatch):
    run, data = small
    read_json, cleaning = artefact.read_json, artefact.read_json(data / "cleaning.json")
    counts = [
        dict(zip(("source", "target", "both"), (first, first + 1, first + 2), strict=True)) for first in (1100, 40)
    ]
    cleaning["twins"]["dev"] = {"lines": 9, "equal": counts[0], "near": counts[1], "near_lines": [*range(2000)]}
    cleaning |= {"warnings": ["careful"], "read": 5041}
    monkeypatch.setattr(
        artefact, "read_json", lambda path: cleaning if path.name == "cleaning.json" else read_json(path)
    )
    target = report(run, data=[data])
    text = "\n".join(shown(target.read_text())).replace(str(run), "RUN").replace(str(data), "DATA")
    text = re.sub("[0-9a-f]{64}", "HASH", text.replace(f"nmt {__version__}", "nmt 0"))
    for side, ids in (("SOURCE", open_corpus(data).src.ids), ("TARGET", open_corpus(data).tgt.ids)):
        text = re.sub(rf"\b{len(ids):,}\b", f"{side} TOKENS", text)
    expected = (Path(__file__).parents[1] / "data" / "score" / "page_of_a_run.txt").read_text()
    assert re.sub(r"version:[\d.]+", "version:0", text).split("\n") == expected.split("\n")[:-1]
    assert target == run / "report.html"
    assert target.stat().st_size < 200_000
    page, tokens = read(target), [side.lengths().sum() for side in (open_corpus(data).src, open_corpus(data).tgt)]
    for text in (
        "tokens, source and target{:,} and {:,}".format(*tokens),
        "<script>window.hacked = 1</script>",  # as text
        "\\u202eright to left",  # a line of the test set, unchanged
        "<b onmouseover=alert(1)>eins</b>",  # a sample
        "10 to 20",  # expected
        "nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a",  # the signature
        "200 of 200",
        "Near-duplicates in training: 6 of 7 test lines (source 6, target 6, both in one pair 6).",
        "BLEU of the 6 lines with near-duplicates: 74.08 ± 8.93.",
        "source equals target",  # dropped, with its example
        "the averaged checkpoints, from steps 100, 200.",
        f"nmt train {run}/recipe.yaml --run runs/again --data {data}",
        "log_every: 50",  # in the whole recipe
        "the recipe's 0.0001976 at step 200",
        "zwei \\u202e drei",  # another sample
    ):
        assert text in page.text
    for file in (run / "recipe.yaml", run / "test.hyp", run / "model" / "model.safetensors", data / "tokenizer.model"):
        assert artefact.sha256(file) in page.text
    assert sum(tag == "polyline" for tag, _ in page.tags) >= 8
    marks = [attributes for _, attributes in page.tags if attributes.get("class") == "averaged"]
    assert len(marks) == 2 * 6  # 2 checkpoints in each of 6 charts
    (first, second) = ({"class": "averaged", "x1": x, "x2": x, "y1": "10", "y2": "214"} for x in ("260.0", "468.0"))
    assert marks == [first, second] * 6
    axes = [(at["x1"], at["x2"], at["y1"] == at["y2"]) for _, at in page.tags if at.get("class") == "axis"]
    assert set(axes) == {("52", "468", True)}


def test_expected_curves_end_where_the_run_does(tmp_path):
    expect = ["dev_steps=[50,200,9000]", "dev_perplexity=[7,3,2]", "dev_bleu=[10,20,30]", "pairs=[40,50]"]
    run, data = make_run(tmp_path, *(f"expect.{change}" for change in expect))
    text = read(report(run, data=[data])).text
    assert all(each in text for each in ("expected 3 at step 200", "expected 20 at step 200", "(expected: 40 to 50)"))
    assert "9,000" not in text


@pytest.mark.parametrize(
    ("changes", "band"),
    [(["steps=200"], True), (["steps=201"], False), (["steps=100"], True), (["steps=201", "patience=3"], True)],
)
def test_an_unfinished_run_is_not_compared_with_the_expected_scores(tmp_path, changes, band):
    """The log ends at step 200. A run that stopped early is finished."""
    run, data = make_run(tmp_path, *(f"training.{each}" for each in changes))
    text = read(report(run, data=[data])).text
    assert ("10 to 20BLEU expected" in text.replace("\n", "")) == band
    assert text.count("10 to 20") == 2 * band


def test_signatures_are_collapsed_and_tiles_are_few(small, tmp_path):
    run, data = small
    page = report(run, out=tmp_path / "page.html", data=[data]).read_text()
    assert page.partition('<div class="tiles">')[2].partition("<nav>")[0].count("<small>") == 4
    folded = "".join(re.findall("<details>.*?</details>", page, flags=re.DOTALL))
    assert folded.count("nrefs:1") == page.count("nrefs:1") == 4, "one for each metric"


def test_a_long_run_shows_some_samples_and_the_last(small, tmp_path):
    run, data = small
    other = shutil.copytree(run, tmp_path / "other")
    records = [{"step": i, "dev_nll": 2.0, "dev_perplexity": 7.4, "samples": [f"sample at {i}."]} for i in range(1, 24)]
    (other / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = re.findall(r"sample at (\d+)\.", read(report(other, data=[data])).text)
    assert shown == ["1", "6", "11", "16", "21", "23"]


@pytest.mark.usefixtures("all_samples")
def test_two_runs_side_by_side(small, tmp_path):
    run, data = small
    other = shutil.copytree(run, tmp_path / "other")
    change(other, "num_layers: 2", "num_layers: 1")
    log = (other / "metrics.jsonl").read_text()
    changes = ('"dev_nll": 1.5', '"dev_nll": 2.5'), ('"nll": 1.5', '"nll": 3.5'), ("200", "204"), ("eins", "hundert")
    for before, after in changes:
        log = log.replace(before, after)
    (other / "metrics.jsonl").write_text(log)
    assert report(run, [other], tmp_path / "both.html", [data]) == tmp_path / "both.html"
    page = (tmp_path / "both.html").read_text()
    assert 'class="s0 dashed"' in page
    assert 'class="s1 dashed"' in page  # each run has its color
    assert 'class="averaged"' not in page  # only the page of a single run marks averaged checkpoints
    shown = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert ("eins" in shown, "hundert" in shown) == (True, False), "samples are those of the first run"
    assert "small – 16,192 200 2.000 12.50 74.36 ± 8.25 other model.num_layers: 2 -&gt; 1 10,816 204 2.000" in shown
    assert "other training 3.529 at step 204 small dev 1.529 at step 200 other dev 2.529 at step 204" in shown


def test_the_matching_row_of_table_3_is_shown(tmp_path, monkeypatch):
    run, data = make_run(tmp_path)
    change(run, "name: own", "name: wmt14-en-de")
    monkeypatch.setattr(paper, "table_3", lambda _: loading.load(Path("table3/c-n2")))
    assert "c-n2: perplexity 6.11, BLEU 23.7" in read(report(run, data=[data])).text


def test_without_the_corpus_the_rest_is_shown(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = read(report(small[0], out=tmp_path / "r.html")).text
    assert "no prepared corpus in data/own" in capsys.readouterr().err
    assert "The prepared corpus was not found" in shown
    assert "Loss" in shown


@pytest.mark.parametrize(
    ("language", "figure", "metrics"),
    [
        ("de", 27.3, {"BLEU": "", "chrF2": "", "paper-BLEU": "", "paper-BLEU-quotes": "27.3"}),
        ("fr", 38.1, {"BLEU": "", "chrF2": "", "paper-BLEU": "38.1"}),
    ],
)
def test_published_scores_are_shown_beside_the_comparable_metric(tmp_path, language, figure, metrics):
    run, data = make_run(tmp_path, f"corpus.tgt={language}", f"expect.paper_bleu={figure}")
    scores = report(run, data=[data]).read_text().partition("Vaswani et al. 2017</th>")[2].partition("</table>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in scores.split("</tr>")]
    assert {row[0]: row[3] for row in cells if row} == metrics


def test_a_compared_run_lists_its_differences_and_generated_text_has_two_metrics(small, monkeypatch):
    run, data = small
    files = read_run(run, data)
    first = loading.from_plain(loading.merge(files.settings.model_dump(), loading.override("training.seed=3")), "test")
    first = first.model_copy(update={"name": "other"})
    asked = []
    monkeypatch.setattr("nmt_cli.reporting.report.evaluate", lambda *given: asked.append(given) or "scores")
    compared = _compared(files, first, None)
    assert compared["changes"] == ["training.seed: 3 -> 1"]
    assert {name: compared[name] for name in ("files", "name", "averaged", "scores", "parameters", "table_3")} == {
        **{"files": files, "name": "small", "averaged": [100, 200], "scores": "scores", "parameters": 16_192},
        "table_3": None,
    }
    monkeypatch.setitem(files.corpus.manifest, "generated", True)
    _compared(files, first, None)
    options = [ScoreOptions(corpus=data, metrics=metrics, details=True) for metrics in ((), ("bleu", "chrf"))]
    assert asked == [(each, files.translations("test")) for each in options]
    object.__setattr__(files.corpus, "lines", lambda split: ([], []))
    assert _compared(files, first, None)["scores"] is None


def test_trees_are_scored_by_the_function_for_trees(tmp_path):
    run, data = make_run(tmp_path, "expect.paper_f1=91.3")
    change(run, "format: text", "format: trees")
    assert "No scored translations yet" in read(report(run, data=[data])).text

    def score(options, hypotheses):
        scores = evaluate(options, hypotheses)
        scores.scores[0] = dataclasses.replace(scores.scores[0], metric="brackets", name="F1 of brackets")
        return scores

    page = report(run, data=[data], score_trees=score)
    assert "F1 of brackets on test" in read(page).text
    assert ">91.3</td>" in page.read_text()


def test_a_run_without_any_log(tmp_path):
    run, data = make_run(tmp_path / "new")
    for name in ("metrics.jsonl", "test.hyp", "model/manifest.json"):
        (run / name).unlink()
    shown = read(report(run, data=[data])).text
    assert "Nothing logged yet" in shown
    assert "No scored translations yet" in shown


def test_the_page_of_a_long_run_is_small_and_omits_values_that_are_not_finite(small, tmp_path):
    run, data = small
    lines = [json.dumps(record) for record in records(1_000_000, 50)]
    lines.append(json.dumps({**records(10)[0], "step": 1_000_050, "nll": None, "gradient_norm": None}))
    lines.append(json.dumps({"step": 1_000_050, **dict.fromkeys(("dev_nll", "dev_perplexity", "dev_bleu"))}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    target = report(run, out=tmp_path / "long.html", data=[data])
    assert target.stat().st_size < 2_000_000
    page = read(target)
    assert "step 1,000,000" in page.text
    points = [attributes["points"] for tag, attributes in page.tags if tag == "polyline"]
    assert max(map(len, points)) > 4000  # long texts are cut, curves are not
    assert all(re.fullmatch(r"[0-9., ]+", path) for path in points)


def test_a_score_of_zero_is_a_point_of_its_curve(small, tmp_path):
    run, data = small
    counts = []
    for bleu in (0.0, 5.0):
        lines = records(200)
        next(line for line in lines if "dev_bleu" in line)["dev_bleu"] = bleu
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        page = read(report(run, out=tmp_path / "zero.html", data=[data]))
        counts.append([attributes["points"].count(",") for tag, attributes in page.tags if tag == "polyline"])
    assert counts[0] == counts[1]
    assert 2 in counts[0]


@pytest.mark.parametrize("text", [*HOSTILE, *SAMPLES, "", "' onclick=x", "{{ 1 }}", "\0\r\u2028", "]]>-->"])
def test_any_text_is_shown_as_text(text):
    values = {"title": text, "model": text, "roles": {text: text}}
    data = {"sentences": [{"text": text}], "role": text, "layer": 1, "layers": 1, "d_k": 1, "positions": []}
    page = render("attend.html", {**values, "data": data}, "attend.js").decode()
    reader = check_harmless(page, scripts=2)
    assert len(reader.tags) == 75
    assert f"Model {printable(text)}. Hover over" in reader.text
    assert page_data(page) == data
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert script == (TEMPLATES / "attend.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'\"" in page


def test_words_that_differ_from_the_reference_are_marked():
    assert compared("a b c", "a x c") == [("a", True), ("b", False), ("c", True)]
    assert compared("", "a") == []
    assert compared("x a  b y c", "a b c") == [("x", False), ("a b", True), ("y", False), ("c", True)]
    assert compared("a b", "a b c") == [("a b", True)]
    assert compared("the " * 300 + "end", "the " * 300 + "fin")[0] == (("the " * 300).strip(), True)


def test_commands_to_reproduce_a_run_with_its_corpus_at_the_default_path(tmp_path, monkeypatch):
    run, data = make_run(tmp_path / "a", "averaging.best=true")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    data.rename(tmp_path / "data" / "own")
    commands = shown(report(run).read_text())
    first = commands.index("Reproduce") + 1
    assert commands[first : first + 7] == [
        f"nmt reproduce {run}/recipe.yaml --run runs/again",
        "# or step by step",
        f"nmt prepare {run}/recipe.yaml",
        f"nmt train {run}/recipe.yaml --run runs/again",
        "nmt average-checkpoints runs/again",
        "nmt translate --model runs/again/model --input data/own/test.src --output test.hyp",
        "nmt score test.hyp --corpus data/own",
    ]
    change(run, "best: true", "best: false")
    shutil.rmtree(run / "model")
    shutil.rmtree(tmp_path / "data")
    log = (run / "metrics.jsonl").read_text().replace('"skipped": 0', '"skipped": 1234')
    (run / "metrics.jsonl").write_text(log)
    lines = shown(report(run).read_text())
    assert "nmt average-checkpoints runs/again --last 5 --data DATA" in lines
    assert f"nmt reproduce {run}/recipe.yaml --run runs/again --data DATA" in lines
    assert "1,234 steps were skipped because their gradient was not finite." in lines
    assert (
        "The number of parameters is unknown without the corpus. "
        "Closest model in the paper of Vaswani et al. (2017): base; 9 settings differ." in lines
    )


def test_points_are_placed_on_the_chart():
    lines = [Line("a", [(0, 0.0), (50, 5.0), (100, 10.0)]), Line("b", [])]
    chart = line_chart("x", lines, marks=[50])
    (curve,) = chart["curves"]
    (x0, y0), (x1, y1), (x2, y2), _ = (map(float, point.split(",")) for point in curve["path"].split())
    assert (x0, x2, y2, y0) == (52, 468, 10, 214)  # the edges of the plot area
    assert (x1, y1) == ((x0 + x2) / 2, (y0 + y2) / 2)
    assert chart["marks"] == [x1]
    assert chart["rows"] == [(214, "0"), (173.2, "2"), (132.4, "4"), (91.6, "6"), (50.8, "8"), (10, "10")]
    assert chart["columns"][::5] == [(52, "0"), (468, "100")]
    assert line_chart("x", lines[1:]) is None
    high = line_chart("x", [Line("a", [(0, 6.0), (1, 10.0)], 7, True)])  # not from zero, which would flatten it
    assert (high["rows"][0], high["curves"][0]["style"]) == ((214, "6"), "s1 dashed")
    logarithmic = line_chart("x", [Line("a", [(0, 1.0), (1, 10.0), (2, 100.0), (3, 0.0)])], log=True)
    heights = [float(point.split(",")[1]) for point in logarithmic["curves"][0]["path"].split()]
    assert heights[:4] == [214, 112, 10, 214]
    assert logarithmic["rows"][0::3] == [(214, "1"), (112, "10"), (10, "100")]
    below = line_chart("x", [Line("a", [(0, -3.0), (1, 1.0)])])
    assert below["curves"][0]["path"].startswith("52.0,214.0 468.0,10.0")
    for points, log, path in (
        ([(5, 3.0)], True, "468.0,112.0 468.0,112.0"),
        ([(0, 3.0)], False, "52.0,112.0 52.0,112.0"),
        ([(0, 0.0), (1, 0.0)], False, "52.0,112.0 468.0,112.0 468.0,112.0"),
        ([(0, 2.0), (1, 1000.0)], True, "52.0,214.0 468.0,10.0 468.0,10.0"),  # a logarithmic axis need not start at 1
    ):
        assert line_chart("x", [Line("a", points)], log=log)["curves"][0]["path"] == path


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0, 200_000) == [0, 50_000, 100_000, 150_000, 200_000]
    assert ticks(-0.3, 0.7) == [-0.2, 0, 0.2, 0.4, 0.6]
    assert ticks(1.7, 2.45) == [1.8, 2, 2.2, 2.4]
    assert log_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(0.04, 0.6) == pytest.approx([0.05, 0.1, 0.2, 0.5])
    assert log_ticks(2, 5) == [2, 3, 4, 5], "two round numbers are too few"


def test_a_chart_ends_with_its_longest_line() -> None:
    lines = [Line("short", [(0, 2.0), (500, 3.0)]), Line("long", [(0, 5.0), (1000, 4.0)], 2), Line("none", [])]
    chart = line_chart("Title", lines, [250, 1000])
    assert (chart["title"], chart["marks"], chart["width"], chart["height"]) == ("Title", [156, 468], 480, 240)
    assert chart["columns"] == [(52, "0"), (135.2, "200"), (218.4, "400"), (301.6, "600"), (384.8, "800"), (468, "1k")]
    assert chart["rows"] == [(214, "0"), (173.2, "1"), (132.4, "2"), (91.6, "3"), (50.8, "4"), (10, "5")]
    assert chart["curves"] == [
        {"name": "short", "last": (500, 3.0), "style": "s0", "path": "52.0,132.4 260.0,91.6 260.0,91.6"},
        {"name": "long", "last": (1000, 4.0), "style": "s2", "path": "52.0,10.0 468.0,50.8 468.0,50.8"},
    ]
    flat = line_chart("x", [Line("a", [(0, 10.0), (1, 10.0)])])
    assert (flat["rows"][0], flat["rows"][-1]) == ((214, "9"), (10, "11")), "a tenth above and below"
    many = line_chart("x", [Line("a", [(i, float(i)) for i in range(1001)])])["curves"][0]["path"].split()
    assert len(many) == 336, "every third of a thousand points, and the last one twice"


def test_differences_from_the_closest_of_the_papers_models():
    assert paper.departures(Recipe()) == ("base", [])
    big = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
    rest = {"training": {"steps": 300_000, "keep_checkpoints": 20}, "averaging": {"last": 20}}
    assert paper.departures(loading.from_plain({"model": big, **rest}, "big")) == ("big", [])
    near = loading.from_plain({"model": {**big, "dropout": 0.1}, **rest}, "big")
    assert paper.departures(near) == ("big", ["model.dropout: 0.3 -> 0.1"])


def test_the_row_of_table_3_is_found_despite_other_averaging_and_decoding():
    row = loading.load(Path("table3/c-n2"), ["decoding.beam=9", "averaging.last=4", "corpus.name=own"])
    assert paper.table_3(row).name == "c-n2"
    for change in ("training.label_smoothing=0.3", "model.dropout=0.3"):
        assert paper.table_3(loading.load(Path("table3/c-n2"), [change])) is None


def test_settings_that_the_paper_specifies():
    silent = "name expect.bleu training.seed training.max_hours model.max_length decoding.split training.memory_tokens "
    silent += "training.log_every training.validate_every training.checkpoint_every training.keep_checkpoints "
    silent += "training.patience training.micro_batches training.precision"
    speaks = "model.dropout training.steps averaging.last decoding.alpha corpus.tokenizer.vocabulary_size model.norm"
    assert [paper.matters(f"{key}: 1 -> 2") for key in [*silent.split(), *speaks.split()]] == [False] * 14 + [True] * 6


@pytest.mark.parametrize("length", [301, 2000, 2001])
def test_long_texts_are_shown_up_to_2000_characters(length):
    values = {"title": "x" * length, "model": "m", "roles": {}}
    data = {"sentences": [], "role": "", "layer": 1, "layers": 1, "d_k": 1, "positions": []}
    page = Reader(render("attend.html", {**values, "data": data}, "attend.js").decode()).text
    assert ("x" * min(length, 1999) in page, "x" * 2001 in page, "x…" in page) == (True, False, length > 2000)


def test_hashes_of_all_translations_are_shown_and_losses_have_logarithmic_axes(small, tmp_path, monkeypatch):
    run, data = shutil.copytree(small[0], tmp_path / "run"), small[1]
    (run / "dev.hyp").write_text("eins\n")
    drawn = {}

    def record(title, lines, marks=(), log=False):
        drawn[title] = (log, list(marks), [line.name for line in lines])

    monkeypatch.setattr("nmt_cli.reporting.report.line_chart", record)
    page = report(run, data=[data]).read_text()
    assert all(artefact.sha256(run / name) in page for name in ("recipe.yaml", "dev.hyp", "test.hyp"))
    assert drawn == {
        "Loss, nats per target token": (True, [100, 200], ["training", "dev"]),
        "Dev perplexity per token": (True, [100, 200], ["", "expected"]),
        "Dev BLEU": (False, [100, 200], ["", "expected"]),
        "Learning rate": (False, [100, 200], ["used", "the recipe's"]),
        "Gradient norm": (True, [100, 200], [""]),
        "Target tokens per second": (False, [100, 200], [""]),
    }
