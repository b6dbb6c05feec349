"""Gettext's plural forms: read the Plural-Forms field of a catalog's header, and look up the rules of languages.

Sources: the GNU gettext manual, "Additional functions for plural forms", and the plural rules of Unicode CLDR.
"""

import gettext
import re
from dataclasses import dataclass

from nmt_cli.system.errors import DataError, printable

MOST_FORMS = 10  # maximum nplurals; no language in CLDR needs more than six
_NUMBERS = range(1001)  # the numbers that msgfmt tests
_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2"
# Each rule has the number of forms, the expression, and the languages that use the rule.
RULES = [
    (1, "0", "id ja km ko lo ms my th vi yo zh"),
    (
        2,
        "n != 1",
        "af az bg ca da de el en eo es et eu fi gl ha he hu it ka kk ky la lb ml mn mr nb ne nl nn no ps pt sq sv sw "
        "ta te tr ur uz yi",
    ),
    (2, "n > 1", "am bn fa fr gu hi hy kn pa pt_BR si zu"),
    (2, "n%10!=1 || n%100==11", "is mk"),
    (2, "n%10==4 || n%10==6 || n%10==9", "tl"),
    (3, _SLAVIC, "be bs hr ru sr uk"),
    (3, "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2", "pl"),
    (3, "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2", "cs sk"),
    (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<11 || n%100>19) ? 1 : 2", "lt"),
    (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2", "lv"),
    (3, "n==1 ? 0 : n==0 || (n%100>=1 && n%100<=19) ? 1 : 2", "ro"),
    (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3", "sl"),
    (5, "n==1 ? 0 : n==2 ? 1 : n==0 || (n%100>=3 && n%100<=10) ? 2 : n%100>=11 && n%100<=19 ? 3 : 4", "mt"),
    (5, "n==1 ? 0 : n==2 ? 1 : n>=3 && n<=6 ? 2 : n>=7 && n<=10 ? 3 : 4", "ga"),
    (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5", "ar"),
    (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n==3 ? 3 : n==6 ? 4 : 5", "cy"),
]
_BY_LANGUAGE = {
    language: f"nplurals={count}; plural={expression if count == 1 else f'({expression})'};"
    for count, expression, languages in RULES
    for language in languages.split()
}


@dataclass(frozen=True)
class PluralForms:
    count: int
    singular: int  # the index of the form for n = 1
    singular_only: bool  # whether n = 1 is the only number with that form


GERMANIC = PluralForms(2, 0, True)  # gettext's rule for a catalog without a header. Only n = 1 takes the singular


def parse(field: str) -> PluralForms | None:
    """Return the forms that a Plural-Forms field declares. If the field has no nplurals, return None.

    If the expression is invalid, `singular` is 0 and `singular_only` is false. Raise DataError if nplurals is out of
    range.
    """
    number = re.search(r"nplurals\s*=\s*([0-9]+)", field)
    if not number:
        return None
    if len(number[1]) > len(str(MOST_FORMS)) or not 1 <= int(number[1]) <= MOST_FORMS:
        named = printable(f"nplurals={number[1]}", 40)
        raise DataError(f"{named} in the catalog's Plural-Forms must be from 1 to {MOST_FORMS}")
    count = int(number[1])
    expression = re.search(r"\bplural\s*=([^;]*)", field)
    try:
        # c2py refuses the long and deeply nested expressions that an untrusted file could contain.
        function = gettext.c2py(expression[1].strip() if expression else "")
        forms = [function(n) for n in _NUMBERS]
    except (ValueError, ArithmeticError, RecursionError, SyntaxError, MemoryError):
        forms = []
    if not forms or max(forms) >= count:  # msgfmt refuses a catalog with this expression
        return PluralForms(count, 0, False)
    return PluralForms(count, forms[1], forms.count(forms[1]) == 1)


def field_of(language: str) -> str:
    """Return the Plural-Forms field for a language code such as de, pt_BR or zh_Hans.

    If the language is unknown, return "".
    """
    return _BY_LANGUAGE.get(language) or _BY_LANGUAGE.get(language.split("_")[0], "")
