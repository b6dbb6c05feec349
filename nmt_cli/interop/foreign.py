"""Models of other toolkits, as read from their files, and the optional packages that read and run them."""

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nmt_cli.recipe import loading, schema
from nmt_cli.system.errors import DataError, UsageError

if TYPE_CHECKING:
    from nmt_cli.interop.adapters import Adapter

IdMaps = list[list[int]]  # for source and target: the foreign id of each of our tokens


@dataclass(frozen=True)
class ForeignModel:
    """A model of another toolkit, with tensors named as transformers names them."""

    tensors: dict[str, Tensor]
    recipe: schema.Recipe
    id_maps: IdMaps
    start: int  # foreign id of the token from which the decoder starts
    tokenizers: list[bytes]  # our SentencePiece models: one for both languages, or source and target
    weight_files: list[Path]
    adapter: "Adapter | None"  # runs the model for comparison; None if its toolkit is not installed


def import_package(name: str) -> Any:
    """Import a module of the extra `export`, or raise UsageError with the command that installs it.

    Silences the log and the progress bars of transformers.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f'this needs the package {error.name}. Install it: pip install "nmt-cli[export]"') from None
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    return module


def foreign_recipe(values: dict[str, Any], source: object) -> schema.Recipe:
    """Return a recipe with these settings; DataError if a foreign model exceeds the limits of a recipe."""
    try:
        return loading.from_plain(values, str(source))
    except UsageError as error:
        raise DataError(f"{error}. Such a model cannot be imported") from None
