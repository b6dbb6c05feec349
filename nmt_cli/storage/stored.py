"""What a translation reads of its model's recipe, without pydantic: that and recipe.py take longer than a translation.

If it has the same settings as this nmt, and values in range of what a translation reads, it is read as it is; else
recipe.py reads it, which knows defaults and refuses what is new or wrong.
"""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from nmt_cli.recipe import limits, yaml_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import UsageError

# Of the names of all settings. A test tells the new one when a setting is added.
SETTINGS = "3f828dc2fa43809cd304ec929a089a9aa49f373c8eafb45602603122a251c403"
# Kind, least and greatest value of the numbers of each section that a translation reads.
RANGES: dict[str, dict[str, tuple[Any, float, float]]] = {
    "decoding": {
        "beam": (int, 1, 1000),
        "alpha": (float, 0, 10),
        "extra_length": (int, 1, 100_000),
        "split": (bool, 0, 1),
        "copy_wordless": (bool, 0, 1),
    },
    "model": {
        **dict.fromkeys(("num_layers", "encoder_layers", "decoder_layers"), (int, 1, 1000)),
        "d_model": (int, 2, 65536),
        "d_ff": (int, 1, 1 << 20),
        "num_heads": (int, 1, 1024),
        **dict.fromkeys(("d_k", "d_v"), (int, 1, 65536)),
        "dropout": (float, 0, 0.99),
        "max_length": (int, 8, 1 << 20),
        "source_vocabulary": (int, 0, 1 << 63),
        **dict.fromkeys(("attention_bias", "output_bias", "tied_output"), (bool, 0, 1)),
    },
}
WORDS = {
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "marian", "learned"),
    "activation": ("relu", "swish", "gelu"),
}
MAY_BE_NULL = {"encoder_layers", "decoder_layers"}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _shape(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _shape(value) if isinstance(value, dict) else None for name, value in values.items()}


def _attributes(values: dict[str, Any]) -> SimpleNamespace:
    inner = {name: _attributes(value) if isinstance(value, dict) else value for name, value in values.items()}
    return SimpleNamespace(**inner)


def _in_range(section: dict[str, Any], name: str) -> bool:
    for key, value in section.items():
        if key in WORDS:
            if value not in WORDS[key]:
                return False
        elif value is not None or key not in MAY_BE_NULL:
            kind, low, high = RANGES[name][key]
            if type(value) is not kind or not low <= value <= high:
                return False
    return True


def _is_light(values: Any) -> bool:
    if not isinstance(values, dict) or artefact.digest(_shape(values)) != SETTINGS:
        return False
    corpus, model = values["corpus"], SimpleNamespace(**values["model"])
    longest, form = corpus["cleaning"]["max_tokens"], corpus["format"]
    right = (longest is None or (type(longest) is int and longest > 0)) and form in ("text", "trees")
    right = right and all(isinstance(corpus[side], str) for side in ("src", "tgt"))
    right = right and all(_in_range(values[name], name) for name in RANGES)
    return right and not any(limits.contradictions(model))


def load(path: Path) -> Any:
    """Return the recipe of a model: the attributes of a schema.Recipe. Errors as of loading.load_stored."""
    values: Any = None
    with contextlib.suppress(UsageError, yaml.YAMLError, ValueError, ArithmeticError):  # recipe.py reports it better
        data = yaml_file.read_bytes(path)
        yaml_file.mapping(data, path)  # refuses text that libyaml cannot bear
        values = _Loader(data).get_single_data()
    if isinstance(values, dict) and isinstance(decoding := values.get("decoding"), dict):
        decoding.setdefault("copy_wordless", True)  # which models of nmt 0.1 lack
    if _is_light(values):
        return _attributes(values)
    from nmt_cli.recipe import loading

    return loading.load_stored(path)


def checked_decoding(section: dict[str, Any]) -> Any:
    """Return the attributes of a recipe's section `decoding`; UsageError for values out of range, as of any recipe."""
    if _in_range(section, "decoding"):
        return SimpleNamespace(**section)
    from nmt_cli.recipe import loading

    return loading.from_plain({"decoding": section}, "this translation").decoding
