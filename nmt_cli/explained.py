"""Recipes for people and programs to read: each setting with its meaning, or the schema of them all."""

import json
from collections.abc import Iterator

from nmt_cli.recipe import Recipe, Section


def explain(section: Section, indent: str = "") -> Iterator[str]:
    """Yield the lines of a recipe in YAML with every setting's value, and its meaning as a comment."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from explain(value, indent + "  ")
        else:
            plain = section.model_dump()[name]  # of lists of sections
            line = json.dumps(plain, ensure_ascii=False)  # JSON is YAML
            yield f"{f'{indent}{name}: {line}':42}  # {field.description}"


def schema(recipe: Recipe) -> str:
    return json.dumps({**Recipe.model_json_schema(), "examples": [recipe.model_dump()]}, indent=1, ensure_ascii=False)
