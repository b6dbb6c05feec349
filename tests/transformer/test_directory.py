"""Model directories: model.json is their contract, and directories of nmt 0.1, which lack it, still open.

The models in tests/data/models were written by nmt 0.1: "plain" is a trained model; "averaged" has pre-norm, learned
positions, 2 + 1 layers and the mean of three checkpoints; "imported" has two vocabularies and was imported from Marian.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import torch
from tiny_model import make_model

from nmt_cli import Translator
from nmt_cli.interop.export import export
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.limits import Range
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, UsageError
from nmt_cli.transformer import config as model_config
from nmt_cli.transformer.config import Architecture, Decoding, checked_decoding, read_model_json
from nmt_cli.transformer.directory import models_here, open_model, other_models, output_of
from nmt_cli.transformer.weights import load_model, load_tensors, load_transformer, save_model, save_tensors

EARLIER = Path(__file__).parents[1] / "data" / "models"
# For each model, lines and their translations by nmt 0.1, in fp32 with extra_length=5 and split=False.
TRANSLATIONS = {
    "plain": {
        "The dog sees the red house.": "ererererererererererererererererererer",
        "3.14": "3.14",
    },
    "averaged": {
        "The dog sees the red house.": "ereeeeeeeeeeeeeeeeeen",
        "She sleeps.": "eeeeeeeenenenenenen",
    },
    "imported": {
        "A man in an orange hat starring at something.": "Ein Mann in einem und und und und und und und und unde",
        "A Boston Terrier.": "Ein Mann und und und und und und und l",
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def edited(model: Path, to: Path, file: str, change: Callable[[str], str], *, sign: bool = True) -> Path:
    """Copy a model and change one of its files; `sign` puts the new hash into the manifest."""
    shutil.copytree(model, to)
    (to / file).write_text(change((to / file).read_text()))
    manifest = artefact.read_json(to / artefact.MANIFEST)
    if sign:
        manifest["files"][file] = {"bytes": (to / file).stat().st_size, "sha256": artefact.sha256(to / file)}
        (to / artefact.MANIFEST).write_text(json.dumps(manifest))
    return to


def updated(**changes: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **changes})


# --- models of nmt 0.1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_an_earlier_model_translates_as_before_even_after_it_is_saved_again(name: str, tmp_path: Path) -> None:
    assert not (EARLIER / name / "model.json").exists()
    loaded = load_model(EARLIER / name)
    manifest = {key: loaded.manifest[key] for key in ("steps", "seen_tokens") if key in loaded.manifest}
    save_model(tmp_path / "new", loaded.model.state_dict(), loaded.recipe, loaded.tokenizer_file, manifest)
    assert open_model(tmp_path / "new").config == open_model(EARLIER / name).config
    lines, expected = TRANSLATIONS[name].keys(), [*TRANSLATIONS[name].values()]
    for directory in (EARLIER / name, tmp_path / "new"):
        with Translator(directory, precision="fp32", workers=1) as translator:
            assert [line.text for line in translator.translate(lines, extra_length=5, split=False)] == expected
    assert output_of(EARLIER / name) == output_of(tmp_path / "new") == "text"


def test_an_earlier_model_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    lines = tmp_path / "lines"
    lines.write_text("the dog sees the red house .\nThe small cat runs.\n")
    assert export(EARLIER / "plain", "hf", tmp_path / "hf", None, lines) == 0
    assert (tmp_path / "hf" / "model.safetensors").stat().st_size > 20_000


def test_settings_that_an_earlier_recipe_lacks_have_their_defaults(tmp_path: Path) -> None:
    whole = open_model(EARLIER / "plain").config
    for line in ("  copy_wordless: true\n", "  tied_output: true\n"):
        assert line in (EARLIER / "plain" / "recipe.yaml").read_text()
        directory = edited(EARLIER / "plain", tmp_path / line.split(":")[0].strip(), "recipe.yaml", cut(line))
        assert open_model(directory).config == whole


def cut(line: str) -> Callable[[str], str]:
    return lambda text: text.replace(line, "")


def test_a_model_json_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    directory = shutil.copytree(EARLIER / "plain", tmp_path / "plain")
    (directory / "model.json").write_text("{}")
    assert open_model(directory).config == open_model(EARLIER / "plain").config


# --- model.json -------------------------------------------------------------------------------------------------------


def test_a_new_setting_of_a_model_must_enter_the_contract() -> None:
    """If older versions would ignore the setting and compute something else, model.format must be raised as well."""
    sizes = {field.name for field in fields(Architecture)}
    assert schema.Model.model_fields.keys() - sizes == {
        "num_layers",
        "dropout",
    }  # num_layers is resolved, dropout is only for training
    assert sizes <= schema.Model.model_fields.keys()
    assert schema.Decoding.model_fields.keys() == {field.name for field in fields(Decoding)}


def test_model_json_holds_the_settings_that_translation_needs(tmp_path: Path) -> None:
    changes = "model.decoder_layers=1", "decoding.alpha=1", "corpus.cleaning.max_tokens=null", "corpus.src=no"
    loaded = load_model(make_model(tmp_path, *changes))
    values = artefact.read_json(tmp_path / "model" / "model.json")
    sizes = {key: value for key, value in loaded.recipe.model.model_dump().items() if key in values["architecture"]}
    assert values == {
        "format": 1, "src": "no", "tgt": "de", "output": "text", "vocabulary_size": 340, "max_tokens": None, "tags": [],
        "pairs": [], "seen_tokens": None, "architecture": {**sizes, "encoder_layers": 2, "decoder_layers": 1},
        "decoding": loaded.recipe.decoding.model_dump(),
    }  # fmt: skip
    assert asdict(loaded.config).items() <= values.items()


def test_tags_of_a_model_exclude_languages() -> None:
    sources = [{"files": ["a.tsv"], "tag": "web"}, {"files": ["b.tsv"], "tgt": "fr"}]
    corpus = {"name": "own", "src": "en", "tgt": "de", "sources": sources}
    recipe = loading.from_plain({"name": "own", "corpus": corpus}, "test")
    assert recipe.corpus.tags == ["de", "fr", "web"]
    assert model_config.from_recipe(recipe, 340).tags == ["web"]


NUMBERS = [
    (section, field.name, get_args(field.type))
    for section, kind in (("architecture", Architecture), ("decoding", Decoding))
    for field in fields(kind)
    if get_origin(field.type) is Annotated and get_args(field.type)[0] is not str
]


@pytest.mark.parametrize(("section", "name", "annotation"), NUMBERS, ids=[name for _, name, _ in NUMBERS])
def test_ranges_of_model_json_are_those_of_a_recipe(
    model: Path, tmp_path: Path, section: str, name: str, annotation: tuple[type, Range]
) -> None:
    kind, bounds = annotation
    settings = schema.Model if section == "architecture" else schema.Decoding
    values = artefact.read_json(model / "model.json")
    values["architecture"] |= {"d_model": 16, "max_length": 8, "positions": "learned"}

    def read(value: Any) -> object:
        (tmp_path / "model.json").write_text(json.dumps({**values, section: {**values[section], name: value}}))
        return read_model_json(tmp_path / "model.json")

    for bound in bounds:
        if bound != float("inf"):
            read(kind(bound))
            assert getattr(settings(**{name: kind(bound)}), name) == bound
    for wrong in (bounds.low - 1, bounds.high + 1 if bounds.high < float("inf") else -1, float("nan"), "4", None, []):
        with pytest.raises(DataError, match=rf"model\.json is damaged: {section}\.{name} must be "):
            read(wrong)
    for wrong in (bounds.low - 1, *([bounds.high + 1] if bounds.high < float("inf") else [])):
        with pytest.raises(ValueError, match=name):
            settings(**{name: wrong})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"model\.json has format '2', not 1\. The file was edited, or a newer nmt than .* wrote it"),
        ({"src": 5}, r"model\.json is damaged: src must be a string, not '5'"),
        ({"src": "\ud800"}, r"src must be text"),
        ({"output": "pictures"}, "output must be 'text' or 'trees', not 'pictures'"),
        ({"vocabulary_size": 0}, "vocabulary_size must be at least 1, not '0'"),
        ({"vocabulary_size": 341}, r"embedding\.weight has shape \(340, 16\), not \(341, 16\)"),
        ({"max_tokens": 2.5}, "max_tokens must be an integer, not '2.5'"),
        ({"seen_tokens": True}, "seen_tokens must be an integer, not 'True'"),
        ({"decoding": {}}, r"decoding\.beam is missing"),
        ({"decoding": []}, "decoding must be an object"),
    ],
)
def test_a_wrong_value_in_model_json_is_named(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_model(edited(model, tmp_path / "model", "model.json", updated(**changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"experts": 8},
            "unknown model settings: 'experts'. The file was edited, or a newer nmt than .* wrote it",
        ),
        ({"activation": "geglu"}, "activation must be 'relu' or 'swish' or 'gelu', not 'geglu'"),
        ({"tied_output": 1}, "tied_output must be a boolean, not '1'"),
        ({"d_model": 63}, "d_model must be even"),
        ({"norm": "pre"}, r"does not fit model\.json: encoder_norm\.weight is missing"),
    ],
)
def test_a_wrong_architecture_in_model_json_is_named(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    values = {**artefact.read_json(model / "model.json")["architecture"], **changes}
    with pytest.raises(DataError, match=message):
        open_model(edited(model, tmp_path / "model", "model.json", updated(architecture=values)))


@pytest.mark.parametrize("file", ["model.json", "recipe.yaml"])
def test_settings_edited_by_hand_are_reported_as_damage(model: Path, tmp_path: Path, file: str) -> None:
    directory = edited(model, tmp_path / "model", file, lambda text: text.replace("beam", "Beam"), sign=False)
    with pytest.raises(DataError, match=rf"{file} is damaged or missing"):
        open_model(directory)


def test_translation_follows_model_json_and_fine_tuning_requires_the_recipe_to_agree(
    model: Path, tmp_path: Path
) -> None:
    directory = edited(model, tmp_path / "model", "recipe.yaml", lambda text: text.replace("beam: 2", "beam: 9"))
    assert open_model(directory).config.decoding.beam == 2
    with pytest.raises(DataError, match=r"recipe\.yaml does not match the model\.json beside it"):
        load_model(directory)


def test_the_network_of_model_json_is_that_of_the_recipe(model: Path) -> None:
    loaded = load_model(model)
    state = load_transformer(open_model(model)).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.model.state_dict().items())


def test_search_options_are_converted_or_refused() -> None:
    defaults = schema.Decoding().model_dump()
    assert checked_decoding({**defaults, "beam": 7}) == Decoding(**{**defaults, "beam": 7})
    assert checked_decoding({**defaults, "alpha": 1, "beam": "7"}) == Decoding(**{**defaults, "alpha": 1.0, "beam": 7})
    for wrong in ({"beam": 0}, {"alpha": float("nan")}):
        with pytest.raises(UsageError, match="this translation: decoding"):
            checked_decoding({**defaults, **wrong})


def test_the_contract_of_a_model_in_memory_is_the_stored_one(model: Path) -> None:
    loaded = load_model(model)
    assert model_config.from_recipe(loading.load_stored(model / "recipe.yaml"), 340) == loaded.config


@pytest.mark.parametrize("value", [None, 0, "1"])
def test_a_model_json_without_its_format_is_refused(model: Path, tmp_path: Path, value: object) -> None:
    with pytest.raises(DataError, match=rf"model\.json has format '{value}', not 1"):
        open_model(edited(model, tmp_path / "model", "model.json", updated(format=value)))


def test_settings_that_an_earlier_model_json_lacks_have_their_defaults(model: Path, tmp_path: Path) -> None:
    values = artefact.read_json(model / "model.json")
    for section, names in (("architecture", ("source_eos", "decoder_cell")), ("decoding", ("case", "target_prefix"))):
        values[section] = {name: value for name, value in values[section].items() if name not in names}
    del values["tags"], values["pairs"]
    assert open_model(edited(model, tmp_path / "model", "model.json", lambda _: json.dumps(values))).config == (
        open_model(model).config
    )


def test_an_earlier_model_is_read_by_its_recipe_and_manifest(tmp_path: Path) -> None:
    directory = edited(EARLIER / "plain", tmp_path / "plain", "manifest.json", updated(seen_tokens=33), sign=False)
    assert open_model(directory).config.seen_tokens == 33
    wrong = edited(
        EARLIER / "plain", tmp_path / "pre", "recipe.yaml", lambda text: text.replace("norm: post", "norm: pre")
    )
    with pytest.raises(DataError, match=r"does not fit recipe\.yaml: encoder_norm\.weight is missing"):
        open_model(wrong)


def test_only_a_checkpoint_is_called_one(model: Path, tmp_path: Path) -> None:
    directory = edited(model, tmp_path / "model", "manifest.json", updated(kind="corpus"), sign=False)
    with pytest.raises(DataError) as caught:
        open_model(directory)
    assert str(caught.value).endswith("holds a corpus of format 1, not a model of format 1")
    other = edited(model, tmp_path / "run/checkpoints/9", "manifest.json", updated(kind="checkpoint"), sign=False)
    with pytest.raises(DataError, match=rf"is a training checkpoint.*: nmt average-checkpoints {tmp_path}/run$"):
        open_model(other)


def test_a_path_without_a_model_and_a_file_are_told_apart(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(MissingError, match=f"^no model in {place}"):
            open_model(place)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is a file; a model is a directory"):
        open_model(tmp_path / "file")


def test_at_most_eight_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert models_here() == ""
    assert other_models().endswith(", or train one: nmt reproduce recipes/toy.yaml")
    names = [f"runs/{letter}/model" for letter in "abcde"] + [f"models/{letter}" for letter in "abcde"]
    for number, name in enumerate(names, 1):
        Path(name).mkdir(parents=True)
        Path(name, "manifest.json").write_text("{}")
        shown = [each.removesuffix("/model") for each in names[: min(number, 8)]]
        more = f", and {number - 8} more" if number > 8 else ""
        assert models_here() == f"Models here: {', '.join(shown)}{more}. "
    assert other_models() == models_here() + "You can also use a model from the hub, such as Helsinki-NLP/opus-mt-en-de"


def test_saving_keeps_seen_tokens_and_loading_keeps_dropout(tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, "model.dropout=0.25"))
    assert loaded.model.settings.dropout == loaded.recipe.model.dropout == 0.25
    save_model(tmp_path / "new", loaded.model.state_dict(), loaded.recipe, loaded.tokenizer_file, {"seen_tokens": 21})
    assert open_model(tmp_path / "new").config.seen_tokens == 21


def test_tensors_may_be_views_and_do_not_change_with_their_file(tmp_path: Path) -> None:
    """Tensors that were read from a file stay as they are if the file is overwritten in place."""
    tensor = torch.arange(12.0).view(3, 4)
    save_tensors(tmp_path / "w", {"turned": tensor.t()})
    read = load_tensors(tmp_path / "w")["turned"]
    with (tmp_path / "w").open("r+b") as file:
        file.write(bytes((tmp_path / "w").stat().st_size))
    assert torch.equal(read, tensor.t())
