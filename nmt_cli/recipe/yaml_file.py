"""The one reader of YAML: nested mappings and lists, every scalar as text. Text that would take gigabytes is refused.

It reads the parser's events. PyYAML's own constructors recurse, in C without a limit, and expand aliases.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from nmt_cli.system.errors import UsageError

MOST_BYTES, MOST_VALUES = 1 << 20, 20_000  # what can be many in a recipe are files of training text
MOST_DEPTH = 50
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # neither a file's name nor UTF-8 can hold them
_Parser: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Level:
    """A mapping or a list that is not complete yet."""

    def __init__(self, is_mapping: bool) -> None:
        self.is_mapping, self.values, self.names = is_mapping, list[Any](), set[str]()

    def add_name(self, event: Any) -> None:
        """Check a key of a mapping."""
        if not isinstance(event, yaml.ScalarEvent):
            raise _refusal("a key must be text", event)
        if event.value in self.names:
            raise _refusal(f"key {event.value!r} occurs twice", event)
        self.names.add(event.value)

    def whole(self) -> Any:
        return dict(zip(self.values[::2], self.values[1::2], strict=True)) if self.is_mapping else self.values


def _refusal(why: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, why, event.start_mark)


def _parse(data: bytes, most_values: int) -> Any:
    """Return the document of a YAML text, or None where it is empty; yaml.YAMLError for a text that is refused."""
    levels, count = [_Level(False)], 0
    for event in yaml.parse(data, Loader=_Parser):
        if isinstance(event, yaml.DocumentStartEvent) and levels[0].values:
            raise _refusal("it has more than one document", event)
        if isinstance(event, yaml.CollectionEndEvent):
            whole = levels.pop().whole()
            levels[-1].values.append(whole)
        if not isinstance(event, yaml.NodeEvent):
            continue
        count, level = count + 1, levels[-1]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases (*) are not supported; write the value out", event)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _refusal("tags (!) are not supported", event)
        if count > most_values:
            raise _refusal(f"it has more than {most_values:,} values", event)
        if level.is_mapping and len(level.values) % 2 == 0:
            level.add_name(event)
        if not isinstance(event, yaml.ScalarEvent):
            levels.append(_Level(isinstance(event, yaml.MappingStartEvent)))
        elif _NO_TEXT.search(event.value):
            raise _refusal("a character that is no text", event)
        else:
            level.values.append(event.value)
        if len(levels) > MOST_DEPTH:
            raise _refusal(f"it is nested more than {MOST_DEPTH} deep", event)
    return levels[0].values[0] if levels[0].values else None


def mapping(data: bytes, where: object, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """Return a YAML text's mapping; UsageError, which names `where`, for another text."""
    try:
        values = _parse(data, most_values) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        what = " ".join(str(error).replace('in "<byte string>", ', "in ").split())[:300]
        raise UsageError(f"{where} is not valid YAML: {what}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a mapping of keys to values")
    return values


def read_bytes(path: Path) -> bytes:
    """Return a recipe's bytes; UsageError where they are too many: a corpus may have been named by mistake."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} is too large for a recipe")
    return data


def read(path: Path) -> dict[str, Any]:
    """Return the file's mapping; UsageError where it is none."""
    return mapping(read_bytes(path), path)


def dump(values: dict[str, Any]) -> bytes:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
