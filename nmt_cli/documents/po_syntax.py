"""Read the messages of a gettext catalog (a PO file) with their offsets, and write strings in the same syntax.

The grammar follows the GNU gettext manual, "The Format of PO Files". Where the manual leaves questions open, the
grammar follows the program msgfmt: tokens may share a line, only a line feed ends a comment, and there are no comments
inside a message.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nmt_cli.system.errors import DataError, printable

_WIDTH = 79  # maximum length of the lines to write, in characters
_PO_TOKEN = re.compile(
    r"""(?:\s|\\\n)++
    |(?P<comment>\#[^\n]*+)
    |(?P<string>"(?:[^"\\\n]|\\.)*+")
    |(?P<keyword>msgctxt|msgid_plural|msgid|msgstr|domain)(?:\s*\[\s*(?P<index>[0-9]++)\s*\])?""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_OBSOLETE = re.compile(r'#~\s*(?:msg|")', re.ASCII)  # but not `#~|`, before an entry's former msgid
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]+)|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
_ESCAPED = str.maketrans(
    {code: f"\\{code:03o}" for code in (*range(32), 127)}
    | {character: f"\\{letter}" for letter, character in _LETTERS.items()}
)


Edit: TypeAlias = tuple[int, int, str]  # start, end, and the text to write between these offsets


@dataclass
class Field:
    """A keyword with its strings, or a comment, from offset `start` to `end` in `source`."""

    source: str
    name: str  # "msgid", "msgstr", "msgstr[0]" and so on; "#" for a comment
    start: int
    end: int
    strings: list[tuple[int, int]] = field(default_factory=list)  # the spans between the quotes

    @property
    def text(self) -> str:
        """The strings, joined and unescaped. Raise DataError if their escapes are not UTF-8."""
        raw = [self.source[start:end] for start, end in self.strings]
        if not any("\\" in each for each in raw):
            return "".join(raw)
        try:
            return b"".join(_ESCAPE.sub(_byte, each.encode()) for each in raw).decode()
        except UnicodeDecodeError:
            raise _syntax_error(self.source, self.start, "a string whose escapes are not UTF-8") from None


@dataclass
class Message:
    """A message that is not obsolete."""

    previous_end: int  # the offset where the previous message ends
    start: int
    comments: list[Field]
    context: Field | None
    id: Field
    plural: Field | None = None
    forms: list[Field] = field(default_factory=list)  # msgstr, or msgstr[0] and so on

    @property
    def end(self) -> int:
        return self.forms[-1].end if self.forms else self.id.end

    @property
    def is_header(self) -> bool:
        return not self.context and not self.id.text

    @property
    def flags(self) -> list[str]:
        lines = [comment.source[comment.start : comment.end] for comment in self.comments]
        return [flag for line in lines if line[1:2] in (",", "=") for flag in _flags(line)]

    def flag_edits(self, new_line: str) -> list[Edit]:
        """Return the edits that mark the message fuzzy, or none if it is already marked."""
        source, offset = self.id.source, self.start
        if "fuzzy" in self.flags:
            return []
        for comment in self.comments:
            line = source[comment.start : comment.end].rstrip()
            if line.startswith("#,"):
                end = comment.start + len(line)
                return [(end, end, ", fuzzy" if _flags(line) else " fuzzy")]
            if line.startswith("#|"):
                offset = min(offset, comment.start)
        begin = source.rfind("\n", self.previous_end, offset) + 1
        if (begin or not self.previous_end) and not source[begin:offset].strip():
            return [(begin, begin, f"#, fuzzy{new_line}")]
        return [(offset, offset, f"{new_line}#, fuzzy{new_line}")]

    def unflag_edits(self) -> list[Edit]:
        """Return the edits that remove the fuzzy flag."""
        edits, source = list[Edit](), self.id.source
        for comment in self.comments:
            line = source[comment.start : comment.end]
            if line.startswith("#,") and "fuzzy" in (flags := _flags(line)):
                rest = ", ".join(flag for flag in flags if flag != "fuzzy")
                end = comment.start + len(line.rstrip())
                edits.append((comment.start, end, f"#, {rest}") if rest else (comment.start, comment.end + 1, ""))
        return edits


def read_messages(source: str) -> list[Message]:
    """Return the messages of a catalog. Raise DataError, with the line number, if the text is not a catalog."""
    messages, comments = list[Message](), list[Field]()
    context: Field | None = None
    begun: Message | None = None  # the message to which the next field may belong
    for each in _fields(source):
        complete = context is None and (begun is None or bool(begun.forms))
        if each.name == "msgid":
            fits = context is not None or complete
            previous_end = messages[-1].end if messages else 0
            begun = Message(previous_end, (context or each).start, comments, context, each)
            messages.append(begun)
            context, comments = None, []
        elif each.name in ("#", "domain", "msgctxt"):
            fits, begun = complete, None
            if each.name == "msgctxt":
                context = each
            elif each.name == "domain" or _OBSOLETE.match(source, each.start):
                comments = []
            else:
                comments.append(each)
        else:
            fits = begun is not None and context is None and _add(begun, each)
        if not fits:
            what = "a comment within a message" if each.name == "#" else f"{printable(each.name, 40)} out of place"
            raise _syntax_error(source, each.start, what)
    if context or (begun and not begun.forms):
        raise _syntax_error(source, len(source), "a message without msgstr")
    return messages


def _add(message: Message, each: Field) -> bool:
    """Add a field to a message. Return False if the grammar does not allow the field there."""
    if each.name == "msgid_plural":
        fits = not message.plural and not message.forms
        message.plural = each
        return fits
    message.forms.append(each)
    count = len(message.forms)
    return each.name == f"msgstr[{count - 1}]" if message.plural else each.name == "msgstr" and count == 1


def _fields(source: str) -> Iterator[Field]:
    last: Field | None = None  # the field to which the next string may belong
    end = 0
    while end < len(source):
        token = _PO_TOKEN.match(source, end)
        if not token:
            raise _syntax_error(source, end, f"the unexpected text “{printable(source[end : end + 40])}”")
        start, end = token.span()
        if token["string"] and last is None:
            raise _syntax_error(source, start, "a string without a keyword")
        if token["string"] and last:
            last.strings.append((start + 1, end - 1))
            last.end = end
        elif token["keyword"] or token["comment"]:
            if last:
                yield _checked(last)
            index = f"[{token['index'].lstrip('0') or '0'}]" if token["index"] else ""
            last = Field(source, f"{token['keyword']}{index}", start, end) if token["keyword"] else None
            if token["comment"]:
                yield Field(source, "#", start, end)
    if last:
        yield _checked(last)


def _checked(field: Field) -> Field:
    if not field.strings:
        raise _syntax_error(field.source, field.start, f"{printable(field.name, 40)} without a string")
    return field


def _flags(line: str) -> list[str]:
    return re.findall(r"[^\s,]+", line[2:])


def edited(source: str, edits: Iterable[Edit]) -> str:
    """Return the source with the edits applied. The edits must not overlap."""
    parts, end = list[str](), 0
    for start, stop, text in sorted(edits):
        parts += [source[end:start], text]
        end = stop
    return "".join([*parts, source[end:]])


def _syntax_error(source: str, offset: int, what: str) -> DataError:
    line = source.count("\n", 0, offset) + 1
    return DataError(f"this is not a message catalog: line {line:,} has {what}. Check it with msgfmt -c")


def _byte(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal:
        return bytes([int(hexadecimal[-2:], 16)])
    if letter == b"\n":
        return b""  # the string continues on the next line
    character = _LETTERS.get(letter.decode("latin-1"))
    return character.encode() if character else match[0]


def spelled(keyword: str, text: str, new_line: str) -> str:
    """Return the source of a field. A text of one line stays on one line of the file if it fits.

    Otherwise, begin each line of the text on a new line of the file, and wrap long lines at spaces.
    """
    if "\n" not in text[:-1] and len(line := f'{keyword} "{text.translate(_ESCAPED)}"') <= _WIDTH:
        return line
    rows = [""]
    for part in re.findall(r"[^\n]*\n|[^\n]+", text):
        rows += _wrapped(part.translate(_ESCAPED))
    return f"{keyword} " + new_line.join(f'"{row}"' for row in rows)


def _wrapped(line: str) -> list[str]:
    rows, size = list[list[str]](), 0
    for word in re.findall(r"[^ ]+ *| +", line):
        if not rows or size + len(word.rstrip(" ")) > _WIDTH - 2:
            rows.append([])
            size = 0
        rows[-1].append(word)
        size += len(word)
    return ["".join(row) for row in rows]
