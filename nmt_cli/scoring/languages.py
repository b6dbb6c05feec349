"""Language codes, and the sacreBLEU tokenizer of each language."""

import re

# sacreBLEU's tokenizers for languages without spaces between words. ja-mecab is not used: it needs another package.
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "my": "char", "km": "char", "lo": "char"}
# ISO 639-1. A code may also have three letters (ISO 639-3), and a script and a region: zh-Hant-TW, pt_BR, es-419.
_CODES = """aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz
ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd
ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss
st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"""
_LANGUAGE = re.compile(r"([a-z]{2,3})([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?", re.IGNORECASE)


def is_language(code: str) -> bool:
    """Return whether this is a language code, such as de, zh-CN or yue."""
    match = _LANGUAGE.fullmatch(code)
    return match is not None and (len(match[1]) == 3 or match[1].lower() in _CODES.split())


def tokenizer_of(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language code."""
    return TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")
