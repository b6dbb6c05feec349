"""Placeholders at the bounds of their forms, the forms that several flags share, and brackets of messages."""

import pytest
from fake_models import filled, linked, texts_of, translated

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.kept import Kept
from nmt_cli.documents.placeholder_forms import FLAGS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import plain_parts


def found(text: str, *flags: str) -> list[str]:
    return [piece.source for piece in Protection(flags=flags).pieces(text) if piece.kind != "text"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 5%10% b", []), ("a %foo b", ["%f"]), ("a %four b", ["%four"]), ("a @@name b", []), ("a !!name b", []),
        ("a $$name b", []), ("a 100%@ b", ["%@"]), ("a 100%s, b", ["%s"]), ("a 100%d b", ["%d"]),
        ("a 100%sure b", []), ("a :a::b: c", [":a"]), ("a :a:b c", [":a"]), ("a %(n)ld %(n)hd b", ["%(n)ld", "%(n)hd"]),
        (f"a %({'n' * 99})s b", [f"%({'n' * 99})s"]), (f"a %({'n' * 100})s b", []),
        ("a [sprintf,%s,_1] [numf,_1] [numerate,_1,x] b", ["[sprintf,%s,_1]", "[numf,_1]", "[numerate,_1,x]"]),
        ("a [_*] [#,_1] b", ["[_*]", "[#,_1]"]), (f"a %|{'x' * 20}| b", [f"%|{'x' * 20}|"]), (f"a %|{'x' * 21}| b", []),
        (f"a {'x' * 64}@b.c d", [f"{'x' * 64}@b.c"]),
        ("a {n, selectordinal, other {x}} b", ["{n, selectordinal, other {x}}"]),
        ("a {n, spellout} {n, list} {n, duration} b", ["{n, spellout}", "{n, list}", "{n, duration}"]),
    ],
)  # fmt: skip
def test_the_bounds_of_forms(text: str, expected: list[str]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    ("begin", "end"), [("{%", "%}"), ("<%", "%>"), ("{#", "#}"), ("<?", "?>"), ("{{", "}}"), ("${", "}"), ("#{", "}")]
)
def test_statements_have_at_most_five_hundred_characters(begin: str, end: str) -> None:
    longest = f"{begin}{'x ' * 250}{end}"
    assert found(f"a {longest} b") == [longest]
    longer = f"{begin}{'x ' * 250}x{end}"
    assert longer not in found(f"a {longer} b")


NUMBERED = """c-format objc-format javascript-format ruby-format php-format perl-format sh-printf-format d-format
ocaml-format boost-format awk-format tcl-format elisp-format librep-format java-printf-format"""
PERCENT = """python-format lua-format go-format object-pascal-format modula2-format smalltalk-format ycp-format
gcc-internal-format gfc-internal-format"""
BRACES = """c++-format python-brace-format java-format java-messageformat auto-java-messageformat icu-message-format
csharp-format c-sharp-format vue-format perl-brace-format rust-format"""


@pytest.mark.parametrize("flag", FLAGS)
def test_the_forms_that_flags_share(flag: str) -> None:
    """Numbered directives, "%%" and braces are placeholders only in languages whose documentation has them."""
    numbered, percent, braces = (flag in names.split() for names in (NUMBERED, PERCENT, BRACES))
    assert (("%2$s" in found("see %2$s now", flag)), "%%" in found("see %% now", flag)) == (
        numbered or flag == "gcc-internal-format" or flag == "gfc-internal-format",
        numbered or percent,
    )
    assert found("see {} and {0} now", flag) == (["{}", "{0}"] if braces else found("see {} and {0} now"))
    if numbered:
        assert found("100 % d dogs", flag) == ["% d"]


def test_numbered_directives_may_change_places() -> None:
    model = linked({"Katze": "cat", "und": "and", "Hund": "dog", "sehen": "see"})
    for flag, first, second in (("object-pascal-format", "%0:s", "%1:d"), ("c-format", "%1$s", "%2$d")):
        parts = plain_parts(f"see {first} dog and {second} cat", Protection(flags=[flag]))
        assert translated(parts, model) == f"{second} Katze und {first} Hund sehen"


SEQUENTIAL = """c-format objc-format python-format ruby-format php-format perl-format java-printf-format
sh-printf-format javascript-format lua-format go-format d-format ocaml-format object-pascal-format modula2-format
awk-format tcl-format elisp-format librep-format gcc-internal-format gfc-internal-format boost-format"""


@pytest.mark.parametrize("flag", SEQUENTIAL.split())
def test_directives_without_a_number_keep_their_order(flag: str) -> None:
    """Each directive prints the next argument."""
    model = linked({"Katze": "cat", "und": "and", "Hund": "dog", "sehen": "see"})
    translation = translated(plain_parts("see %s dog and %d cat", Protection(flags=[flag])), model)
    assert translation.index("%s") < translation.index("%d")
    assert translation.index("Katze") < translation.index("Hund")


def test_long_directives_of_php() -> None:
    assert found("a %ld %5.2lf b", "php-format") == ["%ld", "%5.2lf"]
    assert found("a %'x9d %+-0'*8d b", "php-format") == ["%'x9d", "%+-0'*8d"]


def test_words_with_punctuation_in_brackets_stay_whole() -> None:
    protection = Protection(strict=True)
    for text in ("his(/her) dog", "(s/)he sees", "file(-s) here", "it(')s here"):
        assert texts_of(plain_parts(text, protection)) == [text]


def test_without_protection_a_translation_may_add_anything() -> None:
    """Only the user's phrases are hidden."""
    protection = ReadOptions(protect=False, kept=Kept(("Fox",))).protection()
    model = linked({"%s": "file", "{x}": "file", "weg": "gone"})
    assert translated(plain_parts("file gone Fox", protection), model).split() == ["%s", "{x}", "weg", "Fox"]


@pytest.mark.parametrize(
    ("kind", "around"),
    [
        ("json", '["{}"]'),
        ("yaml", 'a: "{}"\n'),
        ("properties", "a = {}\n"),
        ("po", 'msgid "{}"\nmsgstr ""\n'),
        ("strings", '"a" = "{}";'),
        ("laravel", "<?php return ['{}'];"),
    ],
)
def test_brackets_of_messages_are_hidden(kind: str, around: str) -> None:
    text = around.replace("{}", "see (the) dog [now]")
    document = FORMATS[kind].read(text.encode() if FORMATS[kind].binary else text, ReadOptions())
    assert texts_of(document.parts) == ["see the dog now"]
    written = filled(document, linked({"(": "see", "jetzt": "now", "der": "the"}))
    assert written.count("(") == text.count("(") * (2 if kind == "po" else 1)
