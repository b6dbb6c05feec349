"""The documented forms of placeholders: each placeholder is hidden as a whole, and prose is not hidden."""

import random
import re
from collections import Counter

import pytest
from fake_models import backwards, same, texts_of, translated

from nmt_cli.documents.placeholder_forms import FLAGS, FORMS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import plain_parts

# Placeholders of text without flags, by their form.
PLAIN = {
    "url": ["https://x.org/{id}", "http://x", "www.x.org/a?b=c", "ftp://x.org/%s", "https://x.org/{{id}}"],
    "mail": ["a.b+c@d-e.org"],
    "tool": ["[X12X]", '<x id="3"></x>', "<0/>", "<Trans.Link/>", '<ph id="1"/>'],
    "footnote": ["[^1]", "[^note-2]"],
    "maketext": ["[_1]", "[quant,_1,file,files]", "[*,_1,file]"],
    "statement": ["{% if x %}", "{% trans 'a b' %}", "<%= x %>", "<% x %>", "{# note #}", "<?= $x ?>"],
    "mustache": ["{{count}}", "{{ user.name }}", "{{{x}}}", "{{- x}}", "{{value, number}}", "{{/link}}", "{{ x | y }}"],
    "nesting": ["$t(key)", '$t(girls, {"count": {{girls}} })', "$t(common:key)"],
    "template": ["${HOME}", "${ user.name }", "#{x}", "%{count}", "$(file.name)", "$(^Name)"],
    "webextension": ["$NAME$", "__MSG_app_name__", "__count__"],
    "icu": [
        "{n, plural, one {# file} other {# files}}",
        "{g, select, male {{n, plural, one {{name} has it} other {they}}} other {no}}",
        "{0,date,short}",
        "{x, number, ::currency/EUR}",
        "{ n , selectordinal , other {#th} }",
    ],
    "net": ["{0,10}", "{0,-10:N2}"],
    "auto_brace": ["{}", "{:>5}", "{!r}", "{:?}"],
    "brace": ["{0}", "{name}", "{a.b[0]!r:>5}", "{0:N2}", "{x:{width}}", "{user-id}", "{'@'}", "{ $name }", "{$NAME}"],
    "percent_name": ["%name%", "%user_name%", "%user.name%", "%PATH%", "%to%", "%%title%%"],
    "percent": ["%%"],
    "strings_dictionary": ["%#@files@", "%1$#@files@"],
    "ruby_named": ["%<count>d", "%<name>s", "%-10<name>s", "%+.2<amount>f", "%<amount>.2f"],
    "integer_macro": ["%<PRIu64>", "%5<PRId32>"],
    "indexed": ["%1$s", "%2$-5.3lf", "%1$@", "%1$lu", "%1$*2$d", "%1$'05d", "%1$tY", "%3$,d"],
    "python_named": ["%(name)s", "%(count)d", "%(a.b)03d", "%(x).2f"],
    "pascal_indexed": ["%0:s", "%1:-5d"],
    "boost": ["%1%", "%|1$+5|", "%|s|"],
    "percent_word": ["%name", "%user-name"],
    "printf": ["%s", "%d", "%lu", "%lld", "%zu", "%5.2f", "%-10s", "%.*f", "%@", "%n", "%v", "%i", "%'d", "%08x"],
    "qt": ["%1", "%12", "%L1", "%Ln"],
    "vue_link": ["@:key.name", "@.lower:key", "@:(key.name)"],
    "at_name": ["@count", "@user-name"],
    "bang_name": ["!count"],
    "emoji": [":smile:", ":tada:"],
    "colon_name": [":name", ":COUNT", ":Name"],
    "dollar_name": ["$name", "$HOME"],
}


# For each flag: placeholders of messages with the flag, and strings that are text in these messages.
FLAGGED = {
    "c-format": (
        ["%s", "%%", "% d", "%1$*2$d", "%'d", "%<PRIu64>", "%wf8d", "%Id", "%m", "{{x}}"],
        [":name", "$name", "%q"],
    ),
    "objc-format": (["%@", "%1$@", "%#@files@", "%lu"], [":name"]),
    "python-format": (["%s", "%(a b)s", "%(n)03d", "%%", "% 5d", "%r"], ["%b", "$x", ":x"]),
    "python-brace-format": (["{}", "{0}", "{a.b[c]!r:>{w}}"], ["50% discount", "%d", "100%", "%(x)s", ":x"]),
    "ruby-format": (["%<n>d", "%{n}", "%s", "%-10<n>s", "%b", "%1$s"], [":n", "%@"]),
    "php-format": (["%s", "%'010d", "%1$'x5s", "%b", "%e"], ["%i", "$x"]),
    "perl-format": (["%s", "%vd", "%-10s", "%2$s"], ["$x"]),
    "perl-brace-format": (["{name}"], ["%s"]),
    "java-format": (["{0}", "{ 0 }", "{0,number,#.##}", "{n,choice,0#no|1#{0}}"], ["%s"]),
    "java-printf-format": (["%s", "%1$tY", "%,d", "%(d", "%<s", "%n"], ["%i"]),
    "csharp-format": (["{0}", "{0:N2}", "{0,10}", "{0,-5:C}"], ["%d"]),
    "javascript-format": (["%s", "%j", "%d", "${ x }"], [":x"]),
    "sh-format": (["$HOME", "${HOME}"], ["%s"]),
    "sh-printf-format": (["%s", "%b", "%q"], ["%@"]),
    "lua-format": (["%q", "%5.1f"], ["%b"]),
    "go-format": (["%v", "%+v", "%[2]d", "%[3]*.[2]*[1]f", "%q", "%T", "%#x"], ["$x"]),
    "rust-format": (["{}", "{name}", "{x:?}", "{:>8.2}"], ["%s"]),
    "c++-format": (["{}", "{:>{}}", "{0:.2f}"], ["%s"]),
    "boost-format": (["%1%", "%|1$s|", "%s", "%=5d", "%20T.", "%T_"], [":x"]),
    "qt-format": (["%1", "%L2", "%99"], ["%s", "%n"]),
    "qt-plural-format": (["%n", "%Ln"], ["%s", "%1"]),
    "kde-format": (["%1", "%123"], ["%s"]),
    "object-pascal-format": (["%s", "%0:s", "%*.*f", "%1:-5d"], ["%q"]),
    "smalltalk-format": (["%1", "%%"], ["%s"]),
    "scheme-format": (["~a", "~d", "~%", "~5,2f"], ["%s"]),
    "elisp-format": (["%s", "%S", "%-5d"], ["%u"]),
    "gcc-internal-format": (["%qs", "%<", "%>", "%q+D", "%.*s", "%R"], ["$x"]),
    "tcl-format": (["%s", "%1$s", "%hd"], ["%@"]),
    "awk-format": (["%s", "%5d", "%i"], ["%p"]),
    "d-format": (["%s", "%1$s", "%,3d"], [":x"]),
    "ocaml-format": (["%s", "%Ld", "%a", "%B"], ["%q"]),
    "modula2-format": (["%s", "%05d"], ["%f"]),
    "percent-placeholders": (["%name%"], ["%s"]),
    "vue-format": (["{name}", "%{name}", "@:key.name"], ["%s"]),
    "laravel-format": ([":name"], ["%s"]),
    "icu-message-format": (["{0}", "{ name }", "{n, number}", "'{name}'"], ["%s", "#"]),
    "icu-plural": (["#"], ["%s"]),
    "i18next-interpolation": (["{{x}}", "$t(key)"], ["%s"]),
}


PROSE = [
    "It is 100% sure, with 50% off and 50%-off, a 100%ige thing of 12 % (5%).",
    "Note: the train leaves at 10:30; Chapter 3:name, a::b and the ratio 1:2.",
    "He has 5$ and US$ 7, $100 or 20 € (see below), A & B, #3 and no. 7.",
    "He {says so} and {red, blue}, {Note: see this} or [see] and <3 you; a < b > c.",
    "A 5%-10% rise, 5% to 10%, 20% des Umsatzes, 100 % der Leute, 80% are @ home!",
    "Wow! that is it... a_b, a__b, snake_case_name, 5*3, ~5 km, it's 'so' and \"so\".",
    "if (a) b; c: d, e) f; i.e. 10.5%, 3.14, 1,000.00; and/or; e-mail to a@b.",
]  # fmt: skip
SENTENCE = "The dog {} sees it."


def placeholders(text: str, protection: Protection) -> list[str]:
    return [piece.source for piece in protection.pieces(text) if piece.kind in ("standalone", "ordered")]


def test_every_form_and_every_flag_is_tried() -> None:
    assert PLAIN.keys() | {name for flag in FLAGGED for name in FLAGS[flag]} == FORMS.keys()
    assert all("https://" in form.source for form in FORMS.values())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in PLAIN.items() for text in texts])
def test_a_placeholder_is_hidden_whole_and_the_model_sees_the_rest(form: str, text: str, strict: bool) -> None:
    protection = Protection(strict=strict)
    sentence = SENTENCE.format(text)
    assert placeholders(sentence, protection) == [text]
    assert texts_of(plain_parts(sentence, protection)) == ["The dog sees it."]
    for model in (same, backwards):
        assert translated(plain_parts(sentence, protection), model).count(text) == 1
    assert placeholders(text, protection) == [text]
    assert placeholders(f'It is "{text}", a dog.', protection) == [f'"{text}"']


@pytest.mark.parametrize("flag", FLAGGED)
def test_the_flags_of_a_message_choose_the_forms(flag: str) -> None:
    protection = Protection(strict=True, flags=["fuzzy", flag])
    for text in FLAGGED[flag][0]:
        assert placeholders(SENTENCE.format(text), protection) == [text]
        assert placeholders(text, protection) == [text]
    for text in FLAGGED[flag][1]:
        assert placeholders(SENTENCE.format(text), protection) == []


@pytest.mark.parametrize(
    ("flags", "text", "found"),
    [
        (["no-c-format"], "%d of 50% {x} :name %1$s", ["{x}", ":name"]),
        (["no-python-format"], "%(x)s and %s", []),
        (["no-python-brace-format"], "{x} and %s", ["%s"]),
        (["no-qt-format"], "%1 and {x}", ["{x}"]),
        (["c-format", "no-python-format"], "%s and %%", ["%s", "%%"]),
        (["python-format", "python-brace-format"], "%s and {x}", ["%s", "{x}"]),
        (["fuzzy", "no-wrap", "range: 0..5"], "%s and :name", ["%s", ":name"]),
        (["c-format"], "100% fine and 50% discount for % 5d", ["% 5d"]),
    ],
)
def test_negated_and_combined_flags(flags: list[str], text: str, found: list[str]) -> None:
    assert placeholders(text, Protection(flags=flags)) == found


@pytest.mark.parametrize("text", PROSE)
def test_prose_holds_no_placeholder(text: str) -> None:
    for protection in (Protection(), Protection(strict=True), Protection(flags=["python-brace-format"])):
        assert placeholders(text, protection) == []
    assert "".join(piece.source for piece in Protection().pieces(text)) == text
    assert translated(plain_parts(text, Protection()), same) == text
    assert [piece for piece in Protection().pieces(text) if piece.kind != "text"] == []


@pytest.mark.parametrize("text", ["{:>5} {}", "%s %d", "{!r} %s", "%dpage %s", "~a ~d"])
def test_placeholders_for_the_next_argument_keep_their_order(text: str) -> None:
    flags = ["scheme-format"] if "~" in text else []
    sentence = "The dog {} sees the cat {} now.".format(*text.split())
    out = translated(plain_parts(sentence, Protection(flags=flags)), backwards)
    assert placeholders(out, Protection(flags=flags)) == text.split()


@pytest.mark.parametrize("flags", [[], *([flag] for flag in FLAGGED)], ids=str)
def test_random_messages_keep_each_placeholder_once(flags: list[str]) -> None:
    """This holds for any order of words and any neighbors of the placeholders."""
    draw = random.Random(str(flags))
    forms = [text for texts in PLAIN.values() for text in texts] if not flags else FLAGGED[flags[0]][0]
    words = [
        "The",
        "dog",
        "file(s)",
        "(or",
        "cat)",
        "50 %",
        "<b>runs</b>",
        "<0>to",
        "it</0>",
        "\u00fcber",
        "and,",
        "now.",
    ]
    for _ in range(20):
        pieces = [draw.choice(forms if draw.random() < 0.4 else words) for _ in range(draw.randint(2, 12))]
        text, protection = " ".join(["Go", *pieces]), Protection(strict=draw.random() < 0.5, flags=flags)
        expected = Counter(placeholders(text, protection))
        for model in (same, backwards):
            out = translated(plain_parts(text, protection), model)
            assert all(out.count(mark) >= count for mark, count in expected.items())
            assert sorted(re.sub(r"\s", "", out)) == sorted(re.sub(r"\s", "", text)), (text, out)
