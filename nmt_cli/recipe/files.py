"""The files of recipes: those of the package by name, a user's by path."""

import re
from collections.abc import Iterator
from pathlib import Path

from nmt_cli.system.errors import MissingError, meant

# The package brings the recipes along; in a source tree they lie beside it.
HOME = next(place for place in Path(__file__).parents if (place / "recipes").is_dir())


def find(path: Path, beside: Path = Path()) -> Path:
    """Return the file of a recipe; one of the package may be "toy", "table3/base" or "recipes/toy.yaml"."""
    own = (place / name for place in (HOME / "recipes", HOME) for name in (path, f"{path}.yaml"))
    for candidate in (beside / path, path, *own):
        if candidate.is_file():
            return candidate
    name = str(path).removeprefix("recipes/").removesuffix(".yaml")
    question = meant(name, [known for known, _ in listed()])
    advice = "Give the path of a recipe file, or one that `nmt recipes` lists"
    raise MissingError(f"no recipe {path}. {question} {advice}".replace("  ", " "))


def listed() -> Iterator[tuple[str, str]]:
    """Yield the name of each recipe of the package and its first line, which says what it is."""
    for path in sorted((HOME / "recipes").rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
        first_line = path.read_text("utf-8").partition("\n")[0]
        yield path.relative_to(HOME / "recipes").with_suffix("").as_posix(), first_line.removeprefix("# ")


def to_copy(path: Path) -> bytes:
    """Return a recipe of the package as it can stand anywhere, its base found by the package's path; others as is."""
    text = path.read_bytes()
    own = path.resolve().is_relative_to((HOME / "recipes").resolve())
    return re.sub(rb"(?m)^base: (\.\./)?", b"base: recipes/", text) if own else text
