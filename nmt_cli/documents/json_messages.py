"""JSON message catalogs: i18next, Flutter's ARB, Chrome extensions, FormatJS etc. Only string values are translated.

Sources: https://www.rfc-editor.org/rfc/rfc8259; plurals: https://www.i18next.com/misc/json-format;
https://github.com/google/app-resource-bundle/wiki/ApplicationResourceBundleSpecification;
https://developer.chrome.com/docs/extensions/reference/api/i18n; https://formatjs.github.io/docs/getting-started/message-extraction.
"""

import json
import re
from dataclasses import dataclass, field
from functools import partial

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

_JSON_TOKEN = re.compile(
    r'[ \t\r\n]*+(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+")'
    r"|(?P<literal>-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+|true|false|null)|(?P<mark>[\[\]{},:]))"
)
_SPACE = re.compile(r"[ \t\r\n]*+")
_PLURAL = re.compile(rf"(?P<base>.*?)(?P<ordinal>_ordinal)?_(?P<category>{'|'.join(CATEGORIES)})", re.DOTALL)
# An object that has a key in `_TEXTS` is a message. Its members whose keys are in `_NOTES` are not translated.
_TEXTS = {"message", "defaultMessage", "string"}
_NOTES = {"description", "context", "comment", "developer_comment", "placeholders", "examples", "example", "meaning"}


@dataclass
class _Value:
    """A value of JSON, from offset `start` to `end`."""

    start: int
    end: int = 0
    kind: str = ""  # "{", "[", "string" or "literal"
    members: list[tuple[int, str, "_Value"]] = field(default_factory=list)  # offset, key ("" in a list), value


def read(text: str, options: ReadOptions) -> Document:
    return MessageFile(text, _found(text, options, is_arb=False), options)


def read_arb(text: str, options: ReadOptions) -> Document:
    return MessageFile(text, _found(text, options, is_arb=True), options)


def _found(source: str, options: ReadOptions, *, is_arb: bool) -> Found:
    root = _parsed(source)
    found, by_offset = Found(), dict[int, Message]()
    is_ascii = source.isascii() and r"\u" in source
    pending = [root]
    while pending:
        value = pending.pop()
        keys = {key for _, key, _ in value.members}
        for _, key, inner in value.members:
            is_note = (key in _NOTES and keys & _TEXTS) or (key.startswith("@") and is_arb)
            if inner.kind != "string":
                if not is_note:
                    pending.append(inner)
                continue
            text = json.loads(source[inner.start : inner.end])
            if is_arb and key == "@@locale" and options.language and value is root:
                written = options.language.replace("-", "_" if "_" in text or "-" not in text else "-")
                found.edits.append((inner.start, inner.end, f'"{written}"'))
            elif not is_note and not is_code(text):
                flags = ("icu-message-format",) if is_arb else ()
                spell = partial(_spelled, source[inner.start : inner.end], is_ascii)
                by_offset[inner.start] = Message(inner.start, inner.end, text, spell, flags=flags)
        if value.kind == "{":
            found.groups += _groups(source, value, by_offset)
    found.messages = [by_offset[start] for start in sorted(by_offset)]
    return found


def _groups(source: str, value: _Value, messages: dict[int, Message]) -> list[PluralGroup]:
    """Return the plurals in an object: members with keys such as `item_one` and `item_other`, or `one` and `other`."""
    groups = dict[tuple[str, str], PluralGroup]()
    for start, key, inner in value.members:
        named = _PLURAL.fullmatch(f"_{key}" if key in CATEGORIES else key)
        # Skip keys with escapes. In the file, such a key is longer than `key`, so the category's offset would be wrong.
        if named and inner.start in messages and source.startswith(f'"{key}"', start):
            base = (named["base"], named["ordinal"] or "")
            indent = _SPACE.match(source, value.start + 1)
            group = groups.setdefault(base, PluralGroup([], "," + (indent[0] if indent else ""), bool(base[1])))
            begin = start + 1 + len(key) - len(named["category"])
            name_span = (begin, begin + len(named["category"]))
            group.items.append(Plural(named["category"], name_span, start, inner.end, messages[inner.start]))
    return list(groups.values())


def _parsed(source: str) -> _Value:
    """Parse JSON. Return the top-level object or list. Raise DataError if the source is invalid."""
    root = _Value(0)
    stack, offset = [root], 0
    key: tuple[int, str] | None = None  # the offset and text of the last key
    expected = "value"  # or "first value", "key", "first key", "colon", "comma"
    while match := _JSON_TOKEN.match(source, offset):
        kind = match.lastgroup or ""
        start, offset, mark = match.start(kind), match.end(), match["mark"] or ""
        top = stack[-1]
        if kind == "string" and "key" in expected:
            key, expected = (start, json.loads(match[kind])), "colon"
        elif mark == ":" and expected == "colon":
            expected = "value"
        elif mark == "," and expected == "comma" and len(stack) > 1:
            expected = "key" if top.kind == "{" else "value"
        elif (mark == "}" and top.kind == "{" and expected in ("first key", "comma")) or (
            mark == "]" and top.kind == "[" and expected in ("first value", "comma")
        ):
            stack.pop().end = offset
            expected = "comma"
        elif "value" in expected and (kind != "mark" or mark in "[{"):
            if len(stack) == 1 and root.members:
                break
            value = _Value(start, offset, mark or kind)
            top.members.append((*(key or (start, "")), value))
            key, expected = None, "comma"
            if mark:
                stack.append(value)
                expected = "first key" if mark == "{" else "first value"
            if len(stack) - 1 > MOST_LEVELS:
                raise wrong(source, start, "JSON message catalog", f"values nested more than {MOST_LEVELS} levels deep")
        else:
            offset = start
            break
    space = _SPACE.match(source, offset)
    end = space.end() if space else offset
    if end < len(source) or len(stack) > 1 or not root.members or root.members[0][2].kind not in "[{":
        raise wrong(source, end, "JSON message catalog", "a syntax error")
    return root.members[0][2]


def _spelled(source: str, is_ascii: bool, text: str) -> str:
    """Return a JSON string that escapes slashes as the source does."""
    written = json.dumps(text, ensure_ascii=is_ascii)
    return written.replace("/", r"\/") if r"\/" in source else written
