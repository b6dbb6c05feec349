"""OpenDocument files: text documents, presentations and spreadsheets."""

import pytest
from fake_models import Model, backwards, capitals, linked, same, silent, texts_of_file, translated_file
from growth import is_linear
from office_files import member, odf, zipped

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.errors import DataError

NOTE = """<text:note text:id="f1" text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body>
<text:p>A note below</text:p></text:note-body></text:note>"""
BLACK = 'bl<text:span text:style-name="T1">ack</text:span> <text:span text:style-name="T2">dog</text:span>'
BODY = f"""<text:tracked-changes><text:p>A deleted text</text:p></text:tracked-changes>
<text:h text:style-name="H">A heading</text:h>
<text:p>A {BLACK}<text:s text:c="2"/>sleeps{NOTE} in the park.</text:p>
<text:p>See <text:a href="x">our page</text:a>, page <text:page-number>3</text:page-number><text:tab/>Right
<text:line-break/>Next</text:p>
<text:p><draw:frame draw:name="x"><svg:title>A title</svg:title><draw:text-box><text:p>In a box</text:p></draw:text-box>
</draw:frame>Beside</text:p>
<table:table-cell office:value-type="string"><text:p>A cell</text:p></table:table-cell>
<table:table-cell office:value-type="float" office:value="5"><text:p>five</text:p></table:table-cell>
<table:table-cell table:formula="of:=A1" office:value-type="string"><text:p>A result</text:p></table:table-cell>
<draw:frame presentation:placeholder="true"><text:p>Click here</text:p></draw:frame>
<office:annotation><dc:creator>A Person</dc:creator><text:p>A comment</text:p></office:annotation>"""


@pytest.mark.parametrize("kind", ["odt", "odp", "ods"])
@pytest.mark.parametrize("model", [same, silent])
def test_unchanged_text_leaves_every_byte(kind: str, model: Model) -> None:
    assert translated_file(kind, odf(BODY), model) == odf(BODY)


def test_the_text_of_a_document_is_translated() -> None:
    """Fields, results of formulas, deleted text and prompts are not translated."""
    assert texts_of_file("odt", odf(BODY)) == [
        *("A heading", "A note below", "A black dog sleeps in the park.", "See our page, page", "Right", "Next"),
        *("A title", "In a box", "Beside", "A cell", "A comment", "A header", "A name", "A chart"),
    ]


def test_spans_stay_with_their_words() -> None:
    def model(text: str) -> Aligned:
        return linked({"Hund,": "dog", "schwarzer": "black"})(text) if "black" in text else same(text)

    out = member(translated_file("odt", odf(f"<text:p>A {BLACK}</text:p>"), model), "content.xml")
    assert '<text:p><text:span text:style-name="T2">Hund,</text:span> schwarzer</text:p>' in out


def test_a_note_stays_with_its_word() -> None:
    out = member(translated_file("odt", odf(BODY), backwards), "content.xml")
    assert f"park. the in sleeps{NOTE.replace('A note below', 'below note A')} " in out
    assert out.count("<text:page-number>3</text:page-number>") == 1
    assert "A deleted text" in out


def test_the_language_is_set() -> None:
    out = translated_file("odt", odf(BODY), capitals, ReadOptions(language="pt"))
    assert 'fo:language="pt" fo:country="PT"' in member(out, "styles.xml")
    assert "<dc:language>pt-PT</dc:language>" in (meta := member(out, "meta.xml"))
    assert "<dc:title>A NAME</dc:title><dc:creator>A Person</dc:creator>" in meta


def test_many_default_styles_take_linear_time() -> None:
    def run(text: str) -> None:
        translated_file("odt", odf(text), capitals, ReadOptions(language="pt"))

    assert is_linear(run, "<style:default-style/>")


def test_other_files_are_refused() -> None:
    with pytest.raises(DataError, match=r"no content\.xml"):
        translated_file("odt", zipped({"mimetype": "x"}))
    locked = zipped({"content.xml": "", "META-INF/manifest.xml": "<manifest:encryption-data>"})
    with pytest.raises(DataError, match="password"):
        translated_file("odt", locked)
    with pytest.raises(DataError, match="levels deep"):
        translated_file("odt", odf("<text:p>" * 10_000 + "</text:p>" * 10_000))
