"""Format recipes as text: as YAML with the meaning of each setting, or as the JSON schema of all settings."""

import json
from collections.abc import Iterator

from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import Section


def explain(section: Section, indent: str = "") -> Iterator[str]:
    """Yield the lines of a recipe in YAML. Each setting has its value, and a comment with its meaning."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from explain(value, indent + "  ")
        else:
            value = _json(section.model_dump()[name])  # JSON is also valid YAML
            yield f"{f'{indent}{name}: {value}':42}  # {field.description}"


def schema(recipe: Recipe) -> str:
    """Return the JSON schema of recipes, with `recipe` as an example."""
    return _json({**Recipe.model_json_schema(), "examples": [recipe.model_dump()]}, indent=1)


def _json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON. Escape all unprintable characters, because terminals would interpret some of them."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
