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
    """A kind of model. `detect` and `describe` read descriptions only, never the weights."""

    name: str
    detect: Callable[[Path], bool]  # whether a file or directory is such a model
    describe: Callable[[Path], StoredModel | None]  # None for one that does not translate, such as a parser


def kind_of(path: Path) -> Kind | None:
    """Return the kind of model that a path is, or None."""
    return next((kind for kind in KINDS if kind.detect(path)), None)


def described(path: Path) -> StoredModel | None:
    """Return the model at a path, or None. Warn about a model that is damaged or does not name its languages."""
    try:
        kind = kind_of(path)
        if not kind and (has_ctranslate2_model(path) or has_marian_binary(path)):
            warn(f"{path} is skipped: its files do not name its languages. Name them: nmt import --src CODE --tgt CODE")
        return kind.describe(path) if kind else None
    except (NmtError, OSError) as error:
        reason = str(from_os_error(error) if isinstance(error, OSError) else error)
        warn(f"{path} is skipped: {reason.removeprefix(f'{path} ')}")
    return None


def find_models(directory: Path) -> list[StoredModel]:
    """Return the models directly inside a directory, in the order of their names."""
    paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    return [found for path in paths if (found := described(path))]


def list_models(paths: Sequence[Path]) -> list[StoredModel]:
    """Return the models at paths and directly inside other directories. Raise MissingError if there are none."""
    found = list[StoredModel]()
    for path in paths:
        if kind_of(path):
            found += filter(None, [described(path)])
        elif path.is_dir():
            found += find_models(path)
        else:
            raise MissingError(f"no directory {path}. {other_models()}")
    if not found:
        raise MissingError(f"no model in {', '.join(map(str, paths)) or 'runs/ or models/'}. {other_models()}")
    return found


def named_and_found(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[StoredModel, ...]]:
    """Divide paths into model directories, which a server loads at once, and the models inside other directories.

    A path that is neither is returned as a model directory: opening it reports the error.
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


def _own_directory(path: Path) -> Path | None:
    """Return the model directory at a path, which may be the directory of a run."""
    for directory in (path, path / "model"):
        if directory.is_dir() and artefact.present(directory):
            kind = artefact.read_json(directory / artefact.MANIFEST).get("kind")
            return directory if kind == KIND else None
    return None


def _describe_own(path: Path) -> StoredModel | None:
    directory = _own_directory(path)
    assert directory
    has_model_json = (directory / MODEL_JSON).is_file()  # the directories of nmt 0.1 have a recipe only
    config = read_model_json(directory / MODEL_JSON) if has_model_json else open_model(directory).config
    if config.output != "text":
        return None
    size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
    parameters = parameter_count(config.architecture, config.vocabulary_size)
    return StoredModel(path, "nmt", _directions(directory, config), size, parameters, partial(Path, directory))


def _directions(directory: Path, config: ModelConfig) -> tuple[Direction, ...]:
    """Return a model's language pairs. The tokenizer is loaded only if it may have tokens of target languages."""
    files = files_of(directory / TOKENIZER)
    if not any(b">>" in file.read_bytes() for file in files):
        return (Direction(config.src, config.tgt),)
    return directions_of(config, Tokenizer(directory / TOKENIZER))


def _describe_argos(path: Path) -> StoredModel:
    metadata = metadata_of(path)
    return _foreign(path, "argos", Direction(metadata["from_code"], metadata["to_code"]))


def _describe_firefox(path: Path) -> StoredModel | None:
    pair = firefox_pair(path)
    return _foreign(path, "firefox", Direction(*pair)) if pair else None


def _foreign(path: Path, kind: str, direction: Direction) -> StoredModel:
    """Return a model that is imported before it is first loaded. Its number of parameters is not known."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return StoredModel(path, kind, (direction,), sum(file.stat().st_size for file in files), 0, partial(imported, path))


# Directories of CTranslate2 are not a kind, because they do not name their languages. Commands read such a directory
# only if the user names it.
KINDS = (
    Kind("nmt", lambda path: _own_directory(path) is not None, _describe_own),
    Kind("argos", is_argos_package, _describe_argos),
    Kind("firefox", lambda path: firefox_pair(path) is not None, _describe_firefox),
)
