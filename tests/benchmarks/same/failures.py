"""Errors: commands that must fail, with their exit codes. The words of both messages are shown, but may differ."""

import fcntl
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from same.corpora import PAIRS
from same.scoring import make_files
from same.tree import FEW, INPUTS, MODEL, REVERSE_MODEL, TOY, Tree, settings

TRAIN = ["train", "bad/good.yaml", "--data", TOY, "--run-dir", "runs/bad"]
TRANSLATE = ["translate", "--model", MODEL]
FAILURES: dict[str, list[object]] = {
    "no command of this name": ["translte"],
    "no option of this name": ["translate", "--baem", 4],
    "a value that is not a number": [*TRANSLATE, "--beam", "x"],
    "a beam of 0": [*TRANSLATE, "--beam", 0],
    "a beam too wide": [*TRANSLATE, "--beam", 1001],
    "more hypotheses than the beam": [*TRANSLATE, "--beam", 2, "--n-best", 3],
    "samples with a beam": [*TRANSLATE, "--sample", "--beam", 2],
    "samples with terms": [*TRANSLATE, "--sample", "--terms", INPUTS / "terms"],
    "a seed without --sample": [*TRANSLATE, "--seed", 2],
    "an input named twice": [*TRANSLATE, FEW, "-i", FEW],
    "a missing input": [*TRANSLATE, "-i", "nothing"],
    "an input that is a directory": [*TRANSLATE, "-i", "bad"],
    "an output that is a directory": [*TRANSLATE, FEW, "-o", "bad"],
    "an output below a file": [*TRANSLATE, FEW, "-o", "bad/good.yaml/x"],
    "a file of an unknown kind": [*TRANSLATE, "bad/page.docx"],
    "input that is not UTF-8": [*TRANSLATE, "--strict", "-i", "bad/latin1"],
    "input in UTF-16": [*TRANSLATE, "-i", "bad/utf16"],
    "fewer prefixes than lines": [*TRANSLATE, "-i", FEW, "--prefix", "bad/one-line"],
    "fewer pairs than lines": [*TRANSLATE, "-i", FEW, "--score-pairs", "bad/one-line"],
    "a term twice": [*TRANSLATE, "-i", FEW, "--terms", "bad/terms-twice"],
    "a term without a form": [*TRANSLATE, "-i", FEW, "--terms", "bad/one-line"],
    "a catalog with a syntax error": [*TRANSLATE, "bad/broken.po"],
    "no such model": ["translate", "--model", "nothing"],
    "a model that is damaged": ["translate", "--model", "bad/cut-model"],
    "a model with a wrong manifest": ["translate", "--model", "bad/manifest-model"],
    "a corpus as model": ["translate", "--model", TOY],
    "an ensemble with two tokenizers": [*TRANSLATE, "--model", REVERSE_MODEL, "-i", FEW],
    "no such recipe": ["train", "toyy"],
    "a recipe that is not YAML": ["train", "bad/broken.yaml"],
    "a recipe with an unknown key": ["train", "bad/unknown.yaml"],
    "a recipe with a wrong value": [*TRAIN, *settings("training.steps=-1")],
    "a recipe that contradicts itself": [*TRAIN, *settings("averaging.last=9", "training.keep_checkpoints=2")],
    "an empty recipe": ["train", "bad/empty.yaml"],
    "a setting without a value": [*TRAIN, "--set", "training.steps"],
    "a setting with an unknown name": [*TRAIN, *settings("training.stpes=3")],
    "a corpus that is not prepared": ["train", "bad/good.yaml", "--data", "nothing"],
    "a corpus that is damaged": ["train", "bad/good.yaml", "--data", "bad/cut-corpus"],
    "a run with other settings": [*TRAIN, "--run-dir", "bad/run", *settings("model.d_ff=64")],
    "a run in use": ["train", "bad/good.yaml", "--data", TOY, "--run-dir", "bad/locked"],
    "training that diverges": [*TRAIN, *settings("training.rate_factor=1e300", "training.warmup_steps=1",
        "training.tokens_per_step=100", "training.micro_batches=1", "training.processes=1", "training.precision=fp32")],
    "no checkpoints to average": ["average-checkpoints", "bad"],
    "too many checkpoints to average": ["average-checkpoints", INPUTS / "runs/toy", "--data", TOY, "--last", 50],
    "an unknown corpus": ["prepare", "wmt15-en-de"],
    "one side alone": ["prepare", "--src", INPUTS / "lines"],
    "sides of different lengths": ["prepare", "--src", FEW, "--tgt", INPUTS / "lines", "--out", "data/uneven"],
    "a missing mirror": ["prepare", "multi30k-en-de", "--mirror", "nothing"],
    "a mirror without the files": ["prepare", "multi30k-en-de", "--mirror", "bad", "--out", "data/none"],
    "a corpus that exists": ["prepare", *PAIRS, "--out", "bad/cut-corpus"],
    "a hub name without languages": ["prepare", "hub:a/b"],
    "a download without a network": ["prepare", "hub:a/b", "--src", "en", "--tgt", "de", "--out", "data/hub"],
    "text without a usable pair": ["prepare", "--src", "bad/one-line", "--tgt", "bad/one-line", "--out", "data/small"],
    "hypotheses of another length": ["score", "test.hyp", "--reference", FEW],
    "no references": ["score", "test.hyp"],
    "references twice": ["score", "test.hyp", "--reference", "test.tgt", "--corpus", TOY],
    "an unknown metric": ["score", "test.hyp", "--reference", "test.tgt", "--metric", "blue"],
    "an unknown test set": ["score", "test.hyp", "--test-set", "wmt99"],
    "a missed gate": ["score", "test.hyp", "--reference", "test.tgt", "--fail-under", 99],
    "a gate without a baseline": ["score", "test.hyp", "--reference", "test.tgt", "--fail-if-worse"],
    "terms without sources": ["score", "test.hyp", "--reference", "test.tgt", "--terms", INPUTS / "terms"],
    "empty hypotheses": ["score", "bad/empty.yaml", "--reference", "bad/empty.yaml"],
    "an export that exists": ["export", MODEL, "--to", "hf", "--out", "bad", "--lines", FEW],
    "an export to an unknown toolkit": ["export", MODEL, "--to", "onnx", "--out", "x"],
    "an 8-bit export to transformers": ["export", MODEL, "--to", "hf", "--out", "x", "--quantization", "int8"],
    "an export without sentences": ["export", MODEL, "--to", "hf", "--out", "x", "--lines", "bad/empty.yaml"],
    "an import of nothing": ["import", "nothing/at/all", "--out", "x"],
    "an import of a model that is not Marian's": ["import", MODEL, "--out", "x"],
    "a server that other machines reach, without keys": ["serve", MODEL, "--host", "0.0.0.0"],
    "a server without a model": ["serve", "nothing"],
    "a server with an empty key file": ["serve", MODEL, "--api-key-file", "bad/empty.yaml"],
    "a server with two models for one pair": ["serve", MODEL, MODEL],
    "a report on a missing run": ["report", "nothing"],
    "a diagnosis of a missing run": ["doctor", "nothing"],
    "a layer that the model does not have": ["attend", "--model", MODEL, "--layer", 9, "a"],
    "a copy of a recipe onto an existing file": ["recipes", "copy", "toy", "bad/good.yaml"],
    "an unknown recipe to show": ["recipes", "show", "toyy"],
}  # fmt: skip


def make_bad_files(tree: Tree) -> Path:
    """Write files, models, corpora and runs that are damaged, in the way, or in use."""
    bad = tree.folder / "bad"
    if bad.exists():
        return bad
    make_files(tree)
    bad.mkdir()
    texts = {
        "good.yaml": "base: toy\ntraining: {steps: 60}\n",
        "broken.yaml": "a: [\n",
        "unknown.yaml": "base: toy\nmodel: {d_modell: 5}\n",
        "empty.yaml": "",
        "one-line": "The dog was tired.\n",
        "terms-twice": "dog\tHund\ndog\tKöter\n",
        "page.docx": "x",
        "broken.po": 'msgid "a"\nmsgstr "b\n',
    }
    for name, text in texts.items():
        (bad / name).write_text(text, "utf-8")
    (bad / "latin1").write_bytes("Straße\n".encode("latin1"))
    (bad / "utf16").write_bytes("Straße\n".encode("utf-16"))
    for name, source, damaged in (("model", MODEL, "model.safetensors"), ("corpus", TOY, "train.src.ids")):
        copy = shutil.copytree(tree.folder / source, bad / f"cut-{name}")
        file = copy / damaged
        file.write_bytes(file.read_bytes()[:-100])
    manifest = shutil.copytree(tree.folder / MODEL, bad / "manifest-model") / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text("utf-8")), "format": 99}))
    shutil.copytree(tree.folder / INPUTS / "runs/toy", bad / "run")
    (bad / "locked").mkdir()
    return bad


def failure(tree: Tree, arguments: list[object]) -> object:
    bad = make_bad_files(tree)
    with (bad / "locked/.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = tree.nmt(*arguments, stdin="The dog was tired.\n")
    lines = done.stderr.strip().replace(str(tree.folder), "FOLDER").split("\n")
    return {"exit code": done.code, "words": lines[-1], "one line": len(lines) == 1, "prints": bool(done.stdout)}


CHECKS: dict[str, Callable[[Tree], object]] = {
    name: partial(failure, arguments=arguments) for name, arguments in FAILURES.items()
}
