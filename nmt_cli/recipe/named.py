"""The default settings of the named corpora."""

from typing import Any

# `nmt prepare NAME` and the recipes of these corpora use these settings. A recipe's own values override them.
_MULTI30K = {"src": "en", "tokenizer": {"vocabulary_size": 8000}, "rows": 29_000}
_37K, _32K = {"vocabulary_size": 37_000}, {"vocabulary_size": 32_000}
NAMED_CORPORA: dict[str, dict[str, Any]] = {
    "toy-en-de": {"src": "en", "tgt": "de", "tokenizer": {"vocabulary_size": 1000}},
    "wmt14-en-de": {"src": "en", "tgt": "de", "config": "de-en", "rows": 4_508_785, "tokenizer": _37K},
    "wmt14-en-fr": {"src": "en", "tgt": "fr", "config": "fr-en", "rows": 40_836_715, "tokenizer": _32K},
    **{f"multi30k-en-{tgt}": {**_MULTI30K, "tgt": tgt} for tgt in ("de", "fr", "cs")},
}
for _name, _values in list(NAMED_CORPORA.items()):
    NAMED_CORPORA[f"{_name[:-6]}-{_values['tgt']}-en"] = {**_values, "src": _values["tgt"], "tgt": "en"}
