"""Scores of each language pair in a corpus with several language pairs."""

import json
from pathlib import Path

import pytest
import texts

from nmt_cli.corpus import store
from nmt_cli.scoring import comet
from nmt_cli.scoring.comet import Comet
from nmt_cli.scoring.score import ScoreOptions, evaluate


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus of EN-ZH, ZH-EN and again EN-ZH, with test sets of 3, 2 and 1 sentence pairs."""
    some = texts.pairs(306)
    chinese = [(src, "我们昨天看了一场电影" + "好" * (i % 7)) for i, (src, _) in enumerate(some)]
    turned = [(tgt, src) for src, tgt in chinese]
    sets = {"train": chinese[6:], "a": chinese[:3], "b": turned[3:5], "c": chinese[5:6]}
    for name, pairs in sets.items():
        (tmp_path / f"{name}.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    sources = [{"files": [str(tmp_path / f"{name}.tsv")], "split": "test"} for name in "abc"]
    sources[1] |= {"src": "zh", "tgt": "en"}
    sources += [{"files": [str(tmp_path / f"{name}.tsv")], "split": "dev"} for name in "cc"]
    sources += [{"files": [str(tmp_path / "train.tsv")]}]
    section = texts.corpus(
        {"name": "own", "src": "en", "tgt": "zh", "sources": sources, "tokenizer": {"vocabulary_size": 400}}
    )
    return texts.run(section, tmp_path / "data")


def test_each_pair_has_its_score_with_the_tokens_of_its_target(corpus: Path, tmp_path: Path) -> None:
    opened = store.open_corpus(corpus)
    assert opened.lines_by_pair("test") == {("en", "zh"): [0, 1, 2, 5], ("zh", "en"): [3, 4]}
    assert opened.lines_by_pair("dev") == {}
    sources, references = opened.lines("test")
    assert [src.startswith(">>en<< ") for src in sources] == [False, False, False, True, True, False]
    hypotheses = [*references[:2], "我们今天看了一场电影", references[3], "a house", references[5]]
    report = evaluate(ScoreOptions(corpus=corpus, intervals=False), hypotheses)
    assert [score.metric for score in report.scores] == ["bleu", "chrf"]
    assert [(pair.pair, pair.lines) for pair in report.pairs] == [("en-zh", 4), ("zh-en", 2)]
    for pair, lines in zip(report.pairs, ([0, 1, 2, 5], [3, 4]), strict=True):
        for side, name in ((references, "ref"), (hypotheses, "hyp")):
            texts.write(tmp_path / name, [side[i] for i in lines])
        alone = ScoreOptions(tmp_path / "hyp", (tmp_path / "ref",), language=pair.pair[3:], intervals=False)
        expected = evaluate(ScoreOptions(**{**vars(alone), "metrics": ("bleu", "chrf")}))
        assert [(s.name, s.score, s.signature) for s in pair.scores] == [
            (s.name, s.score, s.signature) for s in expected.scores
        ]
    rows = [line.split() for line in report.text().partition("By language pair\n")[2].split("\n")]
    assert rows[1][:2] == ["en-zh", "4"]
    assert f"| zh-en | 2 | {report.pairs[1].scores[0].shown()} |" in report.markdown()
    shown = json.loads(report.json())["pairs"]
    assert [(pair["pair"], pair["lines"], len(pair["scores"])) for pair in shown] == [("en-zh", 4, 2), ("zh-en", 2, 2)]


def test_chosen_metrics_apply_to_each_pair(corpus: Path) -> None:
    references = store.open_corpus(corpus).lines("test")[1]
    report = evaluate(ScoreOptions(corpus=corpus, metrics=("ter",), intervals=False), references)
    assert [[score.metric for score in pair.scores] for pair in report.pairs] == [["ter"], ["ter"]]


def test_several_pairs_have_the_metrics_that_suit_any_language(corpus: Path) -> None:
    references = store.open_corpus(corpus).lines("test")[1]
    report = evaluate(ScoreOptions(corpus=corpus, language="de", intervals=False), references)
    assert [score.metric for score in report.scores] == ["bleu", "chrf"]


def test_pairs_come_from_the_chosen_split(corpus: Path) -> None:
    references = store.open_corpus(corpus).lines("dev")[1]
    report = evaluate(ScoreOptions(corpus=corpus, split="dev", metrics=("chrf",), intervals=False), references)
    assert (len(references), report.pairs) == (2, [])


@pytest.mark.parametrize("intervals", [False, True])
def test_the_options_apply_to_every_pair(corpus: Path, intervals: bool) -> None:
    references = store.open_corpus(corpus).lines("test")[1]
    report = evaluate(ScoreOptions(corpus=corpus, tokenize="intl", lowercase=True, intervals=intervals), references)
    assert {score.ci is not None for pair in report.pairs for score in pair.scores} == {intervals}
    signatures = [score.signature for pair in report.pairs for score in pair.scores if score.metric == "bleu"]
    assert len(signatures) == 2
    assert all("|case:lc|" in each and "|tok:intl|" in each for each in signatures)


def test_comet_scores_only_the_whole_set(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    references = store.open_corpus(corpus).lines("test")[1]
    monkeypatch.setattr(comet, "run_comet", lambda *_: Comet({tuple(references): [0.5, 0.7] * 3}, "a/b"))
    report = evaluate(ScoreOptions(corpus=corpus, metrics=("comet", "chrf"), intervals=False), references)
    assert [score.score for score in report.scores] == pytest.approx([60, 100])
    assert [[score.metric for score in pair.scores] for pair in report.pairs] == [["chrf"], ["chrf"]]
