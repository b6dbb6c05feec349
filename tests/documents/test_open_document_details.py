"""Elements of OpenDocument files and of books: which hold text, which are copied, and which divide it."""

import re

import pytest
from fake_models import capitals, same, texts_of_file, translated_file
from office_files import member, odf, zipped

from nmt_cli.documents.document import ReadOptions
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize(
    ("inside", "texts"),
    [
        ("<text:p>a<text:tab/>b<text:line-break/>c<text:s/>d</text:p>", ["a", "b", "c d"]),
        ("<text:h>a</text:h><text:x>b</text:x>", ["a"]),
        *(
            (f"<text:p>a<text:{name}/>b</text:p>", ["ab"])
            for name in (
                "bookmark",
                "reference-mark-start",
                "change-end",
                "soft-page-break",
                "toc-mark",
                "alphabetical-index-mark-end",
                "user-index-mark",
            )
        ),
        ("<text:p>a<office:annotation-end/>b</text:p>", ["ab"]),
        ("<text:p>a<text:date>5</text:date>b</text:p>", ["a b"]),
        (
            "<text:p>a <text:ruby><text:ruby-base>b</text:ruby-base>"
            "<text:ruby-text>c</text:ruby-text></text:ruby></text:p>",
            ["a b"],
        ),
        ("<text:p>a <text:meta>b</text:meta> <text:a x=''>c</text:a></text:p>", ["a b c"]),
        ("<office:scripts><text:p>a</text:p></office:scripts>", []),
        ("<dc:subject>a</dc:subject><dc:description>b</dc:description><meta:keyword>c</meta:keyword>", ["a", "b", "c"]),
        ("<draw:frame><svg:title>a</svg:title><svg:desc>b</svg:desc></draw:frame>", ["a", "b"]),
        (
            "<presentation:footer-decl x=''>a</presentation:footer-decl>"
            "<presentation:header-decl>b</presentation:header-decl>",
            ["a", "b"],
        ),
        ("<text:index-title-template>a</text:index-title-template>", ["a"]),
        (
            "<table:table-cell office:value-type='string'><text:p>a</text:p></table:table-cell>"
            "<table:table-cell><text:p>b</text:p></table:table-cell>",
            ["a", "b"],
        ),
        ("<table:table-cell table:formula='x'><text:p>a</text:p></table:table-cell>", []),
    ],
)
def test_elements_of_open_documents(inside: str, texts: list[str]) -> None:
    data = odf(inside)
    assert texts_of_file("odt", data)[: len(texts)] == texts
    assert texts_of_file("odt", data)[len(texts) :] == texts_of_file("odt", odf(""))
    assert translated_file("odt", data, same) == data
    out = member(translated_file("odt", data, capitals), "content.xml")
    elements = re.compile(r"<(?!text:s/)[a-z]+:[\w-]+")
    assert sorted(elements.findall(out)) == sorted(elements.findall(member(data, "content.xml")))


def test_only_default_styles_get_the_language() -> None:
    style = '<style:style style:name="x"><style:text-properties fo:language="fr" fo:country="FR"/></style:style>'
    default = '<style:default-style><style:text-properties fo:language="fr" fo:country="FR"/></style:default-style>'
    out = member(translated_file("odt", odf(style + default * 2), same, ReadOptions(language="pt_BR")), "content.xml")
    assert style in out
    assert out.count('fo:language="pt" fo:country="BR"') == 2


def book(items: str, data: str, members: dict[str, str], more: str = "") -> bytes:
    names = "xmlns='http://www.idpf.org/2007/opf' xmlns:dc='http://purl.org/dc/elements/1.1/'"
    container = "<c:container><c:rootfile x='' full-path='b.opf'/></c:container>"
    opf = f"<o:package xmlns:o='x' {names}>{data}{items}</o:package>"
    return zipped(
        {
            "META-INF/container.xml": container,
            "b.opf": opf,
            **members,
            **({"META-INF/encryption.xml": more} if more else {}),
        }
    )


def test_books_with_prefixes_and_options() -> None:
    page = "<html><body><p>a <code>b</code> <x>c</x></p><title/></body></html>"
    item = "<o:item href='{}' media-type='application/xhtml+xml'/>"
    data = "<dc:title>one</dc:title><dc:description>two</dc:description><dc:language id='x'>en</dc:language>"
    epub = book(item.format("./p/../a%26b.xhtml"), data, {"a&b.xhtml": page, "c.xhtml": page})
    assert texts_of_file("epub", epub) == ["one", "two", "a c"]
    out = translated_file("epub", epub, capitals, ReadOptions(language="pt_BR", ignored=("x",)))
    assert "<p>A <code>b</code> <x>c</x></p>" in member(out, "a&b.xhtml")
    assert "<dc:language id='x'>pt-BR</dc:language>" in member(out, "b.opf")
    locked = "<x:CipherReference a='' URI='{}'/>"
    for name in ("c.xhtml", "b.opf"):  # not a chapter
        assert texts_of_file(
            "epub", book(item.format("a&amp;b.xhtml"), data, {"a&b.xhtml": page, "c.xhtml": page}, locked.format(name))
        )
    with pytest.raises(DataError, match="digital rights management"):
        texts_of_file(
            "epub", book(item.format("a&amp;b.xhtml"), data, {"a&b.xhtml": page}, locked.format("a%26b.xhtml"))
        )
