"""Read Markdown (CommonMark with tables and strikethrough).

The library markdown-it-py parses the document. This module finds the offset of each piece of text, and copies
everything else unchanged. The library reports the lines and the content of each block, but inside a block only the
order of the tokens. This module therefore wraps the library's inline rules, and records where each rule matches.

Parsing may take quadratic time. For each opening bracket, the library searches the rest of the paragraph. It also pads
each row of a table to the width of the header. This module counts the characters searched and the cells added, and
refuses a document with too many.
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

from nmt_cli.documents import html, markdown_rules
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import MarkedSegment, Parts, SegmentBuilder
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
_UNTRANSLATED_START = re.compile(r"\[[ xX]\][ \t]+|\[![A-Za-z]+\][ \t]*(?:\n|\Z)")  # "[x] " or "[!NOTE]"
_NEW_LINE = re.compile(r"\r\n?|\n")
_SPECIAL = re.compile(r"[\\`*_\[\]<>|&~]")
# A document may take FREE_STEPS steps, and STEPS more per character. A character searched for a closing bracket is one
# step, and a table cell added is _CELL steps. Manuals and lists of links need fewer than 3 steps per character.
STEPS, FREE_STEPS, _CELL = 20, 100_000, 30
# Types of tokens that attributes may follow
_WITH_ATTRIBUTES = {"link_close", "em_close", "strong_close", "s_close", "code_inline", "image"}
_STEPS_LEFT = "steps left"  # key in the `env` that markdown-it passes to every rule
# "# ", "- ", "1. ", "---" or ">"
_BLOCK_START = re.compile(r"(?:#{1,6}|[-+]|\d+[.)])(?=\s|\Z)|(?:[-=]+)\Z|>")


def read(text: str, options: ReadOptions) -> Document:
    return Document(parse(text, options.protection()))


def parse(text: str, protection: Protection | None = None) -> Parts:
    """Cut a document into segments and strings to copy. Raise DataError if this would take too long."""
    head = match[0] if (match := markdown_rules.FRONT_MATTER.match(text)) else ""
    body = text[len(head) :]
    parts, end, env = Parts([head]), 0, dict[str, object]({_STEPS_LEFT: FREE_STEPS + STEPS * len(body)})
    lines = _NEW_LINE.split(body)
    starts = [0, *(match.end() for match in _NEW_LINE.finditer(body)), len(body)]
    for token in _parser().parse(body, env):
        if token.type == "html_block" and token.map:
            start, stop = (min(starts[line], len(body)) for line in token.map)
            parts += [body[end:start], *html.parse(body[start:stop], protection)]
            end = stop
        elif token.type == "inline" and token.map:
            source, offsets = _find_block(token, body, lines, starts, end)
            inside = _BlockReader(source, offsets, body, env, protection).parts() if source else []
            if any(isinstance(part, MarkedSegment) for part in inside):
                parts += [body[end : offsets[0]], *inside]
                end = offsets[-1]
            elif offsets:
                parts.append(body[end : offsets[-1]])
                end = offsets[-1]
    return [*parts, body[end:]]


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    markdown_rules.add_rules(parser)
    for name, rule in _RULES.items():
        parser.inline.ruler.at(name, functools.partial(_apply_rule, rule))
    parser.inline.ruler2.disable("fragments_join")
    parser.core.ruler.disable("inline")  # _BlockReader parses the inline syntax
    parser.helpers = SimpleNamespace(**vars(helpers) | {"parseLinkLabel": _label_end})  # type: ignore[assignment]
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    return parser


def _spend_steps(env: MutableMapping[str, Any], steps: int) -> None:
    """Subtract steps from the document's remaining steps. Raise DataError if there are too few."""
    env[_STEPS_LEFT] -= steps
    if env[_STEPS_LEFT] < 0:
        problem = "this Markdown takes too long to read: it has too many brackets, or table rows with too few cells"
        raise DataError(f"{problem}. Split it into smaller files")


def _label_end(state: StateInline, start: int, disableNested: bool = False) -> int:
    """Return the end of the link text that begins at `start`, or -1 if there is none. Count the search as steps."""
    end = helpers.parseLinkLabel(state, start, disableNested)
    _spend_steps(state.env, (state.posMax if end < 0 else end) - start)
    return end


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Apply the library's rule for tables. Count the cells that it adds as steps."""
    count = len(state.tokens)
    found = rules_block.table(state, start, end, silent)
    if found and not silent:
        cells = sum(token.type == "inline" for token in state.tokens[count:])
        source = state.src[state.bMarks[start] : state.eMarks[state.line - 1]]
        _spend_steps(state.env, _CELL * max(cells - source.count("|") - source.count("\n") - 1, 0))
    return found


def _apply_rule(rule: Rule, state: StateInline, silent: bool) -> bool:
    """Apply a rule of the library, and record the span of each new token in its `meta`.

    For an image, `meta["label end"]` is the offset where the alternative text ends.
    """
    start, count, pending = state.pos, len(state.tokens), bool(state.pending)
    label_end = 0  # the end of a link text or alternative text
    has_bracket = state.src.startswith(("[", "!["), state.pos)
    if has_bracket and not silent and rule in (rules_inline.link, rules_inline.image):
        no_links_inside = rule is rules_inline.link  # the alternative text of an image may contain links
        label_end = state.md.helpers.parseLinkLabel(state, state.src.find("[", start), no_links_inside)
    if not rule(state, silent):
        return False
    offset = start
    for number, token in enumerate(state.tokens[count:]):
        if "span" in token.meta or (not number and pending and token.type == "text"):
            continue  # a nested rule has already recorded the span, or the token is the text before the match
        if rule in (rules_inline.emphasis.tokenize, rules_inline.strikethrough.tokenize):
            token.meta["span"] = offset, offset + len(token.content)
            offset += len(token.content)
        elif token.markup == "autolink" or token.type not in ("text", "link_open", "link_close"):
            token.meta |= {"span": (start, state.pos), "label end": label_end}
        elif token.type != "text":
            token.meta["span"] = (start, start + 1) if token.type == "link_open" else (label_end, state.pos)
    return True


def _find_block(token: Token, body: str, lines: list[str], starts: list[int], after: int) -> tuple[str, list[int]]:
    """Find a block in `body`, from offset `after` on. Return its source, and the offsets of its characters and end.

    Both results are empty if the block is not found, for example because the library expanded tabs. `lines` are the
    lines of `body`, and `starts` their offsets.
    """
    found, offsets = list[str](), list[int]()
    assert token.map
    for number, content in enumerate(token.content.split("\n")):
        line = token.map[0] + number
        start, cursor = starts[line], max(after - starts[line], token.meta.get("column", 0))
        for spelled in (content, content.replace("|", "\\|")):  # "|" is escaped in tables
            column = lines[line].find(spelled, cursor)
            if column >= 0:
                break
        if column < 0:
            return "", []
        found.append(spelled)
        offsets += range(start + column, start + column + len(spelled) + 1)
    return "\n".join(found), offsets


class Spelling:
    """Writes each special character as it first appears in the segment's source.

    Escapes special characters that do not appear in the source.
    """

    def __init__(self) -> None:
        self._seen = dict[str, str]()

    def unescape(self, source: str) -> str:
        for match in _SPECIAL.finditer(source):
            self._seen.setdefault(match[0], match[0])
        return source

    def note(self, character: str, source: str) -> None:
        self._seen.setdefault(character, source)

    def escape(self, text: str) -> str:
        written = _SPECIAL.sub(lambda match: self._seen.get(match[0], f"\\{match[0]}"), text)
        if match := _BLOCK_START.match(text):  # without an escape, the text would begin another kind of block
            at = match.end() - 1
            return f"{written[:at]}\\{written[at:]}" if match[0] == written[: at + 1] else written
        return written


class _BlockReader:
    """Reads the text of a block, or the alternative text of an image. For `source` and `offsets`, see `_find_block`."""

    def __init__(
        self, source: str, offsets: list[int], body: str, env: dict[str, object], protection: Protection | None
    ) -> None:
        self.source = source
        self.offsets = offsets
        self.body = body
        self.env = env
        self.protection = protection
        self.link_texts = list[int]()  # the offsets where the texts of open links begin
        self._begin()

    def _begin(self) -> None:
        self.spelling = Spelling()
        self.builder = SegmentBuilder(self.spelling.escape, self.protection)

    def slice(self, start: int, stop: int) -> str:
        """Return a part of the source as written in the document, including line prefixes such as "> "."""
        return self.body[self.offsets[start] : self.offsets[stop]]

    def parts(self) -> Parts:
        tokens = list[Token]()
        _parser().inline.parse(self.source, _parser(), self.env, tokens)
        tokens = [token for token in tokens if "span" in token.meta and token.type != "text"]
        end = len(match[0]) if (match := _UNTRANSLATED_START.match(self.source)) else 0
        end_tags = dict[str, list[int]]()
        text_end = max(markdown_rules.end_attributes(self.source), end)
        parts = Parts([self.slice(0, end)])
        for number, token in enumerate(tokens):
            start, stop = token.meta["span"]
            if token.type == "strong_open":  # the span covers only the inner of the two delimiters
                start -= 1
            elif token.type == "strong_close":
                stop += 1
            if start < end or start >= text_end:  # part of a copied element, or of the attributes at the end
                continue
            self._add_text(end, start)
            name = html.opening_name(token.content) if token.type == "html_inline" else ""
            if name:
                stop = self._element_end(number, tokens, end_tags, name)
            if token.type == "hardbreak" or name in html.BLOCKS:
                parts += [*self.builder.build(), self.slice(start, stop)]
                self._begin()
            else:
                attributes = (
                    markdown_rules.ATTRIBUTES.match(self.source, stop) if token.type in _WITH_ATTRIBUTES else None
                )
                self._add(token, start, stop, attributes[0] if attributes else "")
                stop = attributes.end() if attributes else stop
            end = stop
        self._add_text(end, text_end)
        return [*parts, *self.builder.build(), self.slice(max(end, text_end), len(self.source))]

    def _element_end(self, number: int, tokens: list[Token], end_tags: dict[str, list[int]], name: str) -> int:
        """Return the end of an HTML element if the whole element is copied, or else the end of its start tag.

        `number` is the index of the start tag in `tokens`. `end_tags` caches the indices of end tags, by name.
        """
        start: int = tokens[number].meta["span"][0]
        stop: int = tokens[number].meta["span"][1]
        copied = name in html.COPIED or html.is_untranslated(tokens[number].content)
        if not copied and name not in ("sup", "sub"):
            return stop
        if name not in end_tags:
            end_tags[name] = [i for i, token in enumerate(tokens) if token.content.startswith(f"</{name}")]
        after = bisect.bisect(end_tags[name], number)
        if after == len(end_tags[name]):
            return stop
        content_end: int = tokens[end_tags[name][after]].meta["span"][0]
        end: int = tokens[end_tags[name][after]].meta["span"][1]
        sides = self.source[max(start - 1, 0) : start], self.source[stop:content_end], self.source[end : end + 1]
        return end if copied or html.is_note(name, *sides) else stop

    def _add_text(self, start: int, stop: int) -> None:
        if start < stop:
            self.builder.add_source(self.slice(start, stop), self.spelling.unescape)

    def _add(self, token: Token, start: int, stop: int, attributes: str) -> None:
        source = self.slice(start, stop)
        if token.type == "softbreak":
            self.builder.add_text(" ", source)
        elif token.type == "text_special":
            self.spelling.note(token.content, source)
            self.builder.add_text(token.content, source)
        elif token.type == "image":
            alt_end = token.meta["label end"]
            alt_source, alt_offsets = self.source[start + 2 : alt_end], self.offsets[start + 2 : alt_end + 1]
            alt = _BlockReader(alt_source, alt_offsets, self.body, self.env, self.protection)
            end = self.slice(alt_end, stop) + attributes
            self.builder.add_standalone([self.slice(start, start + 2), *alt.parts(), end])
        elif token.type == "html_inline":
            html.add_tags(self.builder, source, self.protection)
        elif token.markup == "autolink" or token.type in ("code_inline", "span"):
            self.builder.add_standalone([source + attributes], ordered=source.startswith("{%"))
        else:
            name, _, side = token.type.partition("_")
            written = source
            if token.type == "link_open":
                self.link_texts.append(stop)
            elif token.type == "link_close":
                link_text = self.slice(self.link_texts.pop(), start)
                if source in ("]", "][]"):  # the link text is also the name of the target, so keep that name
                    written = f"][{link_text}]"
            is_link = name == "link"
            self.builder.add_tag(
                name, [written + attributes], close=side == "close", once=is_link, may_be_empty=is_link
            )
            self.builder.source[-1] = source + attributes
