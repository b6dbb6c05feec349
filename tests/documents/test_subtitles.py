"""Subtitles: sentences over several cues, lines of a limited length, and everything else unchanged."""

import re

import pytest
from fake_models import Model, backwards, capitals, linked, same, silent, texts_of_file, translated_file

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.errors import DataError

SRT = """1
00:00:01,000 --> 00:00:03,000
<i>When the old man came</i>
down  the hill with his dog,

2
00:00:03,100 --> 00:00:05,000 X1:40 X2:600
he saw that <b>the house</b> was gone.

3
00:00:06,000 --> 00:00:07,000
{\\an8}- Where were you?
- <font color="#fff">At</font> home.


4
00:00:08,000 --> 00:00:09,000
\u266a A song that nobody knows \u266a

1945
00:00:09,000 --> 00:00:10,000
1945
"""
VTT = """WEBVTT - A title

NOTE this is --> a note
with text

STYLE
::cue { color: red }

REGION
id:fred

first
00:01.000 --> 00:03.000 align:start position:10%
<v Roger Bingham>We are in <c.yellow>New&nbsp;York</c> &amp; on the

00:03.000 --> 01:00:05.000
<v Roger Bingham>roof of <00:03.500>a <i>building</i>.
"""
ASS = """[Script Info]
Title: A title
; Dialogue: 0,0:00:01.00,0:00:03.00,Default,,0,0,0,,A comment

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:01.00,0:00:03.00,Default,Al,0,0,0,,{\\an8}Hello, {\\i1}dear{\\i0} world,\\Nhow are
Dialogue: 0,0:00:03.00,0:00:04.00,Default,Al,0,0,0,,you today?
Comment: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,A note
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,{\\p1}m 0 0 l 1 1{\\p0}
[Fonts]
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,A font
"""
FILES = {"srt": SRT, "vtt": VTT, "ass": ASS}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
@pytest.mark.parametrize("model", [same, silent])
def test_unchanged_text_leaves_every_byte(kind: str, encoding: str, new_line: str, model: Model) -> None:
    data = FILES[kind].replace("\n", new_line).encode(encoding)
    assert translated_file(kind, data, model) == data
    data = data.rstrip(new_line.encode(encoding)[-4:]) if encoding.startswith("utf-8") else data
    assert translated_file(kind, data, model) == data


def test_a_sentence_over_several_cues_is_one_segment() -> None:
    assert texts_of_file("srt", SRT.encode()) == [
        "When the old man came down the hill with his dog, he saw that the house was gone.",
        "Where were you?",
        "At home.",
        "A song that nobody knows",
    ]
    assert texts_of_file("vtt", VTT.encode()) == ["We are in New York & on the roof of a building."]
    assert texts_of_file("ass", ASS.encode()) == ["Hello, dear world, how are you today?"]


@pytest.mark.parametrize(
    "data", [b"", b"\n \r\n", b"\xef\xbb\xbf", b"00:00:01,000 --> 00:00:02,000", SRT[:40].encode()]
)
def test_a_file_without_text_stays(data: bytes) -> None:
    assert translated_file("srt", data) == data


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("I came", "and I went", True),
        ("I came.", "I went", False),
        ("\u6211\u6765\u4e86\u3002", "\u4ed6\u8d70\u4e86", False),
        ("\u6211\u6765\u4e86", "\u4ed6\u8d70\u4e86", True),
        ("I came...", "...and I went", True),
        ("I came...", "Who is there", False),
        ("I came,", "Peter", True),
        ("I came", "- No!", False),
        ("I came", "[door opens]", False),
        ("LONDON", "she came", False),
        ('He said "go!"', "and left", False),
    ],
)
def test_where_a_sentence_ends(first: str, second: str, joined: bool) -> None:
    cues = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:0{},000 --> 00:00:09,000\n{}\n"
    assert len(texts_of_file("srt", cues.format(first, 2, second).encode())) == 2 - joined
    assert len(texts_of_file("srt", cues.format(first, 7, second).encode())) == 2, "there is a pause between them"


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("model", [capitals, backwards])
def test_only_the_text_of_cues_changes(kind: str, model: Model) -> None:
    out = translated_file(kind, FILES[kind].encode(), model).decode()
    assert out != FILES[kind]
    tags = re.compile(r"<[^<>]*>|\{[^{}]*\}|\d\d?:\d\d[:.,\d]*(?: -->.*)?|NOTE[^:]*STYLE|Comment:.*")
    assert sorted(tags.findall(out)) == sorted(tags.findall(FILES[kind]))


def test_a_line_of_times_begins_a_cue_of_webvtt() -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\nA dog.\n00:02.000 --> 00:03.000\nA cat.\n"
    assert texts_of_file("vtt", text.encode()) == ["A dog.", "A cat."]
    assert translated_file("vtt", text.encode(), capitals).decode() == text.replace("dog", "DOG").replace("cat", "CAT")


def test_marks_stay_with_their_words() -> None:
    out = translated_file("srt", SRT.encode(), capitals).decode()
    assert "<i>WHEN THE OLD MAN CAME</i>" in out
    assert "HE SAW THAT <b>THE HOUSE</b> WAS GONE." in out
    assert '{\\an8}- WHERE WERE YOU?\n- <font color="#fff">AT</font> HOME.\n' in out
    assert "\u266a A SONG THAT NOBODY KNOWS \u266a" in out
    out = translated_file("vtt", VTT.encode(), capitals).decode()
    assert "<v Roger Bingham>WE ARE IN <c.yellow>NEW YORK</c> &amp; ON THE\n" in out
    assert "<v Roger Bingham>ROOF OF <00:03.500>A <i>BUILDING</i>.\n" in out
    out = translated_file("ass", ASS.encode(), capitals).decode()
    assert ",,{\\an8}HELLO, {\\i1}DEAR{\\i0} WORLD, HOW ARE\n" in out


def cue(seconds: int, *texts: str) -> bytes:
    """Return consecutive cues of this many seconds each."""
    times = [
        f"00:00:{seconds * index:02d},000 --> 00:00:{seconds * (index + 1):02d},000" for index in range(len(texts))
    ]
    return "".join(
        f"{n}\n{time}\n{text}\n\n" for n, (time, text) in enumerate(zip(times, texts, strict=True), 1)
    ).encode()


def shown(data: bytes) -> list[str]:
    return [each.partition("\n")[2].partition("\n")[2] for each in data.decode().strip().split("\n\n")]


def test_a_sentence_is_divided_where_the_cues_end() -> None:
    words = {"weil": "because", "er": "he", "müde": "tired", "war,": "was", "schlief": "slept", "er.": "he"}
    assert shown(translated_file("srt", cue(3, "because he was tired,", "he slept."), linked(words))) == [
        "weil er müde war,",
        "schlief er.",
    ]


def test_a_short_cue_gets_less_text_than_a_long_one() -> None:
    """In one second, nobody could read all words that belong to the first cue."""

    def model(text: str) -> Aligned:
        target = " ".join(f"{word}xxxxxxxx" for word in text.split())
        starts = [match.start() for match in re.finditer(r"\S+", text)]
        ends = [match.end() for match in re.finditer(r"\S+", target)]
        return Aligned(target, list(zip(ends, starts, strict=True)))

    source = b"1\n00:00:01,000 --> 00:00:02,000\na b c d e f\n\n2\n00:00:02,000 --> 00:00:09,000\ng h i.\n"
    first, second = shown(translated_file("srt", source, model))
    assert len(first) <= 20
    assert len(f"{first} {second}".split()) == 9


@pytest.mark.parametrize("length", [20, 42])
def test_lines_have_a_limited_length(length: int) -> None:
    source = cue(9, "A <b>very long sentence</b> about nothing that <i>takes many lines</i> of a film, word for word.")
    out = translated_file("srt", source, capitals, ReadOptions(line_length=length)).decode()
    lines = [re.sub("<[^<>]*>", "", line) for line in out.split("\n")[2:-2]]
    assert max(map(len, lines)) <= length
    assert len(lines) == {20: 5, 42: 2}[length]
    assert max(map(len, lines)) - min(map(len, lines)) < length * 0.8
    assert " ".join(lines) == re.sub("<[^<>]*>", "", source.decode().split("\n")[2]).upper()


def test_wide_characters_take_two_columns() -> None:
    target = (
        "\u6211\u4eec\u4eca\u5929\u5728\u516c\u56ed\u91cc\u770b\u5230\u4e86\u4e00\u53ea\u5f88\u5927\u7684\u72d7\u3002"
        * 2
    )
    links = [(end, 0) for end in range(1, len(target) + 1)]
    out = translated_file("srt", cue(9, "We saw a dog."), lambda _: Aligned(target, links), ReadOptions(line_length=20))
    lines = shown(out)[0].split("\n")
    assert "".join(lines) == target
    assert all(len(line) <= 10 and line[0] != "\u3002" for line in lines)


def test_an_old_file_has_the_code_page_of_its_language() -> None:
    """A translation with other characters is written in UTF-8."""
    text = cue(3, "Příliš žluťoučký kůň.").decode()
    assert texts_of_file("srt", text.encode()) == ["Příliš žluťoučký kůň."]
    options = ReadOptions(source_language="cs")
    assert translated_file("srt", text.encode("cp1250"), same, options) == text.encode("cp1250")
    assert translated_file("srt", text.encode("cp1250"), capitals, options) == text.upper().encode("cp1250")
    russian = translated_file("srt", text.encode("cp1250"), lambda text: Aligned("Конь.", same("Конь.").links), options)
    assert "Конь." in russian.decode()
    every_byte = bytes(range(1, 256))
    for language in ("", "de", "cs", "ja", "zh", "th", "vi"):
        found, encoding = decoded(every_byte, language)
        assert encoding.encode(found) == every_byte


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("srt", b"some text", "no line has times"),
        ("vtt", b"00:01.000 --> 00:02.000\nx", "WEBVTT"),
        ("ass", b"Dialogue: x", "Events"),
        ("srt", b"a\0" + b"b" * 9, "NUL"),
        ("srt", b"\xff\xfe\x00", "UTF-16"),
    ],
)
def test_other_files_are_refused(kind: str, data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        translated_file(kind, data)


def test_a_cue_without_a_word_keeps_its_marks() -> None:
    out = translated_file("srt", cue(2, "I saw", "<b>it</b> {\\k1}"), lambda _: Aligned("Ja", [(2, 0)]))
    assert out.decode().count("Ja") == 1
    assert "{\\k1}" in out.decode()
