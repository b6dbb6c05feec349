"""Records from untrusted JSON: every kind of value, the error for the first wrong one, and every kind of manifest."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from nmt_cli.recipe.limits import Range
from nmt_cli.storage import manifests
from nmt_cli.storage.records import build, from_json
from nmt_cli.system.errors import DataError


@dataclass(frozen=True)
class Inner:
    text: str
    flag: bool = False


class Even:
    requirement = "even"

    def allows(self, value: int) -> bool:
        return value % 2 == 0


@dataclass(frozen=True)
class Outer:
    number: int
    real: float = 0.5
    choice: Literal["a", 1] = "a"
    maybe: str | None = "x"
    inner: Inner | None = None
    items: list[Inner] = field(default_factory=list)
    table: dict[Annotated[str, manifests.InsideDirectory()], int] = field(default_factory=dict)
    ruled: Annotated[int, Range(2, 8), Even()] = 2
    anything: Any = None


def test_right_values_and_defaults() -> None:
    """An integer is accepted as a float, null is a value of its own, and unknown keys are ignored."""
    assert build(Outer, {"number": 1, "later": 2}) == Outer(1)
    values = {
        "number": -3, "real": 2, "choice": 1, "maybe": None, "inner": {"text": "t", "flag": True},
        "items": [{"text": "1"}, {"text": ""}], "table": {"a/b": 0}, "ruled": 8, "anything": [{}],
    }  # fmt: skip
    found = build(Outer, values)
    items = [Inner("1"), Inner("")]
    assert found == Outer(-3, 2.0, 1, None, Inner("t", True), items, {"a/b": 0}, 8, [{}])
    assert type(found.real) is float
    assert build(Outer, {"number": 1}).items is not build(Outer, {"number": 1}).items


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": True}, "number must be an integer, not 'True'"),
        ({"number": 1.0}, "number must be an integer, not '1.0'"),
        ({"number": "1"}, "number must be an integer, not '1'"),
        ({"number": None}, "number must be an integer, not 'None'"),
        ({"number": "x" * 50}, f"number must be an integer, not '{'x' * 40}'"),
        ({"real": True}, "real must be a finite number, not 'True'"),
        ({"real": float("inf")}, "real must be a finite number, not 'inf'"),
        ({"real": float("nan")}, "real must be a finite number, not 'nan'"),
        ({"real": 10**400}, f"real must be a finite number, not '1{'0' * 39}'"),
        ({"choice": "b"}, "choice must be 'a' or 1, not 'b'"),
        ({"choice": True}, "choice must be 'a' or 1, not 'True'"),
        ({"choice": 1.0}, "choice must be 'a' or 1, not '1.0'"),
        ({"maybe": 5}, "maybe must be a string, not '5'"),
        ({"inner": {}}, "inner.text is missing"),
        ({"inner": []}, "inner must be an object, not '[]'"),
        ({"inner": {"text": "", "flag": 0}}, "inner.flag must be a boolean, not '0'"),
        ({"items": {}}, "items must be a list, not '{}'"),
        ({"items": [{"text": "a"}, {"text": 7}]}, "items.1.text must be a string, not '7'"),
        ({"table": []}, "table must be an object, not '[]'"),
        ({"table": {"a": 1, "b": "x"}}, "table.b must be an integer, not 'x'"),
        ({"table": {"../a": 1}}, "table must be a name inside the directory, not '../a'"),
        ({"ruled": 9}, "ruled must be from 2 to 8, not '9'"),
        ({"ruled": 5}, "ruled must be even, not '5'"),
    ],
)
def test_the_first_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        from_json(Outer, {"number": 1} | changes, Path("/x.json"))
    assert str(caught.value) == f"/x.json is damaged: {message}"


def test_a_missing_value_and_a_list_instead_of_an_object_are_refused() -> None:
    with pytest.raises(DataError, match=r"^/x is damaged: number is missing$"):
        from_json(Outer, {}, Path("/x"))
    with pytest.raises(ValueError, match=r"^must be an object, not '\[\]'$"):
        build(Outer, [])  # type: ignore[arg-type]


HASH = "0123456789abcdef" * 4
FILE = {"bytes": 0, "sha256": HASH}
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model": ({}, ["model.safetensors", "recipe.yaml", "tokenizer.model"]),
    "checkpoint": ({"step": 1}, ["model.safetensors", "optimizer.safetensors", "state.json"]),
    "corpus": (
        {"name": None, "src": "en", "tgt": "de", "pairs": 1, "vocabulary_size": 1},
        ["tokenizer.model", "train.src.ids", "train.src.offsets", "train.tgt.ids", "train.tgt.offsets"],
    ),
    "export": ({}, []),
}
MORE: dict[str, dict[str, Any]] = {
    "model": {"created": "today", "steps": [0, 5], "corpus": None, "imported": "x", "seen_tokens": 1},
    "checkpoint": {"corpus": "c", "seen_tokens": None},
    "corpus": {"source_vocabulary_size": 1, "generated": True, "recipe": {"a": 1}, "sources": [FILE]},
    "export": {},
}


@pytest.mark.parametrize("kind", [*KINDS])
def test_manifests_list_the_files_and_numbers_that_readers_need(kind: str) -> None:
    values, names = KINDS[kind]
    whole = {**values, "files": dict.fromkeys(names, FILE)}
    path = Path("/m")
    for more in ({}, MORE[kind]):
        manifests.check({**whole, **more}, kind, path)
    for name in names:
        files = {each: FILE for each in names if each != name}
        with pytest.raises(DataError, match=f"^/m is damaged: it does not list {name}$"):
            manifests.check({**whole, "files": files}, kind, path)
    if names:
        with pytest.raises(DataError, match=f"it does not list {min(names)}$"):
            manifests.check({**whole, "files": {}}, kind, path)
    for key in (*values, "files"):
        with pytest.raises(DataError, match=f"{key} is missing"):
            manifests.check({name: value for name, value in whole.items() if name != key}, kind, path)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("model", {"steps": [1, -1]}, "steps.1 must be at least 0, not '-1'"),
        ("model", {"created": 5}, "created must be a string"),
        ("model", {"imported": 5}, "imported must be a string"),
        ("model", {"corpus": 5}, "corpus must be a string"),
        ("model", {"seen_tokens": 0}, "seen_tokens must be at least 1"),
        ("checkpoint", {"step": 0}, "step must be at least 1"),
        ("checkpoint", {"seen_tokens": 0}, "seen_tokens must be at least 1"),
        ("checkpoint", {"corpus": 5}, "corpus must be a string"),
        ("corpus", {"pairs": 0}, "pairs must be at least 1"),
        ("corpus", {"vocabulary_size": 0}, "vocabulary_size must be at least 1"),
        ("corpus", {"source_vocabulary_size": 0}, "source_vocabulary_size must be at least 1"),
        ("corpus", {"name": 5}, "name must be a string"),
        ("corpus", {"src": None}, "src must be a string"),
        ("corpus", {"tgt": None}, "tgt must be a string"),
        ("corpus", {"generated": 1}, "generated must be a boolean"),
        ("corpus", {"recipe": []}, "recipe must be an object"),
        ("corpus", {"sources": [{}]}, "sources.0.bytes is missing"),
        *(
            ("export", {"files": {name: FILE}}, "files must be a name inside the directory")
            for name in ("", "/a", "a/", "a//b", ".", "a/./b", "..", "a/..", "a\n", "\x1b")
        ),
        *(
            ("export", {"files": {"a/b.c": {"bytes": 0, "sha256": text}}}, "a/b.c.sha256 must be 64 hexadecimal digits")
            for text in (HASH[:-1], HASH + "0", HASH.upper(), HASH[:-1] + "g", HASH + "\n", "")
        ),
        ("export", {"files": {"a": {"bytes": -1, "sha256": HASH}}}, "files.a.bytes must be at least 0"),
        ("export", {"files": {"a": {"bytes": 1}}}, "files.a.sha256 is missing"),
        ("export", {"files": []}, "files must be an object"),
    ],
)
def test_wrong_entries_of_manifests_are_named(kind: str, changes: dict[str, Any], message: str) -> None:
    values, names = KINDS[kind]
    with pytest.raises(DataError, match=f"^/m is damaged: .*{message}"):
        manifests.check({**values, "files": dict.fromkeys(names, FILE), **changes}, kind, Path("/m"))
