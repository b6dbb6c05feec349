"""Elements and attributes of Office Open XML: which hold text, which are copied, and which divide it."""

import re

import pytest
from fake_models import Model, capitals, linked, same, texts_of_file, translated_file
from office_files import A, C, P, R, W, X, body, docx, member, paragraph, run, zipped
from test_several_sheets import cell, numbers, relations, workbook

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.package import with_region
from nmt_cli.system.errors import DataError

_TYPE = "application/vnd.openxmlformats-officedocument."
MORE = (
    'xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing" '
    'xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture" xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/" '
    'xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"'
)


def office(kind: str, inside: str, root: str = "x", types: str = "PartName='/a.xml' ContentType='{}'") -> bytes:
    """Return an Office Open XML file with one member of this kind and one of unknown kind."""
    override = f"<o:Override {types.format(kind if '/' in kind else f'{_TYPE}{kind}+xml')}/>"
    text = f"<{root} {W} {A} {P} {C} {R} {MORE}>{inside}</{root}>"
    return zipped({"[Content_Types].xml": f"<o:Types>{override}</o:Types>", "a.xml": text, "b.xml": "<a>dog</a>"})


@pytest.mark.parametrize(
    ("kind", "inside", "texts"),
    [
        (
            "wordprocessingml.document.main",
            '<w:p><w:r><w:drawing><pic:cNvPr descr="a" title="b" name="c"/></w:drawing></w:r></w:p>',
            ["a", "b"],
        ),
        (
            "wordprocessingml.document.main",
            '<w:tblPr><w:tblCaption w:val="a"/><w:tblDescription w:val="b"/><w:jc w:val="c"/></w:tblPr>',
            ["a", "b"],
        ),
        (
            "wordprocessingml.document.main",
            '<w:pict><v:shape alt="a" title="b"><v:x alt="c"/></v:shape></w:pict>',
            ["a"],
        ),
        ("presentationml.slide", '<p:cNvPr id="1" descr="a" title="b"></p:cNvPr><p:x title="c"/>', ["a", "b"]),
        ("drawing", '<xdr:cNvPr descr="a" title="b"/><a:p><a:r><a:t>c</a:t></a:r></a:p>', ["a", "b", "c"]),
        ("drawingml.diagramData", "<a:p><a:r><a:t>c</a:t></a:r></a:p>", ["c"]),
        ("application/vnd.ms-office.drawingml.diagramDrawing+xml", "<a:p><a:r><a:t>c</a:t></a:r></a:p>", ["c"]),
        ("drawingml.chart", "<c:tx><c:v>a</c:v></c:tx><c:numLit><c:v>b</c:v></c:numLit>", ["a"]),
        ("presentationml.notesSlide", "<p:sp><p:ph/><a:p><a:r><a:t>c</a:t></a:r></a:p></p:sp>", ["c"]),
        (
            "application/vnd.openxmlformats-package.core-properties+xml",
            "<dc:title>a</dc:title><dc:subject>b</dc:subject><dc:description>c</dc:description>"
            "<cp:keywords>d</cp:keywords><cp:category>e</cp:category><dc:creator>f</dc:creator><dc:title/>",
            ["a", "b", "c", "d", "e"],
        ),
        (
            "wordprocessingml.document.main",
            f"<w:moveFrom>{paragraph(run('a'))}</w:moveFrom><w:del>{paragraph(run('b'))}</w:del>"
            f"<m:oMath>{paragraph(run('c'))}</m:oMath><m:oMathPara>{paragraph(run('d'))}</m:oMathPara>{paragraph(run('e'))}",
            ["e"],
        ),
        ("wordprocessingml.styles", paragraph(run("a")), []),
        ("application/vnd.openxmlformats-package.core-properties+xml", "<dc:title>a<b>c</b>d</dc:title>", []),
        (
            "presentationml.slideMaster",
            "<p:sp><p:ph/><a:p><a:r><a:t>b</a:t></a:r></a:p></p:sp><a:p><a:r><a:t>a</a:t></a:r></a:p>",
            ["a"],
        ),
    ],
)
def test_elements_with_text(kind: str, inside: str, texts: list[str]) -> None:
    data = office(kind, inside)
    assert texts_of_file("docx", data) == texts
    assert translated_file("docx", data, same) == data
    out = translated_file("docx", data, capitals)
    assert member(out, "b.xml") == "<a>dog</a>"
    one_of = re.compile(f'(?<=[>"])({"|".join(texts) or "(?!)"})(?=[<"])')
    assert member(out, "a.xml") == one_of.sub(lambda match: match[0].upper(), member(data, "a.xml"))


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("wordprocessingml.styles", '<w:lang w:eastAsia="x" w:val="{}" w:bidi="ar-SA"/>'),
        ("wordprocessingml.settings", '<w:themeFontLang w:val="{}"/><w:lang w:eastAsia="en-US"/>'),
        ("presentationml.slideshow.main", '<a:defRPr sz="1" lang="{}"/>'),
        ("presentationml.presentation.main", '<a:endParaRPr lang="{}"/><a:rPr lang="{}"/><a:x lang="en-US"/>'),
    ],
)
def test_the_language_of_members_without_text(kind: str, inside: str) -> None:
    data = office(kind, inside.replace("{}", "en-US"))
    for language, code in (("de", "de-DE"), ("pt_BR", "pt-BR"), ("tlh", "tlh")):
        out = member(translated_file("docx", data, same, ReadOptions(language=language)), "a.xml")
        assert inside.replace("{}", code) in out
    assert translated_file("docx", data, same) == data


def test_the_region_of_each_language() -> None:
    """Office programs do not recognize a language without a region."""
    regions = {"en": "US", "de": "DE", "zh": "CN", "pt": "PT", "ja": "JP", "sv": "SE", "da": "DK", "cs": "CZ"}
    regions |= {"uk": "UA", "el": "GR", "ko": "KR", "nb": "NO", "et": "EE", "sl": "SI", "he": "IL", "hi": "IN"}
    regions |= {
        "nl": "NL",
        "fr": "FR",
        "es": "ES",
        "it": "IT",
        "ru": "RU",
        "pl": "PL",
        "tr": "TR",
        "ar": "SA",
        "vi": "VN",
    }
    assert {code: with_region(code) for code in regions} == {code: f"{code}-{name}" for code, name in regions.items()}
    assert [with_region(code) for code in ("pt_BR", "sr-Latn", "xx", "")] == ["pt-BR", "sr-Latn", "xx", ""]


@pytest.mark.parametrize("types", ['ContentType="{}" PartName="/a.xml"', "PartName='a.xml' x='' ContentType='{}'"])
def test_content_types_in_every_notation(types: str) -> None:
    data = office("wordprocessingml.footer", paragraph(run("a dog")), types=types)
    assert texts_of_file("docx", data) == ["a dog"]


def test_files_without_text_are_refused() -> None:
    with pytest.raises(DataError, match=r"no Word, PowerPoint or Excel text"):
        texts_of_file("docx", office("wordprocessingml.unknown", ""))
    with pytest.raises(DataError, match=r"no \[Content_Types\]\.xml, so it is not a Word"):
        texts_of_file("docx", zipped({"word/document.xml": "<a/>"}))


BOLD, ITALIC = "<w:b/>", "<w:i/>"


def marks(*names: str) -> str:
    return "".join(f"<w:r><w:{name}/></w:r>" for name in names)


@pytest.mark.parametrize(
    ("inside", "texts"),
    [
        # Breaks end a segment. Other marks are part of it, and some of them may be inside words.
        (
            run("a")
            + marks("br")
            + run("b")
            + marks("cr")
            + run("c")
            + marks("tab")
            + run("d")
            + marks("ptab")
            + run("e"),
            ["a", "b", "c", "d", "e"],
        ),
        (run("a") + marks("noBreakHyphen") + run("b") + marks("softHyphen") + run("c"), ["abc"]),
        (run("a") + marks("sym") + run("b"), ["a b"]),
        (run("a") + marks("lastRenderedPageBreak") + run("b") + '<w:proofErr w:type="x"/>' + run("c"), ["abc"]),
        (run("a") + '<w:bookmarkStart w:id="1"/>' + run("b") + '<w:bookmarkEnd w:id="1"/>' + run("c"), ["abc"]),
        (run("a") + marks("footnoteReference", "endnoteReference", "commentReference") + run("b"), ["ab"]),
        *(
            (f"{run('a ')}<w:{name}>{run('b')}</w:{name}>{run(' c')}", ["a b c"])
            for name in ("ins", "moveTo", "smartTag", "customXml", "bdo", "dir", "hyperlink")
        ),
        (f"{run('a')}<w:moveFrom>{run('b')}</w:moveFrom>{run('c')}", ["ac"]),
        (run("a <b> &amp; c").replace("<b>", "<!-- x -->"), []),
        (run("   ") + run("5"), []),
        # The language and the marks of the spelling check are invisible.
        (
            run("a", '<w:lang w:val="en"/>') + run("b", "<w:noProof/>") + run("c", '<w:lang w:val="en"/><w:noProof/>'),
            ["abc"],
        ),
    ],
)
def test_marks_and_breaks_in_a_paragraph(inside: str, texts: list[str]) -> None:
    data = docx(paragraph(inside))
    assert texts_of_file("docx", data) == texts
    assert translated_file("docx", data, same) == data
    out = body(translated_file("docx", data, capitals))
    elements = re.compile(r"<w:(?!t\b|rPr|lang|noProof|proofErr|lastR|r>)\w+")
    assert sorted(elements.findall(out)) == sorted(elements.findall(body(data)))


def test_invisible_attributes_of_slides_do_not_divide_text() -> None:
    runs = "".join(
        f'<a:r><a:rPr {name}="1"/><a:t>{text}</a:t></a:r>'
        for name, text in zip(("lang", "altLang", "dirty", "err", "noProof", "smtClean", "bmk"), "abcdefg", strict=True)
    )
    data = office("presentationml.slide", f'<a:p>{runs}<a:r><a:rPr b="1"/><a:t> h</a:t></a:r></a:p>')
    out = member(translated_file("pptx", data, capitals), "a.xml")
    assert re.findall("<a:t>(.*?)</a:t>", out) == ["ABCDEFG ", "H"]
    assert "space" not in out, "a:t has no such attribute"


def test_phonetic_text_of_cells_is_dropped() -> None:
    strings = f'<sst {X}><si><t>a dog</t><rPh sb="0" eb="1"><t>b</t></rPh><phoneticPr fontId="1"/></si></sst>'
    types = f'<Types><Override PartName="/s" ContentType="{_TYPE}spreadsheetml.sharedStrings+xml"/></Types>'
    data = zipped({"[Content_Types].xml": types, "s": strings})
    assert texts_of_file("xlsx", data) == ["a dog"]
    assert translated_file("xlsx", data, same) == data
    assert member(translated_file("xlsx", data, capitals), "s") == (
        f'<sst {X}><si><t xml:space="preserve">A DOG</t></si></sst>'
    )


def test_columns_beyond_z_are_not_mistaken_for_earlier_ones() -> None:
    cells = {"a": cell("A1", 0) + cell("AA1", 1) + cell("Z1", 2) + cell("BA1", 3) + cell("AB1", 4) + cell("B1", 5)}
    for table, kept in (("A1:A2", [0]), ("AA1:AB9", [1, 4]), ("Z1:AA2", [1, 2]), ("B1:B2", [5])):
        data = workbook(cells, {"one": table}, {"a": relations("../tables/one.xml")}, strings=6)
        assert numbers(data) == [number for number in range(6) if number not in kept]


def test_the_format_with_most_characters_is_the_default() -> None:
    source = docx(paragraph(run("I "), run("see a big dog", BOLD), run(" x")))
    out = body(translated_file("docx", source, linked({"Ich": "I", "sehe": "see", "ihn": "x"})))
    assert re.findall(r"(<w:b/>)?(?:</w:rPr>)?<w:t[^>]*>(.*?)</w:t>", out) == [
        ("", "Ich"),
        ("<w:b/>", " sehe "),
        ("", "ihn"),
    ]
    link = '<w:hyperlink r:id="1">', "</w:hyperlink>"
    for formats, tags in (
        ((BOLD, ITALIC), ("<w:ins>", "</w:ins>")),
        ((BOLD, BOLD), ("<w:ins>", "</w:ins>")),
        ((BOLD, ITALIC), ("", "")),
    ):
        words = run("our ", formats[0]), tags[0], run("page", formats[1]), tags[1]
        source = docx(paragraph(run("See "), link[0], *words, link[1], run(" now or never")))
        out = body(translated_file("docx", source, capitals))
        assert re.findall(r"(?:<w:rPr>(.*?)</w:rPr>)?<w:t[^>]*>(\w+)", out) == [
            ("", "SEE"), (formats[0], "OUR"), (formats[1], "PAGE"),
        ]  # fmt: skip
    links = [
        f'<a:r><a:rPr><a:hlinkClick id="{n}"/></a:rPr><a:t>{text}</a:t></a:r>'
        for n, text in enumerate(("call up", "x"))
    ]
    slide = office(
        "presentationml.slide", f"<a:p><a:r><a:t>I will </a:t></a:r>{links[0]}<a:r><a:t> him now</a:t></a:r></a:p>"
    )
    model = linked({"Ich": "I", "rufe": "call", "ihn": "him", "jetzt": "now", "an": "up"})
    assert member(translated_file("pptx", slide, model), "a.xml").count("hlinkClick") == 1, "a link is not repeated"


def field(*pieces: str) -> str:
    kinds = {"<": "begin", "|": "separate", ">": "end"}
    return "".join(
        f'<w:r><w:fldChar w:fldCharType="{kinds[each]}"/></w:r>' if each in kinds else each for each in pieces
    )


def instruction(text: str) -> str:
    return f"<w:r><w:instrText>{text}</w:instrText></w:r>"


@pytest.mark.parametrize(
    ("inside", "texts"),
    [
        (field("<", instruction("HYPERLINK x"), "|", run("a dog"), ">"), ["a dog"]),
        (field("<", instruction("REF x"), "|", run("a dog"), ">", run("b")), ["b"]),
        (field("<", "|", run("a dog"), ">", run("b")), ["b"]),
        (field("<", instruction("HYPERLINK x"), ">", run("b")), ["b"]),
        (
            field(
                "<", instruction("TOC"), "|", field("<", instruction("HYPERLINK"), "|", run("a"), ">"), ">", run("b")
            ),
            ["b"],
        ),
        (
            field(
                "<", instruction("HYPERLINK"), "|", run("a "), field("<", instruction("PAGE"), "|", run("9"), ">"), ">"
            ),
            ["a"],
        ),
        (field(run("a"), ">", run("b"), "<", run("c")), ["a b c"]),
    ],
)
def test_fields_are_copied_except_for_links(inside: str, texts: list[str]) -> None:
    data = docx(paragraph(inside))
    assert texts_of_file("docx", data) == texts
    out = body(translated_file("docx", data, capitals))
    assert out.count("w:fldChar ") == body(data).count("w:fldChar ")


@pytest.mark.parametrize("model", [capitals, same])
def test_alternative_texts_keep_quotes_and_lines(model: Model) -> None:
    for text in ("a 'dog'&#10;and &quot;cat&quot;", "a\r\ndog &lt;", "a&#xA;b"):
        data = office("presentationml.slide", f"<p:cNvPr descr=\"{text}\" id = '1'/>")
        out = member(translated_file("pptx", data, model), "a.xml")
        expected = re.sub(r"(?<!&)\b(a|b|dog|and|cat)\b", lambda match: match[0].upper(), text)
        assert f'descr="{text if model is same else expected}"' in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<w:p></w:r></w:p>", r"word/document\.xml is damaged: </w:r> is out of place"),
        ("</w:p>", "is damaged: </w:p> is out of place"),
        ("<w:p>", "is damaged: </w:body> is out of place"),
        ("a < b", r"word/document\.xml is damaged: it is not well-formed XML"),
        ("\x0b", r"word/document\.xml has characters that XML does not allow"),
        ("<!ENTITY", r"word/document\.xml declares entities, which nmt does not support"),
    ],
)
def test_errors_name_the_member(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        texts_of_file("docx", docx(text))


def test_encodings_and_depth_of_members() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        text = f"\ufeff<w:x {W}>{paragraph(run('a dog'))}</w:x>".encode(encoding)
        types = f'<Types><Override PartName="/a" ContentType="{_TYPE}wordprocessingml.header+xml"/></Types>'
        data = zipped({"[Content_Types].xml": types, "a": text})
        assert ">A DOG<" in member(translated_file("docx", data, capitals), "a", encoding)
        with pytest.raises(DataError, match=f"^a is not {encoding.upper()}: byte {len(text)} is invalid"):
            texts_of_file("docx", zipped({"[Content_Types].xml": types, "a": text + b"\0"}))
    deep = "<x>" * 98 + "a" + "</x>" * 98
    assert texts_of_file("docx", docx(deep)) == []
    with pytest.raises(DataError, match=r"word/document\.xml nests elements more than 100 levels deep"):
        texts_of_file("docx", docx(f"<x>{deep}</x>"))
