"""Models with perfect word links, and helpers that translate documents with them."""

import re
from collections.abc import Callable

from nmt_cli.documents import icu
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.messages import text_parts
from nmt_cli.documents.placement import Aligned, place_marks
from nmt_cli.documents.segment import Parts, render, segments_of

Model = Callable[[str], Aligned]


def same(text: str) -> Aligned:
    """Repeat the source."""
    return Aligned(text, [(end, end - 1) for end in (match.end() for match in re.finditer(r"\s*\S", text))])


def capitals(text: str) -> Aligned:
    """Repeat the source in capital letters."""
    return Aligned(text.upper(), same(text).links)


def backwards(text: str) -> Aligned:
    """Return the source's words in the opposite order."""
    words = [(match.start(), match[0]) for match in re.finditer(r"\S+", text)][::-1]
    links, end = list[tuple[int, int]](), -1
    for start, word in words:
        end += len(word) + 1
        links.append((end, start))
    return Aligned(" ".join(word for _, word in words), links)


def silent(_text: str) -> Aligned:
    """Return an empty translation."""
    return Aligned("", [])


def linked(pairs: dict[str, str]) -> Model:
    """Return a model whose translation is always the keys of `pairs`, each linked to its value in the source."""

    def model(text: str) -> Aligned:
        links, end = list[tuple[int, int]](), -1
        for target, source in pairs.items():
            end += len(target) + 1
            links.append((end, text.index(source)))
        return Aligned(" ".join(pairs), links)

    return model


def translated(parts: Parts, model: Model = same) -> str:
    for segment in segments_of(parts):
        segment.result = place_marks(segment, model(segment.text))
    return render(parts)


def texts_of(parts: Parts) -> list[str]:
    """Return the segments' texts as a model gets them."""
    return [segment.text for segment in segments_of(parts)]


def translated_file(kind: str, data: bytes, model: Model = same, options: ReadOptions | None = None) -> bytes:
    document = FORMATS[kind].read(data, options or ReadOptions())
    for segment in document.segments:
        segment.result = place_marks(segment, model(segment.text))
    return document.to_bytes()


def texts_of_file(kind: str, data: bytes) -> list[str]:
    """Return the texts of a file's segments as a model gets them."""
    return [segment.text for segment in FORMATS[kind].read(data, ReadOptions()).segments]


def filled(document: Document, model: Model = same) -> str:
    """Translate a document with a model; return the text of its file."""
    for segment in document.segments:
        segment.result = place_marks(segment, model(segment.text))
    return document.write()


def icu_written(text: str, language: str = "de", model: Model = capitals) -> str:
    """Translate an ICU message."""
    message = icu.parse(text, text_parts, None, language)
    assert message
    for segment in segments_of(message.parts):
        segment.result = place_marks(segment, model(segment.text))
    return message.write()
