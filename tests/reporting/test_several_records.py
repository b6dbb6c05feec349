"""Figures of reports over several records and lines: means, sums and counts are not confused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from small_run import make_run, page_data

from nmt_cli.recipe import loading
from nmt_cli.reporting import paper
from nmt_cli.reporting.attend import attend
from nmt_cli.reporting.charts import Line, line_chart
from nmt_cli.reporting.doctor import Evidence, examine, gather
from nmt_cli.reporting.report import report


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("several"))


def found(evidence: Evidence, **run: Any) -> list[str]:
    changed = dataclasses.replace(evidence, run=dataclasses.replace(evidence.run, **run))
    return [finding.what for finding in examine(changed)]


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([10_000, 24_000, 18_500], None),  # 17,500 on average
        ([25_000, 10_000, 17_000], "a step has 17,333 target tokens on average; training.tokens_per_step is 25,000"),
        ([17_000, None, 18_000], None),
    ],
)
def test_the_target_tokens_of_all_steps_are_averaged(
    small: tuple[Path, Path], counts: list[int | None], says: str | None
) -> None:
    steps = [
        {"step": 100 * i, "nll": 1.5, "epoch": 2.0, "tgt_tokens_per_step": count} for i, count in enumerate(counts, 1)
    ]
    listed = found(gather(*small, None, None), steps=steps, validations=[])
    assert [what for what in listed if "target tokens" in what] == [says] * bool(says)


def test_skipped_steps_are_counted_since_the_beginning(small: tuple[Path, Path]) -> None:
    """Each record has the count so far. A resumed run may repeat steps, so the highest count is used."""
    steps = [{"step": 50 * i, "nll": 1.5, "epoch": 2.0, "skipped": count} for i, count in enumerate([1, 2, 5, 4], 1)]
    listed = found(gather(*small, None, None), steps=steps, validations=[])
    assert [what for what in listed if "skipped" in what] == ["5 steps were skipped: values were not finite"]


@pytest.mark.parametrize(
    ("words", "references", "says"),
    [((60, 50), (50, 50), "1.10"), ((60, 40), (40, 60), None), ((90, 5, 5), (100, 5, 5), "0.91")],
)
def test_the_words_of_all_lines_are_added_up(
    small: tuple[Path, Path], words: tuple[int, ...], references: tuple[int, ...], says: str | None
) -> None:
    lines, expected = ([" ".join(map(str, range(count))) for count in side] for side in (words, references))
    evidence = dataclasses.replace(gather(*small, None, None), hypotheses=lines, references=expected, bleu=50.0)
    listed = [what for what in found(evidence, validations=[]) if "times as many" in what]
    assert listed == [f"the translations have {says} times as many words as the references"] * bool(says)


def test_only_the_papers_corpus_has_a_row_of_table_3(
    small: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "table_3", lambda _: loading.load(Path("table3/c-n2")))
    run, data = small
    assert "c-n2" not in report(run, out=tmp_path / "page.html", data=[data]).read_text()


def test_a_token_without_letters_has_a_name(small: tuple[Path, Path], tmp_path: Path) -> None:
    attend(["☃ test"], small[0] / "model", tmp_path / "a.html", translation="☃ test")
    [sentence] = page_data((tmp_path / "a.html").read_text())["sentences"]
    for rows, columns in sentence["names"].values():
        assert all([*rows, *columns])


def test_lines_of_a_chart_share_one_scale() -> None:
    """It begins at the lowest value of one line and ends at the highest value of another."""
    chart = line_chart("x", [Line("a", [(0, 4.0), (10, 6.0)]), Line("b", [(0, 5.0), (10, 8.0)]), Line("c", [(5, 7.0)])])
    assert chart
    paths = [curve["path"].split() for curve in chart["curves"]]
    assert paths[0][0] == "52.0,214.0"
    assert paths[1][-1] == "468.0,10.0"
    assert [curve["last"] for curve in chart["curves"]] == [(10, 6.0), (10, 8.0), (5, 7.0)]
    logarithmic = line_chart("x", [Line("a", [(0, 1.0), (1, 10.0)]), Line("b", [(0, 0.0), (1, 100.0)])], log=True)
    assert logarithmic
    assert [curve["path"].split()[0] for curve in logarithmic["curves"]] == ["52.0,214.0", "52.0,214.0"]
    assert logarithmic["curves"][1]["path"].endswith("468.0,10.0")
