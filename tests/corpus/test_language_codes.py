"""Language codes: comparison, matching, shortest form, easily confused languages and the traditional script."""

import pytest

from nmt_cli.corpus import languages


@pytest.mark.parametrize(
    ("code", "traditional"),
    [
        *((code, True) for code in ("zh-Hant", "zh_TW", "zh-hk", "zh-MO", "zh-Hant-CN", "zt", "zho_Hant")),
        *((code, False) for code in ("zh", "zh-Hans", "zh-CN", "zh-SG", "zho", "zho_Hans")),
    ],
)
def test_the_traditional_script(code: str, traditional: bool) -> None:
    assert languages.is_traditional(code) is traditional


def test_easily_confused_languages() -> None:
    groups = [{"nb", "nn", "no", "da"}, {"bs", "hr", "sr"}, {"id", "ms"}]
    for group in groups:
        assert all(languages.near(code) == group for code in group)
    assert [languages.near(code) for code in ("sv", "sl", "xx")] == [{"sv"}, {"sl"}, {"xx"}]


@pytest.mark.parametrize(
    ("code", "other", "same"),
    [
        ("en-GB", "EN_us", True), ("de", "deu_Latn", True), ("pb", "pt-BR", True), ("zh-Hant", "zt", True),
        ("zh", "zh-Hans", True), ("zh-Hans", "zh-Hant", False), ("zh-Hans-CN", "zh-Hant-TW", False),
        ("sr-Latn", "sr-Cyrl", False), ("no", "nb", False), ("en", "de", False),
    ],
)  # fmt: skip
def test_codes_of_the_same_language_and_script(code: str, other: str, same: bool) -> None:
    assert languages.is_same(code, other) is languages.is_same(other, code) is same


@pytest.mark.parametrize(
    ("code", "short"),
    [
        ("fra", "fr"), ("deu_Latn", "de_Latn"), ("zho-Hant", "zh-Hant"), ("pt-BR", "pt-BR"), ("DE", "de"),
        ("pb", "pt-BR"), ("zt", "zh-Hant"), ("yue", "yue"), ("", ""), (">>fra<<", ">>fra<<"),
    ],
)  # fmt: skip
def test_the_shortest_code(code: str, short: str) -> None:
    assert languages.shortest(code) == short


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        ("de", ["en", "de-AT", "de"], "de"), ("DE_de", ["de-AT", "de"], "de-AT"), ("fr", ["de", "en"], None),
        ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"), ("zh-CN", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("zh", ["zh-Hant", "zh-Hans"], "zh-Hans"), ("zh-HK", ["zh"], "zh"), ("zt", ["zh", "zh-Hant"], "zh-Hant"),
        ("pt-BR", ["pt-PT", "pb"], "pb"), ("pt", ["pt-PT", "pb"], "pt-PT"), ("deu", ["DE"], "DE"),
        ("no", ["da", "nb"], "nb"), ("nb", ["nob", "no"], "nob"),
        ("nb", ["nn", "nor"], "nor"), ("chi", ["en", "zh"], "zh"), ("ger", ["de"], "de"),
    ],
)  # fmt: skip
def test_a_code_matches_itself_or_the_first_known_code_of_its_language(
    code: str, known: list[str], found: str | None
) -> None:
    assert languages.match(code, known) == found


def test_language_codes_are_recognized() -> None:
    assert all(map(languages.is_language, ("de", "zh-CN", "yue", "pt_br", "zho_Hant", "zh-Hant-TW", "es-419", "no")))
    assert not any(map(languages.is_language, ("xx", "e", "engl", "de-D", "de-Lat", "de-12", "a.en", "d/e", "")))
