"""Recipes for people and programs to read: each setting with its meaning, or the schema of them all."""

import json
from collections.abc import Iterator

from nmt_cli.recipe.schema import Recipe, Section


def explain(section: Section, indent: str = "") -> Iterator[str]:
    """Yield the lines of a recipe in YAML with every setting's value, and its meaning as a comment."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from explain(value, indent + "  ")
        else:
            plain = section.model_dump()[name]  # of lists of sections
            line = _json(plain)  # which is YAML
            yield f"{f'{indent}{name}: {line}':42}  # {field.description}"


def schema(recipe: Recipe) -> str:
    return _json({**Recipe.model_json_schema(), "examples": [recipe.model_dump()]}, indent=1)


def _json(value: object, indent: int | None = None) -> str:
    """Return JSON in which characters are escaped that a terminal would obey."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
