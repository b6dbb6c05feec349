"""Java .properties files: translate the values of message bundles, in UTF-8 or in Latin-1 with escapes (\\u00e9).

Sources: https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader);
https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/text/MessageFormat.html (apostrophes).
"""

import re
from collections.abc import Callable
from functools import partial

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import Found, Message, MessageFile, is_code, text_parts
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Parts, segments_of
from nmt_cli.system.errors import DataError

_LINE = re.compile(  # a comment, or key=value; a line break after a backslash belongs to the value
    r"[ \t\f]*+(?:[#!][^\r\n]*+|(?P<key>(?:[^\\\s:=]|\\.)*+)[ \t\f]*+[:=]?+[ \t\f]*+"
    r"(?P<value>(?:[^\\\r\n]|\\(?:\r\n|[^\r]|\r))*+))(?:\r\n|\r|\n|\Z)",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(?:\r\n|\r|\n)[ \t\f]*+|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r", "\f": r"\f"}
_ARGUMENT = re.compile(r"\{\d{1,3}(?:,[^{}]*+)?+\}")  # an argument, which makes a value a MessageFormat pattern


class _Properties(MessageFile):
    encoding = "utf-8"

    def to_bytes(self) -> bytes:
        return self.write().encode(self.encoding)


def read(data: bytes | str, options: ReadOptions) -> Document:
    text, encoding = (data, "utf-8") if isinstance(data, str) else _decoded(data)
    found, offset = Found(), 0
    is_escaped = text.isascii() or encoding == "latin-1"
    while offset < len(text) and (match := _LINE.match(text, offset)):
        offset = match.end()
        value = match["value"] or ""
        plain = _ESCAPE.sub(_character, value)
        if not value or is_code(plain):
            continue
        cut = _cut_pattern if _ARGUMENT.search(plain) else text_parts
        flags = ("java-format",) if cut is _cut_pattern else ()
        spell = partial(_spelled, value, is_escaped)
        found.messages.append(Message(*match.span("value"), plain, spell, cut, flags))
    document = _Properties(text, found, options)
    document.encoding = encoding
    return document


def _decoded(data: bytes) -> tuple[str, str]:
    if b"\0" in data:
        raise DataError("the input has NUL characters, so it is not a properties file. Check its format")
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _character(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return _LETTERS.get(match[2], match[2]) if match[2] else ""


def _cut_pattern(text: str, protection: Protection | None) -> Parts:
    """Return the parts of a MessageFormat pattern, in which each apostrophe is doubled."""
    parts = text_parts(text.replace("''", "\u2019"), protection)
    for segment in segments_of(parts):
        segment.text = segment.text.replace("\u2019", "'")
        segment.escape = partial(_doubled, segment.escape)
    return parts


def _doubled(escape: Callable[[str], str], text: str) -> str:
    return escape(text.replace("'", "''"))


def _spelled(source: str, is_escaped: bool, text: str) -> str:
    """Escape the translation of a value. If `source` continues on a new line after \\n, do so after each \\n."""
    escaped = _ESCAPED
    if broken := re.search(r"\\n\\(\r?\n[ \t\f]*)", source):
        escaped = {**_ESCAPED, "\n": rf"\n\{broken[1]}"}
    written = "".join(escaped.get(each, each) for each in text)
    if is_escaped:
        written = "".join(each if each.isascii() else _unicode(each) for each in written)
    if written.startswith(" "):
        written = f"\\{written}"
    return written


def _unicode(character: str) -> str:
    encoded = character.encode("utf-16-be")
    return "".join(f"\\u{encoded[i]:02x}{encoded[i + 1]:02x}" for i in range(0, len(encoded), 2))
