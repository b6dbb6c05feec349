"""A text of a request: cut into what is translated by itself, and put together again from the translations."""

import re
from collections.abc import Sequence

from nmt_cli.documents import markup
from nmt_cli.documents.alignment import aligned
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned, place
from nmt_cli.documents.segment import Builder, Parts, render, segments_of
from nmt_cli.serving.pool import Model
from nmt_cli.translation.pending import Translation

_NEW_LINE = re.compile("(\r?\n)")


class Lines:
    """Plain text: each line is translated as `nmt translate` would, its ends stay."""

    aligned = False

    def __init__(self, text: str) -> None:
        self._parts = _NEW_LINE.split(text)
        self.units = self._parts[::2]

    def written(self, model: Model, results: Sequence[Translation], rank: int) -> str:
        """Return the text's translation of this rank, of the translations of its units."""
        parts = list(self._parts)
        parts[::2] = [_ranked(result, rank) for result in results]
        return "".join(parts)


class Marked:
    """Text with markup, with placeholders, or with both."""

    aligned = True

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._segments = segments_of(parts)
        self._sources = [segment.result for segment in self._segments]
        self.units = [segment.text for segment in self._segments]

    def written(self, model: Model, results: Sequence[Translation], rank: int) -> str:
        for segment, source, result in zip(self._segments, self._sources, results, strict=True):
            segment.result = source  # where its translation is empty
            segment.result = place(segment, align(model, segment.text, result, rank))
        return render(self._parts)


Text = Lines | Marked


def of_html(text: str, protection: Protection | None) -> Marked:
    return Marked(markup.parse(text, protection))


def of_plain(text: str, protection: Protection | None) -> Text:
    if not protection:
        return Lines(text)
    parts = Parts()
    for line in _NEW_LINE.split(text):
        builder = Builder(protection=protection)
        builder.add_source(line)
        parts += builder.build()
    return Marked(parts)


def align(model: Model, text: str, translation: Translation, rank: int) -> Aligned:
    """Return the translation of this rank, linked to the text; what the model's source begins with is no part of it."""
    found, skip = aligned(model.translator, translation, model.begin + text, rank), len(model.begin)
    return Aligned(found.text, [(end, max(start - skip, 0)) for end, start in found.links])


def _ranked(translation: Translation, rank: int) -> str:
    return translation.hypotheses[min(rank, len(translation.hypotheses) - 1)].text
