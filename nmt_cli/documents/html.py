"""Read HTML. Split a document into tags and text, and group them into segments.

This module builds no tree, because writing a tree back would change quotes, entities, the case of names, and broken
markup. It splits the document into tokens by the rules of the HTML standard (section 13.2.5), and copies all tokens
that are not text.
"""

import bisect
import re
from collections import deque
from collections.abc import Collection, Iterator
from html import escape, unescape
from typing import NamedTuple

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import MarkedSegment, Parts, SegmentBuilder, plain_parts

_VALUE = r"\"[^\"]*+\"|'[^']*+'|[^\s\"'>][^\s>]*+"
_ATTRIBUTE = rf"[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:{_VALUE}|(?=>))|(?!\s*=))"
TOKEN = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))                                      # a comment
    |<(?P<ends>/?)(?P<number>\d{{1,4}})\s*+>                                # a tag of i18next or Lingui
    |<[!?][^>]*(?:>|\Z)|</(?:>|(?![a-zA-Z])[^>]+(?:>|\Z))                 # a declaration, or a broken comment
    |<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?:[\s/]++|{_ATTRIBUTE})*+>  # a tag
    |(?P<open></?[a-zA-Z].*)                                             # a tag that is cut off at the end""",
    re.DOTALL | re.VERBOSE,
)
_END_NAME = re.compile(r"</([a-zA-Z][^\s/>]*+|\d{1,4}+)")
_START_NUMBER = re.compile(r"<(\d{1,4})\s*+>")
# A reference, with or without its semicolon, or a character that may need escaping
_ENTITY = re.compile(r"&(?:\#[0-9]+|\#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);?|[&<>\"']")
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_NAMED_VALUE = re.compile(rf"(?P<name>[^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?P<value>{_VALUE}))?+")
RAW = {"script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title", "plaintext"}  # no tags inside
# Elements that are copied with their content, without translation
COPIED = {"code", "kbd", "samp", "var", "pre", "textarea", "svg", "math", "object"} | RAW - {"title"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
# Elements that end a segment, because their text is separate from the text around them.
_BLOCK_NAMES = """
address article aside blockquote body br button caption center col colgroup datalist dd details dialog dir div dl dt
fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link
listing main menu meta nav noembed noframes noscript ol optgroup option p plaintext pre search section select slot
source style summary table tbody td template tfoot th thead title tr track ul video audio xmp
"""
BLOCKS = set(_BLOCK_NAMES.split())
TRANSLATED = {"alt", "title", "placeholder", "aria-label"}  # attributes with text
_UNTRANSLATED = {"notranslate", "skiptranslate"}  # classes of elements that must not be translated
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*")
# Maximum sizes of a footnote mark, exponent or subscript.
_NOTE_TOKENS = 5
_NOTE_CHARACTERS = 12
_NOTE_LETTERS = 3  # maximum characters if any of them is a letter
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Spelling:
    """Writes each character as it first appears in the segment's source, plain or as an entity.

    Escapes special characters that do not appear in the source.
    """

    def __init__(self, quote: str = "") -> None:
        """`quote` is the quotation mark around the text, if any."""
        self._seen = {quote: escape(quote)} if quote else {}

    def unescape(self, source: str) -> str:
        for match in _ENTITY.finditer(source):
            text = _unescaped(match[0])
            if len(text) == 1 and match[0] != "<":
                self._seen.setdefault(text, match[0])
        return _unescaped(source)

    def escape(self, text: str) -> str:
        written = "".join(self._seen.get(each) or _ESCAPED.get(each, each) for each in text)
        return written if _unescaped(written) == text else escape(text)


def _unescaped(source: str) -> str:
    """Decode character references. Control characters, which `html.unescape` drops, become U+FFFD."""
    return unescape(_ENTITY.sub(lambda match: match[0] if unescape(match[0]) else "\ufffd", source))


class _Token(NamedTuple):
    kind: str  # "text", "start", "end", "raw" (content of an element in RAW), "unclosed" (a cut-off tag) or "other"
    source: str
    name: str = ""  # the name of a tag, or ""


def _tokens(text: str, protection: Protection | None = None, *, xml: bool = False) -> Iterator[_Token]:
    """Yield the tokens of a text. If `xml` is true, `<title/>` is a whole element, not a start tag.

    Tags inside placeholders are text. So is a start tag such as `<1>` without an end tag.
    """
    closed = {match[1].lower() for match in _END_NAME.finditer(text)}
    numbers = set(_START_NUMBER.findall(text)) & closed
    protected = deque(_placeholders_with_tags(text, closed, protection) if protection else ())
    begin = offset = 0
    while match := TOKEN.search(text, offset):
        offset = match.end()
        while protected and (protected[0][1] <= match.start() or protected[0][0] < begin):
            protected.popleft()
        if protected and protected[0][0] < match.start():
            offset = protected[0][1]
            continue
        number = match["number"] if match["number"] in numbers else None
        if match["number"] and not number and not match["ends"]:
            continue
        if match.start() > begin:
            yield _Token("text", text[begin : match.start()])
        begin, name = offset, (match["name"] or number or "").lower()
        kind = "unclosed" if match["open"] or not match[0].endswith(">") else "other"
        if name:
            kind = "end" if match["end"] or match["ends"] else "start"
        if xml and kind == "start" and match[0].endswith("/>") and name not in VOID:
            kind = "other"
        yield _Token(kind, match[0], name)
        if kind == "start" and name in RAW:
            end_tag = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
            end = None if name == "plaintext" else end_tag.search(text, offset)
            stop = end.start() if end else len(text)
            if stop > offset:
                yield _Token("text" if name == "title" else "raw", text[offset:stop])
            begin = offset = stop
    if begin < len(text):
        yield _Token("text", text[begin:])


def _placeholders_with_tags(text: str, closed: Collection[str], protection: Protection) -> Iterator[tuple[int, int]]:
    """Yield the spans of placeholders that contain a "<", such as "%<count>d". In "5%<b>c</b>", "<b>" is a tag."""
    for start, stop in protection.spans(text):
        bracket = text.find("<", start, stop)
        if bracket > start:
            name = text[bracket + 1 : text.find(">", bracket, stop)].lower()
            if not (text[start] == "%" and (name in closed or name in VOID | BLOCKS)):
                yield start, stop


def has_tags(text: str, protection: Protection | None) -> bool:
    """Return whether a text contains a comment, or a tag whose name begins with a letter."""
    tokens = _tokens(text, protection)
    return any(token.name[:1].isalpha() or token.source.startswith("<!--") for token in tokens if token.kind != "text")


def is_html(text: str, protection: Protection | None) -> bool:
    """Return whether a message is HTML: it has tags or comments, or it has references such as &nbsp; but no < or >."""
    references = _REFERENCE.findall(text) if "<" not in text and ">" not in text else []
    return any(unescape(each) != each for each in references) or has_tags(text, protection)


def read(text: str, options: ReadOptions) -> Document:
    return Document(parse(text, options.protection(), options.ignored, options.language))


def parse(
    text: str,
    protection: Protection | None = None,
    ignored: Collection[str] = (),
    language: str = "",
    *,
    xml: bool = False,
) -> Parts:
    """Cut a document or fragment into segments and strings to copy. The content of elements in `ignored` is copied.

    The `lang` attribute of `<html>`, if any, is set to `language` unless that is "". If `xml` is true, the text is
    XHTML.
    """
    tokens = list(_tokens(text, protection, xml=xml))
    ends, divided = _copied_spans(tokens, COPIED | {name.lower() for name in ignored})
    parts, index = Parts(), 0
    spelling, builder = _new_segment(protection)
    while index < len(tokens):
        token, stop = tokens[index], ends.get(index, index + 1)
        # A copied element without an end tag extends to the end of its block or of the text. Its start tag ends the
        # segment, because other text would become part of the element if the tag moved.
        is_block = token.name in BLOCKS or token.kind == "unclosed" or index in divided
        if is_block:
            parts += builder.build()
            spelling, builder = _new_segment(protection)
        copied = "".join(each.source for each in tokens[index:stop]) if index in ends else ""
        if is_block and copied:
            parts.append(copied)
        elif copied:
            builder.add_standalone([copied])
        elif is_block:
            parts += _tag(_in_language(token, language) if token.name == "html" else token, protection)
        elif token.kind == "text":
            builder.add_source(token.source, spelling.unescape)
        else:
            _add_tag(builder, token, protection)
        index = stop
    return parts + builder.build()


def _new_segment(protection: Protection | None) -> tuple[Spelling, SegmentBuilder]:
    spelling = Spelling()
    return spelling, SegmentBuilder(spelling.escape, protection)


def add_tags(builder: SegmentBuilder, source: str, protection: Protection | None) -> None:
    """Add the tags and comments in `source` to a segment. `source` contains no text."""
    for token in _tokens(source):
        _add_tag(builder, token, protection)


def opening_name(source: str) -> str:
    """Return the name of an opening tag, or "" for anything else."""
    token = next(_tokens(source))
    return token.name if token.kind == "start" else ""


def _add_tag(builder: SegmentBuilder, token: _Token, protection: Protection | None) -> None:
    if token.kind == "end" or (token.kind == "start" and token.name not in VOID):
        once = token.name.isdigit() or any(match["name"].lower() == "id" for match in _attributes(token))
        builder.add_tag(token.name, _tag(token, protection), close=token.kind == "end", once=once)
    else:
        joins = token.kind == "other" or token.name == "wbr"
        builder.add_standalone(_tag(token, protection), joins=joins)


def _copied_spans(tokens: list[_Token], names: set[str]) -> tuple[dict[int, int], set[int]]:
    """Map the index of the first token in each copied span to the index after the last.

    Also return the indices at which a segment must end: the start tags of copied elements that are never closed, and
    the start and end of translated elements inside copied elements.
    """
    ends, open_tags, begins, translated = dict[int, int](), dict[str, list[int]](), list[int](), set[int]()
    for index, token in enumerate(tokens):
        if token.kind == "start" and token.name not in VOID:
            open_tags.setdefault(token.name, []).append(index)
        elif token.kind == "end" and open_tags.get(token.name):
            ends[open_tags[token.name].pop()] = index + 1
        translate = _translate_attribute(token) if token.kind == "start" else None
        if token.kind == "raw" or (token.kind == "start" and token.name in names) or translate is False:
            begins.append(index)
        elif translate:
            translated.add(index)
    copied = dict[int, int]()
    for index in begins:
        if index in ends:
            copied[index] = ends[index]
        elif tokens[index].kind == "raw" or tokens[index].name in VOID:
            copied[index] = index + 1
    blocks, end = list[int](), 0
    for index, token in enumerate(tokens):
        if index >= end and token.name in BLOCKS:
            blocks.append(index)  # blocks inside copied elements, such as the title in an SVG image, do not count
        end = max(end, copied.get(index, 0))
    # In HTML, some end tags, such as </p>, are optional. An element without its end tag ends at the next block.
    unclosed = {index for index in begins if index not in copied and tokens[index].name not in names}
    for index in unclosed:
        after = bisect.bisect(blocks, index)
        copied[index] = blocks[after] if after < len(blocks) else len(tokens)
    notes = {index: end for index, end in ends.items() if _is_note_element(tokens, index, end)}
    translated = {index for index in translated if index in ends}
    if not translated:
        return notes | copied, unclosed
    return _without_translated(translated, ends, notes | copied, tokens, names)


def _without_translated(
    translated: set[int], ends: dict[int, int], copied: dict[int, int], tokens: list[_Token], names: set[str]
) -> tuple[dict[int, int], set[int]]:
    """Cut the `translated` elements out of the copied spans. Return the remaining spans.

    Also return the indices at which a segment must end.
    """
    pieces, divided = dict[int, int](), set[int]()
    # A stack of regions: the end, whether the region is translated, and whether an element inside may change that.
    regions = [(len(tokens), True, True)]
    begin = 0
    for index in range(len(tokens) + 1):
        while index >= regions[-1][0] and len(regions) > 1:
            if not regions.pop()[1] and begin < index:
                pieces[begin] = index
            begin = index
        stop, is_translated, may_differ = regions[-1]
        if index in copied and is_translated:
            begin = index
            regions.append((min(copied[index], stop), False, tokens[index].name not in names))
        elif index in translated and not is_translated and may_differ:
            if begin < index:
                pieces[begin] = index
            divided |= {begin, index, ends[index]}
            regions.append((min(ends[index], stop), True, True))
    return pieces, divided


def _translate_attribute(token: _Token) -> bool | None:
    """Return True if a tag demands translation of its content, False if it forbids it, or else None."""
    if "transl" not in token.source.lower():
        return None
    values = {match["name"].lower(): (match["value"] or "").strip("\"'").lower() for match in _attributes(token)}
    if values.get("translate") == "no" or _UNTRANSLATED & set(values.get("class", "").split()):
        return False
    return True if values.get("translate") in ("yes", "") else None


def _is_note_element(tokens: list[_Token], start: int, end: int) -> bool:
    """Return whether the tokens from `start` to `end` are an element for which `is_note` is true."""
    if tokens[start].name not in ("sup", "sub", "a") or end - start > _NOTE_TOKENS:
        return False
    if any(token.kind == "raw" or token.name in BLOCKS | VOID for token in tokens[start:end]):
        return False
    sides = []
    for near in (tokens[max(start - _NOTE_TOKENS, 0) : start][::-1], tokens[end : end + _NOTE_TOKENS]):
        token = next((token for token in near if token.name in BLOCKS or not token.name), None)
        sides.append(unescape(token.source) if token and token.kind == "text" else " ")
    inner = "".join(token.source for token in tokens[start + 1 : end - 1])
    return is_note(tokens[start].name, sides[0], inner, sides[1])


def is_note(name: str, before: str, inner: str, after: str) -> bool:
    """Return whether an element is a footnote mark, exponent or subscript of the word before it.

    `inner` is the content of the element, and `before` and `after` are the texts next to it.
    """
    text = unescape("".join(token.source for token in _tokens(inner) if token.kind == "text"))
    last = before[-1:] or " "
    letters = any(map(str.isalpha, text))
    if not text or text != text.strip() or len(text) > (_NOTE_LETTERS if letters else _NOTE_CHARACTERS):
        return False
    if name == "a":
        return last.isalpha() and not letters and any(map(str.isdigit, text)) and not after[:1].isalnum()
    if letters:  # between letters, the element is part of the word, not a note
        return last.isalnum() and not after[:1].isalnum()
    return not last.isspace() if name == "sup" else last.isalnum() or last in ")]"


def is_untranslated(source: str) -> bool:
    """Return whether a tag forbids the translation of its content."""
    return _translate_attribute(next(_tokens(source))) is False


def _in_language(token: _Token, language: str) -> _Token:
    """Return the <html> tag with its `lang` and `xml:lang` attributes, if any, set to a language."""
    language = language.replace("_", "-")
    if token.kind != "start" or not _LANGUAGE.fullmatch(language):
        return token
    source, end = "", 0
    for match in _attributes(token):
        if match["name"].lower() in ("lang", "xml:lang") and match["value"]:
            quote = match["value"][0] if match["value"][0] in "\"'" else ""
            source += token.source[end : match.start("value")] + quote + language + quote
            end = match.end("value")
    return token._replace(source=source + token.source[end:])


def _attributes(token: _Token) -> Iterator[re.Match[str]]:
    return _NAMED_VALUE.finditer(token.source, 1 + len(token.name), len(token.source) - 1)


def _tag(token: _Token, protection: Protection | None) -> Parts:
    """Return the parts of a tag. Its attributes may contain text to translate."""
    if token.kind != "start":
        return [token.source]
    parts, end = Parts(), 0
    for match in _attributes(token):
        if match["name"].lower() not in TRANSLATED or not match["value"]:
            continue
        (start, stop), quote = match.span("value"), match["value"][0]
        source = match["value"][1:-1] if quote in "\"'" else match["value"]
        quote = quote if quote in "\"'" else '"'
        spelling = Spelling(quote)
        inner = plain_parts(source, protection, spelling.escape, spelling.unescape)
        if any(isinstance(part, MarkedSegment) for part in inner):
            parts += [token.source[end:start] + quote, *inner, quote]
            end = stop
    return [*parts, token.source[end:]]
