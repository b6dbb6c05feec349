"""Android's string resources: strings.xml with strings, plurals and arrays.

Source: https://developer.android.com/guide/topics/resources/string-resource (escapes, quotes, plurals, markup).
"""

import re
from functools import partial

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.encodings import paired
from nmt_cli.documents.messages import Found, Message, MessageFile, Plural, PluralGroup
from nmt_cli.documents.xml_messages import Element, Escapes, InlineReader, attributes, elements

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(['\"@?\\]))")
_TAG = re.compile(r"<[^<>]*+>")
_QUOTE = re.compile(r'(?<!\\)"')
_LINES = re.compile(r'((?:\\n\s*+)++|(?<!\\)")')  # divides text at line ends, and at quotes, which Android removes
_FLAGS = ("java-printf-format",)
_RESOURCE_REFERENCE = re.compile(r"\s*+[@?](?:[\w.]++:)?+\w++/[\w.]++\s*+")  # such as @string/name


def _unescape(text: str) -> str:
    return paired(_ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], text))


def _escape(spelled: dict[str, str], has_quotes: bool, text: str) -> str:
    """Escape text. `spelled` maps characters to the escapes that the source uses for them, such as \\u00e9.

    If `has_quotes` is true, the source encloses text in quotes, so apostrophes need no escape.
    """
    escapes = {"\\": r"\\", '"': r"\""} if has_quotes else {"\\": r"\\", '"': r"\"", "'": r"\'"}
    escapes |= spelled
    written = "".join(escapes.get(each, each) for each in text)
    return f"\\{written}" if written.startswith(("@", "?")) else written


def _role(name: str, tag: str) -> tuple[str, str]:
    # <xliff:g> marks text that must not be translated.
    return ("copy" if name == "g" and ":" in tag.partition(" ")[0] else "tag"), ""


def _reader(content: str) -> InlineReader:
    spelled = {chr(int(match[1], 16)): match[0] for match in _ESCAPE.finditer(content) if match[1]}
    has_quotes = bool(_QUOTE.search(_TAG.sub("", content)))
    return InlineReader(_role, Escapes(partial(_escape, spelled, has_quotes), _unescape, _LINES))


def read(text: str, options: ReadOptions) -> Document:
    found = Found()
    every = elements(text, "resources", "Android string resource file")
    for element in every:
        if element.name == "string" or (element.name == "item" and element.parent and _is_list(element.parent)):
            if element.has("translatable", "false") or element.is_empty:
                continue
            content = text[element.inner : element.close]
            if not _RESOURCE_REFERENCE.fullmatch(content):
                message = Message(element.inner, element.close, content, cut=_reader(content).cut, flags=_FLAGS)
                found.messages.append(message)
    by_offset = {message.start: message for message in found.messages}
    for element in every:
        if element.name == "plurals":
            items = [item for each in element.children if (item := _plural(each, by_offset))]
            if items:
                start = element.children[0].start
                found.groups.append(PluralGroup(items, text[text.rfind(">", 0, start) + 1 : start]))
    return MessageFile(text, found, options)


def _is_list(element: Element) -> bool:
    return element.name in ("plurals", "string-array", "array")


def _plural(item: Element, messages: dict[int, Message]) -> Plural | None:
    message = messages.get(item.inner)
    for name, value, start, end in attributes(item.tag):
        if name == "quantity" and message:
            return Plural(value, (item.start + start, item.start + end), item.start, item.end, message)
    return None
