"""Capital and small letters follow the rules of their language; expected forms are those of CLDR's charts."""

import pytest

from nmt_cli.corpus import letter_case


@pytest.mark.parametrize(
    ("language", "small", "large"),
    [
        ("en", "it's a naïve café", "IT'S A NAÏVE CAFÉ"),
        ("tr", "ılık istanbul", "ILIK İSTANBUL"),
        ("az", "dil ışıq", "DİL IŞIQ"),
        ("tur", "iyi", "İYİ"),
        ("ru", "ёж и ель", "ЁЖ И ЕЛЬ"),
        ("zh", "三 nato", "三 NATO"),
    ],
)
def test_upper_and_lower_invert_each_other(language: str, small: str, large: str) -> None:
    assert letter_case.upper(small, language) == large
    assert letter_case.lower(large, language) == small


def test_capitals_that_lose_a_distinction() -> None:
    for language, text, large in (
        ("de", "große Straße", "GROSSE STRASSE"),
        ("el", "Μάιος, άνθρωπος ή ΐ", "ΜΑΪΟΣ, ΑΝΘΡΩΠΟΣ Ή Ϊ"),
        ("el", "ρολόι κέικ γάιδαρος ῥόϋ", "ΡΟΛΟΪ ΚΕΪΚ ΓΑΪΔΑΡΟΣ ΡΟΫ"),
        ("el", "ἀνὴρ ὦ τὸν ᾳ άϊ αι", "ΑΝΗΡ Ω ΤΟΝ ΑΙ ΑΪ ΑΙ"),
        ("ka", "სახლი", "სახლი"),
    ):
        assert letter_case.upper(text, language) == large


def test_small_letters() -> None:
    for language, text, small in (
        ("de", "GRÖẞE", "größe"),
        ("el", "ΟΔΟΣ ΣΟΦΟΣ", "οδος σοφος"),
        ("en", "İSTANBUL", "istanbul"),
        ("ka", "ᲡᲐᲮᲚᲘ", "სახლი"),
    ):
        assert letter_case.lower(text, language) == small


def test_title_case() -> None:
    for language, text, titled in (
        ("en", "it's a well-known iPhone of O'Neil's, at pH 7", "It's A Well-Known iPhone Of O'Neil's, At pH 7"),
        ("nl", "het ijs in ijsland", "Het IJs In IJsland"),
        ("tr", "iyi bir ılık su", "İyi Bir Ilık Su"),
        ("de", "„über die straße“", "„Über Die Straße“"),
        ("hr", "ǆep", "ǅep"),
    ):
        assert letter_case.title(text, language) == titled
