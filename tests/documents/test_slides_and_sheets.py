"""PowerPoint and Excel files."""

import pytest
from fake_models import Model, capitals, linked, same, silent, texts_of_file, translated_file
from office_files import HEAD, A, C, P, R, X, member, ooxml

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.placement import Aligned

SLIDE = f"""{HEAD}<p:sld {P} {A} {R}><p:sp>
<p:nvSpPr><p:cNvPr id="2" name="Title 1" descr="A shape"/></p:nvSpPr><p:txBody><a:bodyPr/>
<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en-US" dirty="0"/><a:t>A bl</a:t></a:r>
<a:r><a:rPr lang="en-US" err="1"/><a:t>ack </a:t></a:r><a:r><a:rPr lang="en-US" b="1"/><a:t>dog</a:t></a:r>
<a:r><a:rPr lang="en-US"/><a:t> sleeps, see </a:t></a:r>
<a:r><a:rPr lang="en-US"><a:hlinkClick r:id="rId2"/></a:rPr><a:t>our page</a:t></a:r><a:endParaRPr lang="en-US"/></a:p>
<a:p><a:r><a:t>First line</a:t></a:r><a:br><a:rPr lang="en-US"/></a:br><a:r><a:t>second line</a:t></a:r></a:p>
<a:p><a:r><a:t>Slide </a:t></a:r><a:fld id="{{1}}" type="slidenum"><a:rPr/><a:t>No. 3</a:t></a:fld></a:p>
</p:txBody></p:sp></p:sld>"""
MASTER = f"""<p:sldMaster {P} {A}>
<p:sp><p:nvPr><p:ph type="title"/></p:nvPr><a:p><a:r><a:t>Click to edit</a:t></a:r></a:p></p:sp>
<p:sp><a:p><a:r><a:t>Our company</a:t></a:r></a:p></p:sp></p:sldMaster>"""
LAYOUT = MASTER.replace("sldMaster", "sldLayout").replace("Our company", "Our aim")
CHART = f"""<c:chart {C} {A}><c:title><a:p><a:r><a:t>A chart</a:t></a:r></a:p></c:title><c:cat><c:f>Sheet1!A2</c:f>
<c:strCache><c:pt><c:v>Dogs &amp; cats</c:v></c:pt></c:strCache>
<c:numCache><c:formatCode>General</c:formatCode><c:pt><c:v>1E-3</c:v></c:pt></c:numCache></c:cat></c:chart>"""
SLIDES = ooxml(
    {
        "ppt/presentation.xml": f'<p:presentation {P} {A}><a:defRPr lang="en-US"/></p:presentation>',
        "ppt/slides/slide1.xml": SLIDE,
        "ppt/slideMasters/slideMaster1.xml": MASTER,
        "ppt/slideLayouts/slideLayout1.xml": LAYOUT,
        "ppt/notesSlides/notesSlide1.xml": f"<p:notes {P} {A}><a:p><a:r><a:t>A note</a:t></a:r></a:p></p:notes>",
        "ppt/charts/chart1.xml": CHART,
    }
)
STRINGS = f"""{HEAD}<sst {X}><si><t>Animal</t></si><si><t>A black dog</t></si>
<si><r><t xml:space='preserve'>A </t></r><r><rPr><b/></rPr><t>white</t></r><r><t xml:space='preserve'> cat</t></r></si>
<si><t>A-12</t></si><si><t>5</t></si><si><t/></si></sst>"""
SHEET = f"""{HEAD}<worksheet {X} {R}><sheetData>
<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="inlineStr"><is><t>Place</t></is></c></row>
<row r="2"><c r="A2" t="s"><v>1</v></c><c r="B2" t="inlineStr"><is><t>in the park</t></is></c>
<c r="C2" t="str"><f>"a"&amp;B2</f><v>a text</v></c></row></sheetData></worksheet>"""
COMMENTS = f"""<comments {X}><authors><author>A Person</author></authors>
<comment><text><r><t>A comment</t></r></text></comment></comments>"""
TABLE = f'<table {X} id="1" name="T" ref="A1:B2"><tableColumn name="Animal"/><tableColumn name="Place"/></table>'
RELATIONS = """<Relationships><Relationship Id="r" Target="../tables/table1.xml"
Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/table"/></Relationships>"""
SHEETS = {
    "xl/workbook.xml": f'<workbook {X}><sheet name="Animals"/></workbook>',
    "xl/sharedStrings.xml": STRINGS,
    "xl/worksheets/sheet1.xml": SHEET,
    "xl/comments1.xml": COMMENTS,
}


@pytest.mark.parametrize(("kind", "data"), [("pptx", SLIDES), ("xlsx", ooxml(SHEETS))])
@pytest.mark.parametrize("model", [same, silent])
def test_unchanged_text_leaves_every_byte(kind: str, data: bytes, model: Model) -> None:
    assert translated_file(kind, data, model) == data


def test_slides() -> None:
    """Slide numbers and the prompts of a layout are not translated."""
    assert texts_of_file("pptx", SLIDES) == [
        *("A shape", "A black dog sleeps, see our page", "First line", "second line", "Slide"),
        *("Our company", "Our aim", "A note", "A chart", "Dogs & cats"),
    ]
    words = {"Siehe": "see", "unsere": "our", "Seite:": "page", "der": "A", "schwarze": "black", "Hund": "dog"}

    def model(text: str) -> Aligned:
        return linked(words)(text) if "black" in text else same(text)

    out = member(translated_file("pptx", SLIDES, model, ReadOptions(language="de")), "ppt/slides/slide1.xml")
    link = '<a:r><a:rPr lang="de-DE"><a:hlinkClick r:id="rId2"/></a:rPr><a:t>unsere Seite:</a:t></a:r>'
    bold = '<a:r><a:rPr lang="de-DE" b="1"/><a:t>Hund</a:t></a:r>'
    begin = '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="de-DE" dirty="0"/><a:t>Siehe </a:t></a:r>'
    middle = '<a:r><a:rPr lang="de-DE" dirty="0"/><a:t> der schwarze </a:t></a:r>'
    assert f'{begin}{link}{middle}{bold}<a:endParaRPr lang="en-US"/></a:p>' in out


def test_other_members_of_a_presentation() -> None:
    out = translated_file("pptx", SLIDES, capitals, ReadOptions(language="de"))
    assert "Click to edit" in member(out, "ppt/slideMasters/slideMaster1.xml")
    assert "<c:v>DOGS &amp; CATS</c:v>" in (chart := member(out, "ppt/charts/chart1.xml"))
    assert "Sheet1!A2" in chart
    assert "<c:v>1E-3</c:v>" in chart
    assert '<a:defRPr lang="de-DE"/>' in member(out, "ppt/presentation.xml")
    assert "No. 3" in member(out, "ppt/slides/slide1.xml")


def test_sheets() -> None:
    """Formulas, their results, numbers and the names of sheets and authors stay."""
    data = ooxml(SHEETS)
    assert texts_of_file("xlsx", data) == [
        *("Animal", "A black dog", "A white cat", "A-12", "Place", "in the park", "A comment")
    ]
    out = translated_file("xlsx", data, capitals)
    bold = '<r><rPr><b/></rPr><t xml:space="preserve">WHITE</t></r>'
    assert f'<si><r><t xml:space="preserve">A </t></r>{bold}<r>' in member(out, "xl/sharedStrings.xml")
    assert '<f>"a"&amp;B2</f><v>a text</v>' in (sheet := member(out, "xl/worksheets/sheet1.xml"))
    assert '<is><t xml:space="preserve">IN THE PARK</t></is>' in sheet
    assert "<author>A Person</author>" in member(out, "xl/comments1.xml")


def test_the_header_cells_of_a_table_stay() -> None:
    """Excel repairs a file if the column names of a table differ from its header cells."""
    tables = {"xl/tables/table1.xml": TABLE, "xl/worksheets/_rels/sheet1.xml.rels": RELATIONS}
    assert texts_of_file("xlsx", ooxml(SHEETS | tables)) == [
        *("A black dog", "A white cat", "A-12", "in the park", "A comment")
    ]
    no_header = {**tables, "xl/tables/table1.xml": TABLE.replace(" ref=", ' headerRowCount="0" ref=')}
    assert "Animal" in texts_of_file("xlsx", ooxml(SHEETS | no_header))
