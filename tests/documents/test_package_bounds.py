"""Office documents and books in unusual shapes: namespaces, fields, bookmarks, relations, empty spans, languages."""

import re
import struct

import pytest
from fake_models import backwards, capitals, same, texts_of_file, translated_file
from office_files import W, body, docx, member, odf, ooxml, paragraph, run, zipped
from test_office_details import field, instruction, office
from test_open_document_details import book
from test_several_sheets import cell, numbers, workbook
from test_zip_members import LIMIT, TIMES, build
from test_zip_members import member as info

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.package import with_region
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.errors import DataError


def test_a_namespace_may_be_declared_after_many_others() -> None:
    """Word declares thirty namespaces."""
    others = " ".join(f'xmlns:n{number}="http://example.org/{number}"' for number in range(40))
    own = re.sub(r"\bw:", "z:", W.replace(":w=", ":z=") + f"><w:body>{paragraph(run('A dog'))}</w:body>")
    data = ooxml({"word/document.xml": f"<z:document {others} {own}</z:document>"})
    out = member(translated_file("docx", data, capitals), "word/document.xml")
    assert '<z:t xml:space="preserve">A DOG</z:t>' in out
    inner = f"<x {others}><y {W}>{paragraph(run('A dog'))}</y></x>"
    assert texts_of_file("docx", ooxml({"word/document.xml": inner})) == ["A dog"]


@pytest.mark.parametrize(
    ("inside", "texts"),
    [
        # A field that begins outside an element and ends inside it is not a whole field.
        (field("<", "|", run("a")) + "<w:ins>" + field(">") + "</w:ins>" + run(" b"), ["a b"]),
        (field("<", instruction("REF x"), "|") + "<w:ins>" + field(">", run("a")) + "</w:ins>" + run(" b"), ["a b"]),
        # An end at another level discards the open fields.
        (field("<") + "<w:ins>" + field("|", ">") + "</w:ins>" + field(run("a"), ">", run(" b")), ["a b"]),
        # A separator or an end without a beginning.
        (field("|", run("a"), ">", run(" b")), ["a b"]),
        (field(">", run("a"), "|", run(" b")), ["a b"]),
        (field("|", run("a"), "<", run(" b"), ">"), ["a"]),
        # A CDATA section is copied, like a comment.
        (run("a ") + run("<![CDATA[dog]]>") + run(" b"), ["a b"]),
        (run("a") + run("") + run("b"), ["ab"]),
    ],
)
def test_fields_and_cdata_sections(inside: str, texts: list[str]) -> None:
    data = docx(paragraph(inside))
    assert texts_of_file("docx", data) == texts
    out = body(translated_file("docx", data, capitals))
    for piece in ("<w:fldChar ", "<w:ins>", "<![CDATA[dog]]>", "<w:instrText>"):
        assert out.count(piece) == body(data).count(piece)


@pytest.mark.parametrize("properties", ["", "<w:rPr>\n    <w:b/>\n   </w:rPr>\n   "])
def test_white_space_between_elements_is_not_text(properties: str) -> None:
    """Some programs indent their files."""
    first = f"<w:r>\n   {properties}<w:t>bl</w:t>\n  </w:r>"
    second = f"<w:r>\n   {properties}<w:t>ack dog</w:t>\n   <w:tab/>\n   <w:t>cat</w:t>\n  </w:r>"
    data = docx(f"<w:p>\n  <w:pPr/>\n  {first}\n  {second}\n </w:p>")
    assert texts_of_file("docx", data) == ["black dog", "cat"]
    assert translated_file("docx", data, same) == data
    out = body(translated_file("docx", data, capitals))
    own = properties.rstrip()
    assert f'<w:r>{own}<w:t xml:space="preserve">BLACK DOG</w:t></w:r>' in out
    assert f'<w:r>{own}<w:tab/></w:r><w:r>{own}<w:t xml:space="preserve">CAT</w:t></w:r>' in out
    shape = (
        "<a:p>\n <a:r>\n  <a:rPr b='1'/>\n  <a:t>one</a:t>\n </a:r>\n <a:r>\n  <a:t> two dogs</a:t>\n </a:r>\n</a:p>"
    )
    data = office("presentationml.slide", shape)
    assert texts_of_file("pptx", data) == ["one two dogs"]
    out = member(translated_file("pptx", data, capitals), "a.xml")
    assert "<a:r><a:rPr b='1'/><a:t>ONE</a:t></a:r><a:r><a:t> TWO DOGS</a:t></a:r>" in out


def test_bookmarks_that_overlap_have_their_own_ends() -> None:
    begin, end = '<w:bookmarkStart w:id="{}"/>', '<w:bookmarkEnd w:id="{}"/>'
    data = docx(
        paragraph(run("see "), begin.format(1), run("dog"), end.format(1), begin.format(2), run(" cat"), end.format(2))
    )
    out = body(translated_file("docx", data, backwards))
    order = re.findall(r"<w:bookmark(\w+) w:id=.(\d)|<w:t[^>]*>([^<]*)<", out)
    assert ["".join(each).strip() for each in order if "".join(each).strip()] == [
        "Start2", "cat", "End2", "Start1", "dog", "End1", "see",
    ]  # fmt: skip
    inside = begin.format(1), run("see "), begin.format(2), run("dog"), end.format(1), run(" cat"), end.format(2)
    out = body(translated_file("docx", docx(paragraph(*inside)), backwards))
    order = re.findall(r"<w:bookmark(\w+) w:id=.(\d)|<w:t[^>]*>([^<]*)<", out)
    assert ["".join(each) for each in order] == ["Start1", "Start2", "cat dog", "End1", "End2", " see"]
    inside = run("x "), begin.format(1), run("see"), end.format(2), run(" dog"), end.format(1), run(" y")
    out = body(translated_file("docx", docx(paragraph(*inside)), backwards))
    order = re.findall(r"<w:bookmark(\w+) w:id=.(\d)|<w:t[^>]*>([^<]*)<", out)
    assert ["".join(each) for each in order] == ["y ", "Start1", "dog see", "End2", "End1", " x"]


def test_marks_of_office_documents_keep_their_order() -> None:
    notes = [f'<w:r><w:footnoteReference w:id="{number}"/></w:r>' for number in range(4)]
    data = docx(
        paragraph(*(piece for note, word in zip(notes, "abcd", strict=True) for piece in (run(f" {word}"), note)))
    )
    out = body(translated_file("docx", data, backwards))
    assert re.findall(r'Reference w:id="(\d)"', out) == ["0", "1", "2", "3"]


def test_only_the_quote_of_an_attribute_is_escaped() -> None:
    for quote, expected in (('"', "it's &quot;x&quot;"), ("'", 'it&apos;s "x"')):
        data = office("presentationml.slide", f"<p:cNvPr descr={quote}dog{quote}/>")
        out = member(translated_file("pptx", data, lambda _: Aligned('it\'s "x"', [(8, 0)])), "a.xml")
        assert f"descr={quote}{expected}{quote}" in out


def test_only_relations_to_tables_are_read() -> None:
    links = '<Relationships><Relationship Id="r" Target="../queries/one.xml" Type="http://x/relationships/query"/></Relationships>'
    data = workbook({"a": cell("A1", 0)}, {}, {"a": links}, strings=1)
    assert numbers(data) == [0]
    with_query = zipped(
        {
            **{name: member(data, name) for name in Archive(data, LIMIT).names},
            "xl/queries/one.xml": '<table ref="A1:A2"/>',
        }
    )
    assert numbers(with_query) == [0]


def test_spans_without_text_and_files_without_a_manifest() -> None:
    span = '<text:span text:style-name="T2"/>'
    data = odf(f"<text:p>a {span}dog</text:p><text:p>a{span}b</text:p>")
    assert texts_of_file("odt", data)[:2] == ["a dog", "a b"]
    assert member(translated_file("odt", data, capitals), "content.xml").count(span) == 2
    for span in ("<text:span/>", '<text:span text:style-name="T1"/>'):  # without a visible format
        assert texts_of_file("odt", odf(f"<text:p>a{span}b</text:p>"))[0] == "a b"
        assert f"A {span}B" in member(
            translated_file("odt", odf(f"<text:p>a {span}b</text:p>"), capitals), "content.xml"
        )
    with pytest.raises(DataError, match=r"^the file is damaged: it has no META-INF/manifest\.xml"):
        texts_of_file("odt", zipped({"content.xml": "<a/>"}))


def test_marks_of_open_documents_keep_their_order() -> None:
    marks = [f'<text:bookmark text:name="{number}"/>' for number in range(3)]
    data = odf(f"<text:p>a{marks[0]} b{marks[1]} c{marks[2]}</text:p>")
    out = member(translated_file("odt", data, backwards), "content.xml")
    assert re.findall(r'bookmark text:name="(\d)"', out) == ["0", "1", "2"]


def test_every_language_of_a_book_is_set() -> None:
    page = "<html><body><p>a</p></body></html>"
    data = "<dc:language>en</dc:language><dc:title>x</dc:title><dc:language>en-US</dc:language>"
    item = "<o:item href='a.xhtml' media-type='application/xhtml+xml'/>"
    out = member(
        translated_file("epub", book(item, data, {"a.xhtml": page}), capitals, ReadOptions(language="de")), "b.opf"
    )
    assert re.findall("<dc:language>(.*?)</dc:language>", out) == ["de", "de"]
    one_line = "<dc:language>en</dc:language><dc:language>fr</dc:language>"
    out = member(
        translated_file("epub", book(item, one_line, {"a.xhtml": page}), capitals, ReadOptions(language="de")), "b.opf"
    )
    assert re.findall("<dc:language>(.*?)</dc:language>", out) == ["de", "de"]


REGIONS = """af-ZA ar-SA bg-BG bn-BD bs-BA ca-ES cs-CZ cy-GB da-DK de-DE el-GR en-US es-ES et-EE eu-ES fa-IR fi-FI fr-FR
ga-IE gl-ES he-IL hi-IN hr-HR hu-HU hy-AM id-ID is-IS it-IT ja-JP ka-GE kk-KZ ko-KR lt-LT lv-LV mk-MK ms-MY nb-NO nl-NL
nn-NO no-NO pl-PL pt-PT ro-RO ru-RU sk-SK sl-SI sq-AL sr-RS sv-SE sw-KE ta-IN te-IN th-TH tr-TR uk-UA ur-PK vi-VN
zh-CN"""


def test_the_region_of_every_language() -> None:
    codes = REGIONS.split()
    assert [with_region(code.partition("-")[0]) for code in codes] == codes


def test_extra_fields_of_a_member_may_differ_from_those_in_the_directory() -> None:
    """Info-ZIP writes longer timestamps into the header of a member than into the directory."""
    data = build((info("a.xml", extra=TIMES), b"text"), (info("b", extra=TIMES), b"x"))
    local = struct.pack("<HHBI", 0x5455, 5, 3, 7)
    data = data.replace(TIMES, local, 1)
    out = Archive(data, LIMIT).replaced({"a.xml": b"other"})
    begin = out.index(b"PK\1\2")
    assert (out[:begin].count(local), out[:begin].count(TIMES)) == (1, 1)
    assert (out[begin:].count(local), out[begin:].count(TIMES)) == (0, 2)
    assert out[30:39] == b"a.xml" + local[:4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.replace(b"text", b"tex_", 1), "does not match its checksum"),
        (lambda data: data.replace(b"PK\3\4", b"PK\3\5", 1), "has no header"),
    ],
)
def test_long_names_of_zip_members_are_cut_in_errors(change: object, words: str) -> None:
    name = "y" * 300
    data = change(zipped({name: "text"}, stored=(name,)))  # type: ignore[operator]
    with pytest.raises(DataError, match=words) as error:
        Archive(data, LIMIT).read(name)
    assert "y" * 60 in str(error.value)
    assert "y" * 61 not in str(error.value)
