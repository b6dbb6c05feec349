"""Markdown (CommonMark with tables and strikethrough): markdown-it-py finds the text, this file its places.

The library says of each block which lines it has and what its text is, and of what stands in a line nothing but the
order. So its rules for lines are wrapped to note where each matched. All that is not text is copied.

Its time may grow with the square of a text's length: every bracket looks for its partner up to the end of its
paragraph, and rows of a table are filled up to the width of its head. Both are counted, and texts with too much of
them refused.
"""

import bisect
import functools
import re
from collections.abc import Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

from markdown_it import MarkdownIt, helpers, rules_block, rules_inline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from nmt_cli.documents import markdown_rules, markup
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Builder, Parts, Segment
from nmt_cli.system.errors import DataError

Rule = Callable[[StateInline, bool], bool]
_RULES: dict[str, Rule] = {
    "newline": rules_inline.newline,
    "escape": rules_inline.escape,
    "backticks": rules_inline.backtick,
    "strikethrough": rules_inline.strikethrough.tokenize,
    "emphasis": rules_inline.emphasis.tokenize,
    "link": rules_inline.link,
    "image": rules_inline.image,
    "autolink": rules_inline.autolink,
    "html_inline": rules_inline.html_inline,
    "entity": rules_inline.entity,
}
_NO_TEXT = re.compile(r"\[[ xX]\][ \t]+|\[![A-Za-z]+\][ \t]*(?:\n|\Z)")  # a box to tick, the kind of an alert
_NEW_LINE = re.compile(r"\r\n?|\n")
_SPECIAL = re.compile(r"[\\`*_\[\]<>|&~]")
# Steps of searches that a document may have, for each of its characters and in any case; what a cell that a row lacks
# counts. Manuals and lists of links have less than 3 for each character.
_STEPS, _FREE_STEPS, _CELL = 20, 100_000, 30
_WITH_ATTRIBUTES = {"link_close", "em_close", "strong_close", "s_close", "code_inline", "image"}
_LEFT = "steps left"  # the name of their count in the library's environment of a document
_BLOCK_START = re.compile(r"(?:#{1,6}|[-+]|\d+[.)])(?=\s|\Z)|(?:[-=]+)\Z|>")


def parse(text: str, protection: Protection | None = None) -> Parts:
    """Return a document as text to copy and segments."""
    head = match[0] if (match := markdown_rules.FRONT_MATTER.match(text)) else ""
    body = text[len(head) :]
    parts, end, env = Parts([head]), 0, dict[str, object]({_LEFT: _FREE_STEPS + _STEPS * len(body)})
    lines = _NEW_LINE.split(body)
    starts = [0, *(match.end() for match in _NEW_LINE.finditer(body)), len(body)]
    for token in _parser().parse(body, env):
        if token.type == "html_block" and token.map:
            first, last = (min(starts[line], len(body)) for line in token.map)
            parts += [body[end:first], *markup.parse(body[first:last], protection)]
            end = last
        elif token.type == "inline" and token.map:
            source, places = _located(token, body, lines, starts, end)
            inner = _Reader(source, places, body, env, protection).parts() if source else []
            if any(isinstance(part, Segment) for part in inner):
                parts += [body[end : places[0]], *inner]
                end = places[-1]
            elif places:
                parts.append(body[end : places[-1]])
                end = places[-1]
    return [*parts, body[end:]]


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    markdown_rules.add_rules(parser)
    for name, rule in _RULES.items():
        parser.inline.ruler.at(name, functools.partial(_noting, rule))
    parser.inline.ruler2.disable("fragments_join")
    parser.core.ruler.disable("inline")  # done by _Reader
    parser.helpers = SimpleNamespace(**vars(helpers) | {"parseLinkLabel": _label_end})  # type: ignore[assignment]
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    return parser


def _count(env: MutableMapping[str, Any], steps: int) -> None:
    env[_LEFT] -= steps
    if env[_LEFT] < 0:
        text = "this Markdown has too many open brackets, or rows far shorter than the heads of their tables. Divide it"
        raise DataError(text)


def _label_end(state: StateInline, start: int, disableNested: bool = False) -> int:
    """Return where the text of a link ends whose bracket is at `start`, or -1."""
    end = helpers.parseLinkLabel(state, start, disableNested)
    _count(state.env, (state.posMax if end < 0 else end) - start)
    return end


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    count = len(state.tokens)
    found = rules_block.table(state, start, end, silent)
    if found and not silent:
        cells = sum(token.type == "inline" for token in state.tokens[count:])
        source = state.src[state.bMarks[start] : state.eMarks[state.line - 1]]
        _count(state.env, _CELL * max(cells - source.count("|") - source.count("\n") - 1, 0))
    return found


def _noting(rule: Rule, state: StateInline, silent: bool) -> bool:
    """Apply a rule; note in the meta of its tokens where in the source they stand."""
    start, count, pending = state.pos, len(state.tokens), bool(state.pending)
    label = 0
    bracket = state.src.startswith(("[", "!["), state.pos)  # at other places the library would look for nothing
    if bracket and not silent and rule in (rules_inline.link, rules_inline.image):
        nested = rule is rules_inline.link  # a link holds no other, a picture's text may
        label = state.md.helpers.parseLinkLabel(state, state.src.find("[", start), nested)
    if not rule(state, silent):
        return False
    place = start
    for number, token in enumerate(state.tokens[count:]):
        if "place" in token.meta or (not number and pending and token.type == "text"):
            continue  # of a rule within this one, or text before it
        if rule in (rules_inline.emphasis.tokenize, rules_inline.strikethrough.tokenize):
            token.meta["place"] = place, place + len(token.content)
            place += len(token.content)
        elif token.markup == "autolink" or token.type not in ("text", "link_open", "link_close"):
            token.meta |= {"place": (start, state.pos), "label": label}
        elif token.type != "text":
            token.meta["place"] = (start, start + 1) if token.type == "link_open" else (label, state.pos)
    return True


def _located(token: Token, body: str, lines: list[str], starts: list[int], after: int) -> tuple[str, list[int]]:
    """Return the source of a block's text, and for each of its characters, and its end, the place in the document;
    nothing where it cannot be found, as with tabs."""
    found, places = list[str](), list[int]()
    assert token.map
    for number, content in enumerate(token.content.split("\n")):
        line = token.map[0] + number
        start, cursor = starts[line], max(after - starts[line], token.meta.get("column", 0))
        for spelled in (content, content.replace("|", "\\|")):  # as in a table
            place = lines[line].find(spelled, cursor)
            if place >= 0:
                break
        if place < 0:
            return "", []
        found.append(spelled)
        places += range(start + place, start + place + len(spelled) + 1)
    return "\n".join(found), places


class Spelling:
    """How the characters of a segment are written: bare where the source has them so, else escaped."""

    def __init__(self) -> None:
        self._seen = dict[str, str]()

    def read(self, source: str) -> str:
        for match in _SPECIAL.finditer(source):
            self._seen.setdefault(match[0], match[0])
        return source

    def note(self, character: str, source: str) -> None:
        self._seen.setdefault(character, source)

    def write(self, text: str) -> str:
        written = _SPECIAL.sub(lambda match: self._seen.get(match[0], f"\\{match[0]}"), text)
        if match := _BLOCK_START.match(text):  # it would begin another block
            place = match.end() - 1
            return f"{written[:place]}\\{written[place:]}" if match[0] == written[: place + 1] else written
        return written


class _Reader:
    """The text of one block: `places` are those of its characters, and of its end, in the document."""

    def __init__(
        self, source: str, places: list[int], body: str, env: dict[str, object], protection: Protection | None
    ) -> None:
        self.source, self.places, self.body, self.env, self.protection = source, places, body, env, protection
        self.labels = list[int]()  # where the texts of open links begin
        self._begin()

    def _begin(self) -> None:
        self.spelling = Spelling()
        self.builder = Builder(self.spelling.write, self.protection)

    def slice(self, start: int, stop: int) -> str:
        """Return a part of the source as the document has it, with what begins its lines there."""
        return self.body[self.places[start] : self.places[stop]]

    def parts(self) -> Parts:
        tokens = list[Token]()
        _parser().inline.parse(self.source, _parser(), self.env, tokens)
        tokens = [token for token in tokens if "place" in token.meta and token.type != "text"]
        end = len(match[0]) if (match := _NO_TEXT.match(self.source)) else 0
        ends = dict[str, list[int]]()  # of the elements that are copied, by their names
        last = max(markdown_rules.end_attributes(self.source), end)
        parts = Parts([self.slice(0, end)])
        for number, token in enumerate(tokens):
            start, stop = token.meta["place"]
            if token.type == "strong_open":  # its first character is another token
                start -= 1
            elif token.type == "strong_close":
                stop += 1
            if start < end or start >= last:  # copied already, or below
                continue
            self._add_text(end, start)
            name = markup.name_of(token.content) if token.type == "html_inline" else ""
            if name:
                stop = self._element_end(number, tokens, ends, name)
            if token.type == "hardbreak" or name in markup.BLOCKS:
                parts += [*self.builder.build(), self.slice(start, stop)]
                self._begin()
            else:
                attributes = (
                    markdown_rules.ATTRIBUTES.match(self.source, stop) if token.type in _WITH_ATTRIBUTES else None
                )
                self._add(token, start, stop, attributes[0] if attributes else "")
                stop = attributes.end() if attributes else stop
            end = stop
        self._add_text(end, last)
        return [*parts, *self.builder.build(), self.slice(max(end, last), len(self.source))]

    def _element_end(self, number: int, tokens: list[Token], ends: dict[str, list[int]], name: str) -> int:
        """Return the end of an element that is copied whole, of others the end of their tag."""
        start: int = tokens[number].meta["place"][0]
        stop: int = tokens[number].meta["place"][1]
        copied = name in markup.COPIED or markup.is_untranslated(tokens[number].content)
        if not copied and name not in ("sup", "sub"):
            return stop
        if name not in ends:
            ends[name] = [at for at, each in enumerate(tokens) if each.content.startswith(f"</{name}")]
        after = bisect.bisect(ends[name], number)
        if after == len(ends[name]):
            return stop
        inner: int = tokens[ends[name][after]].meta["place"][0]
        end: int = tokens[ends[name][after]].meta["place"][1]
        sides = self.source[max(start - 1, 0) : start], self.source[stop:inner], self.source[end : end + 1]
        return end if copied or markup.is_note(name, *sides) else stop

    def _add_text(self, start: int, stop: int) -> None:
        if start < stop:
            self.builder.add_source(self.slice(start, stop), self.spelling.read)

    def _add(self, token: Token, start: int, stop: int, attributes: str) -> None:
        source = self.slice(start, stop)
        if token.type == "softbreak":
            self.builder.add_text(" ", source)
        elif token.type == "text_special":
            self.spelling.note(token.content, source)
            self.builder.add_text(token.content, source)
        elif token.type == "image":
            label = token.meta["label"]
            alt = _Reader(
                self.source[start + 2 : label], self.places[start + 2 : label + 1], self.body, self.env, self.protection
            )
            self.builder.add_point([self.slice(start, start + 2), *alt.parts(), self.slice(label, stop) + attributes])
        elif token.type == "html_inline":
            markup.add_tags(self.builder, source, self.protection)
        elif token.markup == "autolink" or token.type in ("code_inline", "span"):
            self.builder.add_point([source + attributes], ordered=source.startswith("{%"))
        else:
            name, _, side = token.type.partition("_")
            written = source
            if token.type == "link_open":
                self.labels.append(stop)
            elif token.type == "link_close":
                label = self.slice(self.labels.pop(), start)
                if source in ("]", "][]"):  # the text names the link's target, too: name it apart
                    written = f"][{label}]"
            link = name == "link"
            self.builder.add_tag(name, [written + attributes], close=side == "close", once=link, hollow=link)
            self.builder.source[-1] = source + attributes
