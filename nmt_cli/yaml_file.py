"""YAML files of nested mappings, every value as text; one that would take gigabytes or is not all text is refused."""

import re
from pathlib import Path
from typing import Any

import yaml

from nmt_cli.errors import UsageError

MOST_BYTES, MOST_VALUES = 1 << 20, 20_000  # what can be many in a recipe are files of training text
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # neither a file's name nor UTF-8 can hold them


def _refusal(why: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, why, mark)


class _Loader(yaml.BaseLoader):
    """Refuses repeated keys and aliases too: a kilobyte of nested ones would become gigabytes."""

    count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark, self.count = self.peek_event().start_mark, self.count + 1  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _refusal("aliases (*) are not supported; write the value out", mark)
        if self.count > MOST_VALUES:
            raise _refusal(f"it has more than {MOST_VALUES:,} values", mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, names = super().compose_mapping_node(anchor), set[str]()
        for key, _ in node.value:
            if str(key.value) in names:
                raise _refusal(f"key {key.value!r} occurs twice", key.start_mark)
            names.add(str(key.value))
        return node

    def construct_scalar(self, node: Any) -> str:
        text = str(super().construct_scalar(node))
        if _NO_TEXT.search(text):
            raise _refusal("a character that is no text", node.start_mark)
        return text


def read(path: Path) -> dict[str, Any]:
    """Return the file's mapping; UsageError where it is none."""
    if path.stat().st_size > MOST_BYTES:  # `nmt prepare FILE` may be pointed at a corpus by mistake
        raise UsageError(f"{path} is too large for a recipe")
    try:
        values = _Loader(path.read_bytes()).get_single_data() or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        what = " ".join(str(error).replace('in "<byte string>", ', "in ").split())[:300]
        raise UsageError(f"{path} is not valid YAML: {what}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} must be a mapping of keys to values")
    return values


def dump(values: dict[str, Any]) -> bytes:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
