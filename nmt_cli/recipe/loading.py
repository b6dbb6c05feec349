"""Load recipes from files, apply base recipes and `--set` overrides, and check combinations of settings."""

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nmt_cli import __version__
from nmt_cli.recipe import files, limits, yaml_file
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.recipe.schema import POLICIES, Corpus, Expect, Recipe, Training
from nmt_cli.recipe.section import Policy
from nmt_cli.recipe.text_source import Augment, TextSource
from nmt_cli.system.console import counted, warn
from nmt_cli.system.errors import DataError, MissingError, UsageError, meant

MAX_COMPLAINTS = 5
STEP_FIGURES = {"dev_steps", "dev_perplexity", "dev_bleu", "bleu"}  # settings of `expect` that depend on training.steps

_ITEM = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^,]*))\s*(?:,|\Z)""")  # an item of a list, and the comma after it
_NESTED = re.compile(r"\[\s*[\[{]")  # the start of a list of lists or mappings


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Merge two dicts of settings, section by section. `high` has priority.

    If `low` has a list of sections where `high` has one section, merge that section into the only entry of the list.
    This allows `--set corpus.synthetic.beam=9`. Raise UsageError if the list has several entries.
    """
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, list) and old and isinstance(old[0], dict):
            if len(old) > 1:
                raise UsageError(
                    f"{key} has {len(old)} entries, so it cannot be set in part. Write the whole list in the recipe"
                )
            merged[key] = [merge(old[0], value)]
        elif isinstance(old, dict) and not isinstance(value, dict) and str(value).lower() in ("", "~", "null", "none"):
            continue  # an empty section changes nothing
        else:
            merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _keys(values: dict[str, Any], section: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield section + name
        yield from _keys(value, f"{section}{name}.") if isinstance(value, dict) else ()


def _complaint(error: Any) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        keys, name = list(_keys(Recipe().model_dump())), path.rpartition(".")[2]
        nearest = [key for key in keys if key.endswith(f".{name}")] or difflib.get_close_matches(path, keys, 1)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"the keys are {', '.join(Recipe.model_fields)}"
        return f"unknown key {path[:80]!r}; {advice}"
    question = meant(str(error["input"]), re.findall(r"'([^']*)'", error.get("ctx", {}).get("expected", "")))
    rule = "a mapping of keys to values" if error["type"] == "model_type" else error["msg"].partition(",")[0]
    complaint = f"{path} must be {rule.removeprefix('Input should be ')}, not {str(error['input'])[:40]!r}"
    return f"{complaint}. {question}" if question else complaint


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """Yield an error message for each mistake that the types and ranges in schema.py allow."""
    corpus, expect, steps = recipe.corpus, recipe.expect, recipe.expect.dev_steps
    if str(corpus.name) in (".", ".."):
        yield f"corpus.name must be the name of a directory under data/, not {corpus.name!r}"
    if recipe.averaging.last > recipe.training.keep_checkpoints:
        yield "averaging.last is larger than training.keep_checkpoints"
    yield from limits.contradictions(recipe.model)
    for split in ("train", "dev", "test", "mix", "general"):
        sides = [getattr(corpus, f"{split}_{side}") or [] for side in ("src", "tgt")]
        if len({len(side) if isinstance(side, list) else 1 for side in sides}) > 1:
            yield f"corpus.{split}_src and corpus.{split}_tgt must name the same number of files"
    if any(entry.model is None for entry in corpus.synthetic):
        yield "corpus.synthetic needs a model. Set corpus.synthetic.model or training.teacher"
    if not (corpus.real_pairs or corpus.synthetic):
        yield "corpus.real_pairs=no requires corpus.synthetic"
    if corpus.limit and corpus.mix_src:
        yield "corpus.limit would cut off corpus.mix_src. Remove one of the two settings"
    if corpus.tokenizer.words and len({section.src for section in corpus.trained}) > 1:
        yield "corpus.tokenizer.words requires a single source language"
    yield from _wrong_sources(recipe)
    if recipe.is_augmented and corpus.format == "trees":
        yield "corpus.augment and training.augment support text, not trees. Remove both"
    if recipe.averaging.with_start and not recipe.training.init_from:
        yield "averaging.with_start requires training.init_from"
    if any(len(span) not in (0, 2) or span != sorted(span) for span in (expect.pairs, expect.bleu)):
        yield "expect.pairs and expect.bleu must each be two numbers, the lowest and the highest"
    curves = expect.dev_perplexity, expect.dev_bleu
    if steps != sorted(set(steps)) or any(len(curve) not in (0, len(steps)) for curve in curves):
        yield "expect.dev_steps must ascend. dev_perplexity and dev_bleu must each have one number for each step"


def _wrong_sources(recipe: Recipe) -> Iterator[str]:
    corpus, sources = recipe.corpus, recipe.corpus.sources
    if sources and (corpus.mix_src or corpus.moses or corpus.format == "trees"):
        yield "corpus.sources cannot be combined with corpus.mix_src, corpus.moses or corpus.format=trees"
    if sources and not any(entry.split == "train" for entry in sources) and not corpus.train_src:
        yield "corpus.sources has no entry with split=train. Add one"
    if any(not (entry.files or entry.corpus) for entry in sources):
        yield "an entry of corpus.sources has neither files nor corpus. Set one of them"
    for entry in sources:
        yield from _wrong_source(entry)
    if any(entry.min_score is not None and entry.score is None for entry in sources):
        yield "corpus.sources: min_score requires score, which names the column of scores"
    if len(corpus.targets) > 1 and not all(entry.src and entry.tgt for entry in corpus.synthetic):
        yield "corpus.synthetic needs the languages src and tgt, because the corpus has several target languages"
    first_steps = [stage.from_step for stage in recipe.training.stages]
    if first_steps != sorted(set(first_steps)):
        yield "training.stages must be in ascending order of from_step"
    if sources or corpus.synthetic:  # otherwise, its corpus may have parts that the recipe does not name
        parts = len(corpus.parts)
        for setting, weights in _given_weights(recipe.training):
            if len(weights) not in (0, parts):
                yield f"{setting} has {counted(len(weights), 'number')}, but the corpus has {counted(parts, 'part')}"


def _given_weights(training: Training) -> list[tuple[str, list[float]]]:
    """Return the name and the value of each setting that is a list of weights."""
    stages = [(f"training.stages[{index}].weights", stage.weights) for index, stage in enumerate(training.stages)]
    return [("training.weights", training.weights), *stages]


def _warn_of_unused(training: Training, where: object) -> None:
    """Warn of settings that have no effect."""
    if training.temperature != 1 and all(weights for _, weights in _given_weights(training)):
        warn(f"{where}: training.temperature has no effect if weights are set. Remove one of the two settings")
    for index, stage in enumerate(training.stages):
        if stage.from_step >= training.steps:
            begins = f"training.stages[{index}] begins after step {stage.from_step:,}"
            warn(f"{where}: {begins}, but training ends after {counted(training.steps, 'step')}")


def _wrong_source(entry: TextSource) -> Iterator[str]:
    """Yield an error message for each contradiction between the settings of an entry of corpus.sources."""
    where, corpus = f"corpus.sources: the entry of {entry.name}", entry.corpus or ""
    if entry.files and corpus:
        yield f"{where} has both files and a corpus. Split it into two entries"
    if corpus and (entry.format or entry.columns or entry.score or entry.finished):
        yield f"{where} is not a file. Remove format, columns, score and finished"
    if entry.config and not corpus.startswith(("hub:", "wmt14-")):
        yield f"{where} is not a data set on the hub. Remove config"
    if entry.split != "train" and (entry.cleaning or entry.augment):
        yield f"{where} is a {entry.split} set, which is never cleaned or augmented. Remove cleaning and augment"


def _corpus_name(values: dict[str, Any]) -> Any:
    corpus = values.get("corpus")
    return corpus.get("name") if isinstance(corpus, dict) else None


def _with_named(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe, with the defaults of its named corpus filled in."""
    return merge({"corpus": NAMED_CORPORA.get(str(_corpus_name(values) or "toy-en-de"), {})}, values)


def _text_and_steps(values: dict[str, Any]) -> tuple[Any, int | None]:
    """Return the settings that determine the training text, and the number of steps.

    If a setting is invalid, both are None.
    """
    sections = {name: section for name, section in values.items() if name in ("corpus", "training")}
    try:
        settings = Recipe.model_validate(_with_named(sections))
    except ValidationError:
        return None, None
    corpus = settings.corpus
    synthetic = corpus.synthetic and (corpus.synthetic, settings.training.teacher)
    text = corpus.name, corpus.src, corpus.tgt, corpus.limit, corpus.moses, synthetic
    return text, settings.training.steps


def _overridden(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Merge two recipes. Drop the expected results of `low` that no longer apply.

    If `high` changes the training text, drop all of them. If it changes only the number of steps, drop STEP_FIGURES.
    """
    (text, steps), (other_text, other_steps) = map(_text_and_steps, (low, merge(low, high)))
    expect = low.get("expect")
    if text != other_text:
        low = {key: value for key, value in low.items() if key != "expect"}
    elif steps != other_steps and isinstance(expect, dict):
        low = {**low, "expect": {key: value for key, value in expect.items() if key not in STEP_FIGURES}}
    return merge(low, high)


def from_plain(values: dict[str, Any], where: str, *, stored: bool = False) -> Recipe:
    """Build a recipe from nested dicts. Raise UsageError, with `where` before the message, if the recipe is invalid.

    If `stored` is true, ignore unknown settings.
    """
    values = _with_named(values)
    try:
        recipe = Recipe.model_validate(values, extra="ignore" if stored else None)
        for entry in recipe.corpus.synthetic:
            entry.model = entry.model or recipe.training.teacher
        for source in recipe.corpus.sources:
            named = NAMED_CORPORA.get(str(source.corpus), {})
            source.src = source.src or named.get("src")
            source.tgt = source.tgt or named.get("tgt")
            source.config = source.config or named.get("config")
        recipe.training.weights = recipe.training.weights or _weights(recipe.corpus)
        recipe.training.augment = recipe.training.augment or _augment(recipe.corpus)
        errors = list(_contradictions(recipe))
    except ValidationError as invalid:
        errors = [_complaint(error) for error in invalid.errors()[:MAX_COMPLAINTS]]
        errors += ["and more"] if len(invalid.errors()) > MAX_COMPLAINTS else []
    if errors:
        raise UsageError(f"{where}: {'; '.join(errors)}")
    return recipe


def _weights(corpus: Corpus) -> list[float]:
    """Return the weights of the parts of the corpus, in order, or [] if no entry sets a weight."""
    given = [getattr(entry, "weight", None) for entry in corpus.parts]
    if all(weight is None for weight in given):
        return []
    return [1.0 if weight is None else weight for weight in given]


def _augment(corpus: Corpus) -> list[Augment]:
    """Return the augmentation of the parts of the corpus, in order, or [] if no entry sets an augmentation."""
    given = [getattr(entry, "augment", None) for entry in corpus.parts]
    if all(augment is None for augment in given):
        return []
    return [augment or corpus.augment for augment in given]


def override(text: str) -> dict[str, Any]:
    """Parse `key.key=value` into nested dicts. A value in square brackets is a list, whose items may be in quotes.

    If the items are themselves mappings or lists, the value must be YAML. Raise UsageError if `text` is malformed.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text[:60]} is malformed. Write section.key=value")
    if _NESTED.match(value):
        change: Any = yaml_file.parse_mapping(f"list: {value}".encode(), f"--set {key}")["list"]
    elif value.startswith("["):
        items = (match[1] or match[2] or (match[3] or "").strip() for match in _ITEM.finditer(value[1:-1]))
        change = list(filter(None, items))
    else:
        change = value
    for part in reversed(key.strip().split(".")):
        change = {part: change}
    return {**change}


def load(path: Path, overrides: Iterable[str] = (), *, start: bool = True) -> Recipe:
    """Load a recipe file, with its base, and apply `key.key=value` overrides.

    If the recipe sets training.init_from, take the default sizes, languages and tokenizer from this model. If `start`
    is false, do not read the model.

    Raise UsageError if the recipe is invalid, and DataError if the recipe of the model is invalid. Raise MissingError
    if the recipe, its base or the model is missing.
    """
    path = files.find(path)
    values = yaml_file.read_mapping(path)
    if not values:
        raise UsageError(f"{path} is empty. To start from another recipe, name it: `base: recipes/toy.yaml`")
    if base := values.pop("base", None):
        lower = yaml_file.read_mapping(files.find(Path(str(base)), path.parent))
        if "base" in lower:
            advice = f"Make {lower['base']} the base, and copy the settings of {base} here"
            raise UsageError(f"{path}: its base {base} has a base itself. {advice}")
        values = _overridden(lower, values)
    values = _overridden(values, reduce(merge, map(override, overrides), {}))
    values["name"] = values.get("name") or path.stem
    if start and (directory := from_plain(values, str(path)).training.init_from):
        named_corpus = {"corpus": NAMED_CORPORA.get(str(_corpus_name(values)), {})}
        values = merge(_settings_of(Path(directory)), merge(named_corpus, values))
    recipe = from_plain(values, str(path))
    # A run's name is a directory. `load_stored` lacks this check, because names of imported models may have a slash.
    if recipe.name in (".", "..") or "/" in recipe.name:
        raise UsageError(f"{path}: name must be the name of a directory under runs/, not {recipe.name[:60]!r}")
    _warn_of_unused(recipe.training, path)
    return recipe


def with_languages(recipe: Recipe, manifest: dict[str, Any]) -> Recipe:
    """Return the recipe with the languages in the manifest of a corpus.

    Keep the languages that the recipe itself sets. If one differs from the manifest, drop the expected results.
    """
    languages = {side: manifest[side] for side in {"src", "tgt"} - recipe.corpus.model_fields_set}
    corpus = recipe.corpus.model_copy(update=languages)
    same = (corpus.src, corpus.tgt) == (manifest["src"], manifest["tgt"])
    return recipe.model_copy(update={"corpus": corpus, "expect": recipe.expect if same else Expect()})


def _settings_of(model: Path) -> dict[str, Any]:
    """Return the settings that a recipe takes from the model in training.init_from: sizes, languages and tokenizer."""
    if not (model / "recipe.yaml").is_file():
        advice = ". To start from a model of another toolkit, import it first: nmt import" if model.exists() else ""
        raise MissingError(f"no model in {model} to start from. Pass --set training.init_from=DIR{advice}")
    stored = load_stored(model / "recipe.yaml").model_dump()
    languages = {side: stored["corpus"][side] for side in ("src", "tgt")}
    return {"model": stored["model"], "corpus": {**languages, "tokenizer": {"file": str(model / "tokenizer.model")}}}


def load_stored(path: Path) -> Recipe:
    """Load the recipe of a run or a model. Raise DataError if it is invalid.

    A recipe by another version of nmt may have settings that this version does not know. Ignore them with a warning,
    but raise DataError if they are in the section `model`.
    """
    try:
        values = yaml_file.read_mapping(path)
        if not values:
            raise UsageError(f"{path} is empty")
        recipe = from_plain(values, str(path), stored=True)
        unknown = sorted(set(_keys(values)) - set(_keys(recipe.model_dump())))
        if any(name.startswith("model.") for name in unknown):
            raise UsageError(f"{path}: unknown settings, some of them in the section model: {', '.join(unknown)}")
    except UsageError as error:
        raise DataError(f"{error}. The file was edited, or a newer nmt than {__version__} wrote it") from None
    if unknown:
        warn(f"{path}: settings unknown to nmt {__version__} are ignored: {', '.join(unknown)}")
    return recipe


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return `key: old -> new` for every setting that differs between two nested dicts.

    If two lists of sections have the same length, compare them entry by entry. The index of an entry is then part of
    the key, as in training.augment.0.typos.
    """
    lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if lists and all(isinstance(each, dict) for each in (*old, *new)):
        old, new = (dict(enumerate(each)) for each in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for key in {**old, **new} for line in differences(old.get(key), new.get(key), f"{path}.{key}")]
    return [] if old == new else [f"{path.lstrip('.')}: {old} -> {new}"]


def has_policy(change: str, policy: Policy) -> bool:
    """Return whether a changed setting has `policy`. `change` is a line from `differences` of two recipes."""
    key = change.partition(":")[0]
    return policy in POLICIES[next(name for name in POLICIES if f"{key}.".startswith(f"{name}."))]


def to_yaml(recipe: Recipe) -> bytes:
    """Return the recipe as YAML, with all settings, in the order of schema.py."""
    return yaml_file.dump(recipe.model_dump())
