"""HTML: a text cut into tags and text with their places, and those grouped into segments.

Libraries that parse HTML write it anew: they change quotes, entities, the case of names, and broken markup. So this
file cuts the text by the tokenizer's rules of the HTML standard (section 13.2.5) and builds no tree. Whatever is not
text comes out as it went in, and means to a browser what it meant before.
"""

import bisect
import html
import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Builder, Parts, Segment

_VALUE = r"\"[^\"]*+\"|'[^']*+'|[^\s\"'>][^\s>]*+"
_ATTRIBUTE = rf"[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:{_VALUE}|(?=>))|(?!\s*=))"
_TOKEN = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))                                      # a comment
    |<(?P<ends>/?)(?P<number>\d{{1,4}})\s*+>                                # a tag of i18next or Lingui
    |<[!?][^>]*(?:>|\Z)|</(?:>|(?![a-zA-Z])[^>]+(?:>|\Z))                 # a declaration, or a broken comment
    |<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?:[\s/]++|{_ATTRIBUTE})*+>  # a tag
    |(?P<open></?[a-zA-Z].*)                                             # the text ends in a tag""",
    re.DOTALL | re.VERBOSE,
)
_END_NAME = re.compile(r"</([a-zA-Z][^\s/>]*+|\d{1,4}+)")
_START_NUMBER = re.compile(r"<(\d{1,4})\s*+>")
_ENTITY = re.compile(r"&(?:\#[0-9]+|\#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);?|[&<>\"']")
_NAMED = re.compile(rf"(?P<name>[^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?P<value>{_VALUE}))?+")
RAW = {"script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title", "plaintext"}  # no tags inside
COPIED = {"code", "kbd", "samp", "var", "pre", "textarea", "svg", "math", "object"} | RAW - {"title"}
_NAMES = """
area base br col embed hr img input link meta param source track wbr
"""
VOID = set(_NAMES.split())
# What the standard does not lay out within lines, and what stands for itself: these end a segment.
_NAMES = """
address article aside blockquote body br button caption center col colgroup datalist dd details dialog dir div dl dt
fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link
listing main menu meta nav noembed noframes noscript ol optgroup option p plaintext pre search section select slot
source style summary table tbody td template tfoot th thead title tr track ul video audio xmp
"""
BLOCKS = set(_NAMES.split())
TRANSLATED = {"alt", "title", "placeholder", "aria-label"}
_UNTRANSLATED = {"notranslate", "skiptranslate"}  # classes, for Google's translator
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*")
_MOST_TOKENS, _MOST_CHARACTERS, _MOST_LETTERS = 5, 12, 3  # of the mark of a note; of one with letters
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Spelling:
    """How the characters of a segment are written: as the source wrote each there first, else the shortest safe way."""

    def __init__(self, quote: str = "") -> None:
        """`quote` is what ends the text."""
        self._seen = {quote: html.escape(quote)} if quote else {}

    def read(self, source: str) -> str:
        for match in _ENTITY.finditer(source):
            text = html.unescape(match[0])
            if len(text) == 1 and match[0] != "<":
                self._seen.setdefault(text, match[0])
        return html.unescape(source)

    def write(self, text: str) -> str:
        written = "".join(self._seen.get(each) or _ESCAPED.get(each, each) for each in text)
        return written if html.unescape(written) == text else html.escape(text)


@dataclass(frozen=True)
class _Token:
    kind: str  # "text", "start", "end", "raw", "unclosed" or "other"
    source: str
    name: str = ""  # of a tag


def _tokens(text: str, protection: Protection | None = None) -> Iterator[_Token]:
    """Yield the tokens of a text. A tag with a number is one if the text has its partner; within a placeholder none."""
    closed = {match[1].lower() for match in _END_NAME.finditer(text)}
    numbers = set(_START_NUMBER.findall(text)) & closed
    held = deque(_held(text, closed, protection) if protection else ())
    begin = place = 0
    while match := _TOKEN.search(text, place):
        place = match.end()
        while held and (held[0][1] <= match.start() or held[0][0] < begin):
            held.popleft()
        if held and held[0][0] < match.start():
            place = held[0][1]
            continue
        number = match["number"] if match["number"] in numbers else None
        if match["number"] and not number and not match["ends"]:
            continue
        if match.start() > begin:
            yield _Token("text", text[begin : match.start()])
        begin, name = place, (match["name"] or number or "").lower()
        kind = "unclosed" if match["open"] or not match[0].endswith(">") else "other"
        if name:
            kind = "end" if match["end"] or match["ends"] else "start"
        yield _Token(kind, match[0], name)
        if kind == "start" and name in RAW:
            end = None if name == "plaintext" else re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, place)
            stop = end.start() if end else len(text)
            if stop > place:
                yield _Token("text" if name == "title" else "raw", text[place:stop])
            begin = place = stop
    if begin < len(text):
        yield _Token("text", text[begin:])


def _held(text: str, closed: Collection[str], protection: Protection) -> Iterator[tuple[int, int]]:
    """Yield the places of placeholders with a "<" inside, as in "%<count>d"; "5%<b>c</b>" is HTML."""
    for start, stop in protection.spans(text):
        at = text.find("<", start, stop)
        name = text[at + 1 : text.find(">", at, stop)].lower()
        if at > start and not (text[start] == "%" and (name in closed or name in VOID | BLOCKS)):
            yield start, stop


def has_tags(text: str, protection: Protection | None) -> bool:
    """Return whether a text is HTML: it has a tag with a name, or a comment."""
    tokens = _tokens(text, protection)
    return any(token.name[:1].isalpha() or token.source.startswith("<!--") for token in tokens if token.kind != "text")


def parse(text: str, protection: Protection | None = None, ignored: Collection[str] = (), language: str = "") -> Parts:
    """Return a document, or a part of one, as text to copy and segments. The contents of `ignored` elements are copied.

    `language` is the target language, for the `lang` attribute of a whole document.
    """
    tokens = list(_tokens(text, protection))
    ends, apart = _copied(tokens, COPIED | {name.lower() for name in ignored})
    parts, place = Parts(), 0
    spelling, builder = _begin(protection)
    while place < len(tokens):
        token, stop = tokens[place], ends.get(place, place + 1)
        # What ends with its block, or with the text, has to stay there, as it would swallow what follows.
        block = token.name in BLOCKS or token.kind == "unclosed" or place in apart
        if block:
            parts += builder.build()
            spelling, builder = _begin(protection)
        copied = "".join(each.source for each in tokens[place:stop]) if place in ends else ""
        if block and copied:
            parts.append(copied)
        elif copied:
            builder.add_point([copied])
        elif block:
            parts += _tag(_in_language(token, language) if token.name == "html" else token, protection)
        elif token.kind == "text":
            builder.add_source(token.source, spelling.read)
        else:
            _add_tag(builder, token, protection)
        place = stop
    return parts + builder.build()


def _begin(protection: Protection | None) -> tuple[Spelling, Builder]:
    spelling = Spelling()
    return spelling, Builder(spelling.write, protection)


def add_tags(builder: Builder, source: str, protection: Protection | None) -> None:
    """Add tags to a segment, and comments; text between them is not read."""
    for token in _tokens(source):
        _add_tag(builder, token, protection)


def name_of(source: str) -> str:
    """Return the name of a tag that opens; else nothing."""
    token = next(_tokens(source))
    return token.name if token.kind == "start" else ""


def _add_tag(builder: Builder, token: _Token, protection: Protection | None) -> None:
    if token.kind == "end" or (token.kind == "start" and token.name not in VOID):
        once = token.name.isdigit() or any(match["name"].lower() == "id" for match in _attributes(token))
        builder.add_tag(token.name, _tag(token, protection), close=token.kind == "end", once=once)
    else:
        joins = token.kind == "other" or token.name == "wbr"
        builder.add_point(_tag(token, protection), joins=joins)


def _copied(tokens: list[_Token], names: set[str]) -> tuple[dict[int, int], set[int]]:
    """Return where what is copied whole begins, with where the rest begins after each; and which ends a segment: those
    without an end tag, and parts of those with an element inside that is translated."""
    ends, open_tags, begins, inner = dict[int, int](), dict[str, list[int]](), list[int](), set[int]()
    for place, token in enumerate(tokens):
        if token.kind == "start" and token.name not in VOID:
            open_tags.setdefault(token.name, []).append(place)
        elif token.kind == "end" and open_tags.get(token.name):
            ends[open_tags[token.name].pop()] = place + 1
        translate = _translate(token) if token.kind == "start" else None
        if token.kind == "raw" or (token.kind == "start" and token.name in names) or translate is False:
            begins.append(place)
        elif translate:
            inner.add(place)
    copied = dict[int, int]()
    for place in begins:
        if place in ends:
            copied[place] = ends[place]
        elif tokens[place].kind == "raw" or tokens[place].name in VOID:
            copied[place] = place + 1
    blocks, end = list[int](), 0
    for place, token in enumerate(tokens):
        if place >= end and token.name in BLOCKS:
            blocks.append(place)  # not one inside of what is copied: the title of a picture
        end = max(end, copied.get(place, 0))
    # The end of these is left out, as that of a paragraph may be.
    unended = {place for place in begins if place not in copied and tokens[place].name not in names}
    for place in unended:
        after = bisect.bisect(blocks, place)
        copied[place] = blocks[after] if after < len(blocks) else len(tokens)
    notes = {place: end for place, end in ends.items() if _is_note(tokens, place, end)}
    inner = {place for place in inner if place in ends}
    return _without(inner, ends, notes | copied, tokens, names) if inner else (notes | copied, unended)


def _without(
    inner: set[int], ends: dict[int, int], copied: dict[int, int], tokens: list[_Token], names: set[str]
) -> tuple[dict[int, int], set[int]]:
    """Return the copied spans without the translated `inner` elements, and the places where they split a segment."""
    pieces, apart = dict[int, int](), set[int]()
    around = [(len(tokens), True, True)]  # where each region ends, if it is translated, and if one inside may differ
    begin = 0
    for place in range(len(tokens) + 1):
        while place >= around[-1][0] and len(around) > 1:
            if not around.pop()[1] and begin < place:
                pieces[begin] = place
            begin = place
        stop, translated, open_ = around[-1]
        if place in copied and translated:
            begin = place
            around.append((min(copied[place], stop), False, tokens[place].name not in names))
        elif place in inner and not translated and open_:
            if begin < place:
                pieces[begin] = place
            apart |= {begin, place, ends[place]}
            around.append((min(ends[place], stop), True, True))
    return pieces, apart


def _translate(token: _Token) -> bool | None:
    """Return True if a tag asks for a translation of its contents, False if it forbids one, else None."""
    if "transl" not in token.source.lower():
        return None
    values = {match["name"].lower(): (match["value"] or "").strip("\"'").lower() for match in _attributes(token)}
    if values.get("translate") == "no" or _UNTRANSLATED & set(values.get("class", "").split()):
        return False
    return True if values.get("translate") in ("yes", "") else None


def _is_note(tokens: list[_Token], place: int, end: int) -> bool:
    """Return whether an element is the mark of a note, a power or an index on the word before."""
    if tokens[place].name not in ("sup", "sub", "a") or end - place > _MOST_TOKENS:
        return False
    if any(token.kind == "raw" or token.name in BLOCKS | VOID for token in tokens[place:end]):
        return False
    sides = []
    for near in (tokens[max(place - _MOST_TOKENS, 0) : place][::-1], tokens[end : end + _MOST_TOKENS]):
        token = next((token for token in near if token.name in BLOCKS or not token.name), None)
        sides.append(html.unescape(token.source) if token and token.kind == "text" else " ")
    return is_note(
        tokens[place].name, sides[0], "".join(token.source for token in tokens[place + 1 : end - 1]), sides[1]
    )


def is_note(name: str, before: str, inner: str, after: str) -> bool:
    """Return whether an element between two texts is the mark of a note, or an index, on the word before."""
    text = html.unescape("".join(token.source for token in _tokens(inner) if token.kind == "text"))
    last = before[-1:] or " "
    letters = any(map(str.isalpha, text))
    if not text or text != text.strip() or len(text) > (_MOST_LETTERS if letters else _MOST_CHARACTERS):
        return False
    if name == "a":
        return last.isalpha() and not letters and any(map(str.isdigit, text)) and not after[:1].isalnum()
    if letters:  # a part of a longer word is no mark
        return last.isalnum() and not after[:1].isalnum()
    return not last.isspace() if name == "sup" else last.isalnum() or last in ")]"


def is_untranslated(source: str) -> bool:
    """Return whether a tag forbids the translation of its contents."""
    return _translate(next(_tokens(source))) is False


def _in_language(token: _Token, language: str) -> _Token:
    """Return the document's tag with its `lang` attributes, if any, set to the language."""
    language = language.replace("_", "-")
    if token.kind != "start" or not _LANGUAGE.fullmatch(language):
        return token
    source, end = "", 0
    for match in _attributes(token):
        if match["name"].lower() in ("lang", "xml:lang") and match["value"]:
            quote = match["value"][0] if match["value"][0] in "\"'" else ""
            source += token.source[end : match.start("value")] + quote + language + quote
            end = match.end("value")
    return replace(token, source=source + token.source[end:])


def _attributes(token: _Token) -> Iterator[re.Match[str]]:
    return _NAMED.finditer(token.source, 1 + len(token.name), len(token.source) - 1)


def _tag(token: _Token, protection: Protection | None) -> Parts:
    """Return a token as it stands, but for attributes that are text."""
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
        builder = Builder(spelling.write, protection)
        builder.add_source(source, spelling.read)
        inner = builder.build()
        if any(isinstance(part, Segment) for part in inner):
            parts += [token.source[end:start] + quote, *inner, quote]
            end = stop
    return [*parts, token.source[end:]]
