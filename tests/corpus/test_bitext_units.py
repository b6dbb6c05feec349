"""Units of TMX and XLIFF: inline codes, finished states, proposals, sizes."""

import gzip
import time
from pathlib import Path

import pytest
from texts import bitext_rows

from nmt_cli.corpus import bitext_xml
from nmt_cli.system.errors import DataError

FINAL, TRANSLATED = ' state="final"', ' state="translated"'
TMX_UNIT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'


def tmx(tmp_path: Path, *units: tuple[str, str]) -> list[tuple[bytes | None, bytes | None]]:
    body = "".join(TMX_UNIT.format(*unit) for unit in units)
    return [row[:2] for row in bitext_rows(tmp_path / "a.tmx", f"<tmx><body>{body}</body></tmx>".encode())]


def xliff(tmp_path: Path, body: str, **entry: object) -> list[tuple[bytes | None, bytes | None]]:
    return [row[:2] for row in bitext_rows(tmp_path / "a.xlf", body.encode(), **entry)]


@pytest.mark.parametrize("code", ["bpt", "ept", "ph", "it", "ut"])
def test_text_in_codes_is_left_out_however_they_are_nested(tmp_path: Path, code: str) -> None:
    other = "hi" if code == "ph" else "ph"
    text = f"a <{code}>no<{other}>no</{other}>no</{code}>b <hi>c<{code}/></hi> d"
    assert tmx(tmp_path, (text, "A"), ("e", "E")) == [(b"a b c d", b"A"), (b"e", b"E")]
    if code != "ut":
        unit = f'<trans-unit id="1"><source>{text.replace("hi", "g")}</source><target>A</target></trans-unit>'
        data = f'<xliff><file source-language="en" target-language="de">{unit}</file></xliff>'
        assert xliff(tmp_path, data) == [(b"a b c d", b"A")]


def test_a_segment_over_the_limit_in_bytes_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitext_xml, "MAX_LINE_BYTES", 6)
    units = [("äää", "abcdef"), ("ääää", "b"), ("a     b     c", "c"), ("d", "abcdefg"), ("e", "E")]
    assert tmx(tmp_path, *units) == [
        ("äää".encode(), b"abcdef"),
        (None, b"b"),
        (None, b"c"),
        (b"d", None),
        (b"e", b"E"),
    ]


def test_the_boundaries_of_the_pieces_read_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = [(f"ä {i}", f"ö {i}") for i in range(30)]
    for piece in (1, 50, 1000):
        monkeypatch.setattr(bitext_xml, "PIECE", piece)
        assert tmx(tmp_path, *units) == [(src.encode(), tgt.encode()) for src, tgt in units]


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf"])
@pytest.mark.parametrize("markup", ['<x y="{}"/>', "<!--{}-->", "<?x {}?>", "<{}/>"])
def test_a_tag_or_comment_over_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, markup: str
) -> None:
    """The next test has the limit of the package."""
    limit, root = 4 * bitext_xml.PIECE, "tmx" if name == "a.tmx" else "xliff"
    monkeypatch.setattr(bitext_xml, "MOST_MARKUP_BYTES", limit)
    text = f"<{root}>\n<hi>{'x' * 2 * limit}</hi>{markup}</{root}>"  # text may be longer
    assert bitext_rows(tmp_path / name, text.format("x" * (limit - bitext_xml.PIECE)).encode()) == []
    with pytest.raises(DataError, match=rf"{name}, line 2: a tag or comment has more than {limit:,} bytes\. "):
        bitext_rows(tmp_path / name, text.format("x" * (limit + bitext_xml.PIECE)).encode())


def test_garbage_in_place_of_xml_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    data = gzip.compress(b"x" * 100_000_000, 1)
    started = time.perf_counter()
    with pytest.raises(DataError, match=r"a.tmx.gz, line 1: a tag or comment has more than 4,194,304 bytes\. "):
        bitext_rows(tmp_path / "a.tmx.gz", data)
    assert time.perf_counter() - started < 2


def test_a_unit_has_a_bounded_number_of_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitext_xml, "MOST_SEGMENTS", 2)
    other = '<tuv xml:lang="{}"><seg>x</seg></tuv>'
    body = TMX_UNIT.format("a", "A").replace("<tu>", f"<tu>{other.format('fr')}{other.format('es')}")
    data = f"<tmx>{body}{TMX_UNIT.format('b', 'B')}</tmx>"
    assert bitext_rows(tmp_path / "a.tmx", data.encode()) == [(b"b", b"B", None)]


def test_elements_may_be_nested_a_hundred_levels_deep_and_have_prefixes(tmp_path: Path) -> None:
    segment = "<hi>" * 95 + "a" + "</hi>" * 95  # in tmx, body, tu, tuv and seg
    assert tmx(tmp_path, (segment, "A")) == [(b"a", b"A")]
    data = f"<tmx><body>{TMX_UNIT.format('a <ph>no</ph>b', 'A')}</body></tmx>".replace("</", "</t:")
    data = data.replace("<", "<t:").replace("<t:/t:", "</t:").replace("<t:tmx", '<t:tmx xmlns:t="u"', 1)
    assert bitext_rows(tmp_path / "a.tmx", data.encode()) == [(b"a b", b"A", None)]


def test_states_of_finished_segments(tmp_path: Path) -> None:
    unit = "<trans-unit{}><source>{}</source><target{}>T</target></trans-unit>"
    states = [
        ("", "a", ' state="signed-off"'), ("", "b", ' state="final"'), (' approved="yes"', "c", ' state="new"'),
        (' approved="no"', "d", ""), ("", "e", ' state="translated"'),
    ]  # fmt: skip
    body = "".join(unit.format(*each) for each in states)
    data = f'<xliff><file source-language="en" target-language="de">{body}</file></xliff>'
    assert [src for src, _ in xliff(tmp_path, data)] == [b"a", b"b", b"c", b"d", b"e"]
    assert [src for src, _ in xliff(tmp_path, data, finished=True)] == [b"a", b"b", b"c"]


def test_units_of_version_2_have_segments_with_states(tmp_path: Path) -> None:
    segment = "<segment{}><source>{}</source><target>T</target></segment>"
    no = "<source>no</source><target>no</target>"
    unit = (
        f'<unit><mtc:matches xmlns:mtc="m"><mtc:match>{no}</mtc:match></mtc:matches>'
        f"{segment.format(FINAL, 'a')}<ignorable>{no}</ignorable>"
        f"{segment.format(TRANSLATED, 'b')}{segment.format('', 'c')}</unit>"
    )
    data = f'<xliff version="2.0" srcLang="EN_gb" trgLang="de"><file id="1">{unit}</file></xliff>'
    assert [src for src, _ in xliff(tmp_path, data)] == [b"a", b"b", b"c"]
    assert [src for src, _ in xliff(tmp_path, data, finished=True)] == [b"a"]
    assert xliff(tmp_path, data, src="en-GB") == xliff(tmp_path, data)
    assert xliff(tmp_path, data, src="en-US") == []
    assert xliff(tmp_path, data.replace(' trgLang="de"', "")) == [], "no target language"


def test_the_first_variant_of_a_language_counts(tmp_path: Path) -> None:
    """The first variant counts even if it has a region and a later one has exactly the language code."""
    unit = '<tu><tuv xml:lang="en"><seg>a</seg></tuv>{}</tu>'
    variant = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    for variants in ((("de", "first"), ("de", "second")), (("de-AT", "first"), ("de", "second"))):
        data = f"<tmx><body>{unit.format(''.join(variant.format(*each) for each in variants))}</body></tmx>"
        assert bitext_rows(tmp_path / "a.tmx", data.encode()) == [(b"a", b"first", None)]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_control_characters_are_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(bitext_xml, "PIECE", piece)
    units = [("a&#x1F;b &#x20;&#31;", "A\x0bB"), ("c &amp;#x1F; &#x1D11E;", "C&#0;&#x00b;")]
    assert tmx(tmp_path, *units) == [(b"a b", b"A B"), ("c &#x1F; \U0001d11e".encode(), b"C")]
    assert tmx(tmp_path, ("a&#10;b&#9;c", "A")) == [(b"a b c", b"A")]


def test_a_warning_names_the_languages_of_a_file_without_the_wanted_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = TMX_UNIT.format("a", "A").replace('"en"', '"en_US"')
    assert tmx(tmp_path, ("a", "A")) == [(b"a", b"A")]
    assert capsys.readouterr().err == ""
    file = tmp_path / "b.tmx"
    assert bitext_rows(file, f"<tmx><body>{body}{body}</body></tmx>".encode(), tgt="fr") == []
    found = f"{file} has no pairs of en and fr. Its languages are de, en-us. Check the codes"
    assert capsys.readouterr().err == f"nmt: warning: {found}\n"
    file = tmp_path / "b.xlf"
    unit = "<trans-unit><source>a</source><target>A</target></trans-unit>"
    assert bitext_rows(file, f'<xliff><file source-language="en">{unit}</file></xliff>'.encode()) == []
    assert "has no pairs of en and de. Its languages are en. Check" in capsys.readouterr().err
