"""Change letter case by the rules of a language. (Python's str.lower and str.upper ignore the language.)

The rules are those of Unicode's SpecialCasing.txt and of CLDR's transforms tr-Upper, tr-Lower, el-Upper and nl-Title.
"""

import re
import unicodedata

from nmt_cli.corpus.languages import base_of

_DOTLESS = "tr", "az", "crh", "tt", "gag"  # languages in which the capital of i is İ, and that of ı is I
_GREEK_WORD = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]+")
_GREEK_ACCENTS = re.compile("[\u0300\u0301\u0313\u0314\u0342]")  # combining accents, which Greek capitals lack
# An accent on the first of two vowels shows that they are not a diphthong. In capitals, the second vowel gets a
# diaeresis instead.
_HIATUS = re.compile("([ΑΕΗΟ])(?:[\u0313\u0314]?[\u0300\u0301\u0342])([ΙΥ])(?![\u0300-\u036f])")
_WORD_START = re.compile(r"(?<![\w'’])[^\W\d_]")
_WORD_REST = re.compile(r"[\w'’]*")
_DUTCH_START = re.compile(r"(?<![\w'’])I(?:j|\u0308j)")


def lower(text: str, language: str) -> str:
    if base_of(language) in _DOTLESS:
        text = text.replace("I\u0307", "i").replace("İ", "i").replace("I", "ı")
    return text.lower().replace("i\u0307", "i")  # Python adds a second dot to the i of İ


def upper(text: str, language: str) -> str:
    """Return text in upper case. The result may be longer, as ß becomes SS. Georgian text is returned unchanged."""
    base = base_of(language)
    if base == "ka":
        return text
    if base in _DOTLESS:
        return text.replace("i", "İ").replace("ı", "I").upper()
    return _GREEK_WORD.sub(_greek, text).upper() if base == "el" else text.upper()


def _greek(word: re.Match[str]) -> str:
    """Return a Greek word in capitals without accents: ΜΑΪΟΣ for Μάιος. The word ή ("or") keeps its accent."""
    if word[0] in ("ή", "Ή"):
        return "Ή"
    capitals = unicodedata.normalize("NFD", word[0]).upper()
    return unicodedata.normalize("NFC", _GREEK_ACCENTS.sub("", _HIATUS.sub("\\1\\2\u0308", capitals)))


def capitalized(word: str, language: str) -> str:
    """Return text with its first letter in upper case, and the rest unchanged. In Dutch, ij counts as one letter."""
    if word[:1] == "i" and base_of(language) in _DOTLESS:
        return f"İ{word[1:]}"
    if word[:2] == "ij" and base_of(language) == "nl":
        return f"IJ{word[2:]}"
    return word[:1].title() + word[1:]


def title(text: str, language: str) -> str:
    """Return text with a capital at the beginning of each word, also after a hyphen, but not after an apostrophe.

    All other letters stay unchanged, and so do words with a capital after the first letter, such as iPhone and pH.
    """

    def start(letter: re.Match[str]) -> str:
        inner = _WORD_REST.match(text, letter.end())
        if inner and inner[0] != inner[0].lower():
            return letter[0]
        return capitalized(letter[0], language)

    titled = _WORD_START.sub(start, text)
    return _DUTCH_START.sub("IJ", titled) if base_of(language) == "nl" else titled
