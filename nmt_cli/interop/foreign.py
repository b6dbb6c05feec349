"""A model of another toolkit, as read from its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt_cli.interop.adapters import Adapter
from nmt_cli.recipe import loading, schema
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.shortlist import Shortlist

UNNAMED = {"src": "src", "tgt": "tgt"}  # language codes for a model whose files do not name its languages


@dataclass(frozen=True)
class ForeignModel:
    """A model of another toolkit, converted to our tensors. `engine/layout.py` defines their names and shapes."""

    tensors: dict[str, Tensor]
    recipe: schema.Recipe
    tokenizers: list[bytes]  # contents of our tokenizer files: one for both languages, or one for each
    weight_files: list[Path]  # their hashes are stored in the manifest
    adapter: Adapter | None  # runs the model for comparison; None if its toolkit is not installed
    note: str = ""  # a sentence to add to the report
    seen_tokens: int | None = None  # longer lines are split into sentences; None: the recipe's limits apply
    shortlist: Shortlist | None = None


def sizes_of(d_model: int, heads: int, layers: tuple[int, int]) -> dict[str, Any]:
    """Return a recipe's sizes. Each head has d_model / heads channels. `layers` counts encoder and decoder layers."""
    sizes = {"num_layers": layers[0], "d_model": d_model, "num_heads": heads}
    sizes |= {"d_k": d_model // heads, "d_v": d_model // heads}
    return sizes if layers[0] == layers[1] else {**sizes, "encoder_layers": layers[0], "decoder_layers": layers[1]}


def foreign_recipe(values: dict[str, Any], source: object) -> schema.Recipe:
    """Return a recipe with these settings. Raise DataError, which names `source`, if a setting is not allowed.

    If `values` has no corpus section, the languages are UNNAMED.
    """
    try:
        return loading.from_plain({"corpus": {"name": None, **UNNAMED}, **values}, str(source))
    except UsageError as error:
        raise DataError(f"{error}. Such a model cannot be imported") from None
