"""Directories whose hashes fit and whose content does not: one line that names what is wrong, and 65."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Lab
from tiny_model import make_model

from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.store import open_corpus
from nmt_cli.storage import artefact, manifests
from nmt_cli.system.errors import DataError
from nmt_cli.training import checkpoints
from nmt_cli.transformer.weights import load_model, load_tensors, save_tensors

Change = Callable[[Path], object]


def signed(directory: Path, **entries: Any) -> None:
    """Make a manifest fit what lies in its directory, and change some entries of it; None removes one."""
    manifest = artefact.read_json(directory / artefact.MANIFEST)
    for name in manifest["files"]:
        file = directory / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": artefact.sha256(file)}
    manifest = {name: value for name, value in {**manifest, **entries}.items() if value is not None}
    (directory / artefact.MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def act(directory: Path) -> None:
        tensors = load_tensors(directory / "model.safetensors")
        change(tensors)
        (directory / "model.safetensors").unlink()
        save_tensors(directory / "model.safetensors", tensors)

    return act


def settings(old: str, new: str) -> Change:
    return lambda directory: (directory / "recipe.yaml").write_text(
        (directory / "recipe.yaml").read_text().replace(old, new)
    )


def another_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(spm.train([f"{a} {a + b}" for a in "qwertz" for b in "asdf"], 300))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_tokenizer, "embeddings of 340 tokens, its tokenizer has 300: they are of two models"),
        (lambda directory: (directory / "tokenizer.model").write_bytes(b""), "is not a SentencePiece model"),
        (weights(lambda t: t.update({n: x.int() for n, x in t.items()})), "another type than F32: .* is I32"),
        (weights(lambda t: t.update({"encoder_norm.x": torch.zeros(2)})), "has 16,194 numbers, not 16,192"),
        (weights(lambda t: t.pop("embedding.weight")), "embeddings of 0 tokens"),
        (weights(lambda t: t.update({"embedding.weight": torch.zeros(340)})), "does not fit its recipe"),
        (weights(dict.clear), "embeddings of 0 tokens"),
        (settings("d_model: 16", "d_model: 18"), "does not fit its recipe"),
        (settings("num_layers: 2", "num_layers: 1000"), "does not fit its recipe"),
        (settings("d_ff: 32", "d_ff: 1048576"), "does not fit its recipe"),
        (settings("max_length: 128", "max_length: 1048576000"), "max_length must be less than or equal to 1048576"),
        (settings("source_vocabulary: 0", "source_vocabulary: 300"), "its tokenizer has 340"),
    ],
)
def test_files_of_a_model_that_do_not_fit_each_other(model: Path, tmp_path: Path, change: Change, message: str) -> None:
    copy = shutil.copytree(model, tmp_path / "model")
    change(copy)
    signed(copy)
    with pytest.raises(DataError, match=message):
        load_model(copy)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"files": None}, "files is missing"),
        ({"files": []}, "files must be a valid dictionary"),
        ({"files": {}}, "does not list model.safetensors"),
        ({"files": {"recipe.yaml": {"bytes": "9", "sha256": "0" * 64}}}, r"bytes must be a valid integer"),
        ({"files": {"recipe.yaml": {"bytes": 9, "sha256": 5}}}, r"sha256 must be a valid string"),
        ({"files": {"../x": {"bytes": 9, "sha256": "0" * 64}}}, "must be a name inside the directory"),
        ({"files": {"/etc/passwd": {"bytes": 9, "sha256": "0" * 64}}}, "must be a name inside the directory"),
        ({"seen_tokens": 0}, "seen_tokens must be greater than or equal to 1, not '0'"),
        ({"seen_tokens": "many"}, "seen_tokens must be a valid integer"),
        ({"steps": "10"}, "steps must be a valid list"),
        ({"created": 5}, "created must be a valid string"),
    ],
)
def test_a_manifest_of_a_model_with_wrong_entries(
    model: Path, tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    copy = shutil.copytree(model, tmp_path / "model")
    signed(copy, **entries)
    with pytest.raises(DataError, match=message):
        load_model(copy)


GOOD: dict[str, dict[str, Any]] = {
    "model": {},
    "checkpoint": {"step": 1},
    "corpus": {"name": None, "src": "a", "tgt": "b", "pairs": 1, "vocabulary_size": 1, "source_vocabulary_size": 1},
    "report": {},  # a kind of which nothing is read but its files
}
FILES = {
    "model": "model.safetensors recipe.yaml tokenizer.model",
    "checkpoint": "model.safetensors optimizer.safetensors state.json",
    "corpus": "tokenizer.model train.src.ids train.src.offsets train.tgt.ids train.tgt.offsets",
    "report": "",
}


def manifest_of(kind: str) -> dict[str, Any]:
    return {**GOOD[kind], "files": {name: {"bytes": 0, "sha256": "0f" * 32} for name in FILES[kind].split()}}


@pytest.mark.parametrize("kind", GOOD)
def test_a_manifest_lists_all_files_that_its_readers_need(kind: str) -> None:
    manifests.check(manifest_of(kind), kind, Path("m"))
    for name in FILES[kind].split():
        manifest = manifest_of(kind)
        del manifest["files"][name]
        with pytest.raises(DataError, match=f"^m is damaged: it does not list {name}$"):
            manifests.check(manifest, kind, Path("m"))


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("checkpoint", {"step": 0}, "step must be greater than or equal to 1, not '0'"),
        ("checkpoint", {"step": "7"}, "step must be a valid integer, not '7'"),
        ("checkpoint", {"seen_tokens": 0}, "seen_tokens must be greater than or equal to 1, not '0'"),
        ("checkpoint", {"corpus": 5}, "corpus must be a valid string, not '5'"),
        ("model", {"steps": [3, -1]}, "steps.1 must be greater than or equal to 0, not '-1'"),
        ("model", {"imported": 5}, "imported must be a valid string, not '5'"),
        ("corpus", {"pairs": 0}, "pairs must be greater than or equal to 1, not '0'"),
        ("corpus", {"source_vocabulary_size": 0}, "source_vocabulary_size must be greater than or equal to 1, not '0'"),
        ("corpus", {"generated": "yes"}, "generated must be a valid boolean, not 'yes'"),
        ("corpus", {"name": "n" * 50, "src": ["x" * 50]}, f"src must be a valid string, not {str(['x' * 50])[:40]!r}"),
        ("corpus", {"sources": [{"bytes": 1, "sha256": "A" * 64}]}, "sources.0.sha256 must be String should match"),
        ("report", {"files": {"x": {"bytes": -1, "sha256": "0" * 64}}}, "files.x.bytes must be greater than or"),
        ("report", {"files": {"x": {"bytes": 1, "sha256": "0" * 65}}}, "files.x.sha256 must be String should match"),
        *(
            ("report", {"files": {name: {"bytes": 1, "sha256": "0" * 64}}}, "must be a name inside the directory, not ")
            for name in ("", ".", "..", "a/../b", "a/./b", "a//b", "a/", "/a", "a\nb", "a\x1b")
        ),
    ],
)
def test_what_a_manifest_must_hold(kind: str, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as refusal:
        manifests.check({**manifest_of(kind), **entries}, kind, Path("m"))
    assert str(refusal.value).startswith("m is damaged: ")
    assert message in str(refusal.value)


def test_files_in_directories_and_entries_of_others_are_no_mistakes() -> None:
    manifest = {"files": {"a/b.c/..d": {"bytes": 1, "sha256": "0" * 64, "more": 1}}, "more": 2}
    manifests.check(manifest, "report", Path("m"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"vocabulary_size": None}, "vocabulary_size is missing"),
        ({"vocabulary_size": 0}, "vocabulary_size must be greater"),
        ({"vocabulary_size": 100}, "do not fit its offsets, or the vocabulary"),
        ({"vocabulary_size": 70_000}, "damaged"),
        ({"src": 5}, "src must be a valid string"),
        ({"sources": [{}]}, "sources.0.bytes is missing"),
    ],
)
def test_a_manifest_of_a_corpus_with_wrong_entries(
    numbers_corpus: Path, tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    copy = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    signed(copy, **entries)
    with pytest.raises(DataError, match=message):
        open_corpus(copy, content=True)


@pytest.mark.parametrize("fewer", ["src", "tgt"])
def test_sides_of_a_corpus_that_are_of_two(numbers_corpus: Path, tmp_path: Path, fewer: str) -> None:
    """One side ends a sentence early, in its ids and its offsets alike."""
    copy = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    ids, offsets = copy / f"train.{fewer}.ids", copy / f"train.{fewer}.offsets"
    ends = np.frombuffer(offsets.read_bytes(), "<i8")
    os.truncate(ids, 2 * int(ends[-2]))
    os.truncate(offsets, 8 * (len(ends) - 1))
    signed(copy)
    counts = {"src": len(ends) - 1, "tgt": len(ends) - 1} | {fewer: len(ends) - 2}
    with pytest.raises(DataError, match=f"is damaged: {counts['src']} source and {counts['tgt']} target sentences"):
        open_corpus(copy)


def test_ids_at_the_vocabulary_and_empty_sentences_are_damage(numbers_corpus: Path, tmp_path: Path) -> None:
    """Each side has a vocabulary of its own size; ids are looked at where the content is."""
    whole = open_corpus(numbers_corpus)
    most = [int(side.ids.max()) for side in (whole.src, whole.tgt)]
    copy = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    for add, damaged in (((1, 1), ""), ((0, 1), "src"), ((1, 0), "tgt")):
        sizes = [top + more for top, more in zip(most, add, strict=True)]
        signed(copy, source_vocabulary_size=sizes[0], vocabulary_size=sizes[1])
        open_corpus(copy)
        with pytest.raises(DataError, match=rf"train\.{damaged}\.ids is damaged") if damaged else nullcontext():
            assert open_corpus(copy, content=True).manifest["source_vocabulary_size"] == sizes[0]
    ends = np.array(whole.src.offsets)
    for place, wrong in ((3, ends[4]), (0, 1), (0, -1), (-1, ends[-1] + 1)):
        damaged = ends.copy()
        damaged[place] = wrong
        (copy / "train.src.offsets").write_bytes(damaged.astype("<i8").tobytes())
        signed(copy)
        with pytest.raises(DataError, match=r"train\.src\.ids is damaged: its ids do not fit its offsets"):
            open_corpus(copy)


@pytest.mark.parametrize("cut", [0, 8, 12, -8, -9])
def test_ids_and_offsets_of_a_corpus_that_do_not_fit(numbers_corpus: Path, tmp_path: Path, cut: int) -> None:
    for name in ("train.src.ids", "train.tgt.offsets"):
        copy = shutil.copytree(numbers_corpus, tmp_path / name)
        (copy / name).write_bytes((copy / name).read_bytes()[:cut])
        signed(copy)
        with pytest.raises(DataError, match="damaged"):
            open_corpus(copy)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", b"{}", "it is of another step"),
        ("state.json", b'{"step": "x"}', "state.json is damaged: step must be"),
        ("state.json", b'{"step": 30, "best_nll": []}', "state.json is damaged: best_nll must be"),
        ("manifest.json", b'{"format": 1, "kind": "checkpoint"}', "files is missing"),
    ],
)
def test_a_checkpoint_with_a_wrong_state_costs_one_interval(lab: Lab, file: str, content: bytes, message: str) -> None:
    shutil.copytree(lab.reference, lab.run)
    (place := checkpoints.directory_of(lab.run, 30)).joinpath(file).write_bytes(content)
    if file != artefact.MANIFEST:
        signed(place)
    assert checkpoints.newest(lab.run, open_corpus(lab.corpus).identity) == 20
    assert message in lab.stderr()


@pytest.mark.parametrize("change", [dict.popitem, lambda t: t.update({name: x[None] for name, x in t.items()})])
def test_moments_that_do_not_fit_are_named(lab: Lab, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    shutil.copytree(lab.reference, lab.run)
    shutil.rmtree(checkpoints.directory_of(lab.run, 30))
    place = checkpoints.directory_of(lab.run, 20)
    moments = load_tensors(place / checkpoints.OPTIMIZER)
    change(moments)
    (place / checkpoints.OPTIMIZER).unlink()
    save_tensors(place / checkpoints.OPTIMIZER, moments)
    signed(place)
    with pytest.raises(DataError, match=r"optimizer.safetensors does not fit model.safetensors: "):
        lab.train()
