"""The plural categories of languages: zero, one, two, few, many and other.

Source: Unicode CLDR 47, supplemental/plurals.xml and ordinals.xml.
"""

from nmt_cli.corpus.languages import base_of
from nmt_cli.documents import plurals
from nmt_cli.documents.po_header import locale_of

CATEGORIES = ("zero", "one", "two", "few", "many", "other")
_CARDINAL_LANGUAGES = {
    "other": "id ja km ko lo ms my th to vi wo yo yue zh",
    "one other": (
        "af am az bg bn da de el en eo et eu fa fi fil fy gl gu ha hi hu hy is ka kk kn ku ky lb mk ml mn mr nb ne nl "
        "nn no or pa ps sd si so sq sv sw ta te tk tl tr ug ur uz xh yi zu"
    ),
    "one many other": "ca es fr it pt",
    "one two other": "he",
    "one few other": "bs hr ro sr",
    "zero one other": "lv",
    "one two few other": "gd sl",
    "one few many other": "be cs lt pl ru sk uk",
    "one two few many other": "br ga mt",
    "zero one two few many other": "ar cy",
}
_ORDINAL_LANGUAGES = {  # languages of the table above that are missing here have only "other"
    "one other": "fil fr ga hu hy lo ms ne ro sv tl vi",
    "many other": "it kk",
    "few other": "be tk uk",
    "one many other": "ka sq",
    "one two few other": "ca en gd mr",
    "one two many other": "mk",
    "one few many other": "az",
    "one two few many other": "bn gu hi or",
    "zero one two few many other": "cy",
}


def _by_language(table: dict[str, str]) -> dict[str, list[str]]:
    return {language: names.split() for names, languages in table.items() for language in languages.split()}


_CARDINALS, _ORDINALS = _by_language(_CARDINAL_LANGUAGES), _by_language(_ORDINAL_LANGUAGES)


def categories(language: str, *, ordinal: bool = False) -> list[str]:
    """Return the plural categories of a language, with "other" last, or an empty list if the language is unknown."""
    base = base_of(language)
    if base not in _CARDINALS:
        return []
    return _ORDINALS.get(base, ["other"]) if ordinal else _CARDINALS[base]


def one_is_exact(language: str) -> bool:
    """Return whether gettext's plural rule uses the form for 1 only for 1. Russian uses it for 21, too.

    Return False if the language is unknown.
    """
    rule = plurals.parse(plurals.field_of(locale_of(language)))
    return rule is not None and rule.singular_only
