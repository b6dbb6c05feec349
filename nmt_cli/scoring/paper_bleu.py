"""BLEU as in "Attention Is All You Need": Moses tokens, compounds split at hyphens, and the arithmetic of multi-bleu.

Results equal those of the authors' script get_ende_bleu.sh byte for byte. It runs replace-unicode-punctuation.perl,
tokenizer.perl of 2017, compound splitting, and multi-bleu.perl. Results differ only for text that contains
"DOTMULTI", because tokenizer.perl uses this string as a placeholder.

newstest2014.de has 63,078 tokens before compounds are split, and 64,496 after. Later versions of tokenizer.perl give
63,086 tokens before compounds are split. Since Moses' pull request 204 (November 2018), they also split the full stop
off an abbreviation at the end of a line.
"""

import re
import string
from collections.abc import Iterable
from functools import partial

import regex  # type: ignore[import-untyped]
from sacrebleu import BLEU

from nmt_cli.system.errors import UsageError

LANGUAGES = ("de", "en", "fr")
# The arithmetic of multi-bleu.perl, for lines from `prepare`.
multi_bleu = partial(BLEU, tokenize="none", smooth_method="none", force=True)

# The table of replace-unicode-punctuation.perl, with its mistake: a full-width 1 becomes a quotation mark.
_ASCII = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％", ',,""::?"")!(;"""032569784~\'-<>[]%'
) | {ord("…"): "..."}
# Quotation marks that replace-unicode-punctuation.perl keeps. `fold_quotes` replaces them with ASCII ones, as in the
# reference that Google published.
_QUOTES = str.maketrans("„«»‚‘‹›", "\"\"\"''''")
# A placeholder for each full stop of "..." while the final full stops of words are split off. The text cannot contain
# this character, because control characters are removed first.
_DOT = "\0"
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
_ESCAPES = str.maketrans({"&": "&amp;", _DOT: ".", **_ENTITIES})

# Words that keep their final full stop, listed without it. Words with a letter and another full stop, such as "e.g.",
# always keep their final full stop and are not listed.
# Source: share/nonbreaking_prefixes of the Moses project.
_CAPITALS, _B_TO_Z = " ".join(string.ascii_uppercase), " ".join(string.ascii_lowercase[1:])
_TITLES = """Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Ens Gen Gov Hon Hosp Insp Lt MM
    MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St
    Supt Surg"""
_ROMAN = "II III IV VI VII VIII IX XI XII XIII XIV XV XVI XVII XVIII XIX XX"
_PREFIX_LISTS = {
    "en": f"{_CAPITALS} {_TITLES} Drs Hr v vs rev Rs Nos Nr Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec",
    "de": f"""{_CAPITALS} a {_B_TO_Z} {_TITLES} {_ROMAN} {_ROMAN.lower()} Mio Mrd bzw vs usw etc MwSt ggf vgl sogen ff
        Buchst sog Std evtl Zt Chr Ltd spp sen SA jun dgl dergl Co zzt usf Dkr bzgl BSE No Nos Art Nr pp ca Ca
        {" ".join(str(day) for day in range(1, 100))}""",
    "fr": f"""{_CAPITALS} {_B_TO_Z} art ann apr av auj lib boul ca cf chap contr dir éd env al etc ex fasc fém fig fr
        hab ibid id inf masc MM ms pl pp SS sec sect sing sq sqq suiv sup suppl tél vb vol vs""",
}
_PREFIXES = {language: frozenset(words.split()) for language, words in _PREFIX_LISTS.items()}

# Perl's \p{IsAlnum} is Alphabetic or Nd. `re` cannot express these classes, but `regex` can. Python's \s includes
# U+001C to U+001F, but Perl's does not.
_ALPHA, _NOT_ALPHA, _NUMBER = r"\p{Alphabetic}", r"\P{Alphabetic}", r"\p{N}"
_APOSTROPHES = {  # the characters before and after an apostrophe, and its replacement
    "en": [
        *((_NOT_ALPHA, _NOT_ALPHA, " ' "), (rf"[^{_ALPHA}{_NUMBER}]", _ALPHA, " ' "), (_ALPHA, _NOT_ALPHA, " ' ")),
        *((_ALPHA, _ALPHA, " '"), (_NUMBER, "s", " '")),
    ],
    "fr": [
        (_NOT_ALPHA, _NOT_ALPHA, " ' "),
        (_NOT_ALPHA, _ALPHA, " ' "),
        (_ALPHA, _NOT_ALPHA, " ' "),
        (_ALPHA, _ALPHA, "' "),
    ],
    "de": [("", "", " ' ")],
}


def moses_tokenize(line: str, language: str) -> str:
    """Tokenize a line, and escape special characters as entities, as `tokenizer.perl -l LANGUAGE` did in 2017."""
    if language not in LANGUAGES:
        raise UsageError(f"paper-bleu needs --language: one of {', '.join(LANGUAGES)}")
    text = regex.sub(r"[^\S\x1c-\x1f]+", " ", line)
    if text in ("", " "):
        return line  # tokenizer.perl keeps blank lines unchanged. multi-bleu.perl counts a no-break space as a token
    text = " ".join(filter(None, re.sub(r"[\x00-\x1f]", "", text).split(" ")))
    text = regex.sub(rf"([^{_ALPHA}\p{{Nd}}\s.'`,\-])", r" \1 ", text)
    text = re.sub(r"\.{2,}", lambda run: f" {_DOT * len(run[0])} ", text)
    text = regex.sub(rf"([^{_NUMBER}]),", r"\1 , ", text)
    text = regex.sub(rf",([^{_NUMBER}])", r" , \1", text)
    for before, after, apostrophe in _APOSTROPHES[language]:
        text = regex.sub(f"({before})'({after})", rf"\1{apostrophe}\2", text)
    text = " ".join(filter(None, _split_stops(text.rstrip(" ").split(" "), language)))
    return text.translate(_ESCAPES)


def _split_stops(words: list[str], language: str) -> list[str]:
    """Split the final full stop off each word, but not before a word that begins with a lowercase letter.

    Abbreviations keep their full stop. In English, "No.", "Art." and "pp." keep it before a digit.
    """
    result = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        stem = word[:-1]
        if stem and word.endswith("."):
            abbreviation = stem in _PREFIXES[language] or ("." in stem and regex.search(_ALPHA, stem))
            numbered = language == "en" and stem in ("No", "Art", "pp") and "0" <= following[:1] <= "9"
            if not (abbreviation or numbered or regex.match(r"\p{Lowercase}", following)):
                word = f"{stem} ."
        result.append(word)
    return result


def prepare(lines: Iterable[str], language: str, *, fold_quotes: bool = False) -> list[str]:
    """Convert raw lines to the tokenized lines that multi-bleu.perl reads.

    Non-ASCII bytes become lone surrogates, so that only ASCII white space separates tokens, as in Perl.
    """
    prepared = []
    for line in lines:
        line = re.sub("[。．] *", ". ", line.translate(_ASCII))
        tokens = moses_tokenize(line.translate(_QUOTES) if fold_quotes else line, language).encode()
        # A match includes one byte on each side of the hyphen, so `a-b-c` is split only once. `a-é-c` is split twice,
        # because é has two bytes.
        if language == "de":
            tokens = re.sub(rb"([^ \t-\r])-([^ \t-\r])", rb"\1 ##AT##-##AT## \2", tokens)
        prepared.append(tokens.decode("ascii", "surrogateescape"))
    return prepared
