"""Read XML. Cut a document or fragment into tags and text by the rules of XML 1.0, and group them into segments.

References to entities that the document declares are copied, never expanded. No element name has a special meaning. As
in DeepL's API, segments end at elements that a client names, at elements whose parent has no text of its own, and, if
the client asks for it, at line ends.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from nmt_cli.documents import html
from nmt_cli.documents.document import LINE_END, Document, Outline, ReadOptions
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Parts, SegmentBuilder, plain_parts, segments_of

_TOKEN = re.compile(
    r"""(?P<comment><!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z))  # or a processing instruction
    |<!\[CDATA\[(?P<cdata>.*?)(?:\]\]>|\Z)
    |</(?P<end>[^\s<>/]++)\s*+>
    |<(?P<start>[^\s<>/=!?"'&\d.-][^\s<>/="']*+)(?:[^<>"'/]|"[^"<]*+"|'[^'<]*+'|/(?!>))*+(?P<empty>/?)>""",
    re.DOTALL | re.VERBOSE,
)
_QUOTED, _COMMENT = r"\"[^\"]*+\"|'[^']*+'", r"<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)"
_PROLOG = re.compile(rf"(?:\s++|{_COMMENT})*+", re.DOTALL)
_DOCTYPE = re.compile(rf"<!DOCTYPE\b(?:[^\[>\"']|{_QUOTED}|\[(?:[^\]\"'<]|{_QUOTED}|{_COMMENT}|<)*+\])*+>", re.DOTALL)
# A reference, or a special character
_REFERENCE = re.compile(
    r"&(?:#(?P<decimal>[0-9]{1,7})|#x(?P<hex>[0-9a-fA-F]{1,6})|(?P<name>amp|lt|gt|quot|apos));|[&>\"']"
)
_DECLARED = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)[^\s&;<>#]++;")  # a reference to a declared entity
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_QUOTES = {'"': "&quot;", "'": "&apos;"}
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*+>")
NOT_TRANSLATED = re.compile(r"\s(?:its:)?translate\s*=\s*[\"']no[\"']")
_ROOT = -1  # the parent of the outermost tokens; any other parent is the index of a start tag


class Spelling:
    """Writes characters as they first occur in the segment's source, plain or as entities. Escapes others if needed."""

    def __init__(self, quote: str = "") -> None:
        """`quote` is the quotation mark that ends the text, if the text is the value of an attribute."""
        self._escaped = _ESCAPED | {mark: entity for mark, entity in _QUOTES.items() if mark == quote}
        self._seen = dict[str, str]()

    def unescape(self, source: str) -> str:
        for match in _REFERENCE.finditer(source):
            self._seen.setdefault(_character(match), match[0])
        return _REFERENCE.sub(_character, source)

    def escape(self, text: str) -> str:
        text = INVALID.sub("", text)
        written = "".join(self._seen.get(each) or self._escaped.get(each, each) for each in text).replace(
            "]]>", "]]&gt;"
        )
        if _REFERENCE.sub(_character, written) != text:
            written = "".join(self._escaped.get(each, each) for each in text)
        return written


def _character(match: re.Match[str]) -> str:
    """Return the character that a reference stands for. Return any other match, or an invalid reference, as it is."""
    if match["name"]:
        return _NAMED[match["name"]]
    if not (match["decimal"] or match["hex"]):
        return match[0]
    number = int(match["decimal"] or match["hex"], 10 if match["decimal"] else 16)
    character = chr(number) if number < 0x110000 else "\0"
    return match[0] if INVALID.match(character) else character


class Token(NamedTuple):
    kind: str  # "text", "line end", "start", "end", "empty", "comment", "cdata" or "head" (a declaration)
    source: str
    name: str = ""  # the name of a tag
    text: str = ""  # the text of a CDATA section


def read(text: str, options: ReadOptions) -> Document:
    return Document(parse(text, options.protection(), options.ignored, options.outline))


def parse(
    text: str, protection: Protection | None = None, ignored: Collection[str] = (), outline: Outline | None = None
) -> Parts:
    """Cut XML into segments and strings to copy. Elements that are in `ignored` or have translate="no" are copied."""
    outline = outline or Outline()
    tokens = tokens_of(text)
    if outline.lines:
        tokens = list(_with_line_ends(tokens))
    ignored = frozenset(ignored)
    ends, parents = tree_of(tokens)
    copied = {
        start: end + 1
        for start, end in ends.items()
        if tokens[start].name in ignored or NOT_TRANSLATED.search(tokens[start].source)
    }
    blocks = _blocks(tokens, ends, parents, copied, outline)
    parts, builder, spelling, index = Parts(), SegmentBuilder(protection=protection), Spelling(), 0
    while index < len(tokens):
        token, stop = tokens[index], copied.get(index, index + 1)
        source = "".join(each.source for each in tokens[index:stop])
        if index == 0 or index in blocks:
            parts += builder.build()
            spelling = Spelling()
            builder = SegmentBuilder(spelling.escape, protection)
        if index in blocks:
            parts += cdata_parts(token, protection) if token.kind == "cdata" else [source]
        elif token.kind == "text":
            add_text(builder, token.source, spelling.unescape)
        elif token.kind in ("start", "end") and index not in copied:
            builder.add_tag(token.name, [source], close=token.kind == "end", once=True)
        else:
            builder.add_standalone([source], joins=token.kind == "comment")
        index = stop
    return parts + builder.build()


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a document. A document type declaration is one token."""
    prolog = _PROLOG.match(text)
    begin = prolog.end() if prolog else 0
    doctype = _DOCTYPE.match(text, begin)
    if not doctype:
        return _cut(text)
    return [*_cut(text[:begin]), Token("head", doctype[0]), *_cut(text[doctype.end() :])]


def _cut(text: str) -> list[Token]:
    tokens, end = list[Token](), 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            tokens.append(Token("text", text[end : match.start()]))
        end = match.end()
        if match["cdata"] is not None:
            tokens.append(Token("cdata", match[0], text=match["cdata"]))
        elif match["comment"]:
            tokens.append(Token("head" if match[0].startswith("<?xml ") else "comment", match[0]))
        else:
            kind = "empty" if match["empty"] else "start"
            if match["end"]:
                kind = "end"
            tokens.append(Token(kind, match[0], match["end"] or match["start"]))
    return [*tokens, Token("text", text[end:])] if end < len(text) else tokens


def _with_line_ends(tokens: list[Token]) -> Iterator[Token]:
    """Yield the tokens, and each line end in text as a token of its own."""
    for token in tokens:
        if token.kind != "text":
            yield token
            continue
        for number, part in enumerate(LINE_END.split(token.source)):
            if part:
                yield Token("line end" if number % 2 else "text", part)


def tree_of(tokens: list[Token]) -> tuple[dict[int, int], list[int]]:
    """Map start tags to their end tags, if any, and list the innermost start tag around each token, or _ROOT.

    Tags are given as indices of tokens.
    """
    ends, parents = dict[int, int](), list[int]()
    stack, names = [_ROOT], Counter[str]()
    for index, token in enumerate(tokens):
        if token.kind == "end" and names[token.name]:
            while tokens[stack[-1]].name != token.name:
                names[tokens[stack.pop()].name] -= 1
            names[token.name] -= 1
            ends[stack.pop()] = index
        parents.append(stack[-1])
        if token.kind == "start":
            stack.append(index)
            names[token.name] += 1
    return ends, parents


def _blocks(
    tokens: list[Token], ends: dict[int, int], parents: list[int], copied: dict[int, int], outline: Outline
) -> set[int]:
    """Return _ROOT and the indices of the tokens that end a segment."""
    with_text = {
        parent
        for token, parent in zip(tokens, parents, strict=True)
        if token.kind in ("text", "cdata") and not (token.text or token.source).isspace() and token.source
    }
    roots = sum(parent == _ROOT for index, parent in enumerate(parents) if index in ends)
    blocks, stop, copied_stop = {_ROOT}, 0, 0
    splitting, joining = frozenset(outline.splitting), frozenset(outline.joining)
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        copied_stop = max(copied_stop, copied.get(index, 0))
        is_block = token.kind in ("head", "cdata") or token.name in splitting
        is_block = is_block or (token.kind == "line end" and index >= copied_stop)
        if token.kind == "start" and index in ends and not is_block:
            is_only_root = parent == _ROOT and roots == 1  # a block, so that all text stays inside it
            detected = outline.detect and token.name not in joining
            is_block = parent in blocks and parent not in with_text and (is_only_root or detected)
        if index < stop or not is_block:
            continue
        blocks |= {index, ends.get(index, index)}
        stop = copied.get(index, 0)
        while parent not in blocks:  # a segment must not begin inside an element and end outside it
            blocks |= {parent, ends.get(parent, parent)}
            parent = parents[parent]
    return blocks


def add_text(builder: SegmentBuilder, source: str, unescape: Callable[[str], str]) -> None:
    """Add escaped text. References to entities that the document declares become marks."""
    end = 0
    for match in _DECLARED.finditer(source):
        builder.add_source(source[end : match.start()], unescape)
        builder.add_standalone([match[0]], joins=True)
        end = match.end()
    builder.add_source(source[end:], unescape)


def cdata_parts(token: Token, protection: Protection | None) -> Parts:
    """Cut a CDATA section into parts. If it contains tags, read it as HTML."""
    is_html = _TAG.search(token.text)
    inner = html.parse(token.text, protection) if is_html else plain_parts(token.text, protection)
    for segment in segments_of(inner):
        segment.escape = partial(_escape_in_cdata, segment.escape)
    begin = len("<![CDATA[")
    return [token.source[:begin], *inner, token.source[begin + len(token.text) :]]


def _escape_in_cdata(escape: Callable[[str], str], text: str) -> str:
    return INVALID.sub("", escape(text)).replace("]]>", "]]]]><![CDATA[>")
