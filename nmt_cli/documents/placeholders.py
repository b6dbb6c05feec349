"""Hide the placeholders used by programs and translation tools from the model."""

import functools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from nmt_cli.corpus.tokenizer import WIDE
from nmt_cli.documents.kept import Kept
from nmt_cli.documents.placeholder_forms import DELIMITED, FLAGS, FORMS, GENERAL, PLAIN

_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_QUOTES = "\"\"''``\u201c\u201d\u201e\u201c\u2018\u2019\u201a\u2018\u00ab\u00bb"
_PAIRS = {*_BRACKETS.items(), *zip(_QUOTES[::2], _QUOTES[1::2], strict=True)}
# Brackets inside a word, as in "file(s)", belong to the word. Brackets that touch only Chinese or Japanese characters
# count as outside a word, because these scripts have no spaces.
_LETTER, _WITHIN = rf"[^\W{WIDE}]", r"[\w'/-]{0,20}+"
_BRACKET = re.compile(
    rf"(?<={_LETTER})[(\[{{<]{_WITHIN}[)\]}}>]|[(\[{{<]{_WITHIN}[)\]}}>](?={_LETTER})|(?P<single>[()\[\]{{}}<>])"
)
_JOINT = re.compile(r"[^\w\s]*+")  # matches punctuation or nothing; placeholders separated only by this are merged
# The numbered tags of i18next and Lingui. `_TAG` also matches named tags, if all their attributes have values.
_NUMBERED = r"</?\d{1,4}\s*+>"
_VALUE = r"\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>]++"
_TAG = re.compile(rf"<(?P<end>/?)(?P<name>\d{{1,4}}|[A-Za-z][\w:.-]*+)(?:\s++[\w:.@-]++=(?:{_VALUE}))*+\s*+>")


class Piece(NamedTuple):
    source: str
    kind: str = "text"  # or "standalone", "ordered", "open" or "close"
    name: str = ""  # of a tag: its name; of a bracket: the closing bracket of its pair; otherwise empty


class Protection:
    """Hides placeholders and tags from the model.

    A named tag is hidden only if the text contains both an opening and a closing tag with this name.

    Use `strict` for the strings of programs: it also hides brackets, each pair like two tags, so that the translation
    keeps the number of brackets and tags. `flags` are gettext's flags, which select the forms of placeholders.
    """

    def __init__(
        self, *, strict: bool = False, flags: Collection[str] = (), kept: Kept | None = None, forms: bool = True
    ) -> None:
        """`kept` contains the phrases and the pattern to keep.

        If `forms` is false, nothing else is hidden. Then `kept` must be given, and `strict` must be false.
        """
        self.once = self.brackets = strict
        self._kept, self._has_forms = kept, forms
        self._pattern = _compiled(_forms(frozenset(flags)), f"(?P<tag>{_TAG.pattern})")
        # A translation must not contain new matches, because a program would read them as placeholders.
        brackets = "|[()\\[\\]{}<>]" if strict else ""
        self.forbidden = _compiled(_forms(frozenset(flags)), f"{_NUMBERED}{brackets}") if forms else None

    def with_flags(self, flags: Collection[str]) -> "Protection":
        return Protection(strict=self.once, flags=flags, kept=self._kept, forms=self._has_forms)

    def pieces(self, text: str) -> Iterator[Piece]:
        """Cut text into plain text, placeholders, tags and, if `strict` was set, brackets."""
        end = 0
        for start, stop, piece in _joined(text, self._found(text)):
            yield from self._between(text[end:start])
            yield piece
            end = stop
        yield from self._between(text[end:])

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the span of each placeholder and kept phrase."""
        for start, stop, piece in self._found(text):
            if piece.kind not in ("open", "close"):
                yield start, stop

    def _found(self, text: str) -> Iterator[tuple[int, int, Piece]]:
        """Yield each placeholder, kept phrase and tag with its span. A named tag without a partner counts as text."""
        names: dict[str, set[str]] = {"": set(), "/": set()}
        for tag in _TAG.finditer(text):
            names[tag["end"]].add(tag["name"])
        if not self._kept:
            yield from self._forms_in(text, 0, len(text), names)
            return
        end, last = 0, len(text)
        for start, stop in [*self._kept.matches(text), (last, last)]:
            forms = list(self._forms_in(text, end, start, names)) if self._has_forms else []
            for first, after, piece in [*forms, (start, stop, Piece(text[start:stop], "standalone"))]:
                for begin, finish in self._kept.phrases_in(text, end, first):
                    yield begin, finish, Piece(text[begin:finish], "standalone")
                if first < last:
                    yield first, after, piece
                end = after

    def _forms_in(
        self, text: str, offset: int, end: int, names: dict[str, set[str]]
    ) -> Iterator[tuple[int, int, Piece]]:
        while match := self._pattern.search(text, offset, end):
            offset = match.end()
            if match.lastgroup != "tag":
                kind = "ordered" if FORMS[match.lastgroup or ""].ordered else "standalone"
                yield *match.span(), Piece(match[0], kind)
            elif (name := match["name"]).isdigit() or (name in names[""] and name in names["/"]):
                yield *match.span(), Piece(match[0], "close" if match["end"] else "open", name)
            else:
                offset = match.start() + 1

    def _between(self, text: str) -> Iterator[Piece]:
        """Cut text without placeholders. If `brackets` is set, each bracket outside words is a piece of its own."""
        end = 0
        for match in _BRACKET.finditer(text) if self.brackets else ():
            if not match["single"]:
                continue
            yield Piece(text[end : match.start()])
            if match[0] in _BRACKETS:
                yield Piece(match[0], "open", _BRACKETS[match[0]])
            else:
                yield Piece(match[0], "close", match[0])
            end = match.end()
        yield Piece(text[end:])


@functools.lru_cache(maxsize=64)  # bounded, because a file can contain any number of combinations of flags
def _forms(flags: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the forms to look for in a message with these flags, in order of precedence."""
    granted = {name for flag in flags for name in FLAGS.get(flag, ())}
    denied = {name for flag in flags for name in FLAGS.get(flag.removeprefix("no-"), ()) if flag.startswith("no-")}
    denied |= {name for name, special in GENERAL.items() if special & denied}
    default = DELIMITED.keys() | (granted or PLAIN.keys())
    return tuple(name for name in FORMS if name in (default - denied | granted))


@functools.lru_cache(maxsize=64)
def _compiled(names: tuple[str, ...], others: str) -> re.Pattern[str]:
    """Return a pattern that matches the named forms and the pattern `others`. Each form has a group of the same name.

    After a word character, ".", "+" or "-", a match may begin only at punctuation, "_", or h, f or w (as in http, ftp,
    www). Trying every letter would dominate the running time.
    """
    forms = "|".join([*(f"(?P<{name}>{FORMS[name].pattern})" for name in names), others])
    return re.compile(rf"(?:(?=[^\w\s]|[_hfw])|(?<![\w.+-]))(?:{forms})", re.DOTALL)


def _joined(text: str, found: Iterator[tuple[int, int, Piece]]) -> Iterator[tuple[int, int, Piece]]:
    """Yield placeholders and tags with their spans. Merge placeholders that only punctuation or nothing separates.

    Extend each placeholder over directly enclosing quotes and brackets.
    """
    start, stop, ordered, least = 0, 0, False, 0  # `least`: earliest offset at which the next piece may begin

    def whole() -> tuple[int, int, Piece]:
        return start, stop, Piece(text[start:stop], "ordered" if ordered else "standalone")

    for first, last, piece in found:
        if piece.kind in ("open", "close"):
            if stop:
                yield whole()
            yield first, last, piece
            stop, least = 0, last
            continue
        is_ordered = piece.kind == "ordered"
        if stop and _JOINT.fullmatch(text, stop, first):
            stop, ordered = last, ordered or is_ordered
        else:
            if stop:
                yield whole()
                least = stop
            start, stop, ordered = first, last, is_ordered
        while start > least and (text[start - 1], text[stop : stop + 1]) in _PAIRS:
            start, stop = start - 1, stop + 1
    if stop:
        yield whole()
