"""The report: everything is on the page, nothing of it runs, nothing is asked for, and what is missing is said."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_run import HOSTILE, make_run, records

from nmt_cli import recipe
from nmt_cli.errors import DataError, MissingError
from nmt_cli.recipe import Recipe
from nmt_cli.reporting import paper
from nmt_cli.reporting.antecedents import Follower
from nmt_cli.reporting.page import compared, escape, page, table
from nmt_cli.reporting.report import report
from nmt_cli.reporting.svg import Line, heat_map, histogram, line_chart, log_ticks, ticks

BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
TAGS = (
    " html head meta link title style body main script h1 h2 h3 p small b i em mark code pre div nav a section details"
    " summary table thead tbody tr th td figure figcaption svg rect line text polyline circle label select option input"
    " noscript img span "
)
VOID = {"meta", "link", "img", "input", "br"}


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that all tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def check_harmless(text: str, scripts: int) -> Reader:
    """Check that a page holds so many scripts of its own, no other code, and no address to fetch."""
    reader = Reader(text)
    assert sum(tag == "script" for tag, _ in reader.tags) == scripts
    for tag, attributes in reader.tags:
        assert f" {tag} " in TAGS
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import", text)
    assert not BIDI.search(text)
    return reader


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("small"))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_everything_is_on_the_page_and_nothing_of_it_runs(small):
    run, data = small
    target = report(run, data=data)
    assert target == run / "report.html"
    assert target.stat().st_size < 200_000
    reader = check_harmless(text_of(target), scripts=0)
    shown = reader.text
    for title in (
        "Curves",
        "Scores",
        "Curves",
        "Development sentences",
        "Best and worst",
        "Data",
        "Model",
        "Checkpoints",
        "Repeat it",
    ):
        assert title in shown
    assert "<script>window.hacked = 1</script>" in shown  # as text
    assert "\\u202eright to left" in shown  # a test line, which is kept as it was
    assert "<b onmouseover=alert(1)>eins</b>" in shown  # a sample
    assert "10 to 20" in shown  # expected
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in shown  # the signature
    assert "200 of 200" in shown
    assert "source equals target" in shown  # dropped, with its example
    assert f"nmt train {run}/recipe.yaml" in shown
    assert "a" * 16 in shown  # the averaged checkpoints' hashes
    assert sum(tag == "polyline" for tag, _ in reader.tags) >= 8


def test_what_the_recipe_expects_is_drawn_as_far_as_the_run_has_come(tmp_path):
    expect = ["dev_steps=[50,200,9000]", "dev_perplexity=[7,3,2]", "dev_bleu=[10,20,30]", "pairs=[40,50]"]
    run, data = make_run(tmp_path, *(f"expect.{change}" for change in expect))
    text = text_of(report(run, data=data))
    check_harmless(text, scripts=0)
    assert "expected: 3 at step 200<" in text
    assert "expected: 20 at step 200<" in text
    assert "9,000" not in text
    assert "(expected: 40 to 50)" in text


def test_two_runs_side_by_side(small, tmp_path):
    run, data = small
    text = data.parent / "text"
    same = [f"corpus.train_src=[{text}/train.en]", f"corpus.train_tgt=[{text}/train.de]"]
    other, _ = make_run(tmp_path / "other", "name=other", "model.num_layers=1", *same)
    reader = check_harmless(text_of(report(run, [other], tmp_path / "both.html", data)), scripts=0)
    assert "model.num_layers: 2 -> 1" in reader.text
    assert "Side by side" in reader.text
    assert "other training" in reader.text  # in a legend


def test_without_the_corpus_the_rest_is_shown(small, tmp_path, monkeypatch, capsys):
    run, _ = small
    monkeypatch.chdir(tmp_path)
    shown = Reader(text_of(report(run, out=tmp_path / "r.html"))).text
    assert "no prepared corpus in data/own" in capsys.readouterr().err
    assert "The prepared corpus was not found" in shown
    assert "Loss" in shown


def test_a_run_that_has_only_begun(tmp_path):
    run = make_run(tmp_path / "new")[0]
    for name in ("metrics.jsonl", "test.hyp", "model/manifest.json"):
        (run / name).unlink()
    shown = Reader(text_of(report(run, data=tmp_path / "new" / "data"))).text
    assert "Nothing is logged yet" in shown
    assert "No scored translations yet" in shown
    make_run(tmp_path / "else", "corpus.tokenizer.vocabulary_size=335")
    with pytest.raises(DataError, match="another corpus"):
        report(run, data=tmp_path / "else" / "data")


def test_the_pronoun_s_head_is_told_where_the_antecedent_is_known(small, tmp_path, monkeypatch):
    run, data = small
    found = Follower("cross-attention", 2, 1, 121, 121, 59)
    monkeypatch.setattr("nmt_cli.reporting.report._toy", lambda run: True)
    monkeypatch.setattr("nmt_cli.reporting.antecedents.followers", lambda *_: [found])
    reader = check_harmless(text_of(report(run, out=tmp_path / "r.html", data=data)), scripts=0)
    assert "layer 2, head 1121 of 12162" in reader.text  # 62: always the second noun


def test_no_run(tmp_path):
    with pytest.raises(MissingError, match=r"no run in .*nmt train"):
        report(tmp_path)


def test_a_long_run_stays_small_and_numbers_that_were_not_finite_are_left_out(small, tmp_path):
    run, data = small
    lines = [json.dumps(record) for record in records(1_000_000, 50)]
    lines.append(json.dumps({**records(10)[0], "step": 1_000_050, "nll": None, "gradient_norm": None}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    target = report(run, out=tmp_path / "long.html", data=data)
    assert target.stat().st_size < 2_000_000
    assert "step 1,000,000" in text_of(target)


@given(st.text())
def test_escaped_text_shows_itself_and_nothing_else(text):
    reader = Reader(f"<p>{escape(text)}</p>")
    assert [tag for tag, _ in reader.tags] == ["p"]
    assert not BIDI.search(reader.text)
    if text.isprintable() and len(text) < 1000:
        assert reader.text == text


def test_hostile_text_everywhere():
    cells = [[text, text] for text in HOSTILE]
    lengths = np.array([3, 4])
    body = table(HOSTILE[:2], cells, "lc") + compared(" ".join(HOSTILE), HOSTILE[0])
    body += line_chart(HOSTILE[0], [Line(t, [(1, 1.0), (2, 2.0)]) for t in HOSTILE], band=(1, 2, HOSTILE[1]))
    body += heat_map(HOSTILE[0], HOSTILE, HOSTILE, np.eye(len(HOSTILE))) + histogram(
        HOSTILE[0], [(HOSTILE[1], lengths)]
    )
    data = {"texts": HOSTILE}
    text = page(HOSTILE[3], body, "const own = 1;", data).decode()
    reader = check_harmless(text, scripts=2)
    assert json.loads(text.partition('id="data">')[2].partition("</script>")[0]) == data
    assert reader.text.count("window.hacked") > 20


def test_compared_marks_what_differs():
    assert compared("a b c", "a x c") == "a <mark>b</mark> c"
    assert compared("", "a") == "<em>(empty)</em>"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low, span):
    found = ticks(low, low + span)
    assert len(found) <= 7
    assert all(low - 1e-9 * (abs(low) + span) <= t <= low + span + 1e-9 * (abs(low) + span) for t in found)


@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e4))
def test_ticks_of_logarithms_are_inside(low, factor):
    found = log_ticks(low, low * factor)
    assert found == sorted(found)
    assert all(low * 0.99 <= t <= low * factor * 1.01 for t in found)


def test_a_chart_places_its_points():
    chart = line_chart("x", [Line("a", [(0, 0.0), (50, 5.0), (100, 10.0)])], band=(2, 4, "expected"))
    points = re.search(r'points="([^"]*)"', chart)[1].split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in points)
    assert (x0, x2, y2, y0) == (52, 468, 10, 214)  # the chart's edges
    assert (x1, y1) == ((x0 + x2) / 2, (y0 + y2) / 2)
    assert line_chart("x", [Line("a", [])]) == ""
    assert "polyline" in line_chart("x", [Line("a", [(5, 3.0)])], log=True)


def test_the_papers_rows():
    rows = [line.partition(": ")[2].partition(";") for line in paper.TABLE_3.splitlines()]
    for changes, _, figures in rows:
        settings = Recipe()
        for change in changes.split():
            name, value = change.split("=")
            section = settings.model if hasattr(settings.model, name) else settings.training
            setattr(section, name, type(getattr(section, name))(value))
        assert paper.table_3(settings)[1] == figures.split()
    assert len(rows) == 20
    assert paper.table_3(recipe.from_plain({"model": {"d_ff": 100}}, "test")) is None


def test_departures_from_the_nearest_of_the_papers_models():
    assert paper.departures(Recipe()) == ("base", [])
    big = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
    rest = {"training": {"steps": 300_000, "keep_checkpoints": 20}, "averaging": {"last": 20}}
    assert paper.departures(recipe.from_plain({"model": big, **rest}, "big")) == ("big", [])
    near = recipe.from_plain({"model": {**big, "dropout": 0.1}, **rest}, "big")
    assert paper.departures(near) == ("big", ["model.dropout: 0.3 -> 0.1"])
