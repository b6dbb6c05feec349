"""Plural categories: the table agrees with Babel's copy of CLDR, and with gettext's rules."""

import pytest

from nmt_cli.corpus.languages import NAMES
from nmt_cli.documents import plurals
from nmt_cli.documents.plural_categories import CATEGORIES, categories, one_is_exact


def test_known_languages() -> None:
    assert categories("de") == categories("deu_Latn") == ["one", "other"]
    assert categories("ru") == ["one", "few", "many", "other"]
    assert categories("ja-JP") == ["other"]
    assert categories("en", ordinal=True) == ["one", "two", "few", "other"]
    assert categories("de", ordinal=True) == ["other"]
    assert categories("") == categories("tlh") == []
    codes = ("en", "de", "deu_Latn", "fr", "ru", "pt-BR", "pt-PT", "")
    assert [code for code in codes if one_is_exact(code)] == ["en", "de", "deu_Latn", "pt-PT"]


def test_every_language_with_a_rule_of_gettext_has_categories() -> None:
    codes = {code.split("_")[0] for _, _, languages in plurals.RULES for code in languages.split()}
    assert {code for code in codes if not categories(code)} <= {"la"}
    for code in codes:
        assert [name for name in CATEGORIES if name in categories(code)] == categories(code)


@pytest.mark.parametrize("code", sorted(NAMES))
def test_the_table_agrees_with_cldr(code: str) -> None:
    babel = pytest.importorskip("babel")
    for ordinal in (False, True):
        try:
            locale = babel.Locale.parse(code)
        except babel.UnknownLocaleError:
            pytest.skip("Babel has no such language")
        tags = (locale.ordinal_form if ordinal else locale.plural_form).tags | {"other"}
        if categories(code):
            assert set(categories(code, ordinal=ordinal)) == tags
