"""The plural rules agree with those of CLDR, written here in another notation. Categories are in their usual order."""

from collections.abc import Callable

import pytest

from nmt_cli.documents import plurals
from nmt_cli.documents.plural_categories import CATEGORIES, categories

Rule = Callable[[int], int]


def first(*tests: bool) -> int:
    """Return the index of the first test that holds, or the number of tests if none holds."""
    return next((number for number, holds in enumerate(tests) if holds), len(tests))


def slavic(n: int) -> int:
    return first(n % 10 == 1 and n % 100 != 11, n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14))


# https://www.unicode.org/cldr/charts/47/supplemental/language_plural_rules.html, for whole numbers
RULES: dict[str, Rule] = {
    "id ja km ko lo ms my th vi yo zh": lambda n: 0,
    "af az bg ca da de el en eo es et eu fi gl ha he hu it ka kk ky la lb ml mn mr nb ne nl nn no ps pt sq sv sw ta te "
    "tr ur uz yi": lambda n: first(n == 1),
    "am bn fa fr gu hi hy kn pa pt_BR si zu": lambda n: first(n in (0, 1)),
    "is mk": lambda n: first(n % 10 == 1 and n % 100 != 11),
    "tl": lambda n: first(n % 10 not in (4, 6, 9)),
    "be bs hr ru sr uk": slavic,
    "pl": lambda n: first(n == 1, n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14)),
    "cs sk": lambda n: first(n == 1, n in (2, 3, 4)),
    "lt": lambda n: first(n % 100 != 11 and n % 10 == 1, n % 10 > 1 and not 11 <= n % 100 <= 19),
    "lv": lambda n: first(n % 10 == 1 and n % 100 != 11, n > 0),
    "ro": lambda n: first(n == 1, n == 0 or 1 <= n % 100 <= 19),
    "sl": lambda n: first(n % 100 == 1, n % 100 == 2, n % 100 in (3, 4)),
    "mt": lambda n: first(n == 1, n == 2, n == 0 or 3 <= n % 100 <= 10, 11 <= n % 100 <= 19),
    "ga": lambda n: first(n == 1, n == 2, 3 <= n <= 6, 7 <= n <= 10),
    "ar": lambda n: first(n == 0, n == 1, n == 2, 3 <= n % 100 <= 10, 11 <= n % 100 <= 99),
    "cy": lambda n: first(n == 0, n == 1, n == 2, n == 3, n == 6),
}


def test_every_language_has_a_rule_here() -> None:
    assert set(" ".join(RULES).split()) == set(" ".join(languages for *_, languages in plurals.RULES).split())


@pytest.mark.parametrize("languages", RULES)
def test_the_forms_of_all_numbers_up_to_three_hundred(languages: str) -> None:
    for language in languages.split():
        field = plurals.field_of(language)
        function = plurals.gettext.c2py(field.partition("plural=")[2].strip(";"))
        assert [function(n) for n in range(301)] == [RULES[languages](n) for n in range(301)], language
        rule, found = plurals.parse(field), [RULES[languages](n) for n in range(1001)]
        assert rule == plurals.PluralForms(max(found) + 1, found[1], found.count(found[1]) == 1)


# Languages by the first letters of their categories, from CLDR's ordinals.xml. All others have only "other".
ORDINALS = {
    "oo": "fil fr ga hu hy lo ms ne ro sv tl vi", "mo": "it kk", "fo": "be tk uk", "omo": "ka sq",
    "otfo": "ca en gd mr", "otmo": "mk", "ofmo": "az", "otfmo": "bn gu hi or", "zotfmo": "cy",
}  # fmt: skip
CARDINALS = {
    "o": "id ja km ko lo ms my th to vi wo yo yue zh", "omo": "ca es fr it pt", "oto": "he", "ofo": "bs hr ro sr",
    "zoo": "lv", "otfo": "gd sl", "ofmo": "be cs lt pl ru sk uk", "otfmo": "br ga mt", "zotfmo": "ar cy",
    "oo": "af am az bg bn da de el en eo et eu fa fi fil fy gl gu ha hi hu hy is ka kk kn ku ky lb mk ml mn mr nb ne "
    "nl nn no or pa ps sd si so sq sv sw ta te tk tl tr ug ur uz xh yi zu",
}  # fmt: skip


def test_the_categories_of_every_language() -> None:
    ordinal = {language: letters for letters, languages in ORDINALS.items() for language in languages.split()}
    for letters, languages in CARDINALS.items():
        for language in languages.split():
            found = categories(language), categories(language, ordinal=True)
            assert ["".join(name[0] for name in names) for names in found] == [letters, ordinal.get(language, "o")]
            assert all([name for name in CATEGORIES if name in names] == names for names in found), language
