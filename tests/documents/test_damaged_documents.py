"""Damaged files of every format: each is read or refused, and what is written is as valid as what was read."""

import io
import random
import re
import zipfile
from xml.parsers import expat

import pytest
from fake_models import backwards, silent, translated_file
from office_files import docx, odf, ooxml, paragraph, run, zipped
from test_epub import epub
from test_opendocument import BODY
from test_slides_and_sheets import SHEETS, SLIDES
from test_subtitles import ASS, SRT, VTT
from test_word_files import EVERYTHING

from nmt_cli.documents.document import ReadOptions
from nmt_cli.system.errors import DataError

FILES = {"srt": SRT.encode(), "vtt": VTT.encode("utf-16"), "ass": ASS.encode("utf-8-sig")}
FILES |= {"docx": docx(EVERYTHING), "pptx": SLIDES, "xlsx": ooxml(SHEETS), "odt": odf(BODY), "epub": epub()}
PIECES = """<w:p> </w:p> <w:r> <w:sdt> </w:sdt> </w:sdtContent> <w:sdtContent/> <w:hyperlink> <text:span> <text:p> <si>
<is> < > & &amp; &#x1; <![CDATA[x]]> <!-- --> ]]> <!DOCTYPE <!ENTITY <w:fldChar_w:fldCharType="begin"/> <w:t/> <w:rPr/>
<a:p> <?x?> " ' {\\i1} <i> - --> \\N"""
SNIPPETS = [each.replace("_", " ").encode() for each in PIECES.split()] + [
    b"\0",
    b"\1",
    b"\2",
    b"\xff\xfe",
    b"\n\n",
    b"\r",
]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some of them changed, removed, repeated or added."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, size = draw.randrange(len(out) + 1), draw.choice((1, 3, 30, 300))
        tags = [match.span() for match in re.finditer(rb"<[^<>]*>", out)]
        (begin, end), (start, stop) = (draw.choice(tags or [(0, 0)]) for _ in range(2))
        change = draw.randrange(5)
        if change == 0:
            out[at : at + size] = b""
        elif change == 1:
            out[at:at] = draw.choice(SNIPPETS) * draw.choice((1, 1, 20))
        elif change == 2:
            out[begin:end] = out[start:stop]
        elif change == 3:
            out[at : at + 1] = bytes([draw.randrange(256)])
        else:
            out[at:at] = out[begin : begin + size]
    return bytes(out)


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {each.filename: archive.read(each) for each in archive.infolist()}


def is_xml(content: bytes) -> bool:
    try:
        expat.ParserCreate().Parse(content, True)
    except expat.ExpatError:
        return False
    return True


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_are_read_or_refused(kind: str) -> None:
    draw, read = random.Random(kind), 0
    for _ in range(60):
        data = FILES[kind]
        if data[:2] == b"PK":
            inside = members(data)
            name = draw.choice([name for name in inside if name.endswith(("xml", "opf", "ncx"))])
            data = zipped({**inside, name: damaged(inside[name], draw)})
        if data[:2] != b"PK" or draw.random() < 0.3:
            data = damaged(data, draw)
        try:
            assert translated_file(kind, data, silent) == data
            written = translated_file(kind, data, backwards, ReadOptions(language="de"))
        except DataError:
            continue
        read += 1
        if written[:2] == b"PK":
            try:
                before = members(data)
            except zipfile.BadZipFile:  # a damaged picture, which is copied
                continue
            after = members(written)
            assert list(after) == list(before)
            assert not [name for name in after if is_xml(before[name]) and not is_xml(after[name])]
    assert read > 5


def test_control_characters_that_stand_for_tags_are_refused() -> None:
    """While a paragraph is translated, control characters stand for its tags."""
    for character in "\1\2\3":
        with pytest.raises(DataError, match="characters that XML does not allow"):
            translated_file("docx", docx(paragraph(run(f"A{character}dog"))))
    assert translated_file("docx", docx(paragraph(run("A&#1;dog"))), silent)
