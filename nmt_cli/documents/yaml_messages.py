"""YAML files of messages, such as those of Rails. Translate strings. Keep comments and, if possible, quoting styles.

The only keys that change are a language code at the root and plural categories.
Sources: https://yaml.org/spec/1.1/; https://guides.rubyonrails.org/i18n.html
"""

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import yaml

from nmt_cli.corpus.languages import NAMES, base_of
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import (
    MOST_LEVELS,
    Found,
    Message,
    MessageFile,
    Plural,
    PluralGroup,
    is_code,
    wrong,
)
from nmt_cli.documents.plural_categories import CATEGORIES
from nmt_cli.system.errors import DataError, printable

_KIND = "YAML file of messages"
_STRING = "tag:yaml.org,2002:str"
# A scalar that needs no quotes outside [] and {}. Inside them, it needs quotes if it contains a comma.
_PLAIN = re.compile(r"[^\W\d_](?:[\w ./()%!?;+'-]|,(?= )|:(?=\w))*+(?<! )")
_RESERVED = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|inf|nan")
_LOCALE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8}){0,2}")
_PROPERTIES = re.compile(r"(?:[&!]\S*+\s++)*+")  # an anchor, a tag or both before a scalar
# A list of Ruby symbols in brackets, such as [ :year, :month ], which PyYAML cannot read.
_SYMBOLS = re.compile(r"^[ ]*+[\w-]++:[ ]++\[[ ]*+:\w++(?:[ ]*+,[ ]*+:\w++)*+[ ]*+\]", re.MULTILINE)
_tag_of: Any = yaml.SafeLoader("").resolve  # returns the type of a scalar


@dataclass
class _Node:
    event: Any
    members: list[tuple["_Node | None", "_Node"]] = field(default_factory=list)  # in a list, the key is None
    is_flow: bool = False  # inside [] or {}

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.event, yaml.ScalarEvent)

    @property
    def start(self) -> int:
        return int(self.event.start_mark.index)

    @property
    def end(self) -> int:
        return int(self.event.end_mark.index)


def read(text: str, options: ReadOptions) -> Document:
    roots = _parsed(text)
    found, by_offset = Found(), dict[int, Message]()
    pending = list(roots)
    while pending:
        node = pending.pop()
        for key, value in node.members:
            if value.is_scalar:
                if message := _message(text, value):
                    by_offset[message.start] = message
            elif not (key and key.is_scalar and key.event.value.startswith("@")):
                pending.append(value)
        found.groups += _group(text, node, by_offset)
    found.messages = [by_offset[start] for start in sorted(by_offset)]
    found.edits += _language(roots, options.language)
    return MessageFile(text, found, options)


def _message(source: str, value: _Node) -> Message | None:
    """Return a scalar as a message, or None if it is code or not a string."""
    event, end = value.event, value.end
    properties = _PROPERTIES.match(source, value.start, end)
    start = properties.end() if properties else value.start
    if event.tag not in (None, "!", _STRING) or start >= end or source[start] == ":":
        return None
    if event.style is None and event.tag is None and _tag_of(yaml.ScalarNode, event.value, (True, False)) != _STRING:
        return None
    if is_code(event.value):
        return None
    if event.style in ("|", ">"):
        end = start + len(source[start:end].rstrip())
    return Message(start, end, event.value, partial(_spelled, source[start:end], event.style or "", value.is_flow))


def _group(source: str, node: _Node, messages: dict[int, Message]) -> list[PluralGroup]:
    """If all keys of a mapping are plural categories, as in Rails, return its plural group. Otherwise, return []."""
    items = list[Plural]()
    for key, value in node.members:
        if not (key and key.is_scalar and key.event.value in CATEGORIES and value.start in messages):
            return []
        name = source.find(key.event.value, key.start, key.end)
        message = messages[value.start]
        items.append(Plural(key.event.value, (name, name + len(key.event.value)), key.start, message.end, message))
    if not items:
        return []
    first = node.members[0][0]
    indent = first.event.start_mark.column if first else 0
    return [PluralGroup(items, ", " if node.members[0][1].is_flow else f"\n{' ' * indent}")]


def _language(roots: list[_Node], language: str) -> list[tuple[int, int, str]]:
    """If the only root key is a language code, return the edit that changes it to the target language, or else []."""
    members = roots[0].members if len(roots) == 1 else []
    if not language or len(members) != 1 or not (key := members[0][0]) or members[0][1].is_scalar:
        return []
    code = key.event.value if key.is_scalar else ""
    if not _LOCALE.fullmatch(code) or base_of(code) not in NAMES or key.event.style or key.event.anchor:
        return []
    return [(key.start, key.end, language.replace("-", "_") if "_" in code else language)]


def _parsed(source: str) -> list[_Node]:
    """Return the root of each document in a file. Aliases are not followed.

    Raise DataError if the file is not YAML or is nested more than MOST_LEVELS levels deep, or if no root is a mapping
    or list.
    """
    roots = list[_Node]()
    stack, keys = list[_Node](), list[_Node | None]()  # open collections, and the key whose value comes next in each
    try:
        for event in yaml.parse(_readable(source), Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                keys.pop()
            elif isinstance(event, yaml.NodeEvent):
                top = stack[-1] if stack else None
                node = _Node(event, is_flow=bool(top and (top.is_flow or top.event.flow_style)))
                if top is None:
                    roots.append(node)
                elif isinstance(top.event, yaml.MappingStartEvent) and keys[-1] is None:
                    keys[-1] = node
                else:
                    top.members.append((keys[-1], node))
                    keys[-1] = None
                if isinstance(event, yaml.CollectionStartEvent):
                    stack.append(node)
                    keys.append(None)
                    if len(stack) > MOST_LEVELS:
                        raise wrong(source, node.start, _KIND, f"values nested more than {MOST_LEVELS} levels deep")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = printable(getattr(error, "problem", None) or "a character that YAML does not allow", 100)
        raise wrong(source, getattr(mark, "index", 0), _KIND, f"a syntax error ({problem})") from None
    if not any(not root.is_scalar for root in roots):
        raise DataError("this is not a YAML file of messages: it has neither a mapping nor a list")
    return roots


def _readable(source: str) -> str:
    """Replace each colon before a Ruby symbol by a dot, so that PyYAML can read the text. Offsets do not change."""
    return _SYMBOLS.sub(lambda match: re.sub(r"(?<=[\[, ]):", ".", match[0]), source)


def _spelled(raw: str, style: str, is_flow: bool, text: str) -> str:
    """Return the text as a scalar in the style of the source if possible, or else in double quotes."""
    if style == "'" and "\n" not in text and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    if not style and not (is_flow and "," in text) and _PLAIN.fullmatch(text) and not _RESERVED.fullmatch(text):
        return text
    if style in ("|", ">") and (block := _block(raw, style, text)):
        return block
    is_ascii = style == '"' and raw.isascii() and r"\u" in raw
    return json.dumps(text, ensure_ascii=is_ascii).replace("\x7f", r"\x7f")


def _block(raw: str, style: str, text: str) -> str:
    """Return the text as a literal ("|") or folded (">") scalar, or "" if that style cannot express it."""
    head, _, body = raw.partition("\n")
    first = next((line for line in body.split("\n") if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" "))]
    lines = text.rstrip("\n").split("\n")
    if not indent or re.search(r"\d|#", head) or any(line[:1] in (" ", "\t") for line in lines) or not lines[0]:
        return ""
    if not all(line.isprintable() for line in lines):
        return ""
    new_line = "\r\n" if head.endswith("\r") else "\n"
    between = new_line if style == "|" else new_line * 2
    if style == ">" and "" in lines:
        return ""
    return head.rstrip("\r") + new_line + between.join(f"{indent}{line}" if line else "" for line in lines)
