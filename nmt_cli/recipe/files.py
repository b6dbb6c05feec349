"""Find recipe files: the package's own recipes by name, and the user's recipes by path."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nmt_cli.system.errors import MissingError, meant

# The directory that contains recipes/. In a source tree, recipes/ is beside the package; once installed, it is inside.
HOME = next(directory for directory in Path(__file__).parents if (directory / "recipes").is_dir())


def find(path: Path, beside: Path = Path()) -> Path:
    """Return the path of a recipe file.

    `path` is looked up relative to `beside`, then to the working directory, and then among the package's recipes, which
    may be given as toy, toy.yaml or recipes/toy.yaml. Raise MissingError if there is no such recipe.
    """
    own = (directory / name for directory in (HOME / "recipes", HOME) for name in (path, f"{path}.yaml"))
    for candidate in (beside / path, path, *own):
        if candidate.is_file():
            return candidate
    name = str(path).removeprefix("recipes/").removesuffix(".yaml")
    question = meant(name, [known for known, _ in listed()])
    advice = "Pass the path of a recipe file, or a name that `nmt recipes` lists"
    raise MissingError(f"no recipe {path}. {question} {advice}".replace("  ", " "))


def listed() -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each of the package's recipes. The description is the file's first line."""
    for path in sorted((HOME / "recipes").rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
        first_line = path.read_text("utf-8").partition("\n")[0]
        yield path.relative_to(HOME / "recipes").with_suffix("").as_posix(), first_line.removeprefix("# ")


def text_for_copy(path: Path, directory: Path) -> bytes:
    """Return the text of a recipe, changed so that a copy in `directory` has the same base recipe."""
    text = path.read_bytes()
    if path.resolve().is_relative_to((HOME / "recipes").resolve()):
        return re.sub(rb"(?m)^base: (\.\./)?", b"base: recipes/", text)
    base = re.search(rb"(?m)^base: *([^\s'\"#]+)", text)
    if not base or not (file := path.parent / os.fsdecode(base[1])).is_file():
        return text
    return text[: base.start(1)] + os.fsencode(os.path.relpath(file, directory)) + text[base.end(1) :]
