"""Import and export Argos packages with bpe.model: Moses tokens split by subword-nmt."""

import json
import sys
from pathlib import Path

import pytest
import torch
from moses_files import CODES, NAMES, write_tokenizer
from tiny_model import make_model

from nmt_cli import Terms, Translator
from nmt_cli.corpus.terms import Term
from nmt_cli.interop import argos_files
from nmt_cli.interop.export import export
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.named_models import model_directories
from nmt_cli.system.errors import DataError, MissingError, UsageError
from nmt_cli.transformer.weights import load_model, load_tensors, save_model

pytest.importorskip("ctranslate2")
pytest.importorskip("transformers")

from opennmt_models import argos_file, argos_folder, opennmt_model

OPENNMT = ["<unk>", "<blank>", "<s>", "</s>"]  # the first tokens of OpenNMT's vocabularies
TOKENS = [*OPENNMT, *NAMES]
LINE = "the old cat's dog, at the dog."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An installed package with bpe.model. Its vocabulary has all tokens that the codes produce."""
    package = argos_folder(opennmt_model(tmp_path / "model", tokens=TOKENS), tmp_path / "translate-en_de-1_0")
    (package / "sentencepiece.model").unlink()
    (package / "bpe.model").write_text(CODES)
    return package


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model directory whose tokenizer splits Moses tokens by subword-nmt's codes."""
    pytest.importorskip("sacremoses")
    like = load_model(make_model(tmp_path / "like"))
    size = len(like.model.embedding.weight)
    file = write_tokenizer(tmp_path / "tokenizer.model", (like.config.src, like.config.tgt), size)
    save_model(tmp_path / "own", like.model.state_dict(), like.recipe, file, {"steps": []})
    (tmp_path / "lines").write_text(f"{LINE}\nthe dog sees a cat\n")
    return tmp_path / "own"


def test_a_package_and_its_installed_directory_give_the_same_model(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("sacremoses")
    file = argos_file(folder, tmp_path / "en_de.argosmodel")
    first, second = (load_model(import_model(path, tmp_path / f"of {path.name}")) for path in (folder, file))
    for name in ("model.safetensors", "tokenizer.model", "tokenizer.target.model"):
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes()
    assert "12 of 12 translations" in first.manifest["proof"]
    assert (first.config.src, first.config.tgt, first.config.seen_tokens) == ("en", "de", 40)
    assert first.config.architecture.source_vocabulary == 0
    assert {*folder.iterdir()} == {folder / name for name in ("bpe.model", "metadata.json", "model")}


def test_both_sides_are_tokenized_by_the_rules_of_their_argos_language_codes(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("sacremoses")
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"to_code": "zt"}))
    imported = import_model(folder, tmp_path / "ours")
    files = [json.loads((imported / name).read_text()) for name in ("tokenizer.model", "tokenizer.target.model")]
    assert [each["language"] for each in files] == ["en", "zt"]
    assert files[0]["tokens"] == files[1]["tokens"]


@pytest.mark.usefixtures("imports_here")
def test_commands_translate_with_terms_alignments_and_tokens(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [directory] = model_directories([folder])
    with Translator(directory, precision="fp32") as translator:
        lines = [LINE, "THE OLD DOG", f"{LINE} " * 30, "12", "é"]
        terms = Terms([Term("the dog", ("cat dog",))])
        for line, found in zip(lines, translator.translate(lines, alignments=True, terms=terms), strict=True):
            best = found.hypotheses[0]
            assert "@@" not in best.text
            assert "&apos;" not in best.text
            assert ("cat dog" in best.text) == ("the dog" in line)
            if best.ids:
                spelled = "".join(token for token in best.tokens if token != "</s>")
                assert spelled == f" {best.text}".replace(" ", "▁")
        [scored] = translator.score([("the cat", LINE)])
        assert scored.ids == translator.tokenizer.target.encode([LINE])[0]


def test_a_target_prefix_is_not_shown(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("sacremoses")
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_prefix": "<blank>"}))
    with Translator(import_model(folder, tmp_path / "ours"), precision="fp32") as translator:
        [found] = translator.translate([LINE], beam=2)
        assert found.hypotheses[0].ids[:1] == translator.tokenizer.target.prefix("<blank>")
        assert "<blank>" not in found.text
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_prefix": "nowhere"}))
    with pytest.raises(DataError, match="does not have the token 'nowhere'"):
        import_model(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (b"t h\n\xff", r"bpe\.model is damaged: it is not UTF-8"),
        (b"t h\nth", r"bpe\.model is damaged: line 2 of its codes"),
        (b"a" * 9_000_000, r"bpe\.model is too large: 8,388,608 bytes at most"),
    ],
)
def test_damaged_codes_are_refused(tmp_path: Path, folder: Path, codes: bytes, reason: str) -> None:
    (folder / "bpe.model").write_bytes(codes)
    with pytest.raises(DataError, match=reason):
        import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_largest_codes_are_read(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.setattr(argos_files, "MAX_CODES", len(CODES))
    assert import_model(folder, tmp_path / "ours") == tmp_path / "ours"


def test_a_vocabulary_of_other_tokens_is_refused(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("sacremoses")
    vocabulary = [*OPENNMT, *(f"東{number}" for number in range(len(NAMES)))]
    (folder / "model" / "shared_vocabulary.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match="the tokenizer does not fit the vocabulary"):
        import_model(folder, tmp_path / "ours")


def test_a_package_without_a_tokenizer_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "bpe.model").unlink()
    with pytest.raises(MissingError, match=r"the package has no sentencepiece\.model and no bpe\.model"):
        import_model(folder, tmp_path / "ours")


def test_the_error_without_sacremoses_names_the_extra(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match=r'bpe\.model needs sacremoses\. Install it: pip install "nmt-cli\[moses\]"'):
        import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(("target", "name"), [("argos", "out.argosmodel"), ("ctranslate2", "out")])
def test_an_export_is_imported_as_the_same_model(tmp_path: Path, own: Path, target: str, name: str) -> None:
    assert export(own, target, tmp_path / name, "float32", tmp_path / "lines") == 0
    ours, back = load_model(own), load_model(import_model(tmp_path / name, tmp_path / "back"))
    for file in ("tokenizer.model", "tokenizer.target.model"):
        assert (own / file).read_bytes() == (back.directory / file).read_bytes()
    first, second = (load_tensors(each.directory / "model.safetensors") for each in (ours, back))
    assert all(torch.equal(first[each], second[each]) for each in first)
    assert {*NAMES} < {*load_model(back.directory).tokenizer.vocabulary}


def test_an_export_to_transformers_is_refused(tmp_path: Path, own: Path) -> None:
    with pytest.raises(DataError, match=r"transformers has no tokenizer for bpe\.model"):
        export(own, "hf", tmp_path / "hf", None, tmp_path / "lines")
    assert not (tmp_path / "hf").exists()
