"""Accelerator marks are removed before the translation and put back after it."""

from collections import Counter

import pytest
from catalogs import GERMAN
from fake_models import linked, translated

from nmt_cli.documents import accelerators
from nmt_cli.documents.po import Catalog
from nmt_cli.documents.po_syntax import read_messages


@pytest.mark.parametrize(
    ("text", "plain"),
    [("_Open", "Open"), ("Save _As...", "Save As..."), ("E_xit", "Exit"), ("&Save", "Save"), ("&amp;Save", "Save"),
     ("Pre&ferences", "Preferences"), ("Find %s &again", "Find %s again"), ("_Add %(a_b)s", "Add %(a_b)s")],
)  # fmt: skip
def test_marks_of_labels_are_found_and_removed(text: str, plain: str) -> None:
    found = accelerators.find(text)
    assert found
    assert found.plain == plain


@pytest.mark.parametrize(
    "text",
    ["file_name", "AT&T", "R&D", "Tom & Jerry", "a && b", "snake __init__", "_a and _b", "&lt;b&gt;", "&quot;x",
     "the _id of it", "List and “%(class)s.allow_empty” is", "Use _this one.", "Slug (up to %(max_length)s)",
     "No {verbose_name} found", "See <a href='a_b'>it</a>", "R&amp;D",
     "The option max_length must be a number that is not too big"],
)  # fmt: skip
def test_other_texts_have_no_accelerator(text: str) -> None:
    assert accelerators.find(text) is None


@pytest.mark.parametrize(
    ("label", "text", "expected"),
    [
        ("_Open", "Öffnen", "_Öffnen"),  # no letter o
        ("_Quit", "Beenden", "_Beenden"),
        ("E_xit", "Exit", "E_xit"),
        ("_Save", "Alles sichern", "Alles _sichern"),  # the first letter of a word is preferred
        ("&File", "%f Datei", "%f &Datei"),
        ("_Open", "Файл", "_Файл"),
        ("_Open...", "開く...", "開く(_O)..."),
        ("_Name:", "名前：", "名前(_N)："),
        ("&amp;Open", "Tom &amp; Otto", "Tom &amp; &amp;Otto"),
        ("_B", "<b>%s</b>", "<b>%s</b>(_B)"),
    ],
)
def test_the_mark_is_put_on_a_letter(label: str, text: str, expected: str) -> None:
    found = accelerators.find(label)
    assert found
    assert accelerators.marked(text, found, Counter()) == expected


def test_labels_of_a_catalog_use_different_letters() -> None:
    catalog = Catalog(GERMAN + 'msgid "_Open"\nmsgstr ""\n\nmsgid "_Quit"\nmsgstr ""\n', None)
    translated(catalog.parts, lambda text: linked({"Beenden": text})(text))
    assert [message.forms[0].text for message in read_messages(catalog.write())[1:]] == ["_Beenden", "B_eenden"]
