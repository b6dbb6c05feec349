"""`nmt score --robust`: translations of each kind of damaged source are scored against a matching reference."""

import json
from pathlib import Path

import pytest
import texts

from nmt_cli.corpus import letter_case
from nmt_cli.scoring.robustness import Translate
from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.system.errors import UsageError

SOURCES = [f"A tall man with number {word} walks to the old house." for word in ("one", "two", "three", "four")]


@pytest.fixture
def options(tmp_path: Path) -> ScoreOptions:
    source, reference = tmp_path / "test.en", tmp_path / "test.de"
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    reference.write_text("".join(f"{line}\n" for line in SOURCES))
    return ScoreOptions(source=source, references=(reference,), metrics=("bleu",), intervals=False, robust=True)


def losses(options: ScoreOptions, translate: Translate) -> dict[str, tuple[float, float]]:
    report = evaluate(options, translate)
    return {row["source"]: (round(row["score"], 2), round(row["loss"], 2)) for row in report.robust}


def test_a_model_that_keeps_case_and_full_stops_loses_only_on_typos(options: ScoreOptions) -> None:
    by_damage = losses(options, lambda lines: lines)
    assert by_damage.pop("typos")[1] > 2
    assert by_damage == dict.fromkeys(
        ["as it is", "lower case", "no final stop", "Title Case", "UPPER CASE"], (100.0, 0.0)
    )


def test_tokens_before_the_source_are_not_damaged(options: ScoreOptions) -> None:
    def translate(lines: list[str]) -> list[str]:
        assert all(line.startswith(">>de<< >>bt<< ") for line in lines)
        return [line.removeprefix(">>de<< >>bt<< ") for line in lines]

    plain = losses(options, lambda lines: lines)
    assert options.source
    options.source.write_text("".join(f">>de<< >>bt<< {line}\n" for line in SOURCES))
    assert losses(options, translate) == plain


def test_a_loss_counts_the_damage_and_not_the_errors_that_the_model_makes_anyway(options: ScoreOptions) -> None:
    def translate(lines: list[str]) -> list[str]:
        wrong = [line.replace("tall", "small").replace("Tall", "Small") for line in lines]
        return [letter_case.lower(line, "de") if line.isupper() else line for line in wrong]

    by_damage = losses(options, translate)
    assert by_damage["as it is"][0] < 95
    assert by_damage["no final stop"][1] == by_damage["Title Case"][1] == by_damage["lower case"][1] == 0
    assert by_damage["UPPER CASE"][1] > 75


def test_a_final_stop_that_the_source_lacks_costs_score(options: ScoreOptions) -> None:
    """Of a translation's 12 words, 11 are right: BLEU is (11/12 * 10/11 * 9/10 * 8/9) ** (1/4)."""
    by_damage = losses(options, lambda lines: [f"{line.removesuffix('.')}." for line in lines])
    assert by_damage["as it is"] == (100, 0)
    assert by_damage["no final stop"] == (90.36, 9.64)


def test_the_table_is_in_every_format_and_only_if_asked_for(options: ScoreOptions) -> None:
    report = evaluate(options, lambda lines: lines)
    assert ["UPPER", "CASE", "100.00", "0.00"] in [line.split() for line in report.text().split("\n")]
    assert "| UPPER CASE | 100.00 | 0.00 |" in report.markdown()
    rows = json.loads(report.json())["robust"]
    assert [row["source"] for row in rows][:2] == ["as it is", "lower case"]
    assert rows[0]["signature"] == report.scores[0].signature
    plain = evaluate(ScoreOptions(**{**vars(options), "robust": False}), lambda lines: lines)
    assert "robust" not in json.loads(plain.json())
    assert "UPPER" not in plain.text() + plain.markdown()


def test_hypotheses_and_metrics_of_other_kinds_are_refused(options: ScoreOptions) -> None:
    with pytest.raises(UsageError, match=r"--robust translates the damaged source\. Pass --model DIR"):
        evaluate(options, None)
    for metric in ("comet", "brackets"):
        with pytest.raises(UsageError, match=f"--robust does not support --metric {metric}"):
            evaluate(ScoreOptions(**{**vars(options), "metrics": ("chrf", metric)}), lambda lines: lines)


def test_every_score_ignores_case_if_asked_to(options: ScoreOptions) -> None:
    ignoring = ScoreOptions(**{**vars(options), "metrics": ("bleu", "chrf"), "lowercase": True})
    report = evaluate(ignoring, lambda lines: [line.swapcase() for line in lines])
    assert [score.score for score in report.scores] == pytest.approx([100, 100])
    assert [round(row["score"], 6) for row in report.robust if row["source"] != "typos"] == [100.0] * 10
    assert {row["source"] for row in report.robust if "case:lc" not in row["signature"]} == set()


@pytest.mark.parametrize("intervals", [False, True])
def test_the_options_apply_to_every_kind_of_damage(options: ScoreOptions, intervals: bool) -> None:
    chosen = ScoreOptions(**{**vars(options), "tokenize": "char", "intervals": intervals})
    rows = evaluate(chosen, lambda lines: lines).robust
    assert {row["ci"] is not None for row in rows} == {intervals}
    assert all("|tok:char|" in row["signature"] for row in rows)


def test_rows_of_the_markdown_table_have_the_same_number_of_cells(options: ScoreOptions) -> None:
    report = evaluate(ScoreOptions(**{**vars(options), "metrics": ("bleu", "chrf", "ter")}), lambda lines: lines)
    table = report.markdown().partition("Scores with damaged sources**\n\n")[2].partition("\n\n")[0].split("\n")
    assert {line.count("|") for line in table} == {8}
    assert (len(table), table[1]) == (8, "|:--|--:|--:|--:|--:|--:|--:|")


def test_case_follows_the_rules_of_both_languages(options: ScoreOptions) -> None:
    """Turkish has an I without a dot, Dutch capitalizes ij as one letter."""
    seen = list[str]()
    Path(str(options.source)).write_text("ijs iyi\n")
    options.references[0].write_text("ijs iyi\n")

    def translate(lines: list[str]) -> list[str]:
        seen.extend(lines)
        return [{"İJS İYİ": "IJS IYI", "İjs İyi": "IJs Iyi"}.get(line, line) for line in lines]

    pair = ScoreOptions(**{**vars(options), "metrics": (), "language_pair": "tr-nl"})
    report = evaluate(pair, translate)
    assert {"İJS İYİ", "İjs İyi"} <= {*seen}
    assert [row["metric"] for row in report.robust][:2] == ["bleu", "chrf"]
    by_damage = {row["source"]: round(row["score"]) for row in report.robust if row["metric"] == "chrf"}
    assert (by_damage["UPPER CASE"], by_damage["Title Case"]) == (100, 100)


def test_a_corpus_determines_the_languages(tmp_path: Path) -> None:
    files = {f"test_{side}": str(texts.write(tmp_path / side, ["ijs iyi"])) for side in ("src", "tgt")}
    corpus = texts.run(texts.own(tmp_path / "in", texts.pairs(90), src="tr", tgt="nl", **files), tmp_path / "data")
    seen = list[str]()
    evaluate(ScoreOptions(corpus=corpus, robust=True, intervals=False), lambda lines: seen.extend(lines) or lines)
    assert seen[-2:] == ["İjs İyi", "İJS İYİ"]
