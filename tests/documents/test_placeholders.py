"""Placeholders, tags and brackets in protected text: hidden from the model, and each once in the output."""

import pytest
from fake_models import backwards, linked, same, texts_of, translated
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.documents import html, po_syntax
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.po import Catalog
from nmt_cli.documents.segment import plain_parts

PLACEHOLDER = Protection().forbidden
STRINGS = [
    "Deleted %s files by %(user)s.", '"%s" not found (see %s)', "%d%% of %1$s", "{} and {0:>5} and {name!r}", "%%",
    "{count, plural, one {# file} other {# files}} here", "{{ user.name }} and {% if x %}y{% endif %}",
    "${HOME} or %{x}",
    "go to https://x.org/a?b=c. Now", "mail a.b@c.de, please", "the [X12X] of [X13X]", 'a <x id="3"></x> b <x id="4"/>',
    "Step %-5.2lf of %*d and %@", "name%(plural)s", "see [^1]",
]  # fmt: skip


@given(
    st.lists(st.sampled_from([*STRINGS, "The dog", "(or a cat)", "50 % off"]), min_size=1, max_size=4), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_placeholders_are_hidden_and_occur_once_in_the_output(texts: list[str], strict: bool) -> None:
    """Other placeholders in the output are removed. Placeholders for the next argument keep their order."""
    text, protection = " ".join(texts), Protection(strict=strict)
    expected = [match[0] for match in PLACEHOLDER.finditer(text)]
    assert not any(map(PLACEHOLDER.search, texts_of(plain_parts(text, protection))))
    noise = "Der %s Hund {x} (http://a.b) ["

    def noisy(source: str) -> Aligned:
        return linked(dict.fromkeys(noise.split(), source[0]))(source)

    for model in (same, backwards, noisy):
        out = translated(plain_parts(text, protection), model)
        assert sorted(match[0] for match in PLACEHOLDER.finditer(out)) == sorted(expected)
        plain = [each for each in expected if each in ("%s", "{}", "{% if x %}", "{% endif %}")]
        assert [each for each in (m[0] for m in PLACEHOLDER.finditer(out)) if each in plain] == plain
        if strict:
            assert all(out.count(bracket) == text.count(bracket) for bracket in "()[]{}<>")


@pytest.mark.parametrize("text", ["%s{name}", "{name}/%s", "%s:{name}", "%s{name}-{name}", "({name}%s)"])
def test_adjacent_placeholders_are_joined_and_ordered_if_any_is(text: str) -> None:
    assert list(Protection().pieces(f"a {text} b")) == [("a ", "text", ""), (text, "ordered", ""), (" b", "text", "")]


PRINTF = [*(f"%{letter}" for letter in "diouxXeEfFgGaAcCrsSp@"), *(f"%{size}d" for size in ("hh", "ll", *"hlqjzt"))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((f"a{each}b", each) for each in [*PRINTF, "%Lf", "%-+0#'5.2f", "%*d", "%.*f", "%7.12s"]),  # directives of C
        ("%% %1$s %2$-5.3lf %(name)s %(a.b)03d %12% %1y %3", "%% %1$s %2$-5.3lf %(name)s %(a.b)03d %12% %1 %3"),
        ("{} {0} {name} {a.b[0-1]!r:>5} {:>5} {!s} { x }", "{} {0} {name} {a.b[0-1]!r:>5} {:>5} {!s}"),
        ("{% if x\n %}a{%endif%} <% x %>", "{% if x\n %} {%endif%} <% x %>"),
        ("{{x}}, {{ a.b }} {{{x}}} {{a}b}}", "{{x}} {{ a.b }} {{{x}}} {{a}b}}"),
        ("%{x} ${HOME} #{x} $(file.name) $(a b)", "%{x} ${HOME} #{x} $(file.name)"),
        ("{ n , plural , one {# {x {y}}} other {}}a{n, date}", "{ n , plural , one {# {x {y}}} other {}} {n, date}"),
        ('[X12X] <x id="3"></x> <p x/> <br/> <b></i> <b>', '[X12X] <x id="3"></x> <p x/> <br/>'),
        ("see [^1] or [^note-2]: [^a b]", "[^1] [^note-2]:"),
        ("http://x.y/z?a=b#d. (https://x.org/a)! www.x.y;", "http://x.y/z?a=b#d https://x.org/a www.x.y"),
        ("<ftp://x.y>, file://x", "ftp://x.y"),
        ("a.b+c-d@e-f.co.uk. a_b@c.de, a@b", "a.b+c-d@e-f.co.uk a_b@c.de"),
    ],
)
def test_forms_of_placeholders_in_one_text(text: str, found: str) -> None:
    assert " ".join(match[0] for match in PLACEHOLDER.finditer(text)) == found


@pytest.mark.parametrize(
    "pair",
    [
        "()",
        "[]",
        "{}",
        "<>",
        '""',
        "''",
        "``",
        "\u201c\u201d",
        "\u201e\u201c",
        "\u2018\u2019",
        "\u201a\u2018",
        "\u00ab\u00bb",
    ],
)
def test_quotes_and_brackets_around_a_placeholder_belong_to_it(pair: str) -> None:
    left, right = pair
    texts = f"a {left}%s{right} b", f"a {left}{left}%s{right}{right} b", f"%s{right} a {left}"
    found = [[each.source for each in Protection().pieces(text) if each.kind != "text"] for text in texts]
    assert found == [[f"{left}%s{right}"], [f"{left}{left}%s{right}{right}"], ["%s"]]


def test_placeholders_in_attributes_are_hidden() -> None:
    assert texts_of(html.parse('<p title="see %s">a {b}<img alt=%d>', Protection())) == ["see", "a"]


def test_numbers_and_prose_are_not_placeholders() -> None:
    text = "In 1984, 50 % of 3.5 dogs and 12% cats were {not here} at 5:30; a@b, 100%."
    assert not PLACEHOLDER.search(text)


@pytest.mark.parametrize(
    ("text", "seen", "out"),
    [
        ("Click <0>here</0> now", "Click here now", "now <0>here</0> Click"),
        ("Click <0>here <1>or</1></0>", "Click here or", "<0><1>or</1> here</0> Click"),
        ("Click <b>here</b> now", "Click here now", "now <b>here</b> Click"),
        ('Go <a href="x">here</a> now', "Go here now", 'now <a href="x">here</a> Go'),
        ("Click <Trans to={x}>here</Trans> now", "Click here now", "now <Trans to={x}>here</Trans> Click"),
        ("Click <x-link>here</x-link> now", "Click here now", "now <x-link>here</x-link> Click"),
        ("Click <ui:link>here</ui:link> now", "Click here now", "now <ui:link>here</ui:link> Click"),
        ("Click <Nav.Link>here</Nav.Link> now", "Click here now", "now <Nav.Link>here</Nav.Link> Click"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_tags_with_a_partner_are_elements_of_protected_text(text: str, seen: str, out: str, strict: bool) -> None:
    protection = Protection(strict=strict)
    assert texts_of(plain_parts(text, protection)) == [seen]
    assert translated(plain_parts(text, protection), backwards) == out
    assert texts_of(html.parse(text, protection)) == [seen]


@pytest.mark.parametrize("mark", ["{x}", "%s", "%d%%", ":name", "%<n>d"])
@pytest.mark.parametrize("tag", ["b", "0", 'a href="x"'])
def test_a_tag_around_a_placeholder_stays(mark: str, tag: str) -> None:
    element = f"<{tag}>{mark}</{tag.split()[0]}>"
    for text in (f"Delete {element} now", f"{element} now", f"now {element}"):
        assert translated(plain_parts(text, Protection()), same) == text
        assert translated(plain_parts(text, Protection()), backwards).count(element) == 1
        quoted = text.replace('"', '\\"')
        catalog = Catalog(f'msgid "{quoted}"\nmsgstr ""\n', Protection(strict=True))
        translated(catalog.parts, same)
        assert po_syntax.read_messages(catalog.write())[-1].forms[0].text == text


def test_numbered_tags_are_html_if_closed() -> None:
    assert texts_of(html.parse("a <0>dog</0> b <1> c")) == ["a dog b <1> c"]
    assert translated(html.parse("a <1> c"), same) == "a &lt;1> c"


def test_a_tag_without_a_partner_is_text() -> None:
    assert texts_of(plain_parts("the <unknown> dog <a and b> c", Protection())) == ["the <unknown> dog <a and b> c"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Delete %d file(s) now", "Delete file(s) now"),
        ("Delete (the) file(s)", "Delete the file(s)"),
        ("(Re)start the child(ren) [now]", "(Re)start the child(ren) now"),
        ("call foo() or a[0] (see)", "call foo() or a[0] see"),
        ("\u6587\u4ef6(\u5939)", "\u6587\u4ef6\u5939"),
    ],
)
def test_brackets_inside_a_word_belong_to_it(text: str, seen: str) -> None:
    assert texts_of(plain_parts(text, Protection(strict=True))) == [seen]
    assert translated(plain_parts(text, Protection(strict=True)), same) == text


def test_placeholders_that_the_model_adds_are_removed() -> None:
    protection = Protection(strict=True)
    output = {"Datei(en)": "file", "(neu)": "file", "%s": "file", "weg": "gone"}
    assert translated(plain_parts("file(s) gone", protection), linked(output)) == "Datei(en) neu weg"
    own = Protection(flags=["python-brace-format"])
    assert translated(plain_parts("50 %s {x}", own), linked({"%s": "50", "%d": "50"})) == "%s %d {x}"
