"""Read YAML into nested dicts and lists. All scalars stay text. Refuse files that could exhaust memory.

The reader consumes the parser's events, because PyYAML's own constructors expand aliases and recurse without a limit.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from nmt_cli.system.errors import UsageError

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000  # a recipe may list many files of training text
MAX_DEPTH = 50  # the document is one level; nested lists and mappings are the other 49
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")  # NUL is not allowed in file names, and surrogates are not valid UTF-8
_Parser: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Level:
    """A mapping or a list that is still being read."""

    def __init__(self, is_mapping: bool) -> None:
        self.is_mapping = is_mapping
        self.values = list[Any]()  # for a mapping, keys and values alternate
        self.keys = set[str]()

    def add_key(self, event: Any) -> None:
        """Check that a key of the mapping is text and is new."""
        if not isinstance(event, yaml.ScalarEvent):
            raise _refusal("a key must be text", event)
        if event.value in self.keys:
            raise _refusal(f"key {event.value!r} occurs twice", event)
        self.keys.add(event.value)

    def complete(self) -> Any:
        return dict(zip(self.values[::2], self.values[1::2], strict=True)) if self.is_mapping else self.values


def _refusal(why: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, why, event.start_mark)


def _parse(data: bytes, max_values: int) -> Any:
    """Parse YAML. Return the document, or None if there is none. Raise yaml.YAMLError if it is invalid or refused."""
    levels, count = [_Level(False)], 0
    for event in yaml.parse(data, Loader=_Parser):
        if isinstance(event, yaml.DocumentStartEvent) and levels[0].values:
            raise _refusal("it has more than one document", event)
        if isinstance(event, yaml.CollectionEndEvent):
            complete = levels.pop().complete()
            levels[-1].values.append(complete)
        if not isinstance(event, yaml.NodeEvent):
            continue
        count, level = count + 1, levels[-1]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases (*) are not supported; write the value out", event)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _refusal("tags (!) are not supported", event)
        if count > max_values:
            raise _refusal(f"it has more than {max_values:,} values", event)
        if level.is_mapping and len(level.values) % 2 == 0:
            level.add_key(event)
        if not isinstance(event, yaml.ScalarEvent):
            levels.append(_Level(isinstance(event, yaml.MappingStartEvent)))
        elif _FORBIDDEN.search(event.value):
            raise _refusal("it has a NUL or surrogate character", event)
        else:
            level.values.append(event.value)
        if len(levels) > MAX_DEPTH:
            raise _refusal(f"it is nested {MAX_DEPTH} or more levels deep", event)
    return levels[0].values[0] if levels[0].values else None


def parse_mapping(data: bytes, where: object, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Parse YAML. Return {} if it is empty. Raise UsageError if it is invalid or is not a mapping.

    `where` names the source of the YAML at the start of the error message.
    """
    try:
        values = _parse(data, max_values) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        what = " ".join(str(error).replace('in "<byte string>", ', "in ").split())[:300]
        raise UsageError(f"{where} is not valid YAML: {what}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a mapping of keys to values")
    return values


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a recipe. Raise UsageError if the file is too large, for example if it is a corpus."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is too large for a recipe")
    return data


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a recipe file, or {} if it is empty. Raise UsageError if it is invalid or too large."""
    return parse_mapping(read_bytes(path), path)


def dump(values: dict[str, Any]) -> bytes:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
