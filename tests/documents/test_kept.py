"""Words that a user keeps from translation, and a user's pattern for placeholders."""

from pathlib import Path

import pytest
from fake_models import backwards, texts_of, translated

from nmt_cli.documents import html, po
from nmt_cli.documents import kept as kept_module
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.kept import Kept, kept
from nmt_cli.documents.segment import plain_parts
from nmt_cli.system.errors import DataError, UsageError


def shown(text: str, *phrases: str, pattern: str = "", protect: bool = False) -> list[str]:
    """Return the segments that a model sees. Check that the translation has each kept phrase."""
    protection = ReadOptions(protect, kept=Kept(phrases, pattern)).protection()
    parts = plain_parts(text, protection)
    texts = texts_of(parts)
    written = translated(parts, backwards)
    assert all(written.count(phrase) == text.count(phrase) for phrase in phrases)
    return texts


def test_whole_words_are_kept() -> None:
    assert shown("Open Firefox or Firefoxes, not firefox.", "Firefox") == ["Open or Firefoxes, not firefox."]
    assert shown("See New York and York", "York", "New York") == ["See and"]
    assert shown("AT&T and AT&TX", "AT&T") == ["and AT&TX"]
    assert shown("Play MP3 or 4MP, an MP", "MP") == ["Play MP3 or 4MP, an"]
    assert shown("用Firefox看", "Firefox") == ["用 看"]
    assert shown("C++ is fun", "C++") == ["is fun"]
    assert shown("the C++API or the C++ API", "C++ API") == ["the C++API or the"], "its words have spaces between them"
    assert shown("a %s dog", "cat") == ["a %s dog"], "other placeholders are visible without --protect"
    assert shown("a %s dog, a cat", "cat", protect=True) == ["a dog, a"]
    assert shown("see https://cat.org/cat and (cat)", "cat", protect=True) == ["see and"]


def test_phrases_are_found_in_the_spelling_of_html() -> None:
    protection = ReadOptions(kept=Kept(("AT&T", "New York"))).protection()
    parts = html.parse("<p>See AT&amp;T in New\nYork</p>", protection)
    assert texts_of(parts) == ["See in"]


def test_words_are_kept_in_a_catalog() -> None:
    options = ReadOptions(kept=Kept(("Firefox",)))
    for flags in ("", "#, c-format\n"):
        document = po.read(f'{flags}msgid "Open Firefox"\nmsgstr ""\n', options)
        assert [segment.text for segment in document.segments] == ["Open"]


def test_a_pattern_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("see [[the dog]] and %s", pattern=r"\[\[.*?\]\]") == ["see and %s"]
    assert shown("see [[the %s dog]] and %s", pattern=r"\[\[.*?\]\]|x*", protect=True) == ["see and"]
    monkeypatch.setattr(kept_module, "_SECONDS", 0.1)
    with pytest.raises(DataError, match=r"takes more than 0\.1 second"):
        shown("a" * 40 + "!", pattern=r"(a|a)+$")
    with pytest.raises(UsageError, match="not a regular expression"):
        kept(None, "(")


def test_a_file_of_words(tmp_path: Path) -> None:
    path = tmp_path / "keep.txt"
    path.write_text("\ufeffFirefox\n\n New York \n")
    assert kept(path, None) == Kept(("Firefox", "New York"))
    assert kept(None, None) is None
    with pytest.raises(FileNotFoundError):
        kept(tmp_path / "none", None)
