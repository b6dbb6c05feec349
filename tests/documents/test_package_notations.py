"""Office documents in every notation that XML allows: prefixes, quotes, line ends. Also marks and invisible formats."""

import io
import re
import zipfile
from collections.abc import Callable

import pytest
from fake_models import backwards, capitals, same, texts_of_file, translated_file
from office_files import WP, X, body, docx, member, odf, ooxml, paragraph, run, zipped
from test_epub import epub
from test_office_details import office
from test_opendocument import BODY
from test_slides_and_sheets import RELATIONS, SHEETS, SLIDES, TABLE
from test_word_files import EVERYTHING

from nmt_cli.documents.document import ReadOptions

TABLES = {"xl/tables/table1.xml": TABLE, "xl/worksheets/_rels/sheet1.xml.rels": RELATIONS}


def changed(data: bytes, change: Callable[[str], str]) -> bytes:
    """Return a package with changed XML members."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return zipped(
        {
            name: change(content.decode()) if b"<" in content and not name.endswith(".png") else content
            for name, content in members.items()
        }
    )


def with_other_prefix(text: str, prefix: str) -> str:
    """Return XML in which the elements of one namespace have another prefix. Attributes keep theirs."""
    declared = re.search(rf'xmlns:{prefix}="([^"]*)"', text)
    if not declared:
        return text
    text = re.sub(rf"(</?){prefix}:", r"\1zz:", text)
    return text.replace(declared[0], f'{declared[0]} xmlns:zz="{declared[1]}"', 1)


@pytest.mark.parametrize(
    ("prefix", "kind", "inside"),
    [
        ("a", "presentationml.slide", "<a:p><a:r><a:t>a dog</a:t></a:r></a:p>"),
        ("p", "presentationml.slide", '<p:cNvPr id="1" descr="a dog"/>'),
        ("c", "drawingml.chart", "<c:v>a dog</c:v>"),
        ("wp", "wordprocessingml.header", f'<x {WP}><wp:docPr id="1" title="a dog"/></x>'),
        ("xdr", "drawing", '<xdr:cNvPr id="1" descr="a dog"/>'),
        ("pic", "wordprocessingml.header", '<pic:cNvPr id="1" descr="a dog"/>'),
        ("v", "wordprocessingml.header", '<v:shape alt="a dog"/>'),
        ("dc", "drawingml.chart", "<dc:subject>a dog</dc:subject>"),
        ("cp", "drawingml.chart", "<cp:category>a dog</cp:category>"),
    ],
)
def test_every_namespace_of_office_open_xml_may_have_any_prefix(prefix: str, kind: str, inside: str) -> None:
    data = office(kind, inside)
    renamed = changed(data, lambda text: with_other_prefix(text, prefix))
    assert "<zz:" in member(renamed, "a.xml")
    assert texts_of_file("docx", renamed) == texts_of_file("docx", data) == ["a dog"]


@pytest.mark.parametrize("prefix", ["text", "office", "table", "presentation", "meta", "svg", "dc"])
def test_every_namespace_of_open_documents_may_have_any_prefix(prefix: str) -> None:
    more = """<meta:keyword>a key</meta:keyword><presentation:footer-decl>a foot</presentation:footer-decl>
<office:scripts><text:p>a script</text:p></office:scripts>"""
    data = odf(BODY + more)
    renamed = changed(data, lambda text: with_other_prefix(text, prefix))
    assert "<zz:" in member(renamed, "content.xml")
    assert texts_of_file("odt", renamed) == texts_of_file("odt", data)


def test_the_elements_of_sheets_may_have_a_prefix() -> None:
    """Some libraries write x: before each name."""

    def prefixed(text: str) -> str:
        return re.sub(r"<(/?)(?=[A-Za-z])", r"<\1x:", text).replace("xmlns=", "xmlns:x=")

    data = ooxml(SHEETS | TABLES)
    renamed = changed(data, prefixed)
    assert texts_of_file("xlsx", renamed) == texts_of_file("xlsx", data)
    assert "Animal" not in texts_of_file("xlsx", renamed)
    assert changed(translated_file("xlsx", data, capitals), prefixed) == translated_file("xlsx", renamed, capitals)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("docx", docx(EVERYTHING, styles='<w:styles><w:lang w:val="en-US"/><w:lang w:val="fr"/></w:styles>')),
        ("pptx", SLIDES),
        ("xlsx", ooxml(SHEETS | TABLES)),
        ("xlsx", ooxml(SHEETS | TABLES | {"xl/tables/table1.xml": TABLE.replace(" ref", ' headerRowCount="0" ref')})),
        ("odt", odf(BODY)),
        ("epub", epub()),
    ],
)
def test_attributes_may_have_either_quote(kind: str, data: bytes) -> None:
    written = []
    for old, new in (("'", '"'), ('"', "'")):
        out = translated_file(kind, changed(data, lambda text, o=old, n=new: text.replace(o, n)), capitals,
                              ReadOptions(language="de"))  # fmt: skip
        written.append(changed(out, lambda text: text.replace("'", '"').replace("&apos;", "&quot;")))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "_x000D_\n", "_x000d_\r\n", "&#10;", "&#13;", "&#xA;", "&#xa;", "&#xD;", "&#xd;", "\t"]
)
def test_line_ends_divide_a_cell(end: str) -> None:
    data = ooxml({"xl/sharedStrings.xml": f"<sst {X}><si><t>one dog{end}two dogs</t></si></sst>"})
    assert texts_of_file("xlsx", data) == ["one dog", "two dogs"]
    assert f"ONE DOG{end}TWO DOGS" in member(translated_file("xlsx", data, capitals), "xl/sharedStrings.xml")


@pytest.mark.parametrize("empty", ["<rPr/>", "<rPr></rPr>", "<rPr>\n</rPr>"])
def test_empty_properties_are_not_a_format(empty: str) -> None:
    strings = f"<sst {X}><si><r>{empty}<t>bl</t></r><r><t>ack</t></r></si></sst>"
    out = member(translated_file("xlsx", ooxml({"xl/sharedStrings.xml": strings}), capitals), "xl/sharedStrings.xml")
    assert ">BLACK</t>" in out


@pytest.mark.parametrize("kind", ["bookmark", "commentRange"])
def test_the_two_marks_of_a_range_stay_around_its_words(kind: str) -> None:
    start, end = f'<w:{kind}Start w:id="1"/>', f'<w:{kind}End w:id="1"/>'
    data = docx(paragraph(run("see "), start, run("the dog"), end, run(" now")))
    out = body(translated_file("docx", data, backwards))
    assert re.sub(r"</?w:[rpt]\b[^<>]*>", "", out) == f"now {start}dog the{end} see"


JOINING = """permStart permEnd moveFromRangeStart moveFromRangeEnd moveToRangeStart moveToRangeEnd del moveFrom
annotationRef footnoteRef endnoteRef commentReference footnoteReference endnoteReference noBreakHyphen softHyphen
commentRangeStart commentRangeEnd bookmarkStart bookmarkEnd"""


@pytest.mark.parametrize("name", JOINING.split())
def test_marks_of_word_may_stand_inside_a_word(name: str) -> None:
    assert texts_of_file("docx", docx(paragraph(run("do"), f"<w:{name}/>", run("gs")))) == ["dogs"]


JOINING_ODF = """bookmark bookmark-start bookmark-end reference-mark reference-mark-start reference-mark-end change
change-start change-end soft-page-break note toc-mark toc-mark-start toc-mark-end alphabetical-index-mark
alphabetical-index-mark-start alphabetical-index-mark-end user-index-mark"""


@pytest.mark.parametrize(
    "name", [*(f"text:{name}" for name in JOINING_ODF.split()), "office:annotation", "office:annotation-end"]
)
def test_marks_of_open_documents_may_stand_inside_a_word(name: str) -> None:
    assert texts_of_file("odt", odf(f"<text:p>do<{name}/>gs</text:p>"))[0] == "dogs"


LANGUAGES = "fo:language fo:country fo:script style:rfc-language-tag " + " ".join(
    f"style:{name}-{script}"
    for script in ("asian", "complex")
    for name in ("language", "country", "script", "rfc-language-tag")
)


@pytest.mark.parametrize("name", [*LANGUAGES.split(), "officeooo:rsid", "loext:x", "xmlns:x"])
def test_styles_with_only_a_language_are_invisible(name: str) -> None:
    for attribute, shows in ((name, False), ("fo:languages", True), ("style:font-name-asian", True)):
        style = f"""<style:style style:name="S" style:family="text">
<style:text-properties {attribute}="x"/></style:style>"""
        data = odf(f'{style}<text:p>a <text:span text:style-name="S">dog</text:span></text:p>')
        out = member(translated_file("odt", data, capitals), "content.xml")
        assert ("</text:span>" in out) == shows


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("wordprocessingml.settings", paragraph(run("a"))),
        ("presentationml.presentation.main", "<a:p><a:r><a:t>a</a:t></a:r></a:p>"),
        ("presentationml.slideshow.main", "<a:p><a:r><a:t>a</a:t></a:r></a:p>"),
    ],
)
def test_members_without_text_only_get_the_language(kind: str, inside: str) -> None:
    data = office(kind, inside)
    assert texts_of_file("docx", data) == []
    assert translated_file("docx", data, same) == data
