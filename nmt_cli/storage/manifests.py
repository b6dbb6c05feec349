"""Check the entries of each kind of manifest. The hashes in a manifest only prove that its files are unchanged."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from nmt_cli.recipe.limits import Range
from nmt_cli.storage import records
from nmt_cli.system.errors import DataError


class InsideDirectory:
    requirement = "a name inside the directory"

    def allows(self, name: str) -> bool:
        return name.isprintable() and not {"", ".", ".."} & set(name.split("/"))


class Sha256:
    requirement = "64 hexadecimal digits"

    def allows(self, text: str) -> bool:
        return re.fullmatch("[0-9a-f]{64}", text) is not None


Count = Annotated[int, Range(0)]
Size = Annotated[int, Range(1)]


@dataclass(frozen=True)
class File:
    bytes: Count
    sha256: Annotated[str, Sha256()]


@dataclass(frozen=True)
class Manifest:
    files: dict[Annotated[str, InsideDirectory()], File]


@dataclass(frozen=True)
class Model(Manifest):
    created: str = ""
    steps: list[Count] = field(default_factory=list)  # steps of the checkpoints that the weights are from
    corpus: str | None = None  # `Corpus.identity` of the training text
    imported: str | None = None  # name of the model of another toolkit that was imported
    seen_tokens: Size | None = None


@dataclass(frozen=True)
class Checkpoint(Manifest):
    step: Size
    corpus: str | None = None
    seen_tokens: Size | None = None


@dataclass(frozen=True)
class Corpus(Manifest):
    name: str | None
    src: str
    tgt: str
    pairs: Size
    vocabulary_size: Size
    source_vocabulary_size: Size | None = None
    generated: bool = False  # true for the built-in toy corpus
    recipe: dict[str, Any] = field(default_factory=dict)
    sources: list[File] = field(default_factory=list)


KINDS: dict[str, type[Manifest]] = {"model": Model, "checkpoint": Checkpoint, "corpus": Corpus}
NEEDED = {  # files that an artefact of each kind must have
    "model": {"model.safetensors", "recipe.yaml", "tokenizer.model"},
    "checkpoint": {"model.safetensors", "optimizer.safetensors", "state.json"},
    "corpus": {"train.src.ids", "train.src.offsets", "train.tgt.ids", "train.tgt.offsets", "tokenizer.model"},
}


def check(manifest: dict[str, Any], kind: str, path: Path) -> None:
    """Raise DataError if an entry is missing or wrong, or if the manifest does not list a file that readers need."""
    records.from_json(KINDS.get(kind, Manifest), manifest, path)
    if missing := sorted(NEEDED.get(kind, set()) - manifest["files"].keys()):
        raise DataError(f"{path} is damaged: it does not list {missing[0]}")
