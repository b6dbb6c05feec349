"""Translate subtitles. If a sentence runs over several cues, translate it as a whole and divide the translation.

The module for each format cuts a file into cues and the text between them. A cue that the translation does not change
keeps its line breaks. Other cues get new ones, unless their `wraps` is false.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.encodings import Encoding
from nmt_cli.documents.html import Spelling
from nmt_cli.documents.items import Item, inner
from nmt_cli.documents.placement import Aligned, place_marks
from nmt_cli.documents.segment import MarkedSegment, Part, Parts, SegmentBuilder, render
from nmt_cli.documents.subtitle_layout import broken_into_lines, divided

# Limits for joining cues into a sentence.
_LONGEST_PAUSE = 2.0  # seconds from the end of a cue to the start of the next one
_OVERLAP = -0.5  # the shortest pause, in seconds; negative, because cues may overlap
_MOST_CUES = 6  # without a limit, automatic captions, which have no punctuation, would be one sentence
_MOST_CHARACTERS = 500
_STOPS = ".!?\u2026:;\u3002\uff01\uff1f\u266a\u266b"
_CLOSERS = "\"'\u201d\u2019\u00bb)]"
_ELLIPSIS = re.compile(r"(?:\.\.\.|\u2026)\s*\Z")
_CONTINUES = re.compile(r"\s*(?:\.\.\.|\u2026|[^\W\d_])")
_OPENING = r"[^\W\d_]|[<{\"'(\[\u00a1\u00bf\u00ab\u2018-\u201f\u2026\u266a\u266b]|\.\."
# A dash, the >> of American captions or a musical note begins a speech.
_DASH = re.compile(rf"\s*(?:[-\u2010-\u2015\u266a\u266b]{{1,2}}|(?:>|&gt;){{2,3}})(?:\s+(?=\S)|(?={_OPENING}))")
_DASHED = re.compile(r"(?:[-\u2010-\u2015]|>>|&gt;&gt;)\s*\Z")  # at the end of the text before a segment
_EDGE = re.compile(r"[\s\u266a\u266b]*")
_SPACES = re.compile(r"(?:\s|&nbsp;)+")


@dataclass(frozen=True)
class Syntax:
    """How a format writes marks and line breaks in the text of a cue."""

    token: re.Pattern[str]  # matches a mark; its groups: `break` (a line break), `open` and `close` (the name of a tag)
    line_break: str  # the line break to write
    spelling: Callable[[], Spelling] | None = None  # None if the format has no entities


@dataclass
class Cue:
    text: str
    seconds: tuple[float, float] = (0, 0)  # start and end
    speaker: Hashable = None  # a sentence does not continue in the cue of another speaker
    wraps: bool = True  # whether to break the text into lines of limited length
    # The parts of each speech (the words of one speaker), and, as a str, the line break between two speeches.
    speeches: list[str | list[Part]] = field(default_factory=list)


class Subtitles(Document):
    """A file with cues. `pieces` are its cues and the text between them."""

    def __init__(self, pieces: list[str | Cue], syntax: Syntax, options: ReadOptions, encoding: Encoding) -> None:
        self._pieces = pieces
        self._syntax = syntax
        self._options = options
        self._encoding = encoding
        cues = [each for each in pieces if isinstance(each, Cue)]
        for cue in cues:
            cue.speeches = _speeches(cue.text, syntax, options)
        super().__init__([*_sentences(cues, options.line_length)])

    def write(self) -> str:
        return "".join(each if isinstance(each, str) else self._written(each) for each in self._pieces)

    def to_bytes(self) -> bytes:
        return self._encoding.encode(self.write())

    def _written(self, cue: Cue) -> str:
        lines = [each if isinstance(each, str) else self._lines(each, wraps=cue.wraps) for each in cue.speeches]
        written = "".join(lines)
        return cue.text if self._flat(written) == self._flat(cue.text) else written

    def _lines(self, speech: list[Part], *, wraps: bool) -> str:
        marked = render(speech)
        if not wraps:
            return marked
        lines = broken_into_lines(marked, self._syntax.token, self._options.line_length)
        return self._syntax.line_break.join(lines)

    def _flat(self, text: str) -> str:
        """Return text without spaces and line breaks, to compare it with text that has other line breaks."""
        return _SPACES.sub("", self._syntax.token.sub(lambda match: "" if match["break"] else match[0], text))


def _tokens(text: str, syntax: Syntax) -> list[Item]:
    tokens, end = list[Item](), 0
    for match in syntax.token.finditer(text):
        if match.start() > end:
            tokens.append(Item(text[end : match.start()]))
        kind = next((name for name in ("break", "open", "close") if match[name]), "mark")
        tokens.append(Item(match[0], kind, match["open"] or match["close"] or ""))
        end = match.end()
    return [*tokens, Item(text[end:])] if end < len(text) else tokens


def _speeches(text: str, syntax: Syntax, options: ReadOptions) -> list[str | list[Part]]:
    """Return the speeches in a cue and the line breaks between them. If there are several, each begins with a dash."""
    tokens = _tokens(text, syntax)
    breaks = [index for index, token in enumerate(tokens) if token.kind == "break"]
    new = [index for index in breaks if _DASH.match(_line(tokens, index + 1))]
    if new and not _DASH.match(_line(tokens, 0)):
        new = []  # the dashes are part of the text
    speeches, begin = list[str | list[Part]](), 0
    for index in [*new, len(tokens)]:
        speeches.append(_speech(tokens[begin:index], syntax, options))
        speeches += [token.source for token in tokens[index : index + 1]]
        begin = index + 1
    return speeches


def _line(tokens: Sequence[Item], index: int) -> str:
    """Return the text from token `index` up to the next line break, without tags."""
    plain = ""
    while index < len(tokens) and tokens[index].kind != "break":
        plain += tokens[index].source if tokens[index].kind == "text" else ""
        index += 1
    return plain


def _speech(tokens: list[Item], syntax: Syntax, options: ReadOptions) -> list[Part]:
    first, last = inner(tokens)
    before = "".join(token.source for token in tokens[:first])
    after = "".join(token.source for token in tokens[last:])
    body = tokens[first:last]
    if body and body[0].kind == "text":
        # _DASH requires a character after the dash. If a tag follows the text, a letter stands in for the tag.
        match = _DASH.match(f"{body[0].source}a" if len(body) > 1 else body[0].source) or _EDGE.match(body[0].source)
        edge = match.end() if match else 0
        before += body[0].source[:edge]
        body[0] = Item(body[0].source[edge:])
    if body and body[-1].kind == "text":
        source = body[-1].source
        kept = source.rstrip("\u266a\u266b \t")
        after = source[len(kept) :] + after
        body[-1] = Item(kept)
    spelling = syntax.spelling() if syntax.spelling else None
    escape, unescape = (spelling.escape, spelling.unescape) if spelling else (str, str)
    builder = SegmentBuilder(escape, options.protection())
    for token in body:
        if token.kind == "text":
            builder.add_source(token.source, unescape)
        elif token.kind == "break":
            builder.add_text(" ", token.source)
        elif token.kind == "mark":
            builder.add_standalone([token.source], ordered=True, joins=True)
        else:
            builder.add_tag(token.name, [token.source], close=token.kind == "close")
    return [before, *builder.build(), after]


_Found: TypeAlias = tuple[Cue, MarkedSegment]


def _sentences(cues: list[Cue], line_length: int) -> list[MarkedSegment]:
    """Return the segments to translate. A sentence that runs over several cues becomes one segment."""
    sentences = list[list[_Found]]()
    for cue in cues:
        for segment in (part for each in cue.speeches for part in each if isinstance(part, MarkedSegment)):
            if sentences and _continues(sentences[-1], cue, segment):
                sentences[-1].append((cue, segment))
            else:
                sentences.append([(cue, segment)])
    return [own[0][1] if len(own) == 1 else _joined(own, line_length) for own in sentences]


def _continues(sentence: list[_Found], cue: Cue, segment: MarkedSegment) -> bool:
    """Return whether a segment in `cue` continues the sentence of the segments before it."""
    before, last = sentence[-1]
    if cue is before or cue.speaker != before.speaker or len(sentence) >= _MOST_CUES:
        return False
    if not _OVERLAP <= cue.seconds[0] - before.seconds[1] <= _LONGEST_PAUSE:
        return False
    if sum(len(each.text) for _, each in sentence) + len(segment.text) > _MOST_CHARACTERS:
        return False
    # Only tags may be between the two segments. A speech has two strings before its first and after its last segment.
    ending, beginning = before.speeches[-1], cue.speeches[0]
    if isinstance(ending, str) or not any(part is last for part in ending[-3:]) or _ends(str(ending[-1])):
        return False
    if isinstance(beginning, str) or not any(part is segment for part in beginning[:3]):
        return False
    if _DASHED.search(str(beginning[0])) or last.text.isupper() != segment.text.isupper():
        return False
    if _ELLIPSIS.search(last.text):
        return segment.text.lstrip(".\u2026 ")[:1].islower()
    return not _ends(last.text) and bool(_CONTINUES.match(segment.text))


def _ends(text: str) -> bool:
    """Return whether text ends a sentence. A closing bracket counts, because text in brackets describes a sound."""
    text = text.rstrip()
    return text[-1:] in (")", "]") or text.rstrip(_CLOSERS)[-1:] in tuple(_STOPS)


def _joined(own: list[_Found], line_length: int) -> MarkedSegment:
    pieces = [segment for _, segment in own]
    seconds = [cue.seconds[1] - cue.seconds[0] for cue, _ in own]
    text = " ".join(piece.text for piece in pieces)
    parts = Parts(pieces)
    return MarkedSegment(text, [], [], str, None, ("", ""), parts, partial(_divide, pieces, seconds, line_length))


def _divide(pieces: list[MarkedSegment], seconds: list[float], line_length: int, aligned: Aligned) -> None:
    for piece, own in zip(pieces, divided(aligned, [each.text for each in pieces], seconds, line_length), strict=True):
        if own.text:
            piece.result = place_marks(piece, own)
        else:
            piece.result = [part for mark in piece.standalone for part in mark.parts]
