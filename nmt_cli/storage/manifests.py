"""What a manifest must hold, by its kind, so that a reader need not doubt a type; this needs no torch.

A hash shows that a file is the one that was written, not that who wrote it was right, or honest.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nmt_cli.system.errors import DataError

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _inside(name: str) -> str:
    """Return the name of a file within a directory; ValueError where it leads out of it."""
    if not name.isprintable() or {"", ".", ".."} & set(name.split("/")):
        raise ValueError("a name inside the directory")
    return name


class _Entries(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class File(_Entries):
    bytes: Count
    sha256: Sha256


class Manifest(_Entries):
    files: dict[Annotated[str, AfterValidator(_inside)], File]


class Model(Manifest):
    created: str = ""
    steps: list[Count] = []
    corpus: str | None = None
    imported: str | None = None
    seen_tokens: Size | None = None


class Checkpoint(Manifest):
    step: Size
    corpus: str | None = None
    seen_tokens: Size | None = None


class Corpus(Manifest):
    name: str | None
    src: str
    tgt: str
    generated: bool = False
    recipe: dict[str, Any] = {}
    sources: list[File] = []
    pairs: Size
    vocabulary_size: Size
    source_vocabulary_size: Size | None = None


KINDS: dict[str, type[Manifest]] = {"model": Model, "checkpoint": Checkpoint, "corpus": Corpus}
NEEDED = {
    "model": {"model.safetensors", "recipe.yaml", "tokenizer.model"},
    "checkpoint": {"model.safetensors", "optimizer.safetensors", "state.json"},
    "corpus": {"train.src.ids", "train.src.offsets", "train.tgt.ids", "train.tgt.offsets", "tokenizer.model"},
}


def built(kind: type[T], values: dict[str, Any], where: Path) -> T:
    """Return a dataclass or a model of pydantic from a file's JSON; DataError names the first wrong value."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        place, rule = ".".join(map(str, error["loc"])), re.sub("^Input should be |^Value error, ", "", error["msg"])
        what = f"{place} must be {rule}, not {str(error['input'])[:40]!r}"
        if error["type"] == "missing":
            what = f"{place} is missing"
        raise DataError(f"{where} is damaged: {what}") from None


def check(manifest: dict[str, Any], kind: str, where: Path) -> None:
    """Raise a DataError where an entry that readers use is missing or wrong, or a file that they need is not listed."""
    built(KINDS.get(kind, Manifest), manifest, where)
    if missing := sorted(NEEDED.get(kind, set()) - manifest["files"].keys()):
        raise DataError(f"{where} is damaged: it does not list {missing[0]}")
