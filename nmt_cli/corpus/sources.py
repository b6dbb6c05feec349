"""Build the `corpus` section of a recipe from a command's arguments, and find the Source that provides its text."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.corpus.bitext import is_bitext
from nmt_cli.corpus.hub import HubSource
from nmt_cli.corpus.languages import is_language
from nmt_cli.corpus.multi30k import Multi30kSource
from nmt_cli.corpus.raw_text import Source
from nmt_cli.corpus.toy import ToySource
from nmt_cli.corpus.user_files import UserFilesSource
from nmt_cli.recipe import files as recipe_files
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.system.errors import MissingError, UsageError, meant

# The sources of named corpora. A key is the first part of a name, up to "-" or ":".
SOURCES: dict[str, type[Source]] = {
    "toy": ToySource, "multi30k": Multi30kSource, "wmt14": HubSource, "hub": HubSource,
}  # fmt: skip

# Common suffixes of text files. `_language_of` ignores them, although they are also codes of small languages.
_NO_LANGUAGES = {"bak", "bpe", "hyp", "new", "old", "out", "raw", "ref", "src", "tgt", "tmp", "tok", "trg"}


def source_of(corpus: schema.Corpus, mirror: Path | None = None) -> Source:
    """Return the source of the text for a corpus section. `mirror` is a directory with downloaded corpora.

    Raises UsageError if the corpus is unknown or its settings conflict. Raises MissingError if `mirror` is not a
    directory.
    """
    name = corpus.name or ""
    named = name in NAMED_CORPORA or name.startswith("hub:")
    if corpus.train_src or corpus.sources:
        if named:
            wrong = f"corpus.name {name} already stands for a data set, so it cannot name your own files"
            raise UsageError(f"{wrong}. Choose another corpus.name")
    elif name.startswith("hub:") and not re.fullmatch(r"hub:[\w.-]+/[\w.-]+(@[\w./-]+)?", name):
        raise UsageError(f"corpus {name[:60]} is malformed. Write hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    elif corpus.mix_src or corpus.general_src or corpus.hold_out:
        raise UsageError(
            f"corpus {name}: mix_src, general_src and hold_out require your own files. Remove these settings"
        )
    elif not named:
        known = f"{', '.join(NAMED_CORPORA)} and hub:OWNER/NAME. You can also pass your own files"
        question = f"{meant(name, NAMED_CORPORA)} ".lstrip()
        raise UsageError(f"unknown corpus {name[:60]!r}. {question}Known corpora are {known}")
    if mirror is not None and not mirror.is_dir():
        raise MissingError(f"--mirror {mirror} is not a directory. Check the path")
    if corpus.train_src or corpus.sources:
        named_entries = [index for index, entry in enumerate(corpus.sources) if entry.corpus]
        return UserFilesSource(corpus, mirror, {i: _source_of_entry(corpus, i, mirror) for i in named_entries})
    return SOURCES[re.split("[-:]", name)[0]](corpus, mirror)


def _source_of_entry(corpus: schema.Corpus, index: int, mirror: Path | None) -> Source:
    """Return the source of the named corpus or hub data set in an entry of corpus.sources."""
    entry, section = corpus.sources[index], corpus.of_source(index)
    rows = NAMED_CORPORA.get(str(entry.corpus), {}).get("rows")
    languages = {"src": section.src, "tgt": section.tgt}
    named = schema.Corpus(name=entry.corpus, config=entry.config, rows=rows, limit=corpus.limit, **languages)
    # A mirror may hold one subdirectory per data set, named without the revision.
    if mirror and (own := mirror / named.directory.name.partition("@")[0]).is_dir():
        mirror = own
    return source_of(named, mirror)


def choose(name: str | None, given: dict[str, Any], out: Path | None, overrides: Sequence[str]) -> schema.Corpus:
    """Return the corpus section for the arguments of `nmt prepare`. Raises UsageError if they conflict.

    `name` is a named corpus, a hub data set, a recipe, a file with both languages, or None. `given` maps settings of
    the section to their values on the command line. A corpus of the user's files is named after the directory `out`, if
    given. `overrides` are the values of --set.
    """
    values = {key: value for key, value in given.items() if value is not None}
    if "tokenizer" in values:
        values["tokenizer"] = {"file": str(values["tokenizer"])}
    # Two lists of files or, if `name` has both languages, two lists of one language code or column each.
    src, tgt = values.pop("src", None), values.pop("tgt", None)
    if bool(src) != bool(tgt):
        raise UsageError("one side is missing. Pass both --src FILE and --tgt FILE")
    if name and (name.startswith("hub:") or is_bitext(Path(name))):
        if not src:
            what = "a hub data set" if name.startswith("hub:") else name
            raise UsageError(f"{what} requires language codes. Pass them, as in --src en --tgt de")
        _check_codes(name, src, tgt)
        section = {"name": name, "src": src[0], "tgt": tgt[0]}
        if is_bitext(Path(name)):
            stem = Path(name).name.partition(".")[0]
            section |= {"name": out.name if out else stem, "sources": [{"files": [name]}]}
    elif name and src and name.endswith(".json"):
        raise UsageError(
            f"{name} is a .json file. Convert it to JSON Lines (one object per line, in a file NAME.jsonl)"
        )
    elif name and src:
        raise UsageError(
            f"{name} cannot be combined with the files of --src and --tgt. To prepare those files, omit {name} from "
            "the command"
        )
    elif name and (_is_recipe(name) or Path(name).is_file()):
        section = _section_of_recipe(name, overrides)
        overrides = ()
    elif not src:
        section = {"name": name or "toy-en-de"}
    else:
        section = {"name": out.name if out else "mine", "train_src": src, "train_tgt": tgt}
        section |= {"src": _language_of(src[0]) or "src", "tgt": _language_of(tgt[0]) or "tgt"}
    plain = functools.reduce(loading.merge, map(loading.override, overrides), {"corpus": {**section, **values}})
    return loading.from_plain(plain, "the options").corpus


def _check_codes(name: str, *sides: list[str]) -> None:
    """Raise UsageError unless each side is exactly one language code.

    For a hub data set, a .jsonl file or a .parquet file, the name of a column or key is also accepted, unless a file of
    that name exists.
    """
    is_column = name.startswith("hub:") or name.endswith((".jsonl", ".parquet"))
    for codes in sides:
        code = codes[0][:40]
        if len(codes) > 1 or not (is_language(code) or (is_column and not Path(code).exists())):
            wrong = f"{name} has both languages, so --src and --tgt must be codes, not {' '.join(codes)[:60]!r}"
            raise UsageError(f"{wrong}. Pass language codes, as in --src en --tgt de")


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or name in dict(recipe_files.listed())


def _section_of_recipe(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        return loading.load(Path(name), overrides).corpus.model_dump()
    except UsageError as error:
        if _is_recipe(name):
            raise
        raise UsageError(f"{error}. To prepare your own text, run nmt prepare --src {name} --tgt FILE") from None


def _language_of(file: str) -> str | None:
    """Return the language code in the suffix of a file name, such as zh for news.zh-CN.gz, or None."""
    stem = re.sub(r"(?<!\.gz)(?<!\.txt)(\.gz|\.txt)+$", "", file)
    code = re.search(r"\.([A-Za-z]{2,3})([-_][A-Za-z]{2,4})?$", stem)
    return code[1] if code and is_language(code[1]) and code[1].lower() not in _NO_LANGUAGES else None
