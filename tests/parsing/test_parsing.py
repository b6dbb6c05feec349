"""Parsing as translation, from trees to F1. In the slow test, a model learns to parse unseen sentences."""

import re
from pathlib import Path

import pytest
import texts

from nmt_cli.commands import app as cli
from nmt_cli.corpus import store
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.parsing import score, trees
from nmt_cli.recipe import loading
from nmt_cli.reproduction.reproduce import reproduce
from nmt_cli.scoring.score import ScoreOptions

RECIPE = """
corpus: {{name: grammar, format: trees, tgt: labels, train_src: [{0}/train.mrg], train_tgt: [{0}/train.mrg],
  dev_src: {0}/dev.mrg, dev_tgt: {0}/dev.mrg, test_src: {0}/test.mrg, test_tgt: {0}/test.mrg,
  cleaning: {{max_ratio: null, drop_copies: false, drop_duplicates: false, check_script: false}},
  tokenizer: {{vocabulary_size: 360}}}}
model: {{num_layers: 2, d_model: 64, d_ff: 128, num_heads: 4, d_k: 16, d_v: 16, dropout: 0, norm: pre, max_length: 256}}
training: {{steps: {1}, tokens_per_step: 1000, micro_batches: 1, warmup_steps: 100, cooldown_steps: 330,
  rate_factor: 0.6, label_smoothing: 0.02, log_every: 90, validate_every: {1}, validate_bleu: 0, checkpoint_every: {1},
  precision: fp32}}
averaging: {{last: 1}}
decoding: {{beam: 4, alpha: 0.3, extra_length: 300, split: false}}
expect: {{paper_f1: 91.3}}
"""


def test_a_dry_run_needs_no_treebank_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli.prepare("recipes/parsing.yaml", dry_run=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)  # seconds on an idle core, over a minute on a busy machine
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(
    ("count", "steps", "least"), [(560, 10, 0), pytest.param(4060, 450, 95, marks=pytest.mark.slow)]
)
def test_from_trees_to_f1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], count: int, steps: int, least: int
) -> None:
    made = texts.trees(count, 1)
    for name, some in (("train", made[60:]), ("dev", made[:20]), ("test", made[20:60])):
        texts.write(tmp_path / f"{name}.mrg", some)
    (tmp_path / "small.yaml").write_text(RECIPE.format(tmp_path, steps))
    settings, data = loading.load(tmp_path / "small.yaml"), tmp_path / "data"
    for times in (2, 0):  # the second time, the translation exists
        text = trees.linearize(settings.corpus, tmp_path / "text")
        assert reproduce(settings, text, data, tmp_path / "run", PrepareOptions(workers=1), score.evaluate) == 0
        printed = capfd.readouterr().err
        assert printed.count("4/5 translate") == times
        assert re.search(r"test bracket F1 +91\.3 \(the paper\) +\d", printed)
        assert re.search(r"unparsable=\d+, wrong length=\d", printed)
        assert "BLEU" not in printed
        assert "near-twin" not in printed  # all trees are near-duplicates
    by_corpus = ScoreOptions(tmp_path / "run" / "test.hyp", corpus=data)
    report = score.evaluate(by_corpus)
    assert report.scores[0].details["sentences"] == 40
    assert report.scores[0].score >= least
    trees_again = ScoreOptions(by_corpus.hypothesis, (tmp_path / "test.mrg",), metrics=("brackets",))
    assert score.evaluate(trees_again).scores == report.scores
    corpus = store.open_corpus(data)
    lines = corpus.lines("test")[1]
    assert score.evaluate(by_corpus, lines).scores[0].score == 100
    assert score.evaluate(by_corpus, [*lines[1:], lines[0]]).scores[0].score < 50
    words = (tmp_path / "text" / "train.words").read_text().split("\n")
    assert set(words).isdisjoint(corpus.lines("test")[0])
    spoilt = score.evaluate(by_corpus, ["", "/X", *lines[2:]]).scores[0]
    assert (spoilt.details["unparsable"], spoilt.details["wrong_length"], spoilt.score < 100) == (1, 1, True)
