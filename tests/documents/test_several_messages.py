"""Message files with several languages, levels and notes. Also escapes and attributes that the samples lack."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fake_models import capitals, filled

from nmt_cli.documents import accelerators
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS, kind_of
from nmt_cli.documents.kept import Kept, kept
from nmt_cli.documents.segment import plain_parts, segments_of
from nmt_cli.documents.xml_messages import with_attribute
from nmt_cli.system.errors import DataError


def translated(kind: str, text: str, language: str = "de") -> str:
    document = FORMATS[kind].read(text.encode() if FORMATS[kind].binary else text, ReadOptions(language=language))
    filled(document, capitals)
    return document.to_bytes().decode()


@pytest.mark.parametrize(
    ("kind", "open_", "close", "leaf"),
    [
        ("json", '{"a":', "}", '"a dog"'),
        ("json", "[", "]", '"a dog"'),
        ("yaml", "[", "]", "a dog"),
        ("laravel", "[", "]", "'a dog'"),
        ("android", "<a>", "</a>", ""),
    ],
)
def test_values_may_be_nested_a_hundred_levels_deep(kind: str, open_: str, close: str, leaf: str) -> None:
    def text(levels: int) -> str:
        inside = open_ * levels + leaf + close * levels
        around = {"laravel": "<?php return {};", "android": '<resources>{}<string name="a">a dog</string></resources>'}
        return around.get(kind, "{}").replace("{}", inside)

    most = 99 if kind == "android" else 100  # the outermost element is one more level
    assert "A DOG" in translated(kind, text(most))
    with pytest.raises(DataError, match=r"line 1 has \w+ nested more than 100 levels deep"):
        translated(kind, text(most + 1))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        # A description is a note only beside a message. "@" begins a note only in ARB.
        ("json", '{"description": "a dog", "title": "cat"}', '{"description": "A DOG", "title": "CAT"}'),
        ("json", '{"message": "a", "meaning": "n", "x": ["z"]}', '{"message": "A", "meaning": "n", "x": ["Z"]}'),
        ("json", '{"string": "a", "context": ["n"]}', '{"string": "A", "context": ["n"]}'),
        ("json", '{"@a": "dog", "@@locale": "en x"}', '{"@a": "DOG", "@@locale": "EN X"}'),
        ("arb", '{"@a": "dog", "b": {"@@locale": "en"}}', '{"@a": "dog", "b": {"@@locale": "en"}}'),
        ("arb", '{"@@locale": "en", "a": "dog"}', '{"@@locale": "pt_BR", "a": "DOG"}'),
        ("arb", '{"@@locale": "en-US", "a": "dog"}', '{"@@locale": "pt-BR", "a": "DOG"}'),
        # The language of YAML, in the spelling of the file. A key names a language only if it is alone at the top.
        ("yaml", "en_US:\n  a: dog\n", "pt_BR:\n  a: DOG\n"),
        ("yaml", "en:\n  a: dog\n", "pt-BR:\n  a: DOG\n"),
        ("yaml", "'en':\n  a: dog\n", "'en':\n  a: DOG\n"),
        ("yaml", "en:\n  a: dog\n---\nfr:\n  a: dog\n", "en:\n  a: DOG\n---\nfr:\n  a: DOG\n"),
        ("yaml", "en:\n  a: dog\nx: 5\n", "en:\n  a: DOG\nx: 5\n"),
        ("yaml", "a:\n  '@note': {b: dog}\n  '@text': dog\n", "a:\n  '@note': {b: dog}\n  '@text': DOG\n"),
        # Blocks keep their line ends.
        ("yaml", "a: |\r\n  one\r\n  two\r\nb: x\r\n", "a: |\r\n  ONE\r\n  TWO\r\nb: X\r\n"),
        ("yaml", "a: |+\n  one\n\nb: x\n", "a: |+\n  ONE\n\nb: X\n"),
        ("yaml", "a: >\n  one\n\n  two\nb: x\n", "a: >\n  ONE\n\n  TWO\nb: X\n"),
        # A mapping is no plural if it has a number, a mapping or another key beside the categories.
        ("yaml", "a: {one: 5, other: dogs}\n", "a: {one: 5, other: DOGS}\n"),
        ("yaml", "a: {many: dogs, x: cat, other: b}\n", "a: {many: DOGS, x: CAT, other: B}\n"),
        ("yaml", "a: {two: {b: dogs}, other: b}\n", "a: {two: {b: DOGS}, other: B}\n"),
        ("yaml", "a: {two: dogs, other: b}\n", "a: {one: B, many: B, other: B}\n"),
        # Android: lists that are not translated, references to resources, several plurals.
        (
            "android",
            '<resources><plurals name="a" translatable="false"><item quantity="other">dog</item></plurals>'
            '<array name="b"><item>dog</item><item>?attr/dog</item><item>@string/dog</item></array>'
            "<style><item>dog</item></style></resources>",
            '<resources><plurals name="a" translatable="false"><item quantity="other">dog</item></plurals>'
            '<array name="b"><item>DOG</item><item>?attr/dog</item><item>@string/dog</item></array>'
            "<style><item>dog</item></style></resources>",
        ),
        # XLIFF: the nearest element decides.
        (
            "xliff",
            '<xliff version="1.2"><file><group translate="no">'
            '<trans-unit id="1" translate="yes"><source>dog</source></trans-unit>'
            '<trans-unit id="2"><source>cat</source></trans-unit></group></file></xliff>',
            "<target",
        ),
        # Apple: octal and other escapes.
        ("strings", '"a" = "a b\\\\c \\351 \\q";', '"a" = "A B\\\\C É Q";'),
        # .NET: binary values, designer properties and locked strings.
        (
            "resx",
            '<root><data name="a" mimetype="x"><value>dog</value></data>'
            '<data name="$this.Font"><value>dog</value></data>'
            '<data name="b"><value>dog</value><comment>see {Locked} x</comment></data>'
            '<data name="c"><value>dog</value><comment>Locked</comment></data>'
            '<metadata name="d"><value>dog</value></metadata></root>',
            None,
        ),
        ("laravel", '<?php return ["a" => "\\u{e9}\\x41\\101 \\$x", "b" => ["c" => "dog"]];', None),
        ("laravel", "<?php /* x */ declare(strict_types=1); return array('a' => 'dog',) ; ?>\n", None),
    ],
)  # fmt: skip
def test_only_messages_change_in_each_kind_of_file(kind: str, text: str, expected: str | None) -> None:
    written = translated(kind, text, "pt-BR")
    if kind == "xliff":
        assert (written.count("<target"), "DOG" in written, "CAT" in written) == (1, True, False)
    elif kind == "resx":
        assert written == text.replace('name="c"><value>dog', 'name="c"><value>DOG')
    elif kind == "laravel":
        assert written == text.replace("'dog'", "'DOG'").replace('"dog"', '"DOG"').replace(
            "\\u{e9}\\x41\\101 \\$x", "ÉAA \\$X"
        )
    else:
        assert written == expected


def test_qt_keeps_the_language_of_a_file_and_counts_forms() -> None:
    message = "<message{}><source>dog</source>{}</message>"
    body = message.format("", '<translation type="obsolete"></translation>')
    body += message.format(
        ' numerus="yes"', "<translation><numerusform></numerusform><numerusform>x</numerusform></translation>"
    )
    body += message.format("", "<oldsource>cat</oldsource><extracomment>n</extracomment>")
    text = f'<TS language="fr"><context>{body}</context></TS>'
    new = '<extracomment>n</extracomment><translation type="unfinished">DOG</translation>'
    assert translated("qt", text, "de") == text.replace("<extracomment>n</extracomment>", new)
    bare = "<TS><context>\n  <message>\n    <source>dog</source>\n  </message></context></TS>"
    expected = bare.replace("<TS>", '<TS language="pt_BR">').replace(
        "</source>", '</source>\n    <translation type="unfinished">DOG</translation>'
    )
    assert translated("qt", bare, "pt-BR") == expected


def test_attributes_are_set_in_every_form_of_tag() -> None:
    for tag, expected in (
        ("<a>", '<a x="1">'), ("<a/>", '<a x="1"/>'), ("<a b='2' />", "<a b='2' x=\"1\"/>"),
        ("<a x='5' b=\"2\">", "<a x='1' b=\"2\">"),
        ('<a x="">', '<a x="1">'), ('<a yx="5">', '<a yx="5" x="1">'),
    ):  # fmt: skip
        assert with_attribute(tag, "x", "1") == expected


def test_plurals_that_another_message_divides_stay() -> None:
    """A category that the target language lacks is removed, unless another message is before the next category."""
    text = '{"a_one": "dog", "a_two": "dogs", "x": "y", "a_other": "dogs"}'
    assert json.loads(translated("json", text, "ja")) == {"a_two": "DOGS", "x": "Y", "a_other": "DOGS"}
    assert json.loads(translated("json", text, "")) == {"a_one": "DOG", "a_two": "DOGS", "x": "Y", "a_other": "DOGS"}
    ordinal = '{"a_ordinal_one": "dog", "a_ordinal_other": "dogs", "a_one": "cat", "a_other": "cats"}'
    assert json.loads(translated("json", ordinal, "de")) == {
        "a_ordinal_other": "DOGS", "a_one": "CAT", "a_other": "CATS",
    }  # fmt: skip
    assert json.loads(translated("json", '{"a_one": "dog", "a_few": "x"}', "ru")) == {"a_one": "DOG", "a_few": "X"}


def test_labels_up_to_a_length_have_accelerators() -> None:
    for text, found in (
        ("_A b c d e f", True), ("_A b c d e f g", False), (f"_{'A' * 79}", True), (f"_{'A' * 80}", False),
        ("Save _As..", True), ("Save _as.", False), ("_open", False), ("_5 dogs", True),
    ):  # fmt: skip
        assert bool(accelerators.find(text)) == found, text


def test_a_letter_that_no_other_label_uses_is_marked() -> None:
    """First letters of words are preferred. A used letter is marked only if there is no unused one."""
    label = accelerators.find("_Quit")
    assert label
    for used, expected in (("", "_Die Daten"), ("d", "D_ie Daten"), ("di", "Di_e Daten"), ("dieatn", "_Die Daten")):
        counts = Counter(used)
        assert accelerators.marked("Die Daten", label, counts) == expected
        assert sum(counts.values()) == len(used) + 1
    assert accelerators.marked("Über Daten", label, Counter("ü")) == "Über _Daten"


def shown(text: str, *phrases: str) -> list[str]:
    parts = plain_parts(text, ReadOptions(False, kept=Kept(phrases)).protection())
    return [segment.text for segment in segments_of(parts)]


def test_kept_phrases_may_have_any_space_and_do_not_overlap(tmp_path: Path) -> None:
    assert shown("see New\u00a0York, New  York and New-York", "New York") == ["see , and New-York"]
    assert shown("a b c d", "a b", "b c", "c d") == []
    found = list(Kept(("a b", "b c", "c d")).phrases_in("a b c d", 0, 7))
    assert found == [(0, 3), (4, 7)]
    assert shown("New York City is New York", "New York", "New York City") == ["is"]
    (tmp_path / "keep").write_text("a b\r\n\n")
    assert kept(tmp_path / "keep", "x+") == Kept(("a b",), "x+")
    assert list(Kept(pattern="x*").matches("axxbx")) == [(1, 3), (4, 5)]


def test_the_kind_of_a_file_that_shares_its_suffix(tmp_path: Path) -> None:
    for name, data, kind in (
        ("a.xml", "<?xml?>\n<resources/>", "android"), ("b.xml", "<html/>", None), ("c.ts", '<TS version="2.1">', "qt"),
        ("d.ts", "export const a = 5", None), ("e.YML", "", "yaml"), ("f.xml", " " * 4096 + "<resources>", None),
        ("g", "", None),
    ):  # fmt: skip
        (tmp_path / name).write_text(data)
        assert kind_of(tmp_path / name) == kind
    assert kind_of(tmp_path / "none.ts") == "qt"
    assert FORMATS["json"].read('\ufeff["a"]'.encode(), ReadOptions()).to_bytes() == '\ufeff["a"]'.encode()
