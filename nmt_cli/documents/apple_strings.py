"""Apple's .strings files: `"key" = "value";` in UTF-8 or UTF-16.

Source: https://developer.apple.com/library/archive/documentation/Cocoa/Conceptual/LoadingResources/Strings/Strings.html.
"""

import re
from functools import partial

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.encodings import Encoding, decoded
from nmt_cli.documents.messages import Found, Message, MessageFile, wrong

# White space and comments, or one entry: "key" = "value"; or key = word; or "key";
_PAIR = re.compile(
    r"""(?P<space>(?:\s++|/\*(?:(?!\*/).)*+\*/|//[^\n]*+)++)
    |(?P<key>"(?:[^"\\]|\\.)*+"|[\w.$/:-]++)(?:\s++|/\*(?:(?!\*/).)*+\*/)*+
    (?:=(?:\s++|/\*(?:(?!\*/).)*+\*/)*+(?:"(?P<value>(?:[^"\\]|\\.)*+)"|(?P<word>[\w.$/:-]++))\s*+)?+;""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:[Uu]([0-9A-Fa-f]{4})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}
_WRITTEN = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r"}
_FLAGS = ("objc-format",)


class _StringsFile(MessageFile):
    encoding = Encoding("utf-8")

    def to_bytes(self) -> bytes:
        return self.encoding.encode(self.write())


def read(data: bytes | str, options: ReadOptions) -> Document:
    text, encoding = (data, Encoding("utf-8")) if isinstance(data, str) else decoded(data, options.source_language)
    found, offset = Found(), 0
    while offset < len(text):
        match = _PAIR.match(text, offset)
        if not match:
            raise wrong(text, offset, "Apple .strings file", 'no "key" = "value";')
        offset = match.end()
        if match["word"]:
            spell = partial(_quoted, match["word"])
            found.messages.append(Message(*match.span("word"), match["word"], spell, flags=_FLAGS))
        if match["value"]:
            start, end = match.span("value")
            value = match["value"]
            message = Message(start, end, _ESCAPE.sub(_character, value), partial(_spelled, value), flags=_FLAGS)
            found.messages.append(message)
    document = _StringsFile(text, found, options)
    document.encoding = encoding
    return document


def _character(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return chr(int(match[2], 8)) if match[2] else _LETTERS.get(match[3], match[3])


def _quoted(source: str, text: str) -> str:
    return f'"{_spelled(source, text)}"'


def _spelled(source: str, text: str) -> str:
    """Escape a text as its source is escaped. Leave line breaks unescaped if the source contains unescaped ones."""
    written = {**_WRITTEN, "\n": "\n"} if "\n" in source else dict(_WRITTEN)
    written |= {_character(match): match[0] for match in _ESCAPE.finditer(source) if match[1]}
    return "".join(written.get(each, each) for each in text)
