"""EPUB books."""

import re
from pathlib import PurePath

import pytest
from fake_models import Model, capitals, same, silent, texts_of_file, translated_file
from office_files import member, zipped

from nmt_cli.documents.document import ReadOptions
from nmt_cli.system.errors import DataError

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
BOOK = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:title id="t">A book &amp; more</dc:title><dc:creator>A Person</dc:creator><dc:language>en</dc:language></metadata>
<manifest><item id="a" href="text/one%20a.xhtml" media-type="application/xhtml+xml"/>
<item media-type="application/x-dtbncx+xml" href="toc.ncx"/><item id="c" href="style.css" media-type="text/css"/>
</manifest></package>"""
NCX_HEAD = """<?xml version="1.0"?>
<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">"""
NCX = f"""{NCX_HEAD}<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docTitle><text>A book</text></docTitle>
<navLabel><text>One</text></navLabel></ncx>"""
CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en"><head><title/><script src="a.js"/><link href="a.css"/></head>
<body><h1><a id="page1"/>Chapter&nbsp;one</h1><p>A <i>black </i>dog<a href="#n1">1</a> sleeps.</p>
<img alt="A cat" src="a.png"/><p>var <code>x</code></p></body></html>"""


def epub(**changed: str) -> bytes:
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": BOOK,
        "OEBPS/toc.ncx": NCX,
        "OEBPS/text/one a.xhtml": CHAPTER,
        "OEBPS/style.css": "p { color: red }",
    }
    return zipped({name: changed.get(PurePath(name).stem.split()[0], text) for name, text in members.items()})


@pytest.mark.parametrize("model", [same, silent])
def test_unchanged_text_leaves_every_byte(model: Model) -> None:
    assert translated_file("epub", epub(), model) == epub()


def test_the_elements_of_a_package_document_may_have_a_prefix() -> None:
    prefixed = re.sub(r"<(/?)(package|metadata|manifest|item)\b", r"<\1opf:\2", BOOK).replace("xmlns=", "xmlns:opf=")
    assert texts_of_file("epub", epub(book=prefixed)) == texts_of_file("epub", epub())


def test_chapters_contents_and_title_are_translated() -> None:
    assert texts_of_file("epub", epub()) == [
        *("A book & more", "A book", "One", "Chapter one", "A black dog sleeps.", "A cat", "var")
    ]
    out = translated_file("epub", epub(), capitals, ReadOptions(language="de"))
    book = member(out, "OEBPS/book.opf")
    assert '<dc:title id="t">A BOOK &amp; MORE</dc:title><dc:creator>A Person</dc:creator>' in book
    assert "<dc:language>de</dc:language>" in book
    assert "<text>A BOOK</text></docTitle>\n<navLabel><text>ONE</text>" in (ncx := member(out, "OEBPS/toc.ncx"))
    assert ncx.startswith(NCX_HEAD)
    chapter = member(out, "OEBPS/text/one a.xhtml")
    assert 'xml:lang="de"' in chapter
    assert '<title/><script src="a.js"/><link href="a.css"/></head>' in chapter
    assert '<h1><a id="page1"/>CHAPTER ONE</h1><p>A <i>BLACK</i> DOG<a href="#n1">1</a> SLEEPS.</p>' in chapter
    assert '<img alt="A CAT" src="a.png"/>' in chapter


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zipped({"a": "b"}), "no META-INF/container.xml"),
        (epub(container="<container/>"), "does not name a package document"),
        (epub(container=CONTAINER.replace("book", "../../book")), "does not name a package document"),
        (epub(one=CHAPTER.replace("<html", "<!ENTITY x SYSTEM 'file:///etc/passwd'><html")), "declares entities"),
    ],
)
def test_damaged_books_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        translated_file("epub", data)


def test_an_encrypted_chapter_is_refused() -> None:
    """Encrypted fonts are common and are accepted."""
    members = {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": BOOK, "OEBPS/text/one a.xhtml": CHAPTER}
    encryption = '<encryption><CipherData><CipherReference URI="{}"/></CipherData></encryption>'
    fonts = zipped({**members, "META-INF/encryption.xml": encryption.format("OEBPS/a.otf")})
    assert translated_file("epub", fonts) == fonts
    chapters = zipped({**members, "META-INF/encryption.xml": encryption.format("OEBPS/text/one%20a.xhtml")})
    with pytest.raises(DataError, match="encrypted"):
        translated_file("epub", chapters)


def test_the_declared_encoding_of_a_chapter_matches_the_output() -> None:
    chapter = CHAPTER.replace('encoding="utf-8"', 'encoding="iso-8859-1"')
    written = [
        member(translated_file("epub", epub(one=chapter), model), "OEBPS/text/one a.xhtml").split("?>")[0]
        for model in (capitals, lambda text: same(text.replace("dog", "H\u00fcnd")))
    ]
    assert written == ['<?xml version="1.0" encoding="iso-8859-1"', '<?xml version="1.0" encoding="UTF-8"']
