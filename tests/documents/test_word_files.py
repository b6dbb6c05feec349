"""Word files: paragraphs are segments, runs are tags, and everything else is copied."""

import re

import pytest
from fake_models import Model, backwards, capitals, linked, same, silent, texts_of_file, translated_file
from office_files import HEAD, W, body, docx, member, ooxml, paragraph, run

from nmt_cli.documents.document import ReadOptions
from nmt_cli.system.errors import DataError

BOLD, ITALIC = "<w:b/>", "<w:i/>"
NOTE = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:footnoteReference w:id="2"/></w:r>'
TAB, BREAK = "<w:r><w:tab/></w:r>", "<w:r><w:br/></w:r>"
DELETED = '<w:del w:id="7" w:author="A"><w:r><w:delText>not this</w:delText></w:r></w:del>'
LINK = '<w:hyperlink r:id="rId4">', "</w:hyperlink>"
BOX = (
    f"<w:r><w:pict><v:shape><w:txbxContent>{paragraph(run('A text in a box'))}</w:txbxContent></v:shape></w:pict></w:r>"
)
PICTURE = (
    '<w:r><w:drawing><wp:inline><wp:docPr id="1" name="P" descr="A &quot;dog&quot;"/></wp:inline></w:drawing></w:r>'
)
CONTROL = "<w:sdt><w:sdtPr><w:id/></w:sdtPr><w:sdtContent>", "</w:sdtContent></w:sdt>"


def field(instruction: str, text: str) -> str:
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    marks[0] = marks[0].replace("/>", "></w:fldChar>")  # as LibreOffice writes it
    code = f"<w:r><w:instrText xml:space='preserve'> {instruction} </w:instrText></w:r>"
    return f"{marks[0]}{code}{marks[1]}{run(text)}{marks[2]}"


EVERYTHING = "".join(
    [
        paragraph(
            "<w:pPr><w:pStyle w:val='H'/></w:pPr>", '<w:bookmarkStart w:id="1" w:name="_Toc"/>', run("One", BOLD)
        ),
        paragraph(
            run("The "), run("bl"), run("ack dog", "<w:lang w:val='en-US'/>"), run(" sleeps ", BOLD), run("well.")
        ),
        paragraph(run("See "), *(LINK[0], run("our page"), LINK[1]), run(" and the note"), NOTE, run(" below.")),
        paragraph(run("Page "), field("PAGE", "3"), run(" of "), field("HYPERLINK x", "this book"), run(" here")),
        paragraph(run("Old  "), DELETED, '<w:ins w:id="8">', run("new"), "</w:ins>", run(" text &amp; &#x2019; more")),
        paragraph(PICTURE, run("Left"), TAB, run("right", ITALIC), BREAK, run("Next line")),
        paragraph(BOX, run("around the box"), '<w:bookmarkEnd w:id="1"/>'),
        f"<w:tbl><w:tr><w:tc>{paragraph(CONTROL[0], run('A control'), CONTROL[1], run(' text'))}</w:tc></w:tr></w:tbl>",
        "<w:p/><w:p></w:p><w:sectPr/>",
    ]
)


def text_of(data: bytes) -> str:
    """Return the text that a reader sees, with <b>, <i> and <a> for formats and links."""
    text = re.sub(r"<w:del .*?</w:del>|<w:instrText.*?</w:instrText>", "", body(data))
    text = re.sub(r"<w:r><w:rPr><w:([bi])/></w:rPr><w:t[^>]*>(.*?)</w:t></w:r>", r"<\1>\2</\1>", text)
    text = re.sub(r"<w:hyperlink.*?>(.*?)</w:hyperlink>", r"<a>\1</a>", text)
    return re.sub(r"<(?!/?[abi]>)[^<>]*>", "", text.replace("<w:footnoteReference", "[2]<w:"))


def test_nested_paragraphs_take_linear_time() -> None:
    data = docx("<w:p>" * 60 + run("A dog") + "</w:p>" * 60)
    assert ">A DOG<" in body(translated_file("docx", data, capitals))


@pytest.mark.parametrize("model", [same, silent])
def test_unchanged_text_leaves_every_byte(model: Model) -> None:
    data = docx(EVERYTHING, header1=f"{HEAD}<w:hdr {W}>{paragraph(run('A header'))}</w:hdr>")
    assert translated_file("docx", data, model) == data


def test_paragraphs_are_segments() -> None:
    assert texts_of_file("docx", docx(EVERYTHING, header1=f"<w:hdr {W}>{paragraph(run('A header'))}</w:hdr>")) == [
        *("One", "The black dog sleeps well.", "See our page and the note below.", "Page of this book here"),
        *("Old new text & \u2019 more", 'A "dog"', "Left", "right", "Next line"),
        *("A text in a box", "around the box", "A control text", "A header"),
    ]


@pytest.mark.parametrize("model", [capitals, backwards])
def test_no_mark_is_lost(model: Model) -> None:
    before, after = body(docx(EVERYTHING)), body(translated_file("docx", docx(EVERYTHING), model))
    kept = r"<w:(?:footnoteReference|bookmark|del|ins|hyperlink|sdt|fldChar|tab/|br/|drawing|pict|pStyle|sectPr)[^<>]*>"
    assert sorted(re.findall(kept, after)) == sorted(re.findall(kept, before))
    assert "not this" in after
    assert after.count("<w:p>") == before.count("<w:p>")


def test_a_paragraph_of_many_formats_keeps_them_all() -> None:
    words = [f"word{chr(97 + number)}" for number in range(12)]
    runs = [run(f"{word} ", f'<w:sz w:val="{20 + number}"/>') for number, word in enumerate(words)]
    out = body(translated_file("docx", docx(paragraph(*runs)), capitals))
    found = re.findall(r'<w:sz w:val="(\d+)"/></w:rPr><w:t[^>]*>\s*(\w+)', out)
    assert found == [(str(20 + number), word.upper()) for number, word in enumerate(words)]


def test_formats_stay_with_their_words() -> None:
    source = docx(
        paragraph(run("The "), run("black", BOLD), run(" dog "), LINK[0], run("sleeps"), LINK[1], NOTE, run("."))
    )
    model = linked({"Schlafend": "sleeps", "ist": "dog", "der": "The", "schwarze": "black", "Hund": "dog"})
    assert text_of(translated_file("docx", source, model)) == "<a>Schlafend</a>[2] ist der <b>schwarze</b> Hund"
    source = docx(paragraph(run("He calls him ", ITALIC), run("up", BOLD), run(" at once", ITALIC)))
    model = linked({"Er": "He", "ruft": "up", "ihn": "him", "an": "up"})
    assert text_of(translated_file("docx", source, model)) == "<i>Er </i><b>ruft</b><i> ihn </i><b>an</b>"


def test_all_of_a_link_has_its_format() -> None:
    """Even "Hunde" has it. Its source is outside the link, but it is between two words of the link."""
    source = docx(paragraph(run("See "), LINK[0], run("our page", BOLD), LINK[1], run(" of dogs.")))
    model = linked({"Unsere": "our", "Hunde": "dogs", "Seite": "page", "sehen.": "See"})
    assert text_of(translated_file("docx", source, model)) == "<a><b>Unsere Hunde Seite</b></a> sehen."


def test_runs_without_visible_differences_are_joined() -> None:
    """Word splits words where it checks the spelling, and where an author has edited."""
    runs = [
        run("A bl"),
        '<w:proofErr w:type="spellStart"/>',
        run("ack", "<w:noProof/>"),
        '<w:r w:rsidR="00A1"><w:t>bird</w:t></w:r>',
    ]
    out = body(translated_file("docx", docx(paragraph(*runs)), capitals))
    assert out == paragraph(run("A BLACKBIRD"))


def test_the_language_is_set() -> None:
    styles = f'<w:styles {W}><w:rPr><w:lang w:val="en-US" w:bidi="ar-SA"/></w:rPr></w:styles>'
    source = docx(paragraph(run("A dog", '<w:lang w:val="en-GB"/>')), styles=styles)
    out = translated_file("docx", source, capitals, ReadOptions(language="de"))
    assert '<w:lang w:val="de-DE" w:bidi="ar-SA"/>' in member(out, "word/styles.xml")
    assert '<w:lang w:val="de-DE"/>' in body(out)


def test_any_prefix_and_encoding() -> None:
    """Some programs use other prefixes, the namespace of strict files, or UTF-16."""
    address = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    text = f'\ufeff<n:document xmlns:n="{address}"><n:body><n:p><n:r><n:t>A dog</n:t></n:r></n:p></n:body></n:document>'
    data = ooxml({"word/document.xml": text.encode("utf-16-le")})
    assert translated_file("docx", data) == data
    out = member(translated_file("docx", data, capitals), "word/document.xml", "utf-16-le")
    assert '<n:r><n:t xml:space="preserve">A DOG</n:t></n:r>' in out


def test_properties_are_translated() -> None:
    names = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'
    core = (
        f"<cp {names}><dc:title>A title</dc:title><dc:creator>A Person</dc:creator><dc:language>en</dc:language></cp>"
    )
    data = ooxml({"word/document.xml": f"<w:document {W}/>", "docProps/core.xml": core})
    out = member(translated_file("docx", data, capitals, ReadOptions(language="de")), "docProps/core.xml")
    assert "<dc:title>A TITLE</dc:title><dc:creator>A Person</dc:creator><dc:language>de-DE</dc:language>" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<w:p><w:r></w:p></w:r>", "out of place"),
        ("<w:p>", "out of place"),
        ("<w:p", "not well-formed"),
        ("\x01", "characters that XML does not allow"),
        ("<w:p>" * 200 + "</w:p>" * 200, "levels deep"),
        ("<w:r>" * 10_000 + "</w:r>" * 10_000, "levels deep"),
    ],
)
def test_damaged_markup_is_refused(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        translated_file("docx", docx(text))


def test_entities_are_not_read() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    for text in (bomb, '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'):
        data = ooxml({"word/document.xml": f"{text}<w:document {W}>{paragraph(run('&b;'))}</w:document>"})
        with pytest.raises(DataError, match="declares entities"):
            translated_file("docx", data)


@pytest.mark.parametrize("depth", [1, 20, 45])
def test_nested_paragraphs(depth: int) -> None:
    inside = paragraph(run("A dog"))
    for _ in range(depth):
        inside = f"<w:p>{run('text')}<x>{inside}</x></w:p>"
    data = docx(inside)
    assert translated_file("docx", data) == data
    assert body(translated_file("docx", data, capitals)).count("TEXT") == depth


@pytest.mark.parametrize(
    ("instruction", "texts"),
    [
        ("' HYPERLINK \"x\"'", ["See our page here."]),
        ('"HYPERLINK x"', ["See our page here."]),
        ("' PAGE '", ["See here."]),
    ],
)
def test_the_text_of_a_link_in_a_simple_field_is_translated(instruction: str, texts: list[str]) -> None:
    link = f"<w:fldSimple w:instr={instruction}>{run('our page')}</w:fldSimple>"
    data = docx(paragraph(run("See "), link, run(" here.")))
    assert texts_of_file("docx", data) == texts
    assert translated_file("docx", data, same) == data
    assert ("OUR PAGE</w:t></w:r></w:fldSimple>" in body(translated_file("docx", data, capitals))) == (
        len(texts[0]) > 9
    )
