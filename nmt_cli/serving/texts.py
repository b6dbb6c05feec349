"""A text of a request: cut into what is translated by itself, and put together again from the translations."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nmt_cli.documents import markup, xml
from nmt_cli.documents.alignment import aligned
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned, place
from nmt_cli.documents.segment import Builder, Parts, render, segments_of
from nmt_cli.documents.translate import read_document
from nmt_cli.serving.pool import Model
from nmt_cli.translation.pending import Translation

_NEW_LINE = re.compile("(\r?\n)")


@dataclass(frozen=True)
class Form:
    """What a text is, and what of it is kept."""

    kind: str = "text"  # or "html", "xml", "md", "po"
    protect: bool | None = None  # keep placeholders from the model; None: in all but plain text
    ignored: tuple[str, ...] = ()  # elements of HTML or XML that are copied
    outline: xml.Outline = field(default_factory=xml.Outline)  # of XML: which elements end a segment
    joined: bool = False  # plain text whose lines are parts of one sentence
    spaced: bool = False  # the white space around each line stays

    def read(self, text: str, language: str = "") -> "Text":
        """Return a text in the parts that are translated by themselves; DataError where it is not what it should be.

        `language` is the target's."""
        plain = self.kind == "text"
        protection = (
            Protection(strict=self.kind == "po") if self.protect or (self.protect is None and not plain) else None
        )
        if self.kind in ("html", "xml"):
            html = self.kind == "html"
            parts = (
                markup.parse(text, protection, self.ignored, language)
                if html
                else xml.parse(text, protection, self.ignored, self.outline)
            )
            return Marked(parts, partial(render, parts))
        if not plain:
            return Marked(*read_document(text, self.kind, protection, language))
        lines = [text] if self.joined else _NEW_LINE.split(text)
        return _protected(lines, protection) if protection else Lines(lines, self.spaced)


class Lines:
    """Plain text: each line is translated as `nmt translate` would, its ends stay."""

    aligned = False

    def __init__(self, parts: list[str], spaced: bool) -> None:
        """`parts` are lines and what stands between them, in turn."""
        self._parts, self._spaced = parts, spaced
        self.units = parts[::2]

    def written(self, model: Model, results: Sequence[Translation], rank: int) -> str:
        """Return the text's translation of this rank, of the translations of its units."""
        parts = list(self._parts)
        parts[::2] = [result.hypotheses[min(rank, len(result.hypotheses) - 1)].text for result in results]
        if self._spaced:
            parts[::2] = [_between(unit, line) for unit, line in zip(self.units, parts[::2], strict=True)]
        return "".join(parts)


class Marked:
    """Text with markup, with placeholders, or with both."""

    aligned = True

    def __init__(self, parts: Parts, write: Callable[[], str]) -> None:
        """`write` returns the text when its segments have their results."""
        self._write = write
        self._segments = segments_of(parts)
        self._sources = [segment.result for segment in self._segments]
        self.units = [segment.text for segment in self._segments]

    def written(self, model: Model, results: Sequence[Translation], rank: int) -> str:
        for segment, source, result in zip(self._segments, self._sources, results, strict=True):
            segment.result = source  # where its translation is empty
            segment.result = place(segment, align(model, segment.text, result, rank))
        return self._write()


Text = Lines | Marked


def _protected(lines: Sequence[str], protection: Protection) -> Marked:
    parts = Parts()
    for line in lines:
        builder = Builder(protection=protection)
        builder.add_source(line)
        parts += builder.build()
    return Marked(parts, partial(render, parts))


def _between(source: str, text: str) -> str:
    """Return a text with the white space that is around the source."""
    if not source.strip():
        return source
    return source[: len(source) - len(source.lstrip())] + text + source[len(source.rstrip()) :]


def align(model: Model, text: str, translation: Translation, rank: int) -> Aligned:
    """Return the translation of this rank, linked to the text; what the model's source begins with is no part of it."""
    found, skip = aligned(model.translator, translation, model.begin + text, rank), len(model.begin)
    return Aligned(found.text, [(end, max(start - skip, 0)) for end, start in found.links])
