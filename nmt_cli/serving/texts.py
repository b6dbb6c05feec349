"""Cut a request's texts into units, and join the translations of the units.

A unit is a line of plain text, or a segment of a text with markup. The functions depend only on their arguments, so any
process can run them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt_cli.corpus.languages import shortest
from nmt_cli.documents.document import LINE_END, Document, Outline, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.kept import Kept, kept_phrases
from nmt_cli.documents.placement import Aligned, place_marks
from nmt_cli.documents.segment import plain_parts

MAX_UNPACKED = 1 << 24  # bytes of text that a compressed file may hold


@dataclass(frozen=True)
class TextFormat:
    """The format and languages of a text, and the parts of it that stay untranslated."""

    kind: str = "text"  # or another name in FORMATS
    protect: bool | None = None  # keep placeholders away from the model; if None, do so in all formats but plain text
    ignored: tuple[str, ...] = ()  # HTML or XML elements that are copied, not translated
    outline: Outline = field(default_factory=Outline)  # where the segments of XML end
    joined: bool = False  # whether the lines of plain text are parts of one sentence
    spaced: bool = False  # whether to keep the white space around each line
    language: str = ""  # of the translation
    source_language: str = ""
    keep: tuple[str, ...] = ()  # words and phrases that are not translated

    @property
    def marked(self) -> bool:
        """Whether the translation must be aligned with the source, to place tags, placeholders or kept words."""
        return self.kind != "text" or bool(self.protect or self.keep)

    @property
    def kept(self) -> Kept | None:
        return kept_phrases(tuple(self.keep)) if self.keep else None

    def document(self, source: str | bytes) -> Document:
        """Parse a text with markup, or the bytes of a file. Raise DataError if `source` is not in this format."""
        options = ReadOptions(
            self.protect is not False,
            shortest(self.language),
            self.ignored,
            self.outline,
            source_language=self.source_language,
            max_unpacked=MAX_UNPACKED,
            kept=self.kept,
        )
        return FORMATS[self.kind].read(source, options)

    def parse(self, text: str) -> "PlainText | MarkedText":
        """Divide a text into units. Raise DataError if it is not in this format."""
        if self.kind != "text":
            return MarkedText(self.document(text))
        lines = [text] if self.joined else LINE_END.split(text)
        if self.marked:
            protection = ReadOptions(bool(self.protect), kept=self.kept).protection()
            return MarkedText(Document([part for line in lines for part in plain_parts(line, protection)]))
        return PlainText(lines, self.spaced)


class PlainText:
    """Plain text. Each line is a unit, and line ends are kept."""

    def __init__(self, parts: list[str], spaced: bool) -> None:
        """`parts` alternates between lines and line ends. If `spaced`, each line keeps its outer white space."""
        self._parts = parts
        self._spaced = spaced
        self.units = parts[::2]

    def translated(self, results: Sequence[Aligned]) -> str:
        """Return the translated text, given the translations of its units."""
        parts = list(self._parts)
        parts[::2] = [result.text for result in results]
        if self._spaced:
            parts[::2] = [_with_outer_space(unit, line) for unit, line in zip(self.units, parts[::2], strict=True)]
        return "".join(parts)


class MarkedText:
    """Text with markup, with placeholders, or with both."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._sources = [segment.result for segment in document.segments]
        self.units = [segment.text for segment in document.segments]

    def translated(self, results: Sequence[Aligned]) -> str:
        """Return the translated text, given the translations of its units.

        Where a translation is blank, keep the source of the unit.
        """
        for segment, source, result in zip(self._document.segments, self._sources, results, strict=True):
            segment.result = source  # undo an earlier call
            segment.result = place_marks(segment, result)
        return self._document.write()


def file_units(text_format: TextFormat, data: bytes) -> list[str]:
    """Return the units of a file. Raise DataError if it is not in the format."""
    return [segment.text for segment in text_format.document(data).segments]


def assemble_file(text_format: TextFormat, data: bytes, results: Sequence[Aligned]) -> bytes:
    """Return a translated file, given the translations of its units."""
    document = text_format.document(data)
    for segment, result in zip(document.segments, results, strict=True):
        segment.result = place_marks(segment, result)
    return document.to_bytes()


def units_of(text_format: TextFormat, texts: Sequence[str]) -> list[list[str]]:
    """Return the units of each text. Raise DataError if a text is not in the format."""
    return [text_format.parse(text).units for text in texts]


def assemble(
    text_format: TextFormat, texts: Sequence[str], results: Sequence[Sequence[Sequence[Aligned]]]
) -> list[list[str]]:
    """Return the distinct translations of each text, best first.

    `results[i][rank]` holds the translations of all units of `texts[i]`. Rank 0 is the best.
    """
    translations = list[list[str]]()
    for text, ranks in zip(texts, results, strict=True):
        parsed = text_format.parse(text)
        translations.append(list(dict.fromkeys(parsed.translated(units) for units in ranks)))
    return translations


def _with_outer_space(source: str, text: str) -> str:
    """Return `text` with the outer white space of `source`. If `source` is blank, return `source`."""
    if not source.strip():
        return source
    return source[: len(source) - len(source.lstrip())] + text + source[len(source.rstrip()) :]
