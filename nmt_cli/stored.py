"""What a translation reads of its model's recipe, without pydantic: that and recipe.py take longer than a translation.

The file is part of a verified artefact, so nmt wrote it and its values are valid. If it has the same settings as this
nmt, it is read as it is; else recipe.py reads it, which knows defaults and refuses what is new.
"""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from nmt_cli import artefact

# Of the names of all settings. A test tells the new one when a setting is added.
SETTINGS = "71c1aad6d46d7c5cf983c8dd6f2413333541c83bbf9a19904f375b489c167ff4"
RANGES = {"beam": (int, 1, 1000), "alpha": (float, 0, 10), "extra_length": (int, 1, 100_000), "split": (bool, 0, 1)}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _shape(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _shape(value) if isinstance(value, dict) else None for name, value in values.items()}


def _attributes(values: dict[str, Any]) -> SimpleNamespace:
    inner = {name: _attributes(value) if isinstance(value, dict) else value for name, value in values.items()}
    return SimpleNamespace(**inner)


def load(path: Path) -> Any:
    """Return the recipe of a model: the attributes of a recipe.Recipe. Errors as of recipe.load_stored."""
    values = None
    with contextlib.suppress(yaml.YAMLError, RecursionError):  # recipe.py says it better
        values = _Loader(path.read_bytes()).get_single_data()
    if isinstance(values, dict) and artefact.digest(_shape(values)) == SETTINGS:
        return _attributes(values)
    from nmt_cli import recipe

    return recipe.load_stored(path)


def checked_decoding(section: dict[str, Any]) -> Any:
    """Return the attributes of a recipe's section `decoding`; UsageError for values out of range, as of any recipe."""
    if all(type(section[name]) is kind and low <= section[name] <= high for name, (kind, low, high) in RANGES.items()):
        return SimpleNamespace(**section)
    from nmt_cli import recipe

    return recipe.from_plain({"decoding": section}, "this translation").decoding
