"""Fine-tuning: the initial model's settings, mixed and held-out text, and the mixture of the weights."""

import re
from pathlib import Path

import pytest
import torch

from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.sources import source_of
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading
from nmt_cli.reproduction.reproduce import reproduce
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.scoring.score import evaluate
from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, UsageError
from nmt_cli.training import checkpoints
from nmt_cli.training.average import choose_share, mixture
from nmt_cli.training.metrics_log import read_records
from nmt_cli.transformer.weights import load_model, load_tensors
from nmt_cli.translation.translator import Translator


@pytest.mark.usefixtures("few_samples")
def test_fine_tuning_from_a_model_and_two_files(
    numbers_text: Path, reference_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, code, end in (("src", "en", "one"), ("tgt", "de", "eins")):  # and "zwei" becomes "zwo"
        lines = (numbers_text / f"train.{code}").read_text().replace("zwei", "zwo").split("\n")
        (tmp_path / side).write_text("".join(f"{line} {end}\n" for line in lines[:200]))
    steps = ["steps=20", "tokens_per_step=400", "warmup_steps=20", "rate_factor=0.5", "precision=fp32"]
    steps += ["validate_every=10", "checkpoint_every=10", f"init_from={reference_run}"]
    changes = [f"training.{step}" for step in steps]
    changes += [f"corpus.train_{side}=[{tmp_path / side}]" for side in ("src", "tgt")]
    changes += [f"corpus.mix_{side}=[{numbers_text}/train.{code}]" for side, code in (("src", "en"), ("tgt", "de"))]
    changes += ["decoding.beam=1", "corpus.cleaning.check_script=no"]
    settings = loading.load(Path("finetune"), changes)
    start = load_model(reference_run)
    assert settings.model == start.recipe.model
    assert (settings.corpus.src, settings.corpus.tokenizer.file) == ("en", str(reference_run / "tokenizer.model"))
    data, run = tmp_path / "data", tmp_path / "run"

    def run_recipe() -> str:
        assert reproduce(settings, settings.corpus, data, run, PrepareOptions(workers=1), evaluate) == 0
        return capsys.readouterr().err

    output, corpus = run_recipe(), open_corpus(data)
    assert [len(corpus.lines(split)[0]) for split in ("dev", "test", "general")] == [10, 10, 25]
    assert not {*corpus.lines("dev")[0]} & {*corpus.lines("test")[0]}
    assert (
        corpus.manifest["pairs"] == 2 * (200 - 20) + 400 - 25
    )  # own pairs twice and as many general pairs, without those held out
    validations = [record for record in read_records(run / "metrics.jsonl") if "dev_nll" in record]
    assert [record["step"] for record in validations] == [0, 10, 20]
    assert validations[-1]["dev_nll"] < validations[0]["dev_nll"] < 6
    model = artefact.verify(run / "model", "model")
    best = min(validations, key=lambda record: record["dev_nll"])["step"]
    assert (model["steps"], model["tried"]) == ([best], settings.averaging.with_start)
    assert model["with_start"] in model["tried"]
    tuned = load_tensors(checkpoints.directory_of(run, best) / checkpoints.MODEL)
    mixed = mixture(tuned, start.model.state_dict(), model["with_start"])
    assert all(torch.equal(mixed[name], tensor) for name, tensor in load_model(run).model.state_dict().items())
    bleu = list[float]()  # on test, before and after fine-tuning
    for model_directory, hypotheses in ((reference_run, run / "start"), (run, run)):
        with Translator(model_directory, workers=1, precision="fp32") as translator:
            for split in ("dev", "test", "general"):
                sources, references = corpus.lines(split)
                lines = [each.text for each in translator.translate(sources, beam=1)]
                assert read_lines(hypotheses / f"{split}.hyp") == lines
                score = corpus_bleu(lines, references)[0]
                assert f"{score:.2f}" in output.partition("before")[2]
                bleu += [score] if split == "test" else []
    assert bleu[0] < bleu[1]
    settings.expect.bleu = [bleu[1], 100]  # the tuned model reaches it, the start does not
    watched = {path: path.stat().st_mtime_ns for path in [run / "model", *run.rglob("*.hyp"), data]}
    assert not re.search("4/5 translate|the least expected", run_recipe())
    assert {path: path.stat().st_mtime_ns for path in watched} == watched


def test_a_missing_start_and_mixed_text_without_own_text_are_refused() -> None:
    with pytest.raises(MissingError, match=r"no model in models/opus-en-de to start from\. Pass --set training"):
        loading.load(Path("finetune"))
    corpus = loading.from_plain({"corpus": {"name": "toy-en-de", "mix_src": ["a"], "mix_tgt": ["b"]}}, "test").corpus
    with pytest.raises(UsageError, match="require your own files"):
        source_of(corpus)


def test_the_share_of_the_start_is_chosen_on_both_dev_sets() -> None:
    start = [10.0, 30.0]
    scores = {0.0: [20.0, 25.0], 0.2: [19.0, 29.4], 0.4: [18.0, 29.6], 0.6: [15.0, 30.5]}
    assert choose_share(scores, start) == 0.4
    assert choose_share({s: [dev, general - 1] for s, (dev, general) in scores.items()}, start) == 0.6
    assert choose_share({0.0: [18.0, 29.5], 0.5: [17.0, 31.0]}, start) == 0.0
    alone = {0.0: [20.0], 0.2: [20.2], 0.4: [19.7], 0.6: [19.6]}
    assert choose_share(alone, [10.0]) == 0.4
    assert choose_share({0.0: [20.0], 0.2: [19.5], 0.4: [19.25]}, [10.0]) == 0.2, "exactly half a point may be lost"
    assert choose_share({0.0: [18.0, 29.5], 0.5: [17.0, 29.75], 1.0: [16.0, 40.0]}, start) == 0.0
    assert choose_share({0.0: [18.0, 29.0], 0.5: [17.0, 29.25]}, start) == 0.5, "the share that loses least"
