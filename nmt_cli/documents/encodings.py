"""Decode a text file, and encode its translation in the same encoding.

UTF-8 and UTF-16 are recognized. Other files are decoded with the Windows code page of the source language, or as
Latin-1 if they are not valid in that code page.
"""

import codecs
import re
from dataclasses import dataclass

from nmt_cli.corpus.languages import base_of
from nmt_cli.system.errors import DataError

_CODE_PAGES = {
    "cp1250": "bs cs hr hu pl ro sk sl sq",
    "cp1251": "be bg kk ky mk mn ru sr tg tt uk",
    "cp1253": "el",
    "cp1254": "az tr",
    "cp1255": "he",
    "cp1256": "ar fa ur",
    "cp1257": "et lt lv",
    "cp1258": "vi",
    "cp874": "th",
    "cp932": "ja",
    "cp949": "ko",
    "gb18030": "zh",
}
_CODE_PAGE_OF = {language: page for page, languages in _CODE_PAGES.items() for language in languages.split()}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True)
class Encoding:
    name: str
    mark: bytes = b""  # the byte order mark of the file, if any

    def encode(self, text: str) -> bytes:
        """Encode text. Use UTF-8 if this encoding lacks one of the characters."""
        try:
            return self.mark + text.encode(self.name)
        except UnicodeEncodeError:
            return text.encode()


def decoded(data: bytes, language: str = "") -> tuple[str, Encoding]:
    """Decode a file whose text is in `language`. Return the text and its encoding.

    Raise DataError if the data is binary, or is not in the encoding that its byte order mark declares.
    """
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            return _decoded(data[len(mark) :], Encoding(name, mark))
    for name, high_bytes in ("utf-16-le", data[1:200:2]), ("utf-16-be", data[:200:2]):
        # In UTF-16, most of the first 100 characters are usually below U+0100, so most of their high bytes are 0.
        if len(data) > 3 and high_bytes.count(0) > len(high_bytes) / 2:
            return _decoded(data, Encoding(name))
    try:
        return _decoded(data, Encoding("utf-8"))
    except DataError:
        if b"\0" in data:
            raise
    for name in (_CODE_PAGE_OF.get(base_of(language), "cp1252"), "latin-1"):
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        if text.encode(name) == data:
            break
    return text, Encoding(name)


def _decoded(data: bytes, encoding: Encoding) -> tuple[str, Encoding]:
    try:
        text = data.decode(encoding.name)
    except UnicodeDecodeError as error:
        wrong = f"the input is not {encoding.name.upper()}: byte {error.start + len(encoding.mark):,} is invalid"
        raise DataError(f"{wrong}. Convert it to UTF-8, for example with iconv") from None
    if "\0" in text:
        raise DataError("the input has NUL characters, so it is not a text file. Check its format")
    return text, encoding


def paired(text: str) -> str:
    """Join each pair of surrogates, such as \\ud83d\\ude00, into one character.

    A surrogate without a partner becomes a question mark.
    """
    if text.isascii():
        return text
    text = _SURROGATES.sub(lambda match: match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return text.encode("utf-8", "replace").decode()
