"""The recipe: every knob of a run, typed, with unit, range and default, read from strict YAML.

A recipe file names only what differs from the defaults below, which are the paper's base model. A value is
parsed by its knob's type, never by YAML's guesses (PyYAML reads `3e-4` as text and `no` as False). Unknown keys,
wrong types and values out of range are reported all together, each with its line and the nearest valid key.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.console import warn
from nmt_cli.errors import DataError, MissingError, UsageError, printable

MAX_RECIPE_BYTES, MAX_DEPTH = 1 << 20, 32


def knob(
    default: Any, about: str, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Declare one knob: its default, what it is with its unit, and the range or choices that are valid."""
    facts = {"about": about, "low": low, "high": high, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=facts)
    return field(default=default, metadata=facts)


@dataclass
class Cleaning:
    """What `prepare` repairs or drops. Train pairs that occur in dev or test are always dropped."""

    unescape: bool = knob(True, "undo HTML entities once (&amp; -> &)")
    max_tokens: int | None = knob(250, "longest side, in subword pieces; longer pairs are dropped", low=1)
    max_ratio: float | None = knob(9.0, "largest ratio of the two lengths, in pieces (9: Moses and the paper)", low=1)
    drop_copies: bool = knob(True, "drop pairs whose source equals their target")
    drop_duplicates: bool = knob(True, "drop repeated pairs")
    check_script: bool = knob(True, "drop pairs with a side mostly in another script than its language's")


@dataclass
class Tokenizer:
    """The joint SentencePiece BPE model."""

    vocabulary_size: int = knob(8000, "pieces, both languages together", low=300, high=1_000_000)
    file: str | None = knob(None, "reuse this model file instead of training one")


@dataclass
class Corpus:
    """Where the text comes from. A named corpus brings its own defaults (`nmt prepare --help` lists them)."""

    name: str | None = knob("toy-en-de", "a named corpus, hub:owner/name, or a name for your own files")
    config: str | None = knob(None, "configuration of a hub data set, such as de-en")
    src: str = knob("en", "source language code")
    tgt: str = knob("de", "target language code; trees for linearised trees, which are parsed and scored as such")
    train_src: list[str] = knob([], "your own training files, source side; name .tsv, .jsonl, .parquet or .mrg twice")
    train_tgt: list[str] = knob([], "your own training files, target side, in the same order")
    dev_src: str | None = knob(None, "development file, source side")
    dev_tgt: str | None = knob(None, "development file, target side")
    test_src: str | None = knob(None, "test file, source side")
    test_tgt: str | None = knob(None, "test file, target side")
    rows: int | None = knob(None, "training pairs the source must hold, before cleaning", low=1)
    limit: int | None = knob(None, "take only the first N training pairs", low=1)
    seed: int = knob(1, "of the generated corpus and of the tokenizer's sample", low=0, high=2**63 - 1)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    cleaning: Cleaning = field(default_factory=Cleaning)


@dataclass
class Model:
    """The Transformer (section 3 of the paper). The defaults are the base model."""

    num_layers: int = knob(6, "layers in the encoder and in the decoder (N)", low=1, high=1000)
    d_model: int = knob(512, "width of the residual stream", low=2, high=65536)
    d_ff: int = knob(2048, "inner width of the feed-forward sub-layers", low=1, high=1 << 20)
    num_heads: int = knob(8, "attention heads (h)", low=1, high=1024)
    d_k: int = knob(64, "size of a query or key per head", low=1, high=65536)
    d_v: int = knob(64, "size of a value per head", low=1, high=65536)
    dropout: float = knob(0.1, "residual dropout, and on embedding sums (P_drop)", low=0, high=0.99)
    norm: str = knob("post", "layer norm after (paper) or before each sub-layer", choices=("post", "pre"))
    positions: str = knob("sinusoidal", "positional encoding", choices=("sinusoidal", "learned"))
    max_length: int = knob(1024, "longest sequence in pieces, of source and of target", low=8, high=1 << 20)
    attention_bias: bool = knob(False, "biases on query, key, value and output projections")
    output_bias: bool = knob(False, "a bias on the logits (Marian's models have one, the paper's none)")
    activation: str = knob("relu", "of the feed-forward sub-layers", choices=("relu", "swish", "gelu"))


@dataclass
class Training:
    """How the model is trained (section 5)."""

    steps: int = knob(100_000, "updates in all", low=1)
    max_hours: float | None = knob(None, "stop after this many hours of training", low=0)
    tokens_per_step: int = knob(25_000, "source tokens and target tokens per update, of each, on average", low=1)
    micro_batches: int = knob(8, "parts an update is cut into; at most this many processes share it", low=1, high=4096)
    warmup_steps: int = knob(4000, "updates of linear warm-up", low=1)
    rate_factor: float = knob(1.0, "factor on the paper's learning rate", low=0)
    cooldown_steps: int = knob(0, "last updates over which the rate falls linearly to zero (not in the paper)", low=0)
    adam_beta1: float = knob(0.9, "Adam beta 1", low=0, high=0.999999)
    adam_beta2: float = knob(0.98, "Adam beta 2", low=0, high=0.999999)
    adam_epsilon: float = knob(1e-9, "Adam epsilon", low=0)
    label_smoothing: float = knob(0.1, "probability mass spread over all pieces", low=0, high=0.999)
    seed: int = knob(1, "of initial weights, data order and dropout", low=0, high=2**63 - 1)
    precision: str = knob("auto", "arithmetic; weights are always float32", choices=("auto", "fp32", "bf16"))
    memory_tokens: int | None = knob(None, "target tokens computed at once; null: found from the memory", low=1)
    log_every: int = knob(50, "updates between lines of metrics", low=1)
    validate_every: int = knob(1000, "updates between validations", low=1)
    validate_bleu: int = knob(500, "development sentences translated at each validation; 0 for none", low=0)
    checkpoint_every: int = knob(1500, "updates between checkpoints (10 minutes of the paper's base run)", low=1)
    keep_checkpoints: int = knob(5, "checkpoints kept; averaging needs this many", low=2)
    patience: int | None = knob(None, "stop after this many validations without a better one", low=1)
    init_from: str | None = knob(None, "model directory to start from (fine-tuning)")


@dataclass
class Averaging:
    """Checkpoint averaging (section 6.1: the last 5 for base, 20 for big)."""

    last: int = knob(5, "checkpoints averaged", low=1)


@dataclass
class Decoding:
    """Search (section 6.1)."""

    beam: int = knob(4, "hypotheses kept per sentence; 1 is greedy search", low=1, high=1000)
    alpha: float = knob(0.6, "length penalty ((5 + length) / 6) ^ alpha", low=0, high=10)
    extra_length: int = knob(50, "longest output: source length plus this many pieces", low=1, high=100_000)


@dataclass
class Expect:
    """What the recipe should give, and according to whom. Compared by `train` and `reproduce`."""

    pairs: list[int] = knob([], "fewest and most plausible training pairs after cleaning")
    parameters: int | None = knob(None, "trainable numbers", low=1)
    dev_steps: list[int] = knob([], "updates after which the dev figures below are known, rising")
    dev_perplexity: list[float] = knob([], "dev perplexity per piece after each of dev_steps")
    dev_bleu: list[float] = knob([], "sacreBLEU that validations show after each of dev_steps")
    bleu: list[float] = knob([], "lowest and highest plausible sacreBLEU on the test set")
    paper_bleu: float | None = knob(None, "the paper's figure (tokenised, compound-split)", low=0, high=100)
    paper_f1: float | None = knob(None, "the paper's F1 of labelled brackets", low=0, high=100)
    paper_dev_bleu: float | None = knob(None, "the paper's figure on its development set", low=0, high=100)
    source: str | None = knob(None, "where these numbers come from")


@dataclass
class Recipe:
    """All knobs of one run."""

    name: str = knob("", "name of the run; default: the file's name")
    corpus: Corpus = field(default_factory=Corpus)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    averaging: Averaging = field(default_factory=Averaging)
    decoding: Decoding = field(default_factory=Decoding)
    expect: Expect = field(default_factory=Expect)


# Defaults of the named corpora: what their recipes and `nmt prepare NAME` share.
_MULTI30K = {"tokenizer": {"vocabulary_size": "8000"}, "rows": "29000"}
_37K, _32K = {"vocabulary_size": "37000"}, {"vocabulary_size": "32000"}
# 1.5 is what WMT data has been filtered with since fairseq's recipe; short captions would not survive it.
_WMT = {"src": "en", "cleaning": {"max_ratio": "1.5"}}
_NAMED: dict[str, dict[str, Any]] = {
    "toy-en-de": {"src": "en", "tgt": "de", "tokenizer": {"vocabulary_size": "1000"}},
    "wmt14-en-de": {**_WMT, "tgt": "de", "config": "de-en", "rows": "4508785", "tokenizer": _37K},
    "wmt14-en-fr": {**_WMT, "tgt": "fr", "config": "fr-en", "rows": "40836715", "tokenizer": _32K},
    **{f"multi30k-en-{other}": {"src": "en", "tgt": other, **_MULTI30K} for other in ("de", "fr", "cs")},
}
NAMED_CORPORA: dict[str, dict[str, Any]] = {
    name: facts
    for en_x, values in _NAMED.items()
    for name, facts in (
        (en_x, values),
        (f"{en_x[:-6]}-{values['tgt']}-en", {**values, "src": values["tgt"], "tgt": "en"}),
    )
}


# Defaults of a corpus of trees: cleaning that is about two languages would drop good ones, repeated and uneven ones.
TREES = "trees"
_TREES = {
    "cleaning": {
        "unescape": "no",
        "max_tokens": "512",
        "max_ratio": "null",
        "drop_copies": "no",
        "drop_duplicates": "no",
        "check_script": "no",
    }
}


class _Reader:
    """Turns plain nested data into dataclasses and collects every complaint on the way."""

    def __init__(self, stored: bool) -> None:
        self.stored = stored
        self.errors: list[str] = []
        self.dropped: list[str] = []

    def section(self, kind: type[Any], values: Any, where: str) -> Any:
        if values in (None, "", "null"):
            values = {}
        if not isinstance(values, dict):
            self.errors.append(f"{where or 'the recipe'} must be a mapping of keys to values")
            return kind()
        hints = typing.get_type_hints(kind)
        known = {f.name: f for f in dataclasses.fields(kind)}
        arguments = {}
        for key, value in values.items():
            path = f"{where}.{key}" if where else str(key)
            if key not in known and self.stored and where != "model":
                self.dropped.append(printable(path, 80))
            elif key not in known:
                near = difflib.get_close_matches(str(key), known, 1, 0.5)
                advice = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(known)}"
                self.errors.append(f"unknown key {printable(path, 80)!r}; {advice}")
            elif dataclasses.is_dataclass(hints[key]):
                arguments[key] = self.section(typing.cast("type[Any]", hints[key]), value, path)
            else:
                parsed = self.value(hints[key], value, path)
                arguments[key] = parsed
                self.check(parsed, known[key].metadata, path)
        return kind(**arguments)

    def value(self, hint: Any, value: Any, path: str) -> Any:
        options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        if value is None or (isinstance(value, str) and value.lower() in ("null", "none", "~")):
            if type(None) in options:
                return None
            value = ""
        base = next(o for o in options if o is not type(None))
        if typing.get_origin(base) is list:
            items = value if isinstance(value, list) else [value]
            return [self.value(typing.get_args(base)[0], item, path) for item in items if item != ""]
        try:
            if isinstance(value, dict | list):
                raise ValueError
            return _scalar(base, value)
        except (ValueError, OverflowError):
            names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
            self.errors.append(f"{path} must be {names[base]}, not {printable(value, 40)!r}")
            return None

    def check(self, value: Any, facts: Any, path: str) -> None:
        if value is None or isinstance(value, bool):
            return
        choices = facts.get("choices")
        if choices and value not in choices:
            self.errors.append(f"{path} must be one of {', '.join(choices)}, not {printable(value, 40)!r}")
        if not isinstance(value, int | float):
            return
        low, high = facts.get("low"), facts.get("high")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            self.errors.append(f"{path} must be {bounds}, not {value}")


def _scalar(base: type[Any], value: Any) -> Any:
    """Parse one value by its knob's type, never by what YAML or JSON took it for."""
    if base is str:
        if isinstance(value, bool):
            raise ValueError
        return str(value)
    if base is bool:
        word = str(value).lower()
        if word not in ("true", "false", "yes", "no", "on", "off"):
            raise ValueError
        return word in ("true", "yes", "on")
    if isinstance(value, bool):
        raise ValueError
    number = float(str(value).replace("_", ""))
    if not math.isfinite(number) or (base is int and number != int(number)):
        raise ValueError
    if base is int and not isinstance(value, float) and str(value).replace("_", "").lstrip("+-").isdigit():
        return int(str(value).replace("_", ""))
    return int(number) if base is int else number


def _plain(node: Any, errors: list[str]) -> Any:
    """Turn a composed YAML node into dicts, lists and strings; refuse tags, aliases and repeated keys."""
    import yaml

    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if name in result:
                errors.append(f"line {line}: key {printable(name, 40)!r} occurs twice")
            result[name] = _plain(value, errors)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, errors) for item in node.value]
    plain = node.style is None
    return None if plain and node.value in ("", "~", "null", "Null", "NULL") else node.value


def _find(path: Path, named_in: Path | None = None) -> Path:
    """Return the recipe file: beside the one that names it as its base, of this path, else the package's own."""
    package = Path(__file__).parent  # it brings the recipes along; in a source tree they lie beside it
    beside = [named_in.parent / path] if named_in else []
    candidates = (*beside, path, package / path, package.parent / path)
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        name = f"{named_in}: no recipe {printable(path, 120)}, its base" if named_in else f"no recipe {path}"
        raise MissingError(f"{name}. Give the path of a recipe file, such as recipes/toy.yaml")
    return found


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    data = path.read_bytes()
    if len(data) > MAX_RECIPE_BYTES:
        raise UsageError(f"{path} is too large for a recipe ({len(data)} bytes)")
    try:
        depth = 0
        for token in yaml.scan(data):
            kind = type(token).__name__
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= kind.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MAX_DEPTH:  # the scanner's time grows with the square of it
                raise UsageError(f"{path}, line {token.start_mark.line + 1}: nested too deeply for a recipe")
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken | yaml.TagToken):
                line = token.start_mark.line + 1
                raise UsageError(f"{path}, line {line}: YAML tags, anchors and aliases are not allowed in a recipe")
        node = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{path}{where} is not valid YAML: {printable(problem, 120)}") from None
    errors: list[str] = []
    plain = {} if node is None else _plain(node, errors)
    if not isinstance(plain, dict):
        errors.append("it must be a mapping of keys to values")
    if errors:
        raise UsageError(f"{path}: {'; '.join(errors)}")
    return plain


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return `low` with what `high` says laid over it, section by section."""
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def from_plain(values: dict[str, Any], where: str, *, stored: bool = False) -> Recipe:
    """Build a recipe from nested dicts of plain values.

    Args:
        values: by section and knob.
        where: they come from, for messages.
        stored: as `load_stored` reads them.

    Raises:
        UsageError: naming every wrong key and value.
    """
    corpus = values.get("corpus")
    named = corpus.get("name", "toy-en-de") if isinstance(corpus, dict) else "toy-en-de"
    if isinstance(named, str) and named in NAMED_CORPORA:
        values = merge({"corpus": NAMED_CORPORA[named]}, values)
    if isinstance(corpus, dict) and corpus.get("tgt") == TREES:
        values = merge({"corpus": _TREES}, values)
    reader = _Reader(stored)
    recipe = typing.cast(Recipe, reader.section(Recipe, values, ""))
    if not reader.errors:
        reader.errors += _contradictions(recipe)
    if reader.errors:
        raise UsageError(f"{where}: {'; '.join(reader.errors)}")
    if reader.dropped:
        warn(f"{where} has knobs that nmt {__version__} does not have; they are ignored: {', '.join(reader.dropped)}")
    return recipe


def _contradictions(recipe: Recipe) -> list[str]:
    """Return complaints about knobs that are valid alone and wrong together."""
    errors = []
    if recipe.averaging.last > recipe.training.keep_checkpoints:
        errors.append("averaging.last is larger than training.keep_checkpoints: what it averages would be gone")
    if recipe.model.positions == "sinusoidal" and recipe.model.d_model % 2:
        errors.append("model.d_model must be even for sinusoidal positions")
    if len(recipe.corpus.train_src) != len(recipe.corpus.train_tgt):
        errors.append("corpus.train_src and corpus.train_tgt must name as many files")
    expect = recipe.expect
    for name, span in (("pairs", expect.pairs), ("bleu", expect.bleu)):
        if span and (len(span) != 2 or span[0] > span[1]):
            errors.append(f"expect.{name} must be two numbers: lowest and highest")
    if expect.dev_steps != sorted(set(expect.dev_steps)):
        errors.append("expect.dev_steps must rise")
    for name, figures in (("dev_perplexity", expect.dev_perplexity), ("dev_bleu", expect.dev_bleu)):
        if figures and len(figures) != len(expect.dev_steps):
            errors.append(f"expect.{name} must have as many numbers as expect.dev_steps")
    return errors


def override(text: str) -> dict[str, Any]:
    """Return `key.key=value` as nested dicts; a value in brackets is a list.

    Raises:
        UsageError: it is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {printable(text, 60)}: write it as section.key=value")
    change: Any = [part.strip() for part in value[1:-1].split(",")] if value.startswith("[") else value
    for part in reversed(key.strip().split(".")):
        change = {part: change}
    return {**change}


def _corpus_name(values: dict[str, Any]) -> Any:
    corpus = values.get("corpus")
    return corpus.get("name") if isinstance(corpus, dict) else None


def load(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe file and apply `key.key=value` overrides.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a valid recipe.
    """
    path = _find(path)
    values = _read_yaml(path)
    base = values.pop("base", None)
    if base is not None:
        lower = _read_yaml(_find(Path(str(base)), path))
        if "base" in lower:
            raise UsageError(f"{path}: its base {base} has a base itself; name the lowest one and repeat what changes")
        if _corpus_name(values) not in (None, _corpus_name(lower)):
            lower.pop("expect", None)  # figures of other text
        values = merge(lower, values)
    for text in overrides:
        values = merge(values, override(text))
    values["name"] = values.get("name") or path.stem
    return from_plain(values, str(path))


def load_stored(path: Path) -> Recipe:
    """Read the recipe of a run or a model, which another version of nmt may have written.

    Knobs that this version does not have are ignored with a warning, but for those of the model: what its weights
    compute would be another function.

    Raises:
        MissingError: there is no such file.
        DataError: it is damaged, or a newer version made the model.
    """
    if not path.is_file():
        raise MissingError(f"{path} is missing")
    try:
        return from_plain(_read_yaml(path), str(path), stored=True)
    except UsageError as error:
        advice = f"A newer nmt than this one ({__version__}) wrote it, so update nmt; or it was edited"
        raise DataError(f"{error}. {advice}") from None


def to_plain(section: Any) -> dict[str, Any]:
    """Return a recipe (or a section) as nested dicts of plain values, every knob named."""
    return dataclasses.asdict(section)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return `key: old -> new` for every knob that differs between two nested dicts."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old} -> {new}"]


def to_yaml(recipe: Recipe) -> bytes:
    """Return the resolved recipe as YAML, every knob with its value, in the order of this file."""
    import yaml

    return yaml.safe_dump(to_plain(recipe), sort_keys=False, allow_unicode=True).encode()
