"""Recipes: every setting with its type, range and default. Types are the settings', never YAML's guess (no is text)."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from nmt_cli.recipe.named import NAMED_CORPORA

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
