"""Parsing as translation, by the real commands: a small grammar is learnt until unseen sentences come out right."""

import json
from pathlib import Path

import pytest
import texts
from nmt_cli.scoring.inputs import ScoreOptions

from nmt_cli import recipe
from nmt_cli.parsing import trees
from nmt_cli.reporting.doctor import gather
from nmt_cli.reproduce import ReproduceOptions, reproduce
from nmt_cli.scoring.score import evaluate
from nmt_cli.training.train import TrainOptions, train
from nmt_cli.translation.translate import TranslateOptions, translate

pytestmark = pytest.mark.timeout(600)  # half a minute of one core, and several when the machine is busy

RECIPE = """
corpus: {{name: grammar, tgt: trees, train_src: {0}/train.mrg, train_tgt: {0}/train.mrg, dev_src: {0}/dev.mrg,
  dev_tgt: {0}/dev.mrg, test_src: {0}/test.mrg, test_tgt: {0}/test.mrg, tokenizer: {{vocabulary_size: 360}}}}
model: {{num_layers: 2, d_model: 64, d_ff: 128, num_heads: 4, d_k: 16, d_v: 16, dropout: 0, norm: pre, max_length: 256}}
training: {{steps: 450, tokens_per_step: 1000, micro_batches: 1, warmup_steps: 100, cooldown_steps: 330,
  rate_factor: 0.6, label_smoothing: 0.02, log_every: 90, validate_every: 450, validate_bleu: 0, checkpoint_every: 225,
  keep_checkpoints: 2, precision: fp32}}
averaging: {{last: 1}}
decoding: {{beam: 4, alpha: 0.3, extra_length: 300}}
expect: {{paper_f1: 91.3}}
"""


def parse(place: Path, sentences: Path, out: Path, beam: int | None = None) -> list[str]:
    """Translate with the model of this directory, and return the lines that come out."""
    assert translate(TranslateOptions(sentences, out, (place / "run" / "model",), beam, workers=1)) == 0
    return out.read_text().split("\n")[:-1]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with trees of a grammar, a corpus of them, a run and its output on test sentences it never saw."""
    place = tmp_path_factory.mktemp("parsing")
    made = texts.trees(4200, 1)
    for name, some in (("train", made[200:]), ("dev", made[:100]), ("test", made[100:200])):
        texts.write(place / f"{name}.mrg", some)
    (place / "small.yaml").write_text(RECIPE.format(place))
    settings = recipe.load(place / "small.yaml")
    texts.run(settings.corpus, place / "data")
    assert train(settings, TrainOptions(place / "data", place / "run")) == 0
    parse(place, place / "data" / "test.src", place / "hyp")
    return place


def test_unseen_sentences_of_a_grammar_are_parsed(parsed: Path) -> None:
    seen = {" ".join(s.words) for s in trees.read((parsed / "train.mrg").read_text().split("\n"), "train")}
    assert seen.isdisjoint((parsed / "data" / "test.src").read_text().split("\n")[:-1])
    done = texts.nmt("score", parsed / "hyp", "--reference", parsed / "test.mrg", "--metric", "brackets", "--format",
                     "json", "--fail-under", 95)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    (entry,) = json.loads(done.stdout)["scores"]
    assert (entry["sentences"], entry["score"] >= 95) == (100, True)


def test_the_corpus_scores_as_its_own_trees_do(parsed: Path) -> None:
    by_file = evaluate(ScoreOptions(parsed / "hyp", (parsed / "test.mrg",), metrics=("brackets",)))
    by_corpus = evaluate(ScoreOptions(parsed / "hyp", corpus=parsed / "data"))
    assert by_file["scores"] == by_corpus["scores"]


def test_trees_of_other_sentences_score_low(parsed: Path) -> None:
    lines = (parsed / "hyp").read_text().split("\n")[:-1]
    shifted = texts.write(parsed / "shifted", [*lines[1:], lines[0]])
    assert evaluate(ScoreOptions(shifted, corpus=parsed / "data"))["scores"][0]["score"] < 50


def test_reproduce_goes_on_and_ends_with_the_papers_f1_beside_ours(
    parsed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = recipe.load(parsed / "small.yaml")
    assert reproduce(settings, ReproduceOptions(parsed / "data", parsed / "run", workers=1)) == 0
    said = capsys.readouterr().err
    assert "91.3 (the paper)" in said
    assert "test F1 of labelled brackets" in said
    assert "outputs that are no tree" in said
    assert "BLEU" not in said
    (unchecked,) = gather(parsed / "run", parsed / "data", None, None).unchecked
    assert "nmt score --metric brackets" in unchecked
    page = (parsed / "run" / "report.html").read_text()
    assert "bracket F1" in page
    assert "91.3" in page


def test_a_sentence_is_never_parsed_in_parts(parsed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = texts.write(parsed / "long", ["the old dog saw the dog . " * 60, "he saw a dog ."])
    lines = parse(parsed, long, parsed / "parts", beam=1)
    said = capsys.readouterr().err
    assert "1 lines were too long for the model and were cut" in said
    assert "split" not in said
    assert "halves" not in said
    assert lines[1] == "S NP PRP /NP VP VBD NP DT NN /NP /VP . /S"
