"""A text of a request: cut into units that are translated by themselves, and written again from their translations.

`units_of` and `write` depend on their arguments alone, so that any process can run them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt_cli.documents.document import Document, Outline, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned, place_marks
from nmt_cli.documents.segment import plain_parts

_NEW_LINE = re.compile("(\r?\n)")


@dataclass(frozen=True)
class Form:
    """What a text is, and what of it is kept."""

    kind: str = "text"  # or "html", "xml", "md", "po"
    protect: bool | None = None  # keep placeholders from the model; None: in all but plain text
    ignored: tuple[str, ...] = ()  # elements of HTML or XML that are copied
    outline: Outline = field(default_factory=Outline)  # of XML: which elements end a segment
    joined: bool = False  # plain text whose lines are parts of one sentence
    spaced: bool = False  # the white space around each line stays
    language: str = ""  # the target's

    @property
    def marked(self) -> bool:
        """Whether marks are placed on the translation, which takes its alignment."""
        return self.kind != "text" or bool(self.protect)

    def read(self, text: str) -> "Text":
        """Return a text in the parts that are translated by themselves; DataError where it is not what it should be."""
        protected = self.marked if self.protect is None else self.protect
        if self.kind != "text":
            options = ReadOptions(protected, self.language, self.ignored, self.outline)
            return Marked(FORMATS[self.kind].read(text, options))
        lines = [text] if self.joined else _NEW_LINE.split(text)
        if protected:
            return Marked(Document([part for line in lines for part in plain_parts(line, Protection())]))
        return Lines(lines, self.spaced)


class Lines:
    """Plain text: each line is translated as `nmt translate` would, its ends stay."""

    def __init__(self, parts: list[str], spaced: bool) -> None:
        """`parts` are lines and what stands between them, in turn."""
        self._parts, self._spaced = parts, spaced
        self.units = parts[::2]

    def written(self, results: Sequence[Aligned]) -> str:
        """Return the text's translation, from those of its units."""
        parts = list(self._parts)
        parts[::2] = [result.text for result in results]
        if self._spaced:
            parts[::2] = [_between(unit, line) for unit, line in zip(self.units, parts[::2], strict=True)]
        return "".join(parts)


class Marked:
    """Text with markup, with placeholders, or with both."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._sources = [segment.result for segment in document.segments]
        self.units = [segment.text for segment in document.segments]

    def written(self, results: Sequence[Aligned]) -> str:
        for segment, source, result in zip(self._document.segments, self._sources, results, strict=True):
            segment.result = source  # where its translation is empty
            segment.result = place_marks(segment, result)
        return self._document.write()


Text = Lines | Marked


def units_of(form: Form, texts: Sequence[str]) -> list[list[str]]:
    """Return the units of each text; DataError where one is not of its kind."""
    return [form.read(text).units for text in texts]


def write(form: Form, texts: Sequence[str], found: Sequence[Sequence[Sequence[Aligned]]]) -> list[list[str]]:
    """Return the translations of each text, each once, best first.

    `found` has for each text the translations of its units: first the best of each, then the second, and so on.
    """
    written = list[list[str]]()
    for text, ranks in zip(texts, found, strict=True):
        read = form.read(text)
        written.append(list(dict.fromkeys(read.written(results) for results in ranks)))
    return written


def _between(source: str, text: str) -> str:
    """Return a text with the white space that is around the source."""
    if not source.strip():
        return source
    return source[: len(source) - len(source.lstrip())] + text + source[len(source.rstrip()) :]
