"""Office documents with several sheets, tables, members and languages."""

import pytest
from fake_models import capitals, texts_of_file, translated_file
from office_files import ODF_NAMES, A, P, R, W, X, member, odf, paragraph, run, zipped

from nmt_cli.documents.document import ReadOptions
from nmt_cli.system.errors import DataError

_TYPE = "application/vnd.openxmlformats-officedocument."
TABLES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/table"


def office(kinds: dict[str, str], members: dict[str, str]) -> bytes:
    """Return an Office Open XML file; `kinds` are the content types of members."""
    overrides = "".join(
        f"<Override ContentType='{_TYPE}{kind}+xml' PartName='/{name}'/>" for name, kind in kinds.items()
    )
    return zipped({"[Content_Types].xml": f"<Types>{overrides}</Types>", **members})


def cell(address: str, index: int) -> str:
    return f'<c r="{address}" t="s"><v>{index}</v></c>'


def relations(*targets: str) -> str:
    found = "".join(f'<Relationship Id="r" Target="{target}" Type="{TABLES}"/>' for target in targets)
    return f"<Relationships>{found}</Relationships>"


def workbook(cells: dict[str, str], tables: dict[str, str], links: dict[str, str], strings: int = 10) -> bytes:
    """Return a workbook of the sheets a and b with the shared strings "text 0", "text 1" and so on."""
    texts = "".join(f"<si><t>text {number}</t></si>" for number in range(strings))
    members = {"xl/sharedStrings.xml": f"<sst {X}>{texts}</sst>"}
    for name, own in cells.items():
        members[f"xl/worksheets/{name}.xml"] = f"<worksheet {X} {R}><sheetData>{own}</sheetData></worksheet>"
        if name in links:
            members[f"xl/worksheets/_rels/{name}.xml.rels"] = links[name]
    members |= {f"xl/tables/{name}.xml": f"<table {X} name='T' ref=\"{ref}\"/>" for name, ref in tables.items()}
    kinds = {f"xl/worksheets/{name}.xml": "spreadsheetml.worksheet" for name in cells}
    return office({**kinds, "xl/sharedStrings.xml": "spreadsheetml.sharedStrings"}, members)


def numbers(data: bytes) -> list[int]:
    """Return the numbers in the strings that are translated."""
    return [int(text.split()[1]) for text in texts_of_file("xlsx", data)]


def test_headers_of_all_tables_in_all_sheets_stay() -> None:
    """So does equal text in other cells. All other cells, beside and below the headers, are translated."""
    cells = {
        "a": cell("B2", 0)
        + cell("C2", 1)
        + cell("D2", 2)
        + cell("B3", 3)
        + cell("A2", 4)
        + cell("B9", 5)
        + cell("F2", 8),
        "b": cell("AA7", 6) + cell("AB7", 7) + cell("B2", 3) + cell("K7", 9),
    }
    tables = {"one": "B2:C5", "two": "$B$9:$B$12", "three": "AA7:AA9", "four": "F2:G3"}
    links = {
        "a": relations("../tables/one.xml", "/xl/tables/two.xml", "../tables/four.xml"),
        "b": relations("../tables/three.xml"),
    }
    assert numbers(workbook(cells, tables, links)) == [2, 3, 4, 7, 9]
    assert numbers(workbook(cells, tables, {"b": links["b"]})) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert numbers(workbook(cells, tables, {"a": relations("../tables/none.xml", "../../../x")})) == [*range(10)]
    assert numbers(workbook({"a": '<c t="s"><v>4</v></c>' + cell("Z9", 5)}, {"one": "A1:A2"}, {"a": links["a"]})) == [
        0, 1, 2, 3, 5, 6, 7, 8, 9,
    ]  # fmt: skip
    plain = '<c r="B2"><v>3</v></c>'  # the number 3, not the shared string 3
    assert 3 in numbers(workbook({"a": plain}, tables, {"a": links["a"]}))


def test_inline_headers_stay_in_their_row() -> None:
    def inline(address: str, text: str) -> str:
        return f'<c r="{address}" t="inlineStr"><is><t>text {text}</t></is></c>'

    cells = {"a": inline("A1", "0") + inline("A2", "1"), "b": inline("A1", "2")}
    data = workbook(cells, {"one": "A1:A2"}, {"a": relations("../tables/one.xml")}, strings=0)
    assert numbers(data) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((f"wordprocessingml.{name}", "word/x.xml") for name in ("footer", "endnotes", "comments", "template.main")),
        ("../vnd.ms-word.document.macroEnabled.main", "word/x.xml"),
        ("../vnd.ms-word.template.macroEnabledTemplate.main", "word/x.xml"),
    ],
)
def test_every_member_with_text_is_translated(kind: str, name: str) -> None:
    data = office({name: kind}, {name: f"<w:x {W}>{paragraph(run('A dog'))}</w:x>", "word/y.xml": "<a>dog</a>"})
    assert ">A DOG<" in member(out := translated_file("docx", data, capitals), name)
    assert member(out, "word/y.xml") == "<a>dog</a>"


def test_the_language_of_settings_and_text_of_pictures() -> None:
    settings = f'<w:settings {W}><w:themeFontLang w:val="en-US" w:bidi="he-IL"/></w:settings>'
    layout = f"<p:sldLayout {P} {A}><p:sp><p:ph/><a:p><a:r><a:t>Prompt</a:t></a:r></a:p></p:sp></p:sldLayout>"
    slide = f'<p:sld {P} {A}><p:sp><p:cNvPr id="1" title="A &quot;dog&quot;" name="n" descr=" "/></p:sp></p:sld>'
    kinds = {"s": "wordprocessingml.settings", "l": "presentationml.slideLayout", "p": "presentationml.slide"}
    data = office(kinds, {"s": settings, "l": layout, "p": slide})
    out = translated_file("pptx", data, capitals, ReadOptions(language="pt_BR"))
    assert 'w:val="pt-BR" w:bidi="he-IL"' in member(out, "s")
    assert member(out, "l") == layout
    assert 'title="A &quot;DOG&quot;" name="n" descr=" "' in member(out, "p")
    assert member(translated_file("pptx", data, capitals), "s") == settings


@pytest.mark.parametrize(
    ("language", "codes"),
    [("de", ("de", "DE", "de-DE")), ("pt_BR", ("pt", "BR", "pt-BR")), ("tlh", ("tlh", "none", "tlh"))],
)
def test_the_language_of_open_documents(language: str, codes: tuple[str, str, str]) -> None:
    out = translated_file("odt", odf("<text:p>A dog</text:p>"), capitals, ReadOptions(language=language))
    assert f'fo:language="{codes[0]}" fo:country="{codes[1]}"' in member(out, "styles.xml")
    assert f"<dc:language>{codes[2]}</dc:language>" in member(out, "meta.xml")


def test_cells_and_styles_of_open_documents() -> None:
    style = '<style:style style:name="{}" {}style:family="{}"><style:text-properties {}/></style:style>'
    styles = style.format("S1", "", "text", 'fo:language="en" fo:country="US" officeooo:rsid="5"')
    styles += style.format("S2", 'style:parent-style-name="X" ', "text", 'fo:language="en"')
    styles += style.format("S3", "", "paragraph", 'fo:language="en"')
    spans = "".join(f'a<text:span text:style-name="S{i}">b</text:span> ' for i in (1, 2, 3))
    spans += "a<text:span>b</text:span>"
    cells = "".join(f'<table:table-cell {kind}:value-type="{value}"><text:p>{value}</text:p></table:table-cell>'
                    for kind, value in (("office", "string"), ("calcext", "date"), ("calcext", "string")))  # fmt: skip
    data = odf(f"{styles}<text:p>{spans}</text:p>{cells}")
    assert texts_of_file("odt", data)[:3] == ["ab ab ab ab", "string", "string"]
    out = member(translated_file("odt", data, capitals), "content.xml")
    assert [f'<text:span text:style-name="S{i}">' in out for i in (1, 2, 3)] == [False, True, True]
    assert "<text:span>" not in out
    assert ">date<" in out


def test_an_open_document_whose_manifest_shows_a_password_is_refused() -> None:
    content = f"<office:document {ODF_NAMES}><text:p>A dog</text:p></office:document>"
    manifest = "<manifest:manifest><manifest:encryption-data/></manifest:manifest>"
    for text, fits in (("<manifest:manifest/>", True), (manifest, False)):
        data = zipped({"content.xml": content, "META-INF/manifest.xml": text, "Thumbnails/x.xml": "<a>dog</a>"})
        if fits:
            assert texts_of_file("odt", data) == ["A dog"]
        else:
            with pytest.raises(DataError, match="the file has a password"):
                texts_of_file("odt", data)


def book(items: str, members: dict[str, str], folder: str = "") -> bytes:
    container = f"<container><rootfiles><x:rootfile x='1' full-path='{folder}b.opf'/></rootfiles></container>"
    names = "xmlns='http://www.idpf.org/2007/opf' xmlns:dc='http://purl.org/dc/elements/1.1/'"
    data = "<metadata><dc:language>en</dc:language><dc:subject>a dog</dc:subject></metadata>"
    opf = f"<package {names}>{data}{items}</package>"
    return zipped({"META-INF/container.xml": container, f"{folder}b.opf": opf, **members})


def test_books_with_chapters_in_other_folders() -> None:
    """Only chapters that the manifest names are translated. Without a target language, the book keeps its language."""
    item = "<item href='{}' media-type='application/xhtml+xml'/>"
    page = "<html><body><p>{}</p></body></html>"
    members = {"x/a.xhtml": page.format("one"), "c&d.xhtml": page.format("two"), "x/y.xhtml": page.format("three")}
    items = item.format("../x/a.xhtml") + item.format("../c%26d.xhtml")
    assert texts_of_file("epub", book(items, members, "y/")) == ["a dog", "one", "two"]
    assert texts_of_file("epub", book(item.format("c&amp;d.xhtml"), members)) == ["a dog", "two"]
    out = translated_file("epub", book(items, members, "y/"), capitals)
    assert "<dc:language>en</dc:language>" in member(out, "y/b.opf")
    assert member(out, "x/y.xhtml") == members["x/y.xhtml"]
