"""Artifacts with correct hashes and wrong content end in exit code 65 and one line that names the mistake."""

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
from lab import Lab
from tiny_model import make_model

from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.store import open_corpus
from nmt_cli.storage import artefact, manifests
from nmt_cli.system.errors import DataError
from nmt_cli.training import checkpoints
from nmt_cli.transformer.weights import load_model, load_tensors, save_tensors

Change = Callable[[Path], object]


def signed(directory: Path, **entries: Any) -> None:
    """Update the hashes in a manifest, and change some of its entries; None removes an entry."""
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


def settings(**changes: Any) -> Change:
    """Change the architecture in model.json."""

    def act(directory: Path) -> None:
        values = artefact.read_json(directory / "model.json")
        (directory / "model.json").write_text(
            json.dumps({**values, "architecture": {**values["architecture"], **changes}})
        )

    return act


def another_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(spm.train([f"{a} {a + b}" for a in "qwertz" for b in "asdf"], 300))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_tokenizer, "embeddings of 340 tokens, but its tokenizer has 300: they do not match"),
        (lambda directory: (directory / "tokenizer.model").write_bytes(b""), "is not a SentencePiece model"),
        (weights(lambda t: t.update({n: x.int() for n, x in t.items()})), "weights that are not F32: .* is I32"),
        (weights(lambda t: t.update({"encoder_norm.x": torch.zeros(2)})), "encoder_norm.x is unexpected"),
        (weights(lambda t: t.pop("embedding.weight")), "embeddings of 0 tokens"),
        (weights(lambda t: t.update({"embedding.weight": torch.zeros(340)})), "does not fit model.json: "),
        (weights(dict.clear), "embeddings of 0 tokens"),
        (settings(d_model=18), "does not fit model.json: "),
        (settings(decoder_layers=1000), "does not fit model.json: "),
        (settings(d_ff=1048576), "does not fit model.json: "),
        (settings(max_length=1048576000), "max_length must be from 8 to 1,048,576, not '1048576000'"),
        (settings(source_vocabulary=300), "its tokenizer has 340"),
    ],
)
def test_files_of_a_model_must_fit_each_other(model: Path, tmp_path: Path, change: Change, message: str) -> None:
    copy = shutil.copytree(model, tmp_path / "model")
    change(copy)
    signed(copy)
    with pytest.raises(DataError, match=message):
        load_model(copy)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"files": None}, "files is missing"),
        ({"files": []}, "files must be an object"),
        ({"files": {}}, "does not list model.safetensors"),
        ({"files": {"recipe.yaml": {"bytes": "9", "sha256": "0" * 64}}}, "bytes must be an integer"),
        ({"files": {"recipe.yaml": {"bytes": 9, "sha256": 5}}}, "sha256 must be a string"),
        ({"files": {"../x": {"bytes": 9, "sha256": "0" * 64}}}, "must be a name inside the directory"),
        ({"files": {"/etc/passwd": {"bytes": 9, "sha256": "0" * 64}}}, "must be a name inside the directory"),
        ({"seen_tokens": 0}, "seen_tokens must be at least 1, not '0'"),
        ({"seen_tokens": "many"}, "seen_tokens must be an integer"),
        ({"steps": "10"}, "steps must be a list"),
        ({"created": 5}, "created must be a string"),
    ],
)
def test_a_model_with_wrong_manifest_entries_is_refused(
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
    "report": {},  # readers use only its files
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
def test_a_manifest_must_list_all_files_that_readers_need(kind: str) -> None:
    manifests.check(manifest_of(kind), kind, Path("m"))
    for name in FILES[kind].split():
        manifest = manifest_of(kind)
        del manifest["files"][name]
        with pytest.raises(DataError, match=f"^m is damaged: it does not list {name}$"):
            manifests.check(manifest, kind, Path("m"))


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("checkpoint", {"step": 0}, "step must be at least 1, not '0'"),
        ("checkpoint", {"step": "7"}, "step must be an integer, not '7'"),
        ("checkpoint", {"seen_tokens": 0}, "seen_tokens must be at least 1, not '0'"),
        ("checkpoint", {"corpus": 5}, "corpus must be a string, not '5'"),
        ("model", {"steps": [3, -1]}, "steps.1 must be at least 0, not '-1'"),
        ("model", {"imported": 5}, "imported must be a string, not '5'"),
        ("corpus", {"pairs": 0}, "pairs must be at least 1, not '0'"),
        ("corpus", {"source_vocabulary_size": 0}, "source_vocabulary_size must be at least 1, not '0'"),
        ("corpus", {"generated": "yes"}, "generated must be a boolean, not 'yes'"),
        ("corpus", {"name": "n" * 50, "src": ["x" * 50]}, f"src must be a string, not {str(['x' * 50])[:40]!r}"),
        ("corpus", {"sources": [{"bytes": 1, "sha256": "A" * 64}]}, "sources.0.sha256 must be 64 hexadecimal digits"),
        ("report", {"files": {"x": {"bytes": -1, "sha256": "0" * 64}}}, "files.x.bytes must be at least 0"),
        ("report", {"files": {"x": {"bytes": 1, "sha256": "0" * 65}}}, "files.x.sha256 must be 64 hexadecimal digits"),
        *(
            ("report", {"files": {name: {"bytes": 1, "sha256": "0" * 64}}}, "must be a name inside the directory, not ")
            for name in ("", ".", "..", "a/../b", "a/./b", "a//b", "a/", "/a", "a\nb", "a\x1b")
        ),
    ],
)
def test_wrong_entries_of_a_manifest_are_named(kind: str, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as refusal:
        manifests.check({**manifest_of(kind), **entries}, kind, Path("m"))
    assert str(refusal.value).startswith("m is damaged: ")
    assert message in str(refusal.value)


def test_files_in_subdirectories_and_unknown_entries_are_allowed() -> None:
    manifest = {"files": {"a/b.c/..d": {"bytes": 1, "sha256": "0" * 64, "more": 1}}, "more": 2}
    manifests.check(manifest, "report", Path("m"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"vocabulary_size": None}, "vocabulary_size is missing"),
        ({"vocabulary_size": 0}, "vocabulary_size must be at least 1"),
        ({"vocabulary_size": 100}, "do not fit its offsets, or the vocabulary"),
        ({"vocabulary_size": 70_000}, "damaged"),
        ({"src": 5}, "src must be a string"),
        ({"sources": [{}]}, "sources.0.bytes is missing"),
    ],
)
def test_a_corpus_with_wrong_manifest_entries_is_refused(
    numbers_corpus: Path, tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    copy = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    signed(copy, **entries)
    with pytest.raises(DataError, match=message):
        open_corpus(copy, content=True)


@pytest.mark.parametrize("fewer", ["src", "tgt"])
def test_the_sides_of_a_corpus_must_have_the_same_number_of_sentences(
    numbers_corpus: Path, tmp_path: Path, fewer: str
) -> None:
    """One side lacks the last sentence in both its ids and its offsets."""
    copy = shutil.copytree(numbers_corpus, tmp_path / "corpus")
    ids, offsets = copy / f"train.{fewer}.ids", copy / f"train.{fewer}.offsets"
    ends = np.frombuffer(offsets.read_bytes(), "<i8")
    os.truncate(ids, 2 * int(ends[-2]))
    os.truncate(offsets, 8 * (len(ends) - 1))
    signed(copy)
    counts = {"src": len(ends) - 1, "tgt": len(ends) - 1} | {fewer: len(ends) - 2}
    with pytest.raises(DataError, match=f"is damaged: {counts['src']} source and {counts['tgt']} target sentences"):
        open_corpus(copy)


def test_ids_beyond_the_vocabulary_and_wrong_offsets_are_damage(numbers_corpus: Path, tmp_path: Path) -> None:
    """Each side has its own vocabulary size. `open_corpus` checks ids only with `content`."""
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
def test_truncated_ids_and_offsets_of_a_corpus_are_refused(numbers_corpus: Path, tmp_path: Path, cut: int) -> None:
    for name in ("train.src.ids", "train.tgt.offsets"):
        copy = shutil.copytree(numbers_corpus, tmp_path / name)
        (copy / name).write_bytes((copy / name).read_bytes()[:cut])
        signed(copy)
        with pytest.raises(DataError, match="damaged"):
            open_corpus(copy)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", b"{}", "it belongs to another step"),
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
def test_moments_that_do_not_fit_the_weights_are_named(
    lab: Lab, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
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
