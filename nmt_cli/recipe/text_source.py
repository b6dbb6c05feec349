"""The settings of augmentation and of the entries of corpus.sources."""

from typing import Annotated, Literal

from pydantic import Field

from nmt_cli.recipe.cleaning import Cleaning, Filters
from nmt_cli.recipe.section import Section, Share

Weight = Annotated[float, Field(ge=0, le=1e9)]
BitextFormat = Literal["text", "tsv", "csv", "tmx", "xliff", "jsonl", "parquet", "opus"]


class Augment(Section):  # random changes to the training text, different in each epoch (not in the Transformer paper)
    no_stop: Share = Field(0, description="share of pairs that lose the final period on both sides")
    typos: Share = Field(
        0, description="share of pairs with typos in the source: in a tenth of its words, and at least in one"
    )
    upper: Share = Field(0, description="share of pairs in upper case, on both sides")
    title: Share = Field(0, description="share of pairs with each word capitalized, on both sides")
    noise: Share = Field(0, description="share of pairs with the same emoji, number or URL added to both sides")
    joined: Share = Field(0, description="share of lines that are made of two or three successive pairs")
    bpe_dropout: Share = Field(
        0,
        description="probability of splitting a subword into the two it was merged from; these may be split again",
    )

    @property
    def is_active(self) -> bool:
        return any(self.model_dump().values())


class TextSource(Section):  # parallel text, from files (possibly compressed) or from one split of a corpus
    files: list[str] = Field([], description="one file, or a source and a target file of plain text")
    corpus: str | None = Field(None, description="a named corpus or hub:owner/name, in place of files")
    config: str | None = Field(None, description="configuration of a hub data set, such as de-en")
    format: BitextFormat | None = Field(None, description="format of the files; null: by their suffix")
    split: Literal["train", "dev", "test"] = Field(
        "train", description="use of the text; also the split to take from `corpus`"
    )
    src: str | None = Field(None, description="source language code; null: from the named corpus, else from corpus.src")
    tgt: str | None = Field(None, description="target language code; null: from the named corpus, else from corpus.tgt")
    columns: list[str] = Field(
        [], description="names or numbers of the source and target columns; none: 1 and 2, or the language codes"
    )
    score: str | None = Field(None, description="column with a score, by name or number")
    min_score: float | None = Field(None, description="lowest score of pairs that are kept")
    finished: bool = Field(False, description="XLIFF: take only segments that are approved or final")
    tag: str = Field("", pattern="^[a-z0-9]*$", description="token before each source line, such as tm; empty: none")
    weight: Weight | None = Field(None, description="weight of this text, as in training.weights; null: 1")
    cleaning: Cleaning | None = Field(None, description="cleaning of this text alone; null: corpus.cleaning")
    filters: Filters | None = Field(None, description="filters of this text alone; null: corpus.filters")
    augment: Augment | None = Field(None, description="augmentation of this text alone; null: corpus.augment")

    @property
    def name(self) -> str:
        """The name of this text in messages and manifests."""
        is_hub = str(self.corpus).startswith("hub:")
        return ", ".join(self.files) or "/".join(filter(None, [self.corpus, self.config if is_hub else None]))
