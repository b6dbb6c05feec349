"""The BLEU of the paper: Moses tokens, compounds split at hyphens, and the arithmetic of multi-bleu.

The code does what the authors' get_ende_bleu.sh does, byte for byte: replace-unicode-punctuation.perl, tokenizer.perl
of 2017, compound splitting, multi-bleu.perl. (The exception is text with the placeholder "DOTMULTI" of the Perl code.)
newstest2014.de has 63,078 tokens, and 64,496 with split compounds. Since pull request 204 of November 2018, Moses also
separates the last full stop of abbreviations, which gives 63,086 tokens.
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

# From replace-unicode-punctuation.perl, which also turns a full-width 1 into a quotation mark.
_ASCII = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％", ',,""::?"")!(;"""032569784~\'-<>[]%'
) | {ord("…"): "..."}
# Quotation marks that the script keeps. The reference that Google published has ASCII ones.
_QUOTES = str.maketrans("„«»‚‘‹›", "\"\"\"''''")
_DOT = "\0"  # replaces each dot of "..." while single stops are split; control characters are already removed
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
_ESCAPES = str.maketrans({"&": "&amp;", _DOT: ".", **_ENTITIES})

# Words that keep their final full stop. Words that contain another full stop always keep it and are not listed.
# Source: share/nonbreaking_prefixes of the Moses project.
_CAPITALS, _SMALL = " ".join(string.ascii_uppercase), " ".join(string.ascii_lowercase[1:])
_TITLES = """Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Ens Gen Gov Hon Hosp Insp Lt MM
    MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St
    Supt Surg"""
_ROMAN = "II III IV VI VII VIII IX XI XII XIII XIV XV XVI XVII XVIII XIX XX"
_PREFIX_LISTS = {
    "en": f"{_CAPITALS} {_TITLES} Drs Hr v vs rev Rs Nos Nr Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec",
    "de": f"""{_CAPITALS} a {_SMALL} {_TITLES} {_ROMAN} {_ROMAN.lower()} Mio Mrd bzw vs usw etc MwSt ggf vgl sogen ff
        Buchst sog Std evtl Zt Chr Ltd spp sen SA jun dgl dergl Co zzt usf Dkr bzgl BSE No Nos Art Nr pp ca Ca
        {" ".join(str(day) for day in range(1, 100))}""",
    "fr": f"""{_CAPITALS} {_SMALL} art ann apr av auj lib boul ca cf chap contr dir éd env al etc ex fasc fém fig fr hab
        ibid id inf masc MM ms pl pp SS sec sect sing sq sqq suiv sup suppl tél vb vol vs""",
}
_PREFIXES = {language: frozenset(words.split()) for language, words in _PREFIX_LISTS.items()}

# Perl's \p{IsAlnum} is Alphabetic or Nd, which `re` cannot express. Perl's \s excludes U+001C to U+001F.
_ALPHA, _OTHER, _NUMBER = r"\p{Alphabetic}", r"\P{Alphabetic}", r"\p{N}"
_APOSTROPHES = {  # the characters before and after an apostrophe, and its replacement
    "en": [
        *((_OTHER, _OTHER, " ' "), (rf"[^{_ALPHA}{_NUMBER}]", _ALPHA, " ' "), (_ALPHA, _OTHER, " ' ")),
        *((_ALPHA, _ALPHA, " '"), (_NUMBER, "s", " '")),
    ],
    "fr": [(_OTHER, _OTHER, " ' "), (_OTHER, _ALPHA, " ' "), (_ALPHA, _OTHER, " ' "), (_ALPHA, _ALPHA, "' ")],
    "de": [("", "", " ' ")],
}


def moses_tokenize(line: str, language: str) -> str:
    """Return the line tokenized like `tokenizer.perl -l language` of 2017, with entities escaped."""
    if language not in LANGUAGES:
        raise UsageError(f"paper-bleu needs --language: one of {', '.join(LANGUAGES)}")
    text = regex.sub(r"[^\S\x1c-\x1f]+", " ", line)
    if text in ("", " "):
        return line  # like Perl: multi-bleu counts a no-break space alone as a token
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
    """Split the final full stop off every word, except abbreviations and words before a lowercase letter."""
    result = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        stem = word[:-1]
        if stem and word.endswith("."):
            abbreviation = stem in _PREFIXES[language] or ("." in stem and regex.search(_ALPHA, stem))
            before_digit = language == "en" and stem in ("No", "Art", "pp") and "0" <= following[:1] <= "9"
            if not (abbreviation or before_digit or regex.match(r"\p{Lowercase}", following)):
                word = f"{stem} ."
        result.append(word)
    return result


def prepare(lines: Iterable[str], language: str, *, fold_quotes: bool = False) -> list[str]:
    """Return raw lines as multi-bleu.perl reads them. Non-ASCII bytes are escaped: Perl sees no white space in them."""
    prepared = []
    for line in lines:
        line = re.sub("[。．] *", ". ", line.translate(_ASCII))
        tokens = moses_tokenize(line.translate(_QUOTES) if fold_quotes else line, language).encode()
        if language == "de":  # a match consumes the bytes around it: `a-b-c` is split once, `a-é-c` twice
            tokens = re.sub(rb"([^ \t-\r])-([^ \t-\r])", rb"\1 ##AT##-##AT## \2", tokens)
        prepared.append(tokens.decode("ascii", "surrogateescape"))
    return prepared
