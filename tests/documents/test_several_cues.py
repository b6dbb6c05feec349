"""Sentences over several cues: how many cues they join, and which pauses and speakers end them. Also encodings."""

import pytest
from fake_models import capitals, same, silent, texts_of_file, translated_file

from nmt_cli.documents.encodings import decoded
from nmt_cli.system.errors import DataError


def srt(*cues: tuple[float, float, str]) -> bytes:
    def clock(seconds: float) -> str:
        whole = round(seconds * 1000)
        return f"{whole // 3_600_000:02d}:{whole // 60_000 % 60:02d}:{whole // 1000 % 60:02d},{whole % 1000:03d}"

    return "".join(
        f"{n}\n{clock(start)} --> {clock(end)}\n{text}\n\n" for n, (start, end, text) in enumerate(cues, 1)
    ).encode()


def joined(*cues: tuple[float, float, str]) -> list[int]:
    """Return the number of words in each segment that the model sees."""
    return [len(text.split()) for text in texts_of_file("srt", srt(*cues))]


def test_a_sentence_has_a_bounded_number_of_cues_and_characters() -> None:
    assert joined(*((i, i + 1, "and dogs") for i in range(13))) == [12, 12, 2]
    long = "and " * 49 + "dog"  # 199 characters
    assert joined((0, 1, long), (1, 2, long), (2, 3, long), (3, 4, "x")) == [100, 51]
    assert joined((0, 1, "x" * 300), (1, 2, "y" * 200)) == [2]
    assert joined((0, 1, "x" * 300), (1, 2, "y" * 201)) == [1, 1]


@pytest.mark.parametrize(
    ("end", "start", "whole"),
    [(2, 4, True), (2, 4.001, False), (2, 1.5, True), (2, 1.499, False), (3599, 3600.5, True)],
)
def test_a_pause_ends_a_sentence(end: float, start: float, whole: bool) -> None:
    assert joined((end - 1, end, "I came"), (start, start + 1, "and went")) == ([4] if whole else [2, 2])


ASS = "[Events]\nFormat: {}\n{}"


def test_another_style_or_name_is_another_speaker() -> None:
    fields, line = "Start, Style, Name, End, Text", "Dialogue: 0:00:0{0}.00,{1},{2},0:00:0{3}.00,{4}\n"

    def texts(style: str, name: str) -> list[str]:
        lines = line.format(1, "a", "x", 2, "I came, so") + line.format(2, style, name, 3, "and, well, went")
        return texts_of_file("ass", ASS.format(fields, lines).encode())

    assert texts("a", "x") == ["I came, so and, well, went"]
    assert texts("b", "x") == texts("a", "y") == ["I came, so", "and, well, went"]


def test_lines_of_ass_are_broken_only_if_the_source_has_line_breaks() -> None:
    fields = "Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text"
    long = "a very long line about a dog that would not fit into forty two columns"
    head = "Dialogue: 0,0:00:01.00,0:00:03.00,Default,,0,0,0,,"
    out = translated_file("ass", ASS.format(fields, f"{head}{long}\n").encode(), capitals).decode()
    assert out.endswith(f",,{long.upper()}\n")
    broken = long.replace(" about", "\\Nabout")
    out = translated_file("ass", ASS.format(fields, f"{head}{broken}\r\n").encode(), capitals).decode()
    assert out.count("\\N") == 1
    assert max(len(line) for line in out.rpartition(",,")[2].strip().split("\\N")) <= 42
    line = "0,0:00:01.00,0:00:03.00,Default,,0,0,0,,a dog\n"
    for kind, texts in (("Comment: ", []), ("dialogue:", ["a dog"]), (" Dialogue : ", ["a dog"]), ("Picture: ", [])):
        assert texts_of_file("ass", ASS.format(fields, kind + line).encode()) == texts
    assert texts_of_file("ass", ASS.format(fields, "Dialogue: 0,0:00:01.00,a dog\n").encode()) == []


def test_cues_without_a_number_or_text() -> None:
    data = b"00:00:01,000 --> 00:00:02,000\nA dog.\n00:00:02.5 --> 00:00:03,000\n\n7\n"
    data += b"00:00:04,000 --> 00:00:05,000\nA cat.\n8\n"
    assert texts_of_file("srt", data) == ["A dog.", "A cat. 8"]
    out = translated_file("srt", data, capitals)
    assert out == data.replace(b"A dog", b"A DOG").replace(b"A cat", b"A CAT").replace(b"CAT.\n8", b"CAT. 8")


@pytest.mark.parametrize(
    ("data", "language", "text", "name"),
    [
        ("Ж".encode("cp1251"), "ru-RU", "Ж", "cp1251"),
        ("Ж".encode("cp1251"), "bul", "Ж", "cp1251"),
        ("ş".encode("cp1254"), "tr", "ş", "cp1254"),
        ("犬".encode("cp932"), "ja", "犬", "cp932"),
        ("é€".encode("cp1252"), "fr", "é€", "cp1252"),
        ("é€".encode("cp1252"), "", "é€", "cp1252"),
        (b"\xe9\x81", "fr", "é\x81", "latin-1"),
        ("é".encode(), "ru", "é", "utf-8"),
        ("ab".encode("utf-16-be"), "", "ab", "utf-16-be"),
        ("ab".encode("utf-16-le"), "", "ab", "utf-16-le"),
        (b"\xef\xbb\xbfa", "", "a", "utf-8"),
    ],
)
def test_the_encoding_of_a_file_is_found_and_kept(data: bytes, language: str, text: str, name: str) -> None:
    found, encoding = decoded(data, language)
    assert (found, encoding.name, encoding.encode(found)) == (text, name, data)


def test_characters_that_an_encoding_lacks_are_written_in_utf8() -> None:
    _, encoding = decoded("é€".encode("cp1252"), "fr")
    assert encoding.encode("犬") == "犬".encode()
    _, encoding = decoded(b"\xff\xfea\0", "")
    assert encoding.encode("犬") == b"\xff\xfe" + "犬".encode("utf-16-le")
    with pytest.raises(DataError, match=r"the input is not UTF-16-LE: byte 4"):
        decoded(b"\xff\xfea\0\0", "")
    with pytest.raises(DataError, match=r"the input is not UTF-8: byte 5"):
        decoded(b"\xef\xbb\xbfab\xff", "")


def test_a_reference_to_a_control_character_keeps_its_line() -> None:
    data = b"WEBVTT\n\n00:01.000 --> 00:03.000\na &#x1; b\n&#x1;\n"
    for model in (same, silent):
        assert translated_file("vtt", data, model) == data
