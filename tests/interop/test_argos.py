"""Import and export Argos packages."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from tiny_model import make_model, make_pairs_model
from typer.testing import CliRunner

from nmt_cli import Translator
from nmt_cli.commands.app import app
from nmt_cli.interop import importing
from nmt_cli.interop.argos_package import argos_code
from nmt_cli.interop.export import export
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.model_kinds import find_models
from nmt_cli.interop.named_models import model_directories
from nmt_cli.system.errors import DataError, OutputError, UsageError
from nmt_cli.transformer.weights import load_model, load_tensors

pytest.importorskip("ctranslate2")
pytest.importorskip("transformers")

from opennmt_models import argos_file, argos_folder, opennmt_model


@pytest.fixture
def folder(tmp_path):
    return argos_folder(opennmt_model(tmp_path / "model", "int8"), tmp_path / "translate-en_de-1_0")


def test_a_package_and_its_installed_directory_give_the_same_model(tmp_path, folder):
    file = argos_file(folder, tmp_path / "en_de.argosmodel", **{"translate-en_de-1_0/stanza/en.pt": b"not read"})
    first, second = (load_model(import_model(path, tmp_path / f"of {path.name}")) for path in (folder, file))
    assert (first.config, first.recipe.model) == (second.config, second.recipe.model)
    for name in ("model.safetensors", "tokenizer.model"):
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes()
    config = first.config
    assert (config.src, config.tgt, config.seen_tokens, config.decoding.beam) == ("en", "de", 40, 4)
    assert second.manifest["weights"].keys() == {"en_de.argosmodel"}


@pytest.mark.usefixtures("imports_here")
def test_commands_read_packages_and_import_each_once(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [directory] = model_directories([folder])
    written = (directory / "manifest.json").stat().st_mtime_ns
    assert model_directories([folder]) == (directory,)
    assert (directory / "manifest.json").stat().st_mtime_ns == written
    with Translator(directory) as translator:
        assert len([*translator.translate(["the old cat"])]) == 1
    changed = argos_folder(opennmt_model(tmp_path / "other"), tmp_path / "changed")
    assert model_directories([changed]) != (directory,)


def test_a_target_prefix_begins_every_translation_but_is_not_shown(tmp_path, folder):
    """This also holds for the sentences and halves of a line, and for scored references. CTranslate2 gets it, too."""
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_prefix": "<s>"}))
    imported = import_model(folder, tmp_path / "ours")
    with Translator(imported, precision="fp32") as translator:
        lines = ["the old cat", "the old cat sees a dog. " * 9]
        begins = translator.tokenizer.target.prefix("<s>")
        for line in translator.translate(lines, beam=2):
            assert line.hypotheses[0].ids[:1] == begins
            assert "<s>" not in line.text
        [scored] = translator.score([("the cat", "der")])
        assert scored.ids == translator.tokenizer.encode(["der"])[0]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_prefix": "nowhere"}))
    with pytest.raises(DataError, match="does not have the token 'nowhere'"):
        import_model(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"type": "sbd"}, "type sbd, which does not translate"),
        ({"from_code": 5}, "from_code must be text"),
        ({"to_code": None}, "to_code must be text"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path, folder, metadata, reason):
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | metadata))
    with pytest.raises(DataError, match=reason):
        import_model(folder, tmp_path / "ours")


@pytest.mark.parametrize(
    ("of_argos", "ours"), [("pb", "pt-BR"), ("zt", "zh-Hant"), ("zh", "zh-Hans"), ("pt", "pt"), ("sr", "sr")]
)
def test_argos_codes_become_the_codes_that_libretranslate_lists(of_argos, ours, tmp_path, folder):
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"to_code": of_argos}))
    [found] = find_models(tmp_path)
    assert found.directions[0][:2] == ("en", ours)
    assert argos_code(ours) == of_argos


@pytest.mark.parametrize(
    ("code", "of_argos"),
    [("en_GB", "en"), ("deu_Latn", "de"), ("pt_br", "pb"), ("pt-PT", "pt"), ("zh-TW", "zt"), ("zh", "zh"), ("x", "x")],
)
def test_exported_packages_have_the_codes_that_argos_knows(code, of_argos):
    assert argos_code(code) == of_argos


def test_archives_that_expand_too_much_or_are_damaged_are_refused(tmp_path, folder):
    (folder / "model" / "model.bin").write_bytes(bytes(50_000_000))
    file = argos_file(folder, tmp_path / "x.argosmodel")
    with pytest.raises(DataError, match=r"model/model\.bin would have 50,000,000 bytes"):
        import_model(file, tmp_path / "ours")
    (tmp_path / "y.argosmodel").write_bytes(b"PK\x05\x06 and nothing more")
    with pytest.raises(DataError, match="damaged or not an Argos package"):
        import_model(tmp_path / "y.argosmodel", tmp_path / "ours")


def test_a_model_with_several_target_languages_cannot_become_a_package(tmp_path):
    """A package cannot add the token of a target language. The card of other exports names all pairs and a token."""
    model = make_pairs_model(tmp_path, "en-de", "de-en", "fr-en")
    (tmp_path / "lines").write_text(">>de<< der Hund geht\n")
    with pytest.raises(DataError, match="an Argos package has one language pair, and this model has 3 language pairs"):
        export(model, "argos", tmp_path / "x.argosmodel", None, tmp_path / "lines")
    assert export(model, "ctranslate2", tmp_path / "out", None, tmp_path / "lines") == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "language:\n- en\n- de\n- fr\nlibrary_name" in card
    assert "# pairs: en to de, de to en, fr to en\n" in card
    assert "- Each source must begin with the token of its target language, such as `>>de<<`.\n" in card


def test_an_exported_package_is_imported_as_the_same_model(tmp_path):
    model = make_model(tmp_path / "tiny")
    (tmp_path / "lines").write_text("der Hund schläft\nder Hund sieht das Haus\n")
    out = tmp_path / "de_en.argosmodel"
    assert export(model, "argos", out, "float32", tmp_path / "lines") == 0
    with zipfile.ZipFile(out) as archive:
        [root] = {name.partition("/")[0] for name in archive.namelist()}
        metadata = json.loads(archive.read(f"{root}/metadata.json"))
        card = archive.read(f"{root}/README.md").decode()
    ours, back = load_model(model), load_model(import_model(out, tmp_path / "back"))
    assert root == f"translate-{ours.config.src}_{ours.config.tgt}-1_0"
    assert (metadata["from_code"], metadata["to_code"]) == (ours.config.src, ours.config.tgt)
    assert "argostranslate.package.install_from_path" in card
    first, second = (load_tensors(each.directory / "model.safetensors") for each in (ours, back))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(OutputError, match="exists already"):
        export(model, "argos", out, None, tmp_path / "lines")
    with pytest.raises(UsageError, match=r"--out must be a file NAME\.argosmodel"):
        export(model, "argos", tmp_path / "package", None, tmp_path / "lines")


@pytest.mark.usefixtures("imports_here")
def test_packages_in_a_directory_are_described_and_imported_when_opened(tmp_path, folder, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packages = tmp_path / "packages"
    packages.mkdir()
    file = argos_file(folder, packages / "en_de.argosmodel")
    (packages / "damaged.argosmodel").write_bytes(file.read_bytes()[:900])
    firefox = packages / "enfr"
    firefox.mkdir()
    (firefox / "model.enfr.intgemm.alphas.bin").write_bytes((1).to_bytes(8, "little") + b"damaged")
    package, marian = find_models(packages)
    assert (package.kind, package.directions, package.bytes) == ("argos", (("en", "de", ""),), file.stat().st_size)
    assert (marian.kind, marian.directions) == ("firefox", (("en", "fr", ""),))
    assert "damaged.argosmodel is skipped: it is damaged or not an Argos package" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
    assert package.open() == model_directories([file])[0]
    assert "is en_de.argosmodel. On 12 sentences" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"enfr needs a source and a target vocabulary"):
        marian.open()


@pytest.mark.parametrize(
    ("source", "out"), [("me@x/en_de.argosmodel", "models/en_de"), ("OWNER/NAME@main", "models/NAME")]
)
def test_the_directory_of_an_import_has_the_name_of_the_model(
    source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me@x").mkdir()
    (tmp_path / "me@x" / "en_de.argosmodel").touch()
    asked = list[Path]()
    monkeypatch.setattr(importing, "import_model", lambda _, directory, *languages: asked.append(directory))
    assert CliRunner().invoke(app, ["import", source]).exit_code == 0
    assert asked == [Path(out)]
