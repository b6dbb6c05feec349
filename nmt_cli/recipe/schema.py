"""The settings of a recipe: type, range, default, meaning and policy.

Settings of cleaning are in cleaning.py, those of augmentation and corpus.sources in text_source.py. In descriptions,
"the paper" means "Attention Is All You Need" (Vaswani et al. 2017).

A value gets the type of its setting, not the type that YAML would infer. For example, the language "no" stays text.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nmt_cli.recipe import limits
from nmt_cli.recipe.cleaning import Cleaning, Filters
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.recipe.section import LOCAL, MAY_CHANGE, NO_POLICY, OPERATION, TRAINED, UNPUBLISHED, Policy, Section, Share
from nmt_cli.recipe.text_source import Augment, TextSource, Weight


def within(limit: limits.Range, default: Any, description: str) -> Any:
    """Declare a setting with a range of allowed values."""
    return Field(default, ge=limit.low, le=limit.high, description=description)


class Tokenizer(Section):  # the SentencePiece BPE model that both languages share
    vocabulary_size: int = Field(8000, ge=300, le=1_000_000, description="number of tokens for both languages together")
    file: Annotated[str | None, MAY_CHANGE] = Field(None, description="existing tokenizer file; null: train one")
    words: Annotated[bool, MAY_CHANGE] = Field(
        False, description="count the words of the source; decoding.spelling corrects typos with these counts"
    )


class Synthetic(Section):  # real text in one language, which a model translates into the other
    side: Literal["src", "tgt"] = Field("src", description="the side of the real text")
    files: list[str] = Field([], description="files of real text; if empty, one side of the real training pairs")
    src: str | None = Field(None, description="source language code of the pairs; null: corpus.src")
    tgt: str | None = Field(None, description="target language code of the pairs; null: corpus.tgt")
    model: str | None = Field(None, description="model directory to translate with; null: training.teacher")
    tag: str = Field("", pattern="^[a-z0-9]*$", description="token before each source line, such as bt; empty: none")
    beam: int = within(limits.BEAM, 4, "beam size of the model's search")
    sampling: bool = Field(False, description="sample from the model's probabilities instead of searching")
    weight: Weight | None = Field(None, description="weight of this text, as in training.weights; null: 1")

    @property
    def name(self) -> str:
        """The name of this text in messages and manifests."""
        return f"{SYNTHETIC_KINDS[self.side]} by {self.model}"


SYNTHETIC_KINDS = {"src": "distilled", "tgt": "back-translated"}  # the keys are the sides of the real text


class Corpus(Section):  # the sources of the text and their processing; named.py has defaults for some names
    name: str | None = Field(
        "toy-en-de", description="a named corpus such as wmt14-en-de, hub:owner/name, or a name for your own files"
    )
    config: str | None = Field(None, description="configuration of a hub data set, such as de-en")
    format: Literal["text", "trees"] = Field("text", description="trees: files of Penn Treebank trees, for parsing")
    src: Annotated[str, MAY_CHANGE] = Field(
        "en", description="source language code; also its key or column in a hub data set"
    )
    tgt: Annotated[str, MAY_CHANGE] = Field(
        "de", description="target language code; also its key or column in a hub data set"
    )
    train_src: Annotated[list[str], MAY_CHANGE] = Field([], description="your own training files, source side")
    train_tgt: Annotated[list[str], MAY_CHANGE] = Field(
        [], description="your own training files, target side, in the order of train_src"
    )
    sources: Annotated[list[TextSource], MAY_CHANGE] = Field(
        [], description="more text: your own in any format, named corpora, hub data sets"
    )
    dev_src: Annotated[str | None, MAY_CHANGE] = Field(None, description="development file, source side")
    dev_tgt: Annotated[str | None, MAY_CHANGE] = Field(None, description="development file, target side")
    test_src: Annotated[str | None, MAY_CHANGE] = Field(None, description="test file, source side")
    test_tgt: Annotated[str | None, MAY_CHANGE] = Field(None, description="test file, target side")
    hold_out: int = Field(
        0,
        ge=0,
        description="pairs to hold out for each missing set (dev, test, general); no side of them is in training pairs",
    )
    mix_src: Annotated[list[str], MAY_CHANGE] = Field([], description="files of general text to mix in, source side")
    mix_tgt: Annotated[list[str], MAY_CHANGE] = Field([], description="files of general text to mix in, target side")
    mix_share: float = Field(0.5, gt=0, lt=1, description="share of general text in the training pairs")
    general_src: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="general text on which forgetting is measured, source side"
    )
    general_tgt: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="general text on which forgetting is measured, target side"
    )
    synthetic: list[Synthetic] = Field([], description="sources of pairs with one side translated by a model")
    real_pairs: bool = Field(True, description="also train on the real pairs if there are synthetic pairs")
    moses: bool = Field(False, description="normalize, tokenize and lowercase all text, as for older published figures")
    rows: int | None = Field(None, ge=1, description="required number of training pairs in the raw text")
    limit: int | None = Field(
        None,
        ge=1,
        description="take only the first N training pairs; several sources share N in proportion to their sizes",
    )
    seed: Annotated[int, UNPUBLISHED] = Field(
        1, ge=0, lt=2**63, description="random seed of the sample that trains the tokenizer"
    )
    tokenizer: Tokenizer = Tokenizer()
    cleaning: Cleaning = Cleaning()
    filters: Filters = Filters()
    augment: Annotated[Augment, TRAINED] = Augment()

    @property
    def directory(self) -> Path:
        """The default directory of the prepared corpus. Its name includes the kinds of synthetic text."""
        kinds = dict.fromkeys(SYNTHETIC_KINDS[entry.side] for entry in self.synthetic)
        return Path("data") / "-".join([str(self.name).removeprefix("hub:").replace("/", "-"), *kinds])

    @property
    def targets(self) -> list[str]:
        """The target languages. If there are several, each source line begins with the token of its target language."""
        codes = [source.tgt or self.tgt for source in self.sources]
        synthetic = [entry.tgt for entry in self.synthetic if entry.tgt]
        return list(dict.fromkeys([*([self.tgt] if self.train_src or not codes else []), *codes, *synthetic]))

    @property
    def target_tokens(self) -> list[str]:
        """The names of the tokens that select a target language; [] if there is only one target language."""
        return self.targets if len(self.targets) > 1 else []

    @property
    def languages(self) -> list[str]:
        """All languages of the text."""
        sections = map(self.of, [None, *self.sources, *self.synthetic])
        return list(dict.fromkeys(code for section in sections for code in (section.src, section.tgt)))

    @property
    def tags(self) -> list[str]:
        """The names of all tokens that may begin a source line: target languages and tags."""
        tags = [*(entry.tag for entry in self.sources), *(entry.tag for entry in self.synthetic)]
        return list(dict.fromkeys([*self.target_tokens, *filter(None, tags)]))

    def of_source(self, index: int | None) -> "Corpus":
        """Return a copy with the settings of `sources[index]` (see `of`). For None, return this section."""
        return self if index is None else self.of(self.sources[index])

    def of(self, entry: TextSource | Synthetic | None) -> "Corpus":
        """Return a copy with the languages, cleaning and filters that an entry sets. For None, return this section."""
        if entry is None:
            return self
        names = "src", "tgt", "cleaning", "filters"
        return self.model_copy(update={name: getattr(entry, name, None) or getattr(self, name) for name in names})

    @property
    def parts(self) -> list[TextSource | Synthetic | None]:
        """The entry of each part of the training text, in order. None stands for the text of `train_src` or `name`."""
        own = [None] if self.train_src or not self.sources else []
        sources = [entry for entry in self.sources if entry.split == "train"]
        return [*(own + sources if self.real_pairs else []), *self.synthetic]

    @property
    def trained(self) -> list["Corpus"]:
        """For each part of the training text, this section with the part's languages, cleaning and filters."""
        return list(map(self.of, self.parts))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The language pairs of the training text."""
        return list(dict.fromkeys((text.src, text.tgt) for text in self.trained))

    @property
    def max_tokens(self) -> int | None:
        """The longest allowed side in any part of the training text, in subwords. None if a part has no limit."""
        limits = [section.cleaning.max_tokens for section in self.trained]
        return None if None in limits else max(filter(None, limits))

    def prefix(self, index: int | None) -> str:
        """Return the tokens that begin each source line of an entry of `sources`. A space follows each token."""
        tags = [self.of_source(index).tgt] if self.target_tokens else []
        if index is not None and self.sources[index].tag:
            tags.append(self.sources[index].tag)
        return "".join(f">>{tag}<< " for tag in tags)

    @property
    def has_text(self) -> bool:
        """Whether the recipe names its text. If it does not, `nmt prepare` needs --src and --tgt."""
        return (
            bool(self.train_src or self.sources) or str(self.name) in NAMED_CORPORA or str(self.name).startswith("hub:")
        )


class Model(Section):  # the Transformer (section 3 of the paper); the defaults are the base model
    num_layers: int = within(limits.LAYERS, 6, "layers in the encoder and in the decoder (N)")
    encoder_layers: int | None = within(limits.LAYERS, None, "layers in the encoder; null: num_layers")
    decoder_layers: int | None = within(limits.LAYERS, None, "layers in the decoder; null: num_layers")
    d_model: int = within(limits.WIDTH, 512, "width of the residual stream")
    d_ff: int = within(limits.INNER_WIDTH, 2048, "inner width of the feed-forward sub-layers")
    num_heads: int = within(limits.HEADS, 8, "attention heads (h)")
    d_k: int = within(limits.HEAD_SIZE, 64, "size of a query or key per head")
    d_v: int = within(limits.HEAD_SIZE, 64, "size of a value per head")
    dropout: float = Field(0.1, ge=0, le=0.99, description="dropout of sub-layer outputs and embedding sums (P_drop)")
    norm: Literal["post", "pre"] = Field("post", description="layer norm after (paper) or before each sub-layer")
    positions: Literal["sinusoidal", "marian", "learned"] = Field("sinusoidal", description="positional encoding")
    max_length: Annotated[int, UNPUBLISHED] = within(
        limits.LENGTH, 1024, "maximum length of source and target in tokens"
    )
    attention_bias: bool = Field(False, description="biases on query, key, value and output projections")
    output_bias: bool = Field(False, description="a bias on the logits (Marian's models have one, the paper's none)")
    activation: Literal["relu", "swish", "gelu"] = Field(
        "relu", description="activation function of the feed-forward sub-layers"
    )
    source_vocabulary: int = Field(0, ge=0, description="size of a separate source embedding; 0: shared (paper)")
    tied_output: bool = Field(True, description="logits from the target embedding (paper), not from a separate matrix")
    source_eos: bool = Field(True, description="end the source with </s>; OpenNMT's models, such as Argos', do not")
    decoder_cell: Literal["attention", "ssru"] = Field(
        "attention", description="self-attention of the decoder (paper), or a recurrent unit, which is faster on CPUs"
    )

    @property
    def depths(self) -> tuple[int, int]:
        """The numbers of layers in the encoder and in the decoder."""
        return self.encoder_layers or self.num_layers, self.decoder_layers or self.num_layers


class Stage(Section):  # a later range of steps, in which the parts of the text have other weights
    from_step: int = Field(1, ge=1, description="number of steps after which these weights apply")
    weights: list[Weight] = Field([], description="shares, as in training.weights")


class Training(Section):  # section 5 of the paper
    steps: Annotated[int, MAY_CHANGE] = Field(100_000, ge=1, description="optimizer steps in total")
    max_hours: Annotated[float | None, OPERATION] = Field(
        None, ge=0, description="stop after this many hours of training"
    )
    weights: list[Weight] = Field(
        [],
        description="relative token shares of train_src, each source, each synthetic entry; if empty, see temperature",
    )
    temperature: float = Field(
        1, gt=0, le=100, description="without weights: shares are proportional to sizes ^ (1 / temperature)"
    )
    stages: list[Stage] = Field([], description="different weights for later steps")
    augment: list[Augment] = Field(
        [], description="augmentation of train_src, each source and each synthetic entry; none: corpus.augment"
    )
    tokens_per_step: int = Field(25_000, ge=1, description="average tokens per step, on each side")
    micro_batches: Annotated[int, OPERATION] = Field(
        8,
        ge=1,
        le=4096,
        description="parts into which a step is split; with more processes than this, one part per process",
    )
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warm-up")
    rate_factor: float = Field(1.0, ge=0, description="factor on the paper's learning rate")
    cooldown_steps: int = Field(0, ge=0, description="final steps with a rate falling to zero (not in the paper)")
    adam_beta1: float = Field(0.9, ge=0, le=0.999999, description="Adam beta 1")
    adam_beta2: float = Field(0.98, ge=0, le=0.999999, description="Adam beta 2")
    adam_epsilon: float = Field(1e-9, ge=0, description="Adam epsilon")
    label_smoothing: float = Field(0.1, ge=0, le=0.999, description="probability mass spread over all tokens")
    seed: Annotated[int, UNPUBLISHED] = Field(
        1, ge=0, lt=2**63, description="random seed of initial weights, data order and dropout"
    )
    precision: Annotated[Literal["auto", "fp32", "bf16"], UNPUBLISHED] = Field(
        "auto", description="arithmetic; weights are always float32"
    )
    memory_tokens: Annotated[int | None, OPERATION] = Field(
        None, ge=1, description="maximum target tokens computed at once; null: chosen to fit the memory"
    )
    cuda_graphs: Annotated[bool, MAY_CHANGE] = Field(
        True, description="on one GPU in bf16, replay steps as CUDA graphs if memory suffices"
    )
    processes: Annotated[int | None, MAY_CHANGE] = Field(
        None, ge=1, description="processes on a CPU; null: one per core, or fewer for small steps or little memory"
    )
    log_every: Annotated[int, OPERATION] = Field(50, ge=1, description="steps between lines of metrics")
    validate_every: Annotated[int, OPERATION] = Field(1000, ge=1, description="steps between validations")
    validate_bleu: Annotated[int, OPERATION] = Field(
        500, ge=0, description="dev sentences translated at each validation; 0 for none"
    )
    checkpoint_every: Annotated[int, OPERATION] = Field(
        1500, ge=1, description="steps between checkpoints (10 minutes of the paper's run)"
    )
    keep_checkpoints: Annotated[int, OPERATION] = Field(
        5, ge=2, description="checkpoints to keep; must not be less than averaging.last"
    )
    patience: Annotated[int | None, OPERATION] = Field(
        None,
        ge=1,
        description="stop after this many validations in a row that do not lower the dev loss by more than 0.2 %",
    )
    teacher: str | None = Field(None, description="default model of the entries in corpus.synthetic")
    init_from: Annotated[str | None, LOCAL] = Field(
        None, description="model directory to start from: its sizes, tokenizer and languages are used"
    )


class Averaging(Section):  # checkpoint averaging (section 6.1: the last 5 for base, 20 for big)
    last: int = Field(5, ge=1, description="checkpoints to average")
    best: bool = Field(False, description="use the checkpoint with the lowest dev loss instead of the last ones")
    with_start: list[Share] = Field(
        [],
        description="shares of init_from's parameters to try in the average; the best held-out BLEU decides",
    )


class Decoding(Section):  # search (section 6.1)
    beam: int = within(limits.BEAM, 4, "beam size; 1 is greedy search")
    alpha: float = within(limits.ALPHA, 0.6, "length penalty ((offset + length) / (offset + 1)) ^ alpha")
    penalty_offset: float = within(
        limits.PENALTY_OFFSET, 5, "offset of the length penalty; 0: length ^ alpha, as in most other toolkits"
    )
    extra_length: int = within(limits.EXTRA_LENGTH, 50, "maximum output tokens beyond the source length")
    split: Annotated[bool, UNPUBLISHED] = Field(
        True,
        description="split long lines at sentence ends; halve segments whose translation is empty, looping or too long",
    )
    copy_wordless: bool = Field(True, description="copy lines without a letter, such as 3.14, untranslated")
    case: Literal["auto", "off"] = Field(
        "auto", description="auto: translate capitals and title case as sentence case, then restore their case"
    )
    spelling: Literal["auto", "off"] = Field(
        "auto", description="auto: correct typos in the source if corpus.tokenizer.words counted its words"
    )
    target_prefix: str = Field("", description="hidden token at the start of translations, as in some Argos packages")


class Expect(Section):  # expected results and their source; `train` and `reproduce` compare runs with them
    pairs: list[int] = Field([], description="lowest and highest plausible number of training pairs after cleaning")
    parameters: int | None = Field(None, ge=1, description="trainable parameters")
    dev_steps: list[int] = Field([], description="steps of the dev figures below, ascending")
    dev_perplexity: list[float] = Field([], description="dev perplexity per token after each of dev_steps")
    dev_bleu: list[float] = Field([], description="sacreBLEU of the validation after each of dev_steps")
    bleu: list[float] = Field([], description="lowest and highest plausible sacreBLEU on the test set")
    paper_bleu: float | None = Field(
        None, ge=0, le=100, description="the paper's BLEU on the test set (tokenized; German with compounds split)"
    )
    paper_f1: float | None = Field(None, ge=0, le=100, description="the paper's F1 of labeled brackets")
    paper_dev_bleu: float | None = Field(None, ge=0, le=100, description="the paper's BLEU on its development set")
    source: str | None = Field(None, description="source of these numbers")


class Recipe(Section):  # all settings of a run
    name: Annotated[str, OPERATION | LOCAL] = Field("", description="name of the run; default: the file's name")
    corpus: Annotated[Corpus, LOCAL] = Corpus()
    model: Model = Model()
    training: Training = Training()
    averaging: Annotated[Averaging, MAY_CHANGE | LOCAL] = Averaging()
    decoding: Annotated[Decoding, MAY_CHANGE | LOCAL] = Decoding()
    expect: Annotated[Expect, OPERATION | LOCAL] = Expect()

    @property
    def is_augmented(self) -> bool:
        return any(augment.is_active for augment in self.training.augment or [self.corpus.augment])


def policies(section: type[Section] = Recipe, inherited: Policy = NO_POLICY, prefix: str = "") -> dict[str, Policy]:
    """Return a dict from the key of every setting, such as "training.seed", to its policy."""
    found = dict[str, Policy]()
    for name, field in section.model_fields.items():
        policy = inherited
        for each in field.metadata:
            if isinstance(each, Policy):
                policy |= each
        if TRAINED in policy:
            policy &= ~LOCAL
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= policies(field.annotation, policy, f"{prefix}{name}.")
        else:
            found[prefix + name] = policy
    return found


POLICIES = policies()


def without(values: dict[str, Any], policy: Policy, prefix: str = "") -> dict[str, Any]:
    """Return a dumped recipe, or a section of it, without the settings to which `policy` applies.

    If no setting of a section remains, leave out the section. `prefix` is the key of the section in the recipe, such as
    "training.", or "" for a recipe.
    """
    kept = dict[str, Any]()
    for name, value in values.items():
        if not isinstance(value, dict):
            kept |= {} if policy in POLICIES[prefix + name] else {name: value}
        elif section := without(value, policy, f"{prefix}{name}."):
            kept[name] = section
    return kept
