"""Digests of the files that commands write, without the fields for versions, times or measured speeds."""

import hashlib
import json
from pathlib import Path

VOLATILE = {"nmt", "created", "files", "seconds", "tgt_tokens_per_second", "peak_memory_mb"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tensors(file: Path) -> dict[str, str]:
    """Return the type, shape and digest of every tensor in a safetensors file."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        found[name] = f"{entry['dtype']} {entry['shape']} {sha256(data[start + begin : start + end])}"
    return found


def without(value: object, names: set[str]) -> object:
    """Return a JSON value without the fields of these names."""
    if isinstance(value, dict):
        return {name: without(each, names) for name, each in value.items() if name not in names}
    return [without(each, names) for each in value] if isinstance(value, list) else value


def files(folder: Path) -> dict[str, object]:
    """Return the digest of every file below a folder; JSON is returned itself, without its volatile fields."""
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        found[name] = without(json.loads(data), VOLATILE) if path.suffix == ".json" else sha256(data)
    return found


def model(folder: Path) -> dict[str, object]:
    """Return the tensors and tokenizers of a model directory."""
    if not (folder / "model.safetensors").is_file():
        return {"missing": str(folder)}
    found: dict[str, object] = {"tensors": tensors(folder / "model.safetensors")}
    return found | {file.name: sha256(file.read_bytes()) for file in sorted(folder.glob("tokenizer*.model"))}


def metrics(file: Path) -> list[object]:
    """Return the records of a run's metrics without times and speeds."""
    return [without(json.loads(line), VOLATILE) for line in file.read_text("utf-8").splitlines()]
