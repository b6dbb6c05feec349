"""Names of languages, and comparison of language codes."""

import re

# ISO 639-1 code, ISO 639-3 code and English name of each language.
_TABLE = """
af afr Afrikaans;am amh Amharic;ar ara Arabic;az aze Azerbaijani;be bel Belarusian;bg bul Bulgarian;bn ben Bengali
bs bos Bosnian;ca cat Catalan;cs ces Czech;cy cym Welsh;da dan Danish;de deu German;el ell Greek;en eng English
eo epo Esperanto;es spa Spanish;et est Estonian;eu eus Basque;fa fas Persian;fi fin Finnish;fr fra French;ga gle Irish
gl glg Galician;gu guj Gujarati;ha hau Hausa;he heb Hebrew;hi hin Hindi;hr hrv Croatian;hu hun Hungarian;hy hye Armenian
id ind Indonesian;is isl Icelandic;it ita Italian;ja jpn Japanese;ka kat Georgian;kk kaz Kazakh;km khm Khmer
kn kan Kannada;ko kor Korean;ky kir Kyrgyz;la lat Latin;lb ltz Luxembourgish;lt lit Lithuanian;lv lav Latvian
mk mkd Macedonian;ml mal Malayalam;mn mon Mongolian;mr mar Marathi;ms msa Malay;mt mlt Maltese;my mya Burmese
nb nob Norwegian Bokmål;ne nep Nepali;nl nld Dutch;nn nno Norwegian Nynorsk;no nor Norwegian
pa pan Punjabi;pl pol Polish
ps pus Pashto;pt por Portuguese;ro ron Romanian;ru rus Russian;si sin Sinhala;sk slk Slovak;sl slv Slovenian
sq sqi Albanian;sr srp Serbian;sv swe Swedish;sw swa Swahili;ta tam Tamil;te tel Telugu;th tha Thai;tl tgl Tagalog
tr tur Turkish;uk ukr Ukrainian;ur urd Urdu;uz uzb Uzbek;vi vie Vietnamese;yi yid Yiddish;yo yor Yoruba;zh zho Chinese
zu zul Zulu
"""
_ROWS = [row.split(" ", 2) for line in _TABLE.strip().split("\n") for row in line.split(";")]
NAMES = {code: name for code, _, name in _ROWS}
# Languages that are easily mistaken for one another.
_NEAR = [{"nb", "nn", "no", "da"}, {"bs", "hr", "sr"}, {"id", "ms"}]
_SHORT = {three: two for two, three, _ in _ROWS}
# The bibliographic codes of ISO 639-2 that differ from the codes above.
_BIBLIOGRAPHIC = "alb:sq arm:hy baq:eu bur:my chi:zh cze:cs dut:nl fre:fr geo:ka ger:de gre:el ice:is mac:mk may:ms"
_BIBLIOGRAPHIC += " per:fa rum:ro slo:sk wel:cy"
_SHORT |= {code[:3]: code[4:] for code in _BIBLIOGRAPHIC.split()}
_ALIKE = {"no": "nb", "nb": "no"}  # Norwegian (no) usually means Bokmål (nb), so either stands in for the other
_VARIANTS = {
    "pt-br": "Portuguese (Brazil)",
    "zh-hans": "Chinese (simplified)",
    "zh-hant": "Chinese (traditional)",
}
ARGOS_CODES = {"pb": "pt-BR", "zt": "zh-Hant"}  # codes that only Argos packages and LibreTranslate clients use
_TRADITIONAL = {"hant", "tw", "hk", "mo"}  # the traditional Chinese script, and regions that use it

# The codes of ISO 639-1.
_CODES = """aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz
ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd
ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss
st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"""
# Matches codes of two letters, or of three (ISO 639-3), with an optional script and region: zh-Hant-TW, pt_BR, es-419.
_LANGUAGE = re.compile(r"([a-z]{2,3})([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?", re.IGNORECASE)


def is_language(code: str) -> bool:
    """Return whether this is a language code, such as de, zh-CN or yue. Any three letters are accepted."""
    match = _LANGUAGE.fullmatch(code)
    return match is not None and (len(match[1]) == 3 or match[1].lower() in _CODES.split())


def name_of(code: str) -> str:
    """Return the English name of a language, or the code itself if it is unknown."""
    return _VARIANTS.get(folded(code)) or NAMES.get(base_of(folded(code)), code)


def folded(code: str) -> str:
    """Return a code in lower case and with hyphens. Both pt_BR and Argos' code pb become pt-br."""
    return ARGOS_CODES.get(code.lower(), code).replace("_", "-").lower()


def near(code: str) -> set[str]:
    """Return a set of `code` and the codes of languages easily mistaken for it. `code` has no script and no region."""
    return next((group for group in _NEAR if code in group), {code})


def base_of(code: str) -> str:
    """Return the two-letter code of a language, without script and region: pt for pt-BR, de for deu_Latn and DE.

    A language without such a code keeps its own code, in lower case. Argos' codes (pb, zt) are not replaced, because as
    suffixes of file names they may mean something else.
    """
    first = code.replace("_", "-").split("-")[0].lower()
    return _SHORT.get(first, first)


def shortest(code: str) -> str:
    """Return a code with its language in two letters, if possible: fr for fra, zh_Hans for zho_Hans, pt-BR for pb."""
    code = ARGOS_CODES.get(code.lower(), code)
    first = re.split("[-_]", code)[0]
    return base_of(first) + code[len(first) :]


def is_same(code: str, other: str) -> bool:
    """Return whether two codes have the same language. Regions may differ; scripts may not, if both codes have one."""
    code, other = folded(code), folded(other)
    scripts = {part for part in f"{code}-{other}".split("-") if len(part) == 4}
    return base_of(code) == base_of(other) and len(scripts) < 2


def match(code: str, known: list[str]) -> str | None:
    """Return the known code that equals `code`, else the first of the same language. Return None if there is none.

    For Chinese, a code with the same script is preferred. Norwegian (no) and Bokmål (nb) match each other if nothing
    else matches.
    """
    code = folded(code)
    for each in known:
        if folded(each) == code:
            return each
    base = base_of(code)
    same = [each for each in known if base_of(folded(each)) == base]
    same = same or [each for each in known if base_of(each) == _ALIKE.get(base)]
    if base == "zh":
        same.sort(key=lambda each: is_traditional(each) != is_traditional(code))
    return same[0] if same else None


def is_traditional(code: str) -> bool:
    """Return whether a code for Chinese means the traditional script."""
    return not _TRADITIONAL.isdisjoint(folded(code).split("-"))
