"""Fine-tune models of other tools: the commands of the guides, with a few steps."""

import json
from pathlib import Path

import numpy as np
import pytest
from binary_marian import items_of, write_items
from moses_files import CODES, NAMES

from nmt_cli import Translator
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.interop.importing import import_model
from nmt_cli.recipe import loading
from nmt_cli.reproduction.reproduce import reproduce
from nmt_cli.scoring.score import evaluate
from nmt_cli.system.errors import MissingError
from nmt_cli.training.metrics_log import read_records
from nmt_cli.transformer.weights import load_model

pytestmark = pytest.mark.usefixtures("few_samples")
DATA = Path(__file__).parents[1] / "data" / "marian" / "ssru"


def fine_tune(model: Path, pairs: list[tuple[str, str]], directory: Path) -> Path:
    """Train for four steps with recipes/finetune.yaml. Return the run.

    The pairs are the dev and test sets. Without the last character of each side, they are the training text.
    """
    changes = [f"training.init_from={model}", "averaging.with_start=[0, 0.5]", "corpus.cleaning.check_script=no"]
    for number, side in enumerate(("src", "tgt")):
        (directory / side).write_text("".join(f"{pair[number]}\n" for pair in pairs))
        (directory / f"train.{side}").write_text("".join(f"{pair[number][:-1]}\n" for pair in pairs))
        changes += [f"corpus.train_{side}=[{directory / f'train.{side}'}]"]
        changes += [f"corpus.{split}_{side}={directory / side}" for split in ("dev", "test")]
    steps = ["steps=4", "validate_every=2", "checkpoint_every=2", "warmup_steps=2", "tokens_per_step=200"]
    changes += [f"training.{step}" for step in (*steps, "precision=fp32", "rate_factor=0.01", "micro_batches=1")]
    settings, run = loading.load(Path("finetune"), changes), directory / "run"
    assert reproduce(settings, settings.corpus, directory / "data", run, PrepareOptions(workers=1), evaluate) == 0
    losses = [record["dev_nll"] for record in read_records(run / "metrics.jsonl") if "dev_nll" in record]
    assert min(losses[1:]) < losses[0]
    return run


def test_a_firefox_model_is_fine_tuned(tmp_path: Path) -> None:
    firefox = tmp_path / "firefox"
    firefox.mkdir()
    with np.load(DATA / "model.npz") as archive:
        write_items(firefox / "model.ende.intgemm.alphas.bin", items_of(dict(archive), int8=True))
    (firefox / "vocab.ende.spm").write_bytes((DATA / "vocab.spm").read_bytes())
    lines = json.loads((DATA / "marian.json").read_text())
    start = import_model(firefox, tmp_path / "start")
    run = fine_tune(start, [(line["src"], line["tgt"]) for line in lines], tmp_path)
    tuned = load_model(run)
    assert tuned.recipe.model.decoder_cell == "ssru"
    assert tuned.tokenizer_file.read_bytes() == (start / "tokenizer.model").read_bytes()
    with Translator(run, precision="int8") as translator:
        assert all(each.text for each in translator.translate([line["src"] for line in lines]))


def test_an_argos_package_with_moses_tokens_is_fine_tuned(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    pytest.importorskip("ctranslate2")
    from opennmt_models import argos_file, argos_folder, opennmt_model

    tokens = ["<unk>", "<blank>", "<s>", "</s>", *NAMES]
    folder = argos_folder(opennmt_model(tmp_path / "model", tokens=tokens), tmp_path / "translate-en_de-1_0")
    (folder / "sentencepiece.model").unlink()
    (folder / "bpe.model").write_text(CODES)
    package = argos_file(folder, tmp_path / "en_de.argosmodel")
    for path in (folder, package):
        with pytest.raises(MissingError, match=r"init_from=DIR\. To start from .*, import it first: nmt import"):
            loading.load(Path("finetune"), [f"training.init_from={path}"])
    start = import_model(package, tmp_path / "start")
    words = ("the", "old", "dog", "cat", "sees")
    pairs = [(f"the {a} {b}'s {c}.", f"the {c}, the {a} {b}.") for a in words for b in words[1:4] for c in words[2:]]
    run = fine_tune(start, pairs, tmp_path)
    for name in ("tokenizer.model", "tokenizer.target.model"):
        assert (run / "model" / name).read_bytes() == (start / name).read_bytes()
    with Translator(run, precision="fp32") as translator:
        assert not any("@@" in each.text for each in translator.translate([source for source, _ in pairs[:4]]))
