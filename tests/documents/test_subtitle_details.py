"""Subtitles: line ends, clocks, tags and sections of each format, and how a sentence is divided and broken."""

import re

import pytest
from fake_models import backwards, capitals, linked, same, texts_of_file, translated_file

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.subtitle_layout import broken_into_lines, divided
from nmt_cli.system.errors import DataError

LONG = "a very long line about a dog that would not fit into forty two columns"
FILES = {
    "srt": "1\n00:00:01,000 --> 00:00:03,000\n{}\n\n2\n00:00:09,000 --> 00:00:10,000\n{}\n",
    "vtt": "WEBVTT\n\n1\n00:01.000 --> 00:03.000\n{}\n\n00:09.000 --> 00:10.000\n{}\n",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
def test_line_ends_follow_the_file(kind: str, new_line: str, end: str) -> None:
    text = FILES[kind].format(LONG, "A cat.").rstrip("\n") + end
    out = translated_file(kind, text.replace("\n", new_line).encode(), capitals).decode()
    broken = out.replace(new_line, "\n")
    assert broken.replace("\n", new_line) == out, "no other line end"
    shown = re.search(r"\n(A VERY.*)\n(.*COLUMNS)\n", broken)
    assert shown
    assert f"{shown[1]} {shown[2]}" == LONG.upper()
    assert abs(len(shown[1]) - len(shown[2])) < 12, "about equally long"
    assert broken.replace(shown[0], f"\n{LONG}\n").replace("CAT", "cat") == text


def test_lines_that_end_with_a_carriage_return() -> None:
    text = "WEBVTT\r\r00:01.000 --> 00:03.000\ra dog\r\r00:09.000 --> 00:10.000\rA cat.\r"
    assert texts_of_file("vtt", text.encode()) == ["a dog", "A cat."]
    assert translated_file("vtt", text.encode(), capitals).decode() == text.replace("dog", "DOG").replace(
        "A cat", "A CAT"
    ).replace("a DOG", "A DOG")


def count(kind: str, text: str) -> int:
    return len(texts_of_file(kind, text.encode()))


@pytest.mark.parametrize(
    ("kind", "first", "second", "texts"),
    [
        ("srt", "00:00:01,0 --> 00:00:02,5", "00:00:04.5 --> 00:00:09,0", 1),
        ("srt", "00:00:01,0 --> 00:00:02,5", "00:00:04.51 --> 00:00:09,0", 2),
        ("srt", "00:59:58,0 --> 00:59:59,000", "01:00:01,000 --> 01:00:09,0", 1),
        ("srt", "00:59:58,0 --> 00:59:59,000", "01:00:01,001 --> 01:00:09,0", 2),
        ("srt", " 1000:00:01,0 --> 1000:00:02,0 ", "1000:00:02,0-->1000:00:03,0 X1:5", 1),
        ("srt", "00:00:01,0 --> 00:00:03,0", "00:00:02,5 --> 00:00:09,0", 1),
        ("srt", "00:00:01,0 --> 00:00:03,0", "00:00:02,4 --> 00:00:09,0", 2),
        ("vtt", "59:58.0 --> 59:59.000", "01:00:01.000 --> 01:00:09.0", 1),
        ("vtt", "59:58.0 --> 59:59.000", "01:00:01.001 --> 01:00:09.0", 2),
        ("vtt", "100:00:00.0 --> 100:00:01.0", "100:00:01.0 --> 100:00:02.0 line:0", 1),
    ],
)
def test_clocks(kind: str, first: str, second: str, texts: int) -> None:
    """A sentence continues after a pause of at most two seconds."""
    begin = "WEBVTT\n\n" if kind == "vtt" else ""
    assert count(kind, f"{begin}{first}\nI came\n\n{second}\nand went\n") == texts


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        ("I came (slowly)", "and went", 2), ("I came [door]", "and went", 2), ("I came;", "and went", 2),
        ("I came:", "and went", 2), ("I came\u2026", "\u2026and went", 1), ("I came...", "And went", 2),
        ("I came ♪", "and went", 2), ("I came", "5 dogs", 2), ("I came", "-and went", 2), ("I CAME", "AND WENT", 1),
        ("I came -", "and went", 1), ('"I came,"', "and went", 1), ('"I came."', "and went", 2),
        ("<i>I came</i>", "<i>and went</i>", 1), ("- I came\n- You", "and went", 2), ("I came", "- and\n- went", 3),
        ("I came", "and\n- went", 1), ("I came", '- "and"\n- <i>went</i>', 3), ("I came", "♪ and went", 1),
    ],
)  # fmt: skip
def test_where_a_sentence_continues(first: str, second: str, texts: int) -> None:
    cues = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:02,000 --> 00:00:03,000\n{}\n"
    assert count("srt", cues.format(first, second)) == texts


def test_numbers_and_empty_lines_of_subrip() -> None:
    text = "\ufeff 1 \n00:00:01,000 --> 00:00:02,000\n\n\nA dog.\n \n\n"
    text += " \t2 \n00:00:09,000 --> 00:00:10,000\nA cat.\nand 3\n"
    assert translated_file("srt", text.encode(), capitals).decode() == (
        text.replace("dog", "DOG").replace("A cat.\nand", "A CAT. AND")
    )
    plain = "text\n1\n00:00:01,000 --> 00:00:02,000\nA {\\dog\n} x <i\n> y\n"
    assert texts_of_file("srt", plain.encode()) == ["A {\\dog } x <i > y"]


@pytest.mark.parametrize("text", ["WEBVTTx\n\n00:01.000 --> 00:02.000\na\n", " WEBVTT\n", "webvtt\n", ""])
def test_other_files_are_not_webvtt(text: str) -> None:
    with pytest.raises(DataError, match="does not begin with WEBVTT"):
        translated_file("vtt", text.encode())


@pytest.mark.parametrize("head", ["WEBVTT", "WEBVTT - x", "WEBVTT\tx", "\ufeffWEBVTT"])
def test_headers_of_webvtt(head: str) -> None:
    text = f"{head}\n\nNOTE a dog\n\n1\n00:01.000 --> 00:02.000\na &lt;dog&gt; &amp; <b>b</b> c\nX --> y\nz\n"
    assert texts_of_file("vtt", text.encode()) == ["a <dog> & b c"]
    out = translated_file("vtt", text.encode(), capitals).decode()
    assert "A &lt;DOG&gt; &amp; <b>B</b> C\n" in out


def test_only_an_empty_line_ends_a_cue_of_webvtt() -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\na dog\n \nsees\n\nA note\n"
    assert texts_of_file("vtt", text.encode()) == ["a dog sees"]


STYLES = "[V4+ Styles]\nFormat: Name, Fontname\nStyle: a,b\n\n"


def line(text: str) -> str:
    return f"Dialogue: 0,0:00:01.00,0:00:02.00,a,,0,0,0,,{text}\n"


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (STYLES + "[Events]\n" + line("A dog, b"), ["A dog, b"]),
        ("[EVENTS]\n" + line("A dog") + "[Fonts]\n" + line("no"), ["A dog"]),
        ("\ufeff[events]  \r\n" + line("A dog") + "\n \t[Fonts]\n" + line("no"), ["A dog"]),
        ("[Events]\nFormat:TEXT , Start\nDialogue: A dog,0:00:01.00\n", []),
        ("[Events]\nformat: START,Text\nDialogue: 0:00:01.00,A dog, b\n", ["A dog, b"]),
        ("[Events]\n" + line("{\\p4}m 0 0"), []),
        ("[Events]\n" + line("{\\p0}a \\p1 dog"), ["a \\p1 dog"]),
        ("[Events]\n" + line("a{\\b700}b{\\b0}c \\h \\n d\\Ne"), ["abc d e"]),
        ("[Events]\n" + line("a {b} <c> &amp;"), ["a <c> &amp;"]),
    ],
)
def test_sections_and_fields_of_ass(text: str, texts: list[str]) -> None:
    assert texts_of_file("ass", text.encode()) == texts
    assert translated_file("ass", text.encode(), same) == text.encode()


def test_speeches_and_empty_cues_keep_their_line_breaks_and_marks() -> None:
    text = "[Events]\n" + line("- A {}\\n- A {}\\n- A {}")
    out = translated_file("ass", text.format("dog", "cat", "cow").encode(), capitals).decode()
    assert out == text.format("DOG", "CAT", "COW")
    text = "1\n00:00:01,000 --> 00:00:02,000\nI saw\n\n2\n00:00:02,000 --> 00:00:03,000\n<b>it</b> {\\k1}\n"
    out = translated_file("srt", text.encode(), lambda _: Aligned("Ja", [(2, 0)])).decode()
    assert out == text.replace("I saw", "Ja").replace("it", "")


@pytest.mark.parametrize(
    ("cue", "expected"),
    [
        ("{\\an8} {\\x}dog now", "{\\an8} {\\x}now dog"),
        ("<i>{\\an8}dog now</i>{\\x}", "<i>{\\an8}now dog</i>{\\x}"),
        ("<i>dog</i> now{\\x}", "now <i>dog</i>{\\x}"),
        ("<b><i>dog now</i></b>", "<b><i>now dog</i></b>"),
        ("<b></b>dog now", "<b></b>now dog"),
        ("<i>dog now", "<i>now dog"),
    ],
)
def test_marks_around_a_cue_stay_there(cue: str, expected: str) -> None:
    data = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    assert translated_file("srt", data.format(cue).encode(), backwards).decode() == data.format(expected)


def test_tags_of_ass_stay_with_their_words() -> None:
    text = "[Events]\n" + line("I {\\b700}see{\\b0} him {\\an8}now")
    out = translated_file("ass", text.encode(), linked({"Jetzt": "now", "sehe": "see", "ich": "I"})).decode()
    assert out.endswith(",,{\\an8}Jetzt {\\b700}sehe{\\b0} ich\n")


def pieces(target: str, origins: list[int], texts: list[str], seconds: list[float], length: int = 42) -> list[str]:
    """Divide a translation among cues. `origins` gives the index of the source word for each of its words."""
    starts = [match.start() for match in re.finditer(r"\S+", " ".join(texts))]
    ends = [match.end() for match in re.finditer(r"\S+", target)]
    links = [(end, starts[origin]) for end, origin in zip(ends, origins, strict=True)]
    return [each.text for each in divided(Aligned(target, links), texts, seconds, length)]


@pytest.mark.parametrize(
    ("target", "origins", "texts", "seconds", "expected"),
    [
        # Words go with their source. A cue stays empty only if there are too few words.
        ("eins zwei drei", [0, 1, 2], ["a", "b c"], [9, 9], ["eins", "zwei drei"]),
        ("eins zwei", [0, 0], ["a", "b"], [9, 9], ["eins", "zwei"]),
        ("eins", [1], ["a", "b"], [9, 9], ["", "eins"]),
        # A cue ends at a pause, even if a word then leaves the cue of its source, but only if that costs little.
        ("eins, zwei drei", [0, 0, 2], ["a b", "c"], [9, 9], ["eins, zwei", "drei"]),
        ("eins zwei, drei vier", [0, 1, 2, 3], ["a b c", "d"], [9, 9], ["eins zwei, drei", "vier"]),
        # Of two divisions that are otherwise equally good, the one at a pause is chosen.
        ("a b c, d", [0, 2, 1, 3], ["p q", "r s"], [9, 9], ["a b c,", "d"]),
        ("a, b c d", [0, 2, 1, 3], ["p q", "r s"], [9, 9], ["a,", "b c d"]),
        ("a b c– d", [0, 2, 1, 3], ["p q", "r s"], [9, 9], ["a b c–", "d"]),
        # A cue holds 17 characters per second.
        ("einszweidrei vier fünf", [0, 0, 1], ["a", "b"], [0.1, 9], ["einszweidrei", "vier fünf"]),
        ("a bb cccccccccccccccc", [0, 0, 0], ["x", "y"], [0.3, 9], ["a bb", "cccccccccccccccc"]),
        # A cue holds two lines of ten characters.
        ("aaaaaaa bbbbbbb ccccccc ddddddd", [0, 0, 0, 0], ["x", "y"], [9, 9], ["aaaaaaa bbbbbbb", "ccccccc ddddddd"]),
    ],
)
def test_a_translation_is_divided_among_cues(
    target: str, origins: list[int], texts: list[str], seconds: list[float], expected: list[str]
) -> None:
    assert pieces(target, origins, texts, seconds, 10) == expected


def test_the_links_of_a_divided_translation_are_relative_to_its_cue() -> None:
    target = Aligned("eins zwei drei", [(4, 4), (9, 0), (14, 8)])
    one, two = divided(target, ["see me", "now"], [9, 9], 42)
    assert one == Aligned("eins zwei", [(4, 4), (9, 0)])
    assert two == Aligned("drei", [(4, 1)])
    # A word whose source is in another cue is linked to the nearest character of its own cue.
    for origin, links in ((0, (0, 0)), (3, (0, 1))):
        found = divided(Aligned("eins zwei", [(4, origin), (9, origin)]), ["a", "bc"], [9, 9], 42)
        assert found == [Aligned("eins", [(4, links[0])]), Aligned("zwei", [(4, links[1])])]


TAGS = re.compile(r"<[^<>]*>")


@pytest.mark.parametrize(
    ("text", "length", "lines"),
    [
        ("aaa bbb", 7, ["aaa bbb"]),
        ("aaa bbb", 6, ["aaa", "bbb"]),
        ("aaaaaaaaa bb", 5, ["aaaaaaaaa", "bb"]),
        ("a b c d", 3, ["a b", "c d"]),
        ("aa b cc d", 8, ["aa b", "cc d"]),
        ("aaaa bb cc ddddd", 15, ["aaaa bb", "cc ddddd"]),
        ("aaa bbb ccc d", 11, ["aaa bbb", "ccc d"]),
        ("<i>aaa</i> bbb", 7, ["<i>aaa</i> bbb"]),
        ("<i>aaa</i> bbb", 6, ["<i>aaa</i>", "bbb"]),
        ("aaa <i>bbb</i>", 6, ["aaa", "<i>bbb</i>"]),
        ("<i></i>", 6, ["<i></i>"]),
        ("", 6, [""]),
        ("ＡＢ cd", 6, ["ＡＢ", "cd"]),
        ("我们今天", 4, ["我们", "今天"]),
        ("我们今。", 6, ["我们", "今。"]),
        ("我们。", 4, ["我", "们。"]),
        ("我们 今天好", 40, ["我们 今天好"]),
    ],
)
def test_lines_hold_as_many_words_as_fit(text: str, length: int, lines: list[str]) -> None:
    assert broken_into_lines(text, TAGS, length) == lines


def test_line_lengths_count_for_every_format() -> None:
    for kind, text in FILES.items():
        out = translated_file(kind, text.format(LONG, "x").encode(), capitals, ReadOptions(line_length=20)).decode()
        assert max(len(line) for line in out.split("\n") if "-->" not in line) <= 20


PAGES = {
    "cp1250": ("bs cs hr hu pl ro sk sl sq", "š ž ő"),
    "cp1251": ("be bg kk ky mk mn ru sr tg tt uk", "Ж я"),
    "cp1253": ("el", "ώ"),
    "cp1254": ("az tr", "ş ğ"),
    "cp1255": ("he", "ש"),
    "cp1256": ("ar fa ur", "ب"),
    "cp1257": ("et lt lv", "ė ų"),
    "cp1258": ("vi", "ơ đ"),
    "cp874": ("th", "ก"),
    "cp932": ("ja", "犬"),
    "cp949": ("ko", "개"),
    "gb18030": ("zh", "狗"),
    "cp1252": ("de en fr es it pt nl sv da xx", "é ß œ"),
}


@pytest.mark.parametrize("page", PAGES)
def test_old_files_have_the_code_page_of_their_language(page: str) -> None:
    languages, text = PAGES[page]
    for language in languages.split():
        for code in (language, f"{language}-XX", f"{language}_Latn"):
            found, encoding = decoded(text.encode(page), code)
            assert (found, encoding.name) == (text, page), code


def test_utf16_without_a_mark_needs_mostly_ascii_letters() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        assert decoded("ab犬".encode(encoding))[0] == "ab犬"
        assert decoded(("ab" * 60 + "犬" * 300).encode(encoding))[0].count("犬") == 300
    for data in (b"a\0", b"\0a", b"a\0\0", b"abcdefg\0", "a犬".encode("utf-16-le") + b"\0"):
        with pytest.raises(DataError, match=r"NUL|UTF-16|UTF-8"):
            decoded(data)


@pytest.mark.parametrize(
    "cue",
    [
        "♪ <i>A DOG</i> ♪",
        "- <i>A DOG</i>\n- A CAT",
        "<i>- A DOG</i>\n<i>– A CAT</i>",
        "{\\b1}A DOG ♪",
        "‐‐ A DOG\n-- A CAT",
    ],
)
def test_music_dashes_and_tags_at_the_edges_stay(cue: str) -> None:
    data = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    assert (
        translated_file("srt", data.format(cue.lower()).encode(), capitals)
        == data.format(cue).lower().replace("a dog", "A DOG").replace("a cat", "A CAT").encode()
    )


def test_times_of_webvtt_may_have_a_comma() -> None:
    text = "WEBVTT\n\n00:00:01,000 --> 00:00:02,000\na dog\n"
    assert translated_file("vtt", text.encode(), capitals).decode() == text.replace("a dog", "A DOG")
