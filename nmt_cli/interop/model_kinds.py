"""The kinds of models that `nmt serve` and `nmt models` find in directories. To add a kind, extend KINDS."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nmt_cli.corpus.tokenizer import Tokenizer, files_of
from nmt_cli.interop.argos_package import metadata_of
from nmt_cli.interop.formats import firefox_pair, has_ctranslate2_model, has_marian_binary, is_argos_package
from nmt_cli.interop.named_models import imported
from nmt_cli.storage import artefact
from nmt_cli.system.console import warn
from nmt_cli.system.errors import MissingError, NmtError, from_os_error
from nmt_cli.transformer.config import MODEL_JSON, ModelConfig, read_model_json
from nmt_cli.transformer.directory import KIND, TOKENIZER, open_model, other_models, parameter_count
from nmt_cli.translation.stored_models import Direction, StoredModel, directions_of


class Kind(NamedTuple):
    """A kind of model. Neither `detect` nor `describe` reads the weights."""

    name: str
    detect: Callable[[Path], bool]  # tells whether a file or directory is a model of this kind
    describe: Callable[[Path], StoredModel | None]  # returns None for a model that outputs trees, not translations


def kind_of(path: Path) -> Kind | None:
    """Return the kind of the model at a path, or None if there is no model."""
    return next((kind for kind in KINDS if kind.detect(path)), None)


def _describe_or_warn(path: Path) -> StoredModel | None:
    """Describe the model at a path. Return None if there is no model, or if the model does not translate.

    If the model is damaged or does not name its languages, warn and return None.
    """
    try:
        kind = kind_of(path)
        if not kind and (has_ctranslate2_model(path) or has_marian_binary(path)):
            warn(f"{path} is skipped: its files do not name its languages. Set them: nmt import --src CODE --tgt CODE")
        return kind.describe(path) if kind else None
    except (NmtError, OSError) as error:
        reason = str(from_os_error(error) if isinstance(error, OSError) else error)
        rest = reason.removeprefix(f"{path} ")
        warn(f"{path} is skipped: {reason if rest == reason else f'it {rest}'}")
    return None


def find_models(directory: Path) -> list[StoredModel]:
    """Return the models directly inside a directory, sorted by name."""
    paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    return [found for path in paths if (found := _describe_or_warn(path))]


def list_models(paths: Sequence[Path]) -> list[StoredModel]:
    """Return the models at the paths. For a directory that is not a model, return the models directly inside.

    Raise MissingError if a path does not exist or if there are no models.
    """
    found = list[StoredModel]()
    for path in paths:
        if kind_of(path):
            found += filter(None, [_describe_or_warn(path)])
        elif path.is_dir():
            found += find_models(path)
        else:
            raise MissingError(f"no directory {path}. {other_models()}")
    if not found:
        raise MissingError(f"no model in {', '.join(map(str, paths)) or 'runs/ or models/'}. {other_models()}")
    return found


def named_and_found(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[StoredModel, ...]]:
    """Return the directories of the paths that are models, and the models directly inside the other paths.

    A server loads the directories when it starts, and the models inside other paths on demand. A path without a model
    that translates is returned among the directories, so that the server raises an error when it opens the path.
    """
    named = list[Path]()
    found = list[StoredModel]()
    for path in paths:
        kind = kind_of(path)
        inside = find_models(path) if not kind and path.is_dir() else []
        found += inside
        if kind and (model := kind.describe(path)):
            named.append(model.open())
        elif not inside:
            named.append(path)
    return tuple(named), tuple(found)


def _nmt_directory(path: Path) -> Path | None:
    """Return the directory of a model trained or imported by nmt (`path` or `path`/model), or None if there is none."""
    for directory in (path, path / "model"):
        if directory.is_dir() and artefact.present(directory):
            kind = artefact.read_json(directory / artefact.MANIFEST).get("kind")
            return directory if kind == KIND else None
    return None


def _describe_nmt(path: Path) -> StoredModel | None:
    directory = _nmt_directory(path)
    assert directory
    has_model_json = (directory / MODEL_JSON).is_file()  # models of nmt 0.1 have a recipe instead
    config = read_model_json(directory / MODEL_JSON) if has_model_json else open_model(directory).config
    if config.output != "text":
        return None
    size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
    parameters = parameter_count(config.architecture, config.vocabulary_size)
    return StoredModel(path, "nmt", _directions(directory, config), size, parameters, partial(Path, directory))


def _directions(directory: Path, config: ModelConfig) -> tuple[Direction, ...]:
    """Return a model's language pairs. Load the tokenizer only if it may contain tokens for target languages."""
    files = files_of(directory / TOKENIZER)
    has_tokens = any(b">>" in file.read_bytes() for file in files)
    return directions_of(config, Tokenizer(directory / TOKENIZER) if has_tokens else None)


def _describe_argos(path: Path) -> StoredModel:
    metadata = metadata_of(path)
    return _foreign(path, "argos", Direction(metadata["from_code"], metadata["to_code"]))


def _describe_firefox(path: Path) -> StoredModel | None:
    pair = firefox_pair(path)
    return _foreign(path, "firefox", Direction(*pair)) if pair else None


def _foreign(path: Path, kind: str, direction: Direction) -> StoredModel:
    """Describe another program's model, which is imported when first opened. Set its unknown parameter count to 0."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return StoredModel(path, kind, (direction,), sum(file.stat().st_size for file in files), 0, partial(imported, path))


# CTranslate2 models are not listed here, because their files do not name the languages. Commands read such a model only
# if the user gives its path.
KINDS = (
    Kind("nmt", lambda path: _nmt_directory(path) is not None, _describe_nmt),
    Kind("argos", is_argos_package, _describe_argos),
    Kind("firefox", lambda path: firefox_pair(path) is not None, _describe_firefox),
)
