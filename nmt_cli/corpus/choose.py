"""Which corpus `nmt prepare` was asked for: a named one, a hub data set, a recipe's, or the user's own files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli import recipe
from nmt_cli.errors import UsageError


def choose(name: str | None, options: dict[str, Any], out: Path | None, overrides: Sequence[str]) -> recipe.Corpus:
    """Return the corpus section for what was typed.

    Args:
        name: a named corpus, hub:OWNER/NAME, a recipe file, or None.
        options: settings of the corpus by name, None where not typed; src and tgt are files, or languages of a hub data
            set, tokenizer is a file.
        out: the directory asked for; it names the user's own corpus.
        overrides: `key.key=value` changes to a recipe's settings.

    Raises:
        UsageError: what was typed does not fit together.
    """
    values: dict[str, Any] = {key: value for key, value in options.items() if value is not None and key != "tokenizer"}
    if options.get("tokenizer"):
        values["tokenizer"] = {"file": str(options["tokenizer"])}
    sides = [values.pop("src", None), values.pop("tgt", None)]
    if name is not None and (name.endswith((".yaml", ".yml")) or Path(name).is_file()):
        if any(sides):
            raise UsageError("give a recipe, or your own files with --src and --tgt, not both")
        plain = recipe.to_plain(recipe.load(Path(name), overrides).corpus)
        return _build({**plain, **values}, ())
    hub = name is not None and name.startswith("hub:")
    if name is not None and not hub and name not in recipe.NAMED_CORPORA:
        names = ", ".join(recipe.NAMED_CORPORA)
        raise UsageError(f"no corpus is called {name[:60]!r}. Known: {names}; or hub:OWNER/NAME, or a recipe file")
    if not any(sides):
        if hub:
            raise UsageError("a hub data set needs its languages: --src en --tgt de")
        return _build({"name": name or "toy-en-de", **values}, overrides)
    if name is not None and not hub:
        raise UsageError(f"{name} brings its own text; leave it out to prepare the files of --src and --tgt")
    if not all(sides):
        raise UsageError("give both sides: --src FILE --tgt FILE")
    if hub:
        return _build({"name": name, "src": sides[0][0], "tgt": sides[1][0], **values}, overrides)
    languages = [_language(files[0], default) for files, default in zip(sides, ("src", "tgt"), strict=True)]
    own = {"name": out.name if out else "mine", "src": languages[0], "tgt": languages[1]}
    return _build({**own, "train_src": sides[0], "train_tgt": sides[1], **values}, overrides)


def _language(file: str, default: str) -> str:
    """Return the language a file name ends with (news.de, news.de.gz), else `default`."""
    ends = [part for part in Path(file).name.split(".")[1:] if part not in ("gz", "txt")]
    return ends[-1] if ends and ends[-1].isalpha() and len(ends[-1]) in (2, 3) else default


def _build(corpus: dict[str, Any], overrides: Sequence[str]) -> recipe.Corpus:
    values: dict[str, Any] = {"corpus": corpus}
    for override in overrides:
        values = recipe.merge(values, recipe.override(override))
    return recipe.from_plain(values, "the options").corpus
