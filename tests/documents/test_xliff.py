"""XLIFF: missing targets are added, with the state that translation tools expect of machine translation."""

import re
from xml.parsers import expat

import pytest
from fake_models import backwards, capitals, filled, linked, silent
from message_files import XLIFF, XLIFF_2

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.xliff import read
from nmt_cli.system.errors import DataError

_TARGET = re.compile(
    r"\s*<target state=\"needs-review-translation\" state-qualifier=\"mt-suggestion\">(.*?)</target>", re.S
)


def targets(text: str, model: object = capitals) -> list[str]:
    written = filled(read(text, ReadOptions(language="de")), model)  # type: ignore[arg-type]
    expat.ParserCreate().Parse(written, True)
    return _TARGET.findall(written)


def unit(source: str, more: str = "", attributes: str = "") -> str:
    inner = f"<trans-unit{attributes}><source>{source}</source>{more}</trans-unit>"
    return f'<xliff version="1.2"><file target-language="de"><body>{inner}</body></file></xliff>'


def test_only_targets_are_added() -> None:
    written = filled(read(XLIFF, ReadOptions(language="de")), silent)
    begun = XLIFF.replace('<target state="needs-translation">Two dogs</target>', "").replace("        \n", "")
    assert _TARGET.sub("", written).replace("        \n", "") == begun
    assert len(_TARGET.findall(written)) == 6
    assert "\n        <target state=" in written, "a target is indented like its source"


def test_inline_elements_follow_their_words() -> None:
    source = 'a <g id="1">red</g> dog <x id="2"/>sees <bpt id="3">&lt;b&gt;</bpt>him<ept id="3">&lt;/b&gt;</ept>'
    model = linked({"ihn": "him", "sieht": "sees", "rot": "red"})
    [target] = targets(unit(source), model)
    bold = '<bpt id="3">&lt;b&gt;</bpt>ihn<ept id="3">&lt;/b&gt;</ept>'
    assert target == f'{bold} <x id="2"/>sieht <g id="1">rot</g>'
    [target] = targets(unit("it's &lt;b&gt;red&lt;/b&gt; &amp; big"), backwards)
    assert target == "big &amp; &lt;b&gt;red&lt;/b&gt; it's"
    [target] = targets(unit('see <x id="START_B"/>the dog<x id="CLOSE_B"/> now'), backwards)
    assert target == 'now <x id="START_B"/>dog the<x id="CLOSE_B"/> see'


@pytest.mark.parametrize(
    ("more", "attributes", "count"),
    [
        ("", "", 1),
        ("<target/>", "", 1),
        ("<target> </target>", "", 1),
        ('<target state="new">a dog</target>', "", 1),
        ('<target state="needs-translation">a dog</target>', "", 1),
        ("<target>ein Hund</target>", "", 0),
        ('<target state="needs-review-translation">ein Hund</target>', "", 0),
        ('<target state="new">a dog</target>', ' approved="yes"', 0),
        ("", ' translate="no"', 0),
        ("<alt-trans><target>ein Hund</target></alt-trans>", "", 1),
    ],
)
def test_finished_targets_stay(more: str, attributes: str, count: int) -> None:
    assert targets(unit("a dog", more, attributes)) == ["A DOG"] * count


def test_prefixes_states_and_languages() -> None:
    written = filled(read(XLIFF_2, ReadOptions(language="pt-BR")), capitals)
    assert ' version="2.1" srcLang="en" trgLang="pt-BR">' in written
    assert '<segment id="s1" state="translated">' in written
    assert '<segment state="final"><source>a</source><target>b</target></segment>' in written
    text = '<x:xliff xmlns:x="u" version="1.2"><x:file><x:trans-unit><x:source>a</x:source></x:trans-unit></x:file>'
    text += "</x:xliff>"
    written = filled(read(text, ReadOptions(language="de")), capitals)
    assert '<x:file target-language="de">' in written
    assert "</x:source><x:target state=" in written
    assert "A</x:target></x:trans-unit>" in written


def test_the_language_of_a_file_stays() -> None:
    for text in (unit("a dog").replace('"de"', '"de-AT"'), XLIFF_2.replace('"en">', '"en" trgLang="de-AT">')):
        written = filled(read(text, ReadOptions(language="de")), capitals)
        assert written != text
        assert re.findall(r'(?:target-language|trgLang)="(.*?)"', written) == ["de-AT"]


@pytest.mark.parametrize(
    "text", ["<xliff>", '<xliff version="9"/>', "<a/>", unit("a <g>b"), unit("a </g> b"), unit("a") * 2]
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^this is not a valid XLIFF file: line 1 has "):
        read(text, ReadOptions())
