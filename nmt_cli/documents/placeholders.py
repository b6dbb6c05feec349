"""What a program or a translation tool has put into a text, to be found there again: never shown to a model."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_PRINTF = r"[-+0#']*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGaAcCrsSpn@]"
_NESTED = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*"
_URL_END = r"[^\s<>\"]*[^\s<>\"'.,;:!?)\]}]"
# These stand for the next argument, or for a statement: they must not pass each other.
_INSIDE = r".{0,200}?"  # bounded, as is what stands before an @: else the time of some texts grows with their square
_ORDERED = re.compile(rf"%{_PRINTF}|\{{\}}|\{{%{_INSIDE}%\}}|<%{_INSIDE}%>", re.DOTALL)
PLACEHOLDER = re.compile(
    "|".join(
        [
            _ORDERED.pattern,
            rf"%%|%(?:\d+\$|\([^()\s]+\)){_PRINTF}|%\d+%|%\d+(?!\w)",  # of printf, Python, Boost and Qt
            rf"\{{\{{\{{{_INSIDE}\}}\}}\}}|\{{\{{{_INSIDE}\}}\}}",  # of Mustache, Jinja and Django
            r"[%$#]\{[^{}]*\}|\$\([\w.]+\)",  # of Ruby and shells
            r"\{[\w.\[\]-]*(?:[!:][^{}]*)?\}",  # of str.format
            rf"\{{\s*\w+\s*,\s*\w+\s*(?:,{_NESTED})?\}}",  # of ICU, with all that is in it
            r"\[X\d+X\]|<(?P<tag>\w+)(?:\s[^<>]*)?></(?P=tag)>|<\w+(?:\s[^<>]*)?/>",  # of translation tools
            r"\[\^[^\]\s]+\]:?",  # of footnotes in Markdown
            rf"(?:https?|ftp)://{_URL_END}|www\.{_URL_END}|[\w.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+",
        ]
    ),
    re.DOTALL,
)
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_QUOTES = "\"\"''``\u201c\u201d\u201e\u201c\u2018\u2019\u201a\u2018\u00ab\u00bb"
_PAIRS = {*_BRACKETS.items(), *zip(_QUOTES[::2], _QUOTES[1::2], strict=True)}
_BRACKET = re.compile("[()\\[\\]{}<>]")
_JOINT = re.compile(r"[^\w\s]*")  # between two placeholders that are one


class Piece(NamedTuple):
    source: str
    kind: str = "text"  # or "point", "ordered", "open", "close"
    name: str = ""  # of what opens or closes


class Protection:
    """What the model does not see of a text.

    With `strict`, as for program strings, it does not see brackets either, and as many of these and of tags come out as
    went in. A bracket and its partner are an element.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.once = self.brackets = strict
        # What the model must not say: it would be taken for a placeholder.
        self.forbidden = re.compile(f"{PLACEHOLDER.pattern}|{_BRACKET.pattern}", re.DOTALL) if strict else PLACEHOLDER

    def pieces(self, text: str) -> Iterator[Piece]:
        end = 0
        for start, stop, ordered in _found(text):
            yield from self._between(text[end:start])
            yield Piece(text[start:stop], "ordered" if ordered else "point")
            end = stop
        yield from self._between(text[end:])

    def _between(self, text: str) -> Iterator[Piece]:
        end = 0
        for match in _BRACKET.finditer(text) if self.brackets else ():
            yield Piece(text[end : match.start()])
            if match[0] in _BRACKETS:
                yield Piece(match[0], "open", _BRACKETS[match[0]])
            else:
                yield Piece(match[0], "close", match[0])
            end = match.end()
        yield Piece(text[end:])


def _found(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the place of each placeholder, with quotes and brackets around it, and whether it is ordered. Those with
    only punctuation between them are one."""
    start, stop, ordered = 0, 0, False
    for match in PLACEHOLDER.finditer(text):
        own = _ORDERED.fullmatch(match[0]) is not None
        if stop and _JOINT.fullmatch(text, stop, match.start()):
            stop, ordered = match.end(), ordered or own
        else:
            if stop:
                yield start, stop, ordered
            start, stop, ordered = match.start(), match.end(), own
        while start and (text[start - 1], text[stop : stop + 1]) in _PAIRS:
            start, stop = start - 1, stop + 1
    if stop:
        yield start, stop, ordered
