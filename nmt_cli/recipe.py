"""Recipes: every setting with its type, range and default. Types are the settings', never YAML's guess (no is text)."""

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from nmt_cli import __version__, limits, recipe_files, yaml_file
from nmt_cli.console import warn
from nmt_cli.errors import DataError, MissingError, UsageError, meant

MOST_COMPLAINTS = 5

Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A group of settings. `section.model_copy(update={...})` changes some, without checking them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        hint: Any = cls.model_fields[str(info.field_name)].annotation
        is_list, is_section = get_origin(hint) is list, isinstance(hint, type) and issubclass(hint, Section)
        if value is None or (isinstance(value, str) and value.lower() in ("", "~", "null", "none")):
            if type(None) in get_args(hint):
                return None
            if is_list:
                return []
            return {} if is_section else value
        return [value] if is_list and not isinstance(value, list) else value


class Cleaning(Section):  # what `prepare` repairs or drops; pairs that occur in dev or test are always dropped
    unescape: bool = Field(True, description="undo HTML entities once (&amp; -> &)")
    max_tokens: int | None = Field(250, ge=1, description="longest side, in subwords; longer pairs are dropped")
    max_ratio: float | None = Field(9.0, ge=1, description="largest ratio of the two lengths in subwords (9: Moses)")
    drop_copies: bool = Field(True, description="drop pairs whose source equals their target")
    drop_duplicates: bool = Field(True, description="drop repeated pairs; a file listed twice still counts twice")
    drop_near_twins: bool = Field(False, description="drop pairs with a side nearly that of a held-out line")
    check_script: bool = Field(True, description="drop pairs with a side mostly in another script than its language's")


class Tokenizer(Section):  # the joint SentencePiece BPE model
    vocabulary_size: int = Field(8000, ge=300, le=1_000_000, description="tokens, both languages together")
    file: str | None = Field(None, description="reuse this model file instead of training one")


class Synthetic(Section):  # real text of one language, of which a model supplies the other side
    side: Literal["src", "tgt"] = Field("src", description="the side that is real")
    files: list[str] = Field([], description="files of that side; none: that side of the training pairs")
    model: str | None = Field(None, description="model directory that translates it; null: training.teacher")
    tag: str = Field("", pattern="^[a-z0-9]*$", description="token before the source, such as bt; empty: none")
    beam: int = Field(4, ge=1, le=1000, description="hypotheses of the model's search")
    sampling: bool = Field(False, description="draw each token from the model's probabilities instead")


OF_STEPS = {"dev_steps", "dev_perplexity", "dev_bleu", "bleu"}  # expectations that hold for a recipe's own steps
SYNTHETIC_KINDS = {"src": "distilled", "tgt": "back-translated"}  # by the side that is real


class Corpus(Section):  # where the text comes from; a named corpus brings its own defaults
    name: str | None = Field("toy-en-de", description="a named corpus, hub:owner/name, or a name for your own files")
    config: str | None = Field(None, description="configuration of a hub data set, such as de-en")
    format: Literal["text", "trees"] = Field("text", description="trees: files of Penn Treebank trees, for parsing")
    src: str = Field("en", description="source language code; of a hub data set also its key or column")
    tgt: str = Field("de", description="target language code; of a hub data set also its key or column")
    train_src: list[str] = Field([], description="your own training files, source side")
    train_tgt: list[str] = Field([], description="your own training files, target side, in the same order")
    dev_src: str | None = Field(None, description="development file, source side")
    dev_tgt: str | None = Field(None, description="development file, target side")
    test_src: str | None = Field(None, description="test file, source side")
    test_tgt: str | None = Field(None, description="test file, target side")
    hold_out: int = Field(
        0, ge=0, description="pairs of your text held out, with all that share a side, for dev and test if not named"
    )
    mix_src: list[str] = Field([], description="files of general text to mix into your own, source side")
    mix_tgt: list[str] = Field([], description="files of general text to mix into your own, target side")
    mix_share: float = Field(0.5, gt=0, lt=1, description="share of the training pairs that is general text")
    general_src: str | None = Field(None, description="general text to see what is forgotten, source side")
    general_tgt: str | None = Field(None, description="general text to see what is forgotten, target side")
    synthetic: list[Synthetic] = Field([], description="sources of pairs of which a model supplies one side")
    real_pairs: bool = Field(True, description="train on the real pairs, too, where there are synthetic ones")
    moses: bool = Field(False, description="normalise, tokenise and lower-case all text, as older published figures")
    rows: int | None = Field(None, ge=1, description="training pairs the source must hold, before cleaning")
    limit: int | None = Field(None, ge=1, description="take only the first N training pairs")
    seed: int = Field(1, ge=0, lt=2**63, description="of the tokenizer's sample")
    tokenizer: Tokenizer = Tokenizer()
    cleaning: Cleaning = Cleaning()

    @property
    def directory(self) -> Path:
        """Where the prepared corpus lies unless the user says otherwise; with synthetic text beside that without."""
        kinds = dict.fromkeys(SYNTHETIC_KINDS[entry.side] for entry in self.synthetic)
        return Path("data") / "-".join([str(self.name).removeprefix("hub:").replace("/", "-"), *kinds])

    @property
    def has_text(self) -> bool:
        """Whether `nmt prepare` of the recipe knows where the text is; else --src and --tgt must say it."""
        return bool(self.train_src) or str(self.name) in NAMED_CORPORA or str(self.name).startswith("hub:")


class Model(Section):  # the Transformer (section 3 of the paper); the defaults are the base model
    num_layers: int = Field(6, ge=1, le=1000, description="layers in the encoder and in the decoder (N)")
    encoder_layers: int | None = Field(None, ge=1, le=1000, description="layers in the encoder; null: num_layers")
    decoder_layers: int | None = Field(None, ge=1, le=1000, description="layers in the decoder; null: num_layers")
    d_model: int = Field(512, ge=2, le=65536, description="width of the residual stream")
    d_ff: int = Field(2048, ge=1, le=1 << 20, description="inner width of the feed-forward sub-layers")
    num_heads: int = Field(8, ge=1, le=1024, description="attention heads (h)")
    d_k: int = Field(64, ge=1, le=65536, description="size of a query or key per head")
    d_v: int = Field(64, ge=1, le=65536, description="size of a value per head")
    dropout: float = Field(0.1, ge=0, le=0.99, description="residual dropout, and on embedding sums (P_drop)")
    norm: Literal["post", "pre"] = Field("post", description="layer norm after (paper) or before each sub-layer")
    positions: Literal["sinusoidal", "marian", "learned"] = Field("sinusoidal", description="positional encoding")
    max_length: int = Field(1024, ge=8, le=1 << 20, description="longest sequence in tokens, of source and of target")
    attention_bias: bool = Field(False, description="biases on query, key, value and output projections")
    output_bias: bool = Field(False, description="a bias on the logits (Marian's models have one, the paper's none)")
    activation: Literal["relu", "swish", "gelu"] = Field("relu", description="of the feed-forward sub-layers")
    source_vocabulary: int = Field(0, ge=0, description="tokens of an embedding for the source alone; 0: none (paper)")
    tied_output: bool = Field(True, description="logits by the target embedding (paper), not by a matrix of their own")

    @property
    def depths(self) -> tuple[int, int]:
        """Layers of the encoder and of the decoder."""
        return self.encoder_layers or self.num_layers, self.decoder_layers or self.num_layers


class Training(Section):  # how the model is trained (section 5)
    steps: int = Field(100_000, ge=1, description="steps of the optimiser in all")
    max_hours: float | None = Field(None, ge=0, description="stop after this many hours of training")
    tokens_per_step: int = Field(25_000, ge=1, description="source tokens and target tokens, of each, on average")
    micro_batches: int = Field(8, ge=1, le=4096, description="parts of a step; with more processes, as many as those")
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warm-up")
    rate_factor: float = Field(1.0, ge=0, description="factor on the paper's learning rate")
    cooldown_steps: int = Field(0, ge=0, description="last steps, in which the rate falls to zero (not in the paper)")
    adam_beta1: float = Field(0.9, ge=0, le=0.999999, description="Adam beta 1")
    adam_beta2: float = Field(0.98, ge=0, le=0.999999, description="Adam beta 2")
    adam_epsilon: float = Field(1e-9, ge=0, description="Adam epsilon")
    label_smoothing: float = Field(0.1, ge=0, le=0.999, description="probability mass spread over all tokens")
    seed: int = Field(1, ge=0, lt=2**63, description="of initial weights, data order and dropout")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="arithmetic; weights are always float32")
    memory_tokens: int | None = Field(None, ge=1, description="target tokens computed at once; null: by the memory")
    cuda_graphs: bool = Field(True, description="on one GPU in bf16, replay steps as graphs where memory suffices")
    processes: int | None = Field(None, ge=1, description="processes on a CPU; null: one per core with enough tokens")
    log_every: int = Field(50, ge=1, description="steps between lines of metrics")
    validate_every: int = Field(1000, ge=1, description="steps between validations")
    validate_bleu: int = Field(500, ge=0, description="dev sentences translated at each validation; 0 for none")
    checkpoint_every: int = Field(1500, ge=1, description="steps between checkpoints (10 minutes of the paper's run)")
    keep_checkpoints: int = Field(5, ge=2, description="checkpoints kept; averaging needs this many")
    patience: int | None = Field(None, ge=1, description="stop after so many validations not better by more than 0.2 %")
    teacher: str | None = Field(None, description="model of the entries of corpus.synthetic that name none")
    init_from: str | None = Field(None, description="model directory to start from: its sizes, tokenizer, languages")


class Averaging(Section):  # checkpoint averaging (section 6.1: the last 5 for base, 20 for big)
    last: int = Field(5, ge=1, description="checkpoints averaged")
    best: bool = Field(False, description="take the one checkpoint of the lowest dev loss instead of the last ones")
    with_start: list[Share] = Field([], description="shares of init_from's weights to try; the best on dev is mixed in")


class Decoding(Section):  # search (section 6.1)
    beam: int = Field(4, ge=1, le=1000, description="hypotheses kept per sentence; 1 is greedy search")
    alpha: float = Field(0.6, ge=0, le=10, description="length penalty ((5 + length) / 6) ^ alpha")
    extra_length: int = Field(50, ge=1, le=100_000, description="longest output: source length plus this many tokens")
    split: bool = Field(True, description="cut long lines at sentence ends, retry empty or looping output in halves")
    copy_wordless: bool = Field(True, description="copy lines without a letter, such as 3.14; else translate them")


class Expect(Section):  # what the recipe should give, and according to whom; compared by `train` and `reproduce`
    pairs: list[int] = Field([], description="fewest and most plausible training pairs after cleaning")
    parameters: int | None = Field(None, ge=1, description="trainable numbers")
    dev_steps: list[int] = Field([], description="steps after which the dev figures below are known, rising")
    dev_perplexity: list[float] = Field([], description="dev perplexity per token after each of dev_steps")
    dev_bleu: list[float] = Field([], description="sacreBLEU that validations show after each of dev_steps")
    bleu: list[float] = Field([], description="lowest and highest plausible sacreBLEU on the test set")
    paper_bleu: float | None = Field(None, ge=0, le=100, description="the paper's figure (tokenised, compound-split)")
    paper_f1: float | None = Field(None, ge=0, le=100, description="the paper's F1 of labelled brackets")
    paper_dev_bleu: float | None = Field(None, ge=0, le=100, description="the paper's figure on its development set")
    source: str | None = Field(None, description="where these numbers come from")


class Recipe(Section):  # all settings of one run
    name: str = Field("", description="name of the run; default: the file's name")
    corpus: Corpus = Corpus()
    model: Model = Model()
    training: Training = Training()
    averaging: Averaging = Averaging()
    decoding: Decoding = Decoding()
    expect: Expect = Expect()


# Defaults of the named corpora: what their recipes and `nmt prepare NAME` share; a recipe's own values win over them.
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


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return `low` with what `high` says laid over it, section by section."""
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, list) and old and isinstance(old[0], dict):
            if len(old) > 1:
                raise UsageError(f"{key} has {len(old)} entries: write the list whole, in the recipe")
            merged[key] = [merge(old[0], value)]  # as of corpus.synthetic, to which one may add --set
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
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(Recipe.model_fields)}"
        return f"unknown key {path[:80]!r}; {advice}"
    question = meant(str(error["input"]), re.findall(r"'([^']*)'", error.get("ctx", {}).get("expected", "")))
    rule = "a mapping of keys to values" if error["type"] == "model_type" else error["msg"].partition(",")[0]
    complaint = f"{path} must be {rule.removeprefix('Input should be ')}, not {str(error['input'])[:40]!r}"
    return f"{complaint}. {question}" if question else complaint


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """Yield complaints about settings that are valid alone and wrong together."""
    corpus, expect, steps = recipe.corpus, recipe.expect, recipe.expect.dev_steps
    if str(corpus.name) in (".", ".."):
        yield f"corpus.name must name a directory of its own under data/, not {corpus.name!r}"
    if recipe.averaging.last > recipe.training.keep_checkpoints:
        yield "averaging.last is larger than training.keep_checkpoints"
    yield from limits.contradictions(recipe.model)
    for split in ("train", "dev", "test", "mix", "general"):
        sides = [getattr(corpus, f"{split}_{side}") or [] for side in ("src", "tgt")]
        if len({len(side) if isinstance(side, list) else 1 for side in sides}) > 1:
            yield f"corpus.{split}_src and corpus.{split}_tgt must name as many files"
    if any(entry.model is None for entry in corpus.synthetic):
        yield "corpus.synthetic needs a model that translates: name it there, or as training.teacher"
    if not (corpus.real_pairs or corpus.synthetic):
        yield "corpus.real_pairs=no requires corpus.synthetic"
    if corpus.limit and corpus.mix_src:
        yield "corpus.limit would cut corpus.mix_src off: leave one out"
    if recipe.averaging.with_start and not recipe.training.init_from:
        yield "averaging.with_start requires training.init_from"
    if any(len(span) not in (0, 2) or span != sorted(span) for span in (expect.pairs, expect.bleu)):
        yield "expect.pairs and expect.bleu must be two numbers, lowest and highest"
    curves = expect.dev_perplexity, expect.dev_bleu
    if steps != sorted(set(steps)) or any(len(curve) not in (0, len(steps)) for curve in curves):
        yield "expect.dev_steps must rise, and dev_perplexity and dev_bleu have as many numbers"


def _corpus_name(values: dict[str, Any]) -> Any:
    corpus = values.get("corpus")
    return corpus.get("name") if isinstance(corpus, dict) else None


def _with_named(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values laid over what their named corpus brings."""
    return merge({"corpus": NAMED_CORPORA.get(str(_corpus_name(values) or "toy-en-de"), {})}, values)


def _text_and_steps(values: dict[str, Any]) -> tuple[Any, int | None]:
    """Return the identity of the training text, and the number of steps; None for both if a setting is wrong."""
    sections = {name: section for name, section in values.items() if name in ("corpus", "training")}
    try:
        settings = Recipe.model_validate(_with_named(sections))
    except ValidationError:
        return None, None
    corpus = settings.corpus
    synthetic = corpus.synthetic and (corpus.synthetic, settings.training.teacher)
    text = corpus.name, corpus.src, corpus.tgt, corpus.limit, corpus.moses, synthetic
    return text, settings.training.steps


def _laid_over(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Merge. Drop the expectations of `low` if `high` names another text, and its scores if it names other steps."""
    (text, steps), (other_text, other_steps) = map(_text_and_steps, (low, merge(low, high)))
    expect = low.get("expect")
    if text != other_text:
        low = {key: value for key, value in low.items() if key != "expect"}
    elif steps != other_steps and isinstance(expect, dict):
        low = {**low, "expect": {key: value for key, value in expect.items() if key not in OF_STEPS}}
    return merge(low, high)


def from_plain(values: dict[str, Any], where: str, *, stored: bool = False) -> Recipe:
    """Build a recipe from nested dicts, or raise a UsageError that names every wrong value."""
    values = _with_named(values)
    try:
        recipe = Recipe.model_validate(values, extra="ignore" if stored else None)
        for entry in recipe.corpus.synthetic:
            entry.model = entry.model or recipe.training.teacher
        errors = list(_contradictions(recipe))
    except ValidationError as invalid:
        errors = [_complaint(error) for error in invalid.errors()[:MOST_COMPLAINTS]]
        errors += ["and more"] if len(invalid.errors()) > MOST_COMPLAINTS else []
    if errors:
        raise UsageError(f"{where}: {'; '.join(errors)}")
    return recipe


def override(text: str) -> dict[str, Any]:
    """Return `key.key=value` as nested dicts; a value in brackets is a list."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text[:60]}: write it as section.key=value")
    parts = map(str.strip, value[1:-1].split(","))
    change: Any = list(filter(None, parts)) if value.startswith("[") else value
    for part in reversed(key.strip().split(".")):
        change = {part: change}
    return {**change}


def load(path: Path, overrides: Iterable[str] = (), *, start: bool = True) -> Recipe:
    """Read a recipe file, apply `key.key=value` overrides, and take the rest from training.init_from if `start`."""
    path = recipe_files.find(path)
    values = yaml_file.read(path)
    if not values:
        raise UsageError(f"{path} is empty. A recipe says at least what differs from another: base: recipes/toy.yaml")
    if base := values.pop("base", None):
        lower = yaml_file.read(recipe_files.find(Path(str(base)), path.parent))
        if "base" in lower:
            advice = f"Name that one ({lower['base']}), and copy the settings between"
            raise UsageError(f"{path}: its base {base} has a base itself. {advice}")
        values = _laid_over(lower, values)
    values = _laid_over(values, reduce(merge, map(override, overrides), {}))
    values["name"] = values.get("name") or path.stem
    if start and (directory := from_plain(values, str(path)).training.init_from):
        named_corpus = {"corpus": NAMED_CORPORA.get(str(_corpus_name(values)), {})}
        values = merge(_settings_of(Path(directory)), merge(named_corpus, values))
    recipe = from_plain(values, str(path))
    if recipe.name in (".", "..") or "/" in recipe.name:  # as imported models have, which have no run
        raise UsageError(f"{path}: name must name a directory of its own under runs/, not {recipe.name[:60]!r}")
    return recipe


def with_languages(recipe: Recipe, manifest: dict[str, Any]) -> Recipe:
    """Return the recipe with the languages of a corpus, by its manifest, where it names none itself; where it names
    others, without what it expects."""
    languages = {side: manifest[side] for side in {"src", "tgt"} - recipe.corpus.model_fields_set}
    corpus = recipe.corpus.model_copy(update=languages)
    same = (corpus.src, corpus.tgt) == (manifest["src"], manifest["tgt"])
    return recipe.model_copy(update={"corpus": corpus, "expect": recipe.expect if same else Expect()})


def _settings_of(model: Path) -> dict[str, Any]:
    """Return what a recipe takes from the model it starts from."""
    if not (model / "recipe.yaml").is_file():
        raise MissingError(f"no model in {model} to start from. Name one: --set training.init_from=DIR")
    stored = load_stored(model / "recipe.yaml").model_dump()
    languages = {side: stored["corpus"][side] for side in ("src", "tgt")}
    return {"model": stored["model"], "corpus": {**languages, "tokenizer": {"file": str(model / "tokenizer.model")}}}


def load_stored(path: Path) -> Recipe:
    """Read the recipe of a run or a model, perhaps of another version: unknown settings but the model's are ignored."""
    try:
        values = yaml_file.read(path)
        if not values:
            raise UsageError(f"{path} is empty")
        recipe = from_plain(values, str(path), stored=True)
        unknown = sorted(set(_keys(values)) - set(_keys(recipe.model_dump())))
        if any(name.startswith("model.") for name in unknown):
            raise UsageError(f"{path}: unknown settings of the model: {', '.join(unknown)}")
    except UsageError as error:
        raise DataError(f"{error}. An nmt newer than {__version__} wrote it: update; or it was edited") from None
    if unknown:
        warn(f"{path}: settings unknown to nmt {__version__} are ignored: {', '.join(unknown)}")
    return recipe


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return `key: old -> new` for every setting that differs between two nested dicts."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for key in {**old, **new} for line in differences(old.get(key), new.get(key), f"{path}.{key}")]
    return [] if old == new else [f"{path.lstrip('.')}: {old} -> {new}"]


def to_yaml(recipe: Recipe) -> bytes:
    """Return the resolved recipe as YAML, every setting with its value, in the order of this file."""
    return yaml_file.dump(recipe.model_dump())
