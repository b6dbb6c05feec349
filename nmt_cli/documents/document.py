"""Document, which the `read` function of each format returns, and ReadOptions, which it takes."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from nmt_cli.documents.kept import Kept
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Parts, render, segments_of

_HEAD = 4096  # number of characters at the start of a file in which its encoding may be declared
# <?xml ... encoding="latin-1" or <meta ... charset=latin-1
_ENCODING = re.compile(
    r"(\A\ufeff?\s*<\?xml\b[^<>]*?\sencoding=[\"']|<meta\b[^<>]*?\bcharset=[\"']?)(?!utf-8\b)[\w.:-]+", re.IGNORECASE
)
LINE_END = re.compile(r"(\r\n?|\n)")  # the group makes `split` return the line ends, too


@dataclass(frozen=True)
class Outline:
    """Where the segments of XML end.

    Elements in `splitting` end a segment. If `detect` is true, so do other elements whose parent has no text of its
    own, except those in `joining`. If `lines` is true, so do line ends.
    """

    splitting: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()
    detect: bool = True
    lines: bool = False


@dataclass(frozen=True)
class ReadOptions:
    protect: bool = True  # hide placeholders from the model
    language: str = ""  # the target language, for HTML's `lang` and gettext's header
    ignored: tuple[str, ...] = ()  # HTML or XML elements whose content is copied, not translated
    outline: Outline = Outline()  # where the segments of XML end
    source_language: str = ""  # selects the code page of files that are not in Unicode
    line_length: int = 42  # maximum line length of subtitles, in characters
    max_unpacked: int = 1 << 28  # maximum bytes to unpack from a zip file
    kept: Kept | None = None  # phrases and a pattern that the user wants to keep untranslated

    def protection(self, *, strict: bool = False, flags: Collection[str] = ()) -> Protection | None:
        """Return a Protection with these options, or None if it would hide nothing.

        `flags` are gettext flags such as python-format. For `strict`, see Protection.
        """
        if not (self.protect or self.kept):
            return None
        return Protection(strict=strict and self.protect, flags=flags, kept=self.kept, forms=self.protect)


class Document:
    """A file or text that has been read.

    Set the `result` of each segment to its translation, then call `write` for text, or `to_bytes` for a file.
    """

    mark = ""  # the byte order mark of the file, if any
    target = ""  # the target language that the file itself names, if any
    declares_encoding = False  # whether the format is XML or HTML, which may name the encoding of the file

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.segments = segments_of(parts)

    def write(self) -> str:
        return render(self.parts)

    def to_bytes(self) -> bytes:
        """Return the translated file in UTF-8, with a corrected encoding declaration."""
        text = self.write()
        return (self.mark + (declaring_utf8(text) if self.declares_encoding else text)).encode()


def declaring_utf8(text: str) -> str:
    """Replace the encoding that XML or HTML declares, if any, with UTF-8. Return ASCII text unchanged."""
    return text if text.isascii() else _ENCODING.sub(r"\g<1>UTF-8", text[:_HEAD]) + text[_HEAD:]
