"""Parsing as translation, from trees to F1: a small grammar is learnt until unseen sentences come out right."""

import json
from pathlib import Path

import pytest
import texts

from nmt_cli import recipe
from nmt_cli.corpus import store
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.parsing import score, trees
from nmt_cli.reproduce import reproduce
from nmt_cli.scoring.score import ScoreOptions, print_report

pytestmark = pytest.mark.timeout(600)  # half a minute of one core, and several when the machine is busy

RECIPE = """
corpus: {{name: grammar, format: trees, tgt: labels, train_src: [{0}/train.mrg], train_tgt: [{0}/train.mrg],
  dev_src: {0}/dev.mrg, dev_tgt: {0}/dev.mrg, test_src: {0}/test.mrg, test_tgt: {0}/test.mrg,
  cleaning: {{max_ratio: null, drop_copies: false, drop_duplicates: false, check_script: false}},
  tokenizer: {{vocabulary_size: 360}}}}
model: {{num_layers: 2, d_model: 64, d_ff: 128, num_heads: 4, d_k: 16, d_v: 16, dropout: 0, norm: pre, max_length: 256}}
training: {{steps: 450, tokens_per_step: 1000, micro_batches: 1, warmup_steps: 100, cooldown_steps: 330,
  rate_factor: 0.6, label_smoothing: 0.02, log_every: 90, validate_every: 450, validate_bleu: 0, checkpoint_every: 225,
  keep_checkpoints: 2, precision: fp32}}
averaging: {{last: 1}}
decoding: {{beam: 4, alpha: 0.3, extra_length: 300, split: false}}
expect: {{paper_f1: 91.3}}
"""


def play(place: Path) -> int:
    """Reproduce the recipe as the command does."""
    settings = recipe.load(place / "small.yaml")
    text = trees.linearise(settings.corpus, place / "text")
    return reproduce(settings, text, place / "data", place / "run", PrepareOptions(workers=1), score.rows)


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with trees of a grammar, a corpus of them, a run and its output on test sentences it never saw."""
    place = tmp_path_factory.mktemp("parsing")
    made = texts.trees(4200, 1)
    for name, some in (("train", made[200:]), ("dev", made[:100]), ("test", made[100:200])):
        texts.write(place / f"{name}.mrg", some)
    (place / "small.yaml").write_text(RECIPE.format(place))
    assert play(place) == 0
    return place


def test_unseen_sentences_of_a_grammar_are_parsed(parsed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen, asked = ((parsed / name).read_text().split("\n")[:-1] for name in ("text/train.words", "data/test.src"))
    assert set(seen).isdisjoint(asked)
    options = ScoreOptions(parsed / "run" / "test.hyp", (parsed / "test.mrg",), metrics=("brackets",), fail_under=95)
    assert print_report(score.evaluate(options), "text") == 0
    assert "gate passed" in capfd.readouterr().out
    by_corpus = score.evaluate(ScoreOptions(options.hypothesis, corpus=parsed / "data"))
    assert score.evaluate(options).scores == by_corpus.scores
    assert by_corpus.scores[0].details["sentences"] == 100
    lines = by_corpus.hypotheses.lines
    assert score.evaluate(ScoreOptions(corpus=parsed / "data"), [*lines[1:], lines[0]]).scores[0].score < 50


def test_again_ends_with_the_papers_f1_beside_ours(parsed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (parsed / "data" / "manifest.json").read_bytes()
    assert play(parsed) == 0
    printed = capfd.readouterr().err
    assert (parsed / "data" / "manifest.json").read_bytes() == before
    assert "4/5 translate" not in printed  # the translations of this very model are there
    assert "test F1 of labelled brackets" in printed
    assert "BLEU" not in printed
    assert json.loads(before)["tgt"] == score.LABELS
    corpus = store.open_corpus(parsed / "data")
    dev, test = (corpus.lines(split)[1] for split in ("dev", "test"))
    spoilt = ["", "/X", *test[2:]]
    table, signature = score.rows(recipe.load(parsed / "small.yaml"), corpus, {"dev": dev, "test": spoilt})
    f1 = f"{score.corpus_brackets(spoilt, test).scores()[2]:.2f}"
    assert [row[1:] for row in table] == [["", "100.00"], ["", "0 of 100"], ["91.3 (the paper)", f1], ["", "2 of 100"]]
    assert score.SIGNATURE in signature
