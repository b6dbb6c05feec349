"""The BLEU of the paper: Moses tokens, compounds split at hyphens, multi-bleu's arithmetic.

Four steps, as in the Tensor2Tensor script the authors published with their models (get_ende_bleu.sh):

    replace-unicode-punctuation.perl | tokenizer.perl -l de | (\\S)-(\\S) -> \\1 ##AT##-##AT## \\2 | multi-bleu.perl

each equal to the Perl program, byte for byte (unless a text holds Perl's placeholder "DOTMULTI"). The tokenizer is
the one of 2017, when the paper was scored: it gives newstest2014.de the 63,078 tokens (64,496 with compounds split) of
the reference that Google published and fairseq uses. Since November 2018 (pull request 204) Moses cuts the last full
stop of a line off abbreviations and numbers too: 63,086 tokens, and another BLEU.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nmt_cli.errors import DataError, UsageError

LANGUAGES = ("de", "en", "fr")
MAX_ORDER = 4

# replace-unicode-punctuation.perl. Full-width 1 becomes a quotation mark there, and so it does here.
_ASCII = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％", ',,""::?"")!(;"""032569784~\'-<>[]%'
)
# Quotation marks it leaves alone, which the reference Google published writes in ASCII.
_QUOTES = str.maketrans("„«»‚‘‹›", "\"\"\"''''")
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
_DOT = "\0"  # stands for each dot of "..." while single stops are split; text has lost its control characters by then
_ESCAPES = str.maketrans({"&": "&amp;", _DOT: ".", **_ENTITIES})

# Words that keep their full stop, without those that hold another one (the tokenizer keeps these anyway).
# Source: share/nonbreaking_prefixes of the Moses project. "No" etc. keep it only before a digit, in English.
_CAPITALS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
_SMALL = "b c d e f g h i j k l m n o p q r s t u v w x y z"
_TITLES = """Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Ens Gen Gov Hon Hosp Insp Lt MM
    MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St
    Supt Surg"""
_ROMAN = "II III IV VI VII VIII IX XI XII XIII XIV XV XVI XVII XVIII XIX XX"
_PREFIXES = {
    "en": f"{_CAPITALS} {_TITLES} Drs Hr v vs rev Rs Nos Nr Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec",
    "de": f"""{_CAPITALS} a {_SMALL} {_TITLES} {_ROMAN} {_ROMAN.lower()} Mio Mrd bzw vs usw etc MwSt ggf vgl sogen ff
        Buchst sog Std evtl Zt Chr Ltd spp sen SA jun dgl dergl Co zzt usf Dkr bzgl BSE No Nos Art Nr pp ca Ca
        {" ".join(str(day) for day in range(1, 100))}""",
    "fr": f"""{_CAPITALS} {_SMALL} art ann apr av auj lib boul ca cf chap contr dir éd env al etc ex fasc fém fig fr hab
        ibid id inf masc MM ms pl pp SS sec sect sing sq sqq suiv sup suppl tél vb vol vs""",
}
_NUMERIC_PREFIXES = {"en": frozenset({"No", "Art", "pp"})}


def replace_unicode_punctuation(line: str) -> str:
    """Return the line with East Asian and typographic punctuation in ASCII, as replace-unicode-punctuation.perl."""
    line = line.translate(_ASCII).replace("…", "...")
    if "。" in line or "．" in line:
        line = _patterns()["stops"].sub(". ", line)
    return line


@cache
def _patterns() -> dict[str, Any]:
    # Perl's \p{IsAlnum} is Alphabetic or Nd, which Python's own `re` cannot say; its \s lacks U+001C to U+001F.
    import regex  # type: ignore[import-untyped]

    alpha, number = r"\p{Alphabetic}", r"\p{N}"
    return {
        "stops": regex.compile("[。．] *"),
        "space": regex.compile(r"[^\S\x1c-\x1f]+"),
        "controls": regex.compile(r"[\x00-\x1f]"),
        "special": regex.compile(rf"([^{alpha}\p{{Nd}}\s.'`,\-])"),
        "dots": regex.compile(r"\.{2,}"),
        "comma_after": regex.compile(rf"([^{number}]),"),
        "comma_before": regex.compile(rf",([^{number}])"),
        "alpha": regex.compile(alpha),
        "lower": regex.compile(r"\p{Lowercase}"),
        "compound": regex.compile(rb"([^ \t-\r])-([^ \t-\r])"),
        "en": [
            (regex.compile(rf"([^{alpha}])'([^{alpha}])"), r"\1 ' \2"),
            (regex.compile(rf"([^{alpha}{number}])'({alpha})"), r"\1 ' \2"),
            (regex.compile(rf"({alpha})'([^{alpha}])"), r"\1 ' \2"),
            (regex.compile(rf"({alpha})'({alpha})"), r"\1 '\2"),
            (regex.compile(rf"({number})'(s)"), r"\1 '\2"),
        ],
        "fr": [
            (regex.compile(rf"([^{alpha}])'([^{alpha}])"), r"\1 ' \2"),
            (regex.compile(rf"([^{alpha}])'({alpha})"), r"\1 ' \2"),
            (regex.compile(rf"({alpha})'([^{alpha}])"), r"\1 ' \2"),
            (regex.compile(rf"({alpha})'({alpha})"), r"\1' \2"),
        ],
        "de": [(regex.compile("'"), " ' ")],
    }


@cache
def _prefixes(language: str) -> frozenset[str]:
    return frozenset(_PREFIXES[language].split())


def moses_tokenize(line: str, language: str) -> str:
    """Return the line as `tokenizer.perl -l language` of 2017 prints it, entities escaped."""
    if language not in LANGUAGES:
        raise UsageError(f"paper-bleu has no tokenizer for {language!r}: it is defined for {', '.join(LANGUAGES)}")
    patterns = _patterns()
    text = patterns["space"].sub(" ", line)
    if text in ("", " "):
        return line  # as Perl does: a no-break space alone is a token to multi-bleu
    text = " ".join(filter(None, patterns["controls"].sub("", text).split(" ")))
    text = patterns["special"].sub(r" \1 ", text)
    if ".." in text:
        text = patterns["dots"].sub(lambda run: f" {_DOT * len(run[0])} ", text)
    if "," in text:
        text = patterns["comma_before"].sub(r" , \1", patterns["comma_after"].sub(r"\1 , ", text))
    if "'" in text:
        for pattern, replacement in patterns[language]:
            text = pattern.sub(replacement, text)
    text = " ".join(filter(None, _split_stops(text.rstrip(" ").split(" "), language)))
    return text.translate(_ESCAPES)


def _split_stops(words: list[str], language: str) -> list[str]:
    """Cut the final full stop off every word, except abbreviations and before a small letter."""
    patterns, prefixes = _patterns(), _prefixes(language)
    numeric = _NUMERIC_PREFIXES.get(language, frozenset())
    result = []
    for i, word in enumerate(words):
        if len(word) > 1 and word.endswith("."):
            stem = word[:-1]
            after = words[i + 1][:1] if i + 1 < len(words) else ""
            inner_stop = "." in stem and patterns["alpha"].search(stem)
            before_digit = stem in numeric and "0" <= after <= "9"
            if not (inner_stop or stem in prefixes or patterns["lower"].match(after) or before_digit):
                word = f"{stem} ."
        result.append(word)
    return result


def split_compounds(line: bytes) -> bytes:
    """Return the line with hyphens inside words made tokens of their own, as the published script does.

    A match takes the byte on either side, so `a-b-c` is split once. On bytes, as in Perl: `a-é-c` is split twice.
    """
    return bytes(_patterns()["compound"].sub(rb"\1 ##AT##-##AT## \2", line))


def prepare_line(line: str, language: str, *, fold_quotes: bool = False) -> bytes:
    """Return a raw line as it reaches multi-bleu.perl: compounds are split for German only."""
    line = replace_unicode_punctuation(line)
    tokens = moses_tokenize(line.translate(_QUOTES) if fold_quotes else line, language).encode()
    return split_compounds(tokens) if language == "de" else tokens


@dataclass(frozen=True)
class MultiBleu:
    """What multi-bleu.perl computes, lengths in tokens, named as in sacreBLEU; `str()` of it is the line it prints."""

    score: float
    precisions: tuple[float, ...]
    bp: float
    sys_len: int
    ref_len: int

    @property
    def verbose(self) -> str:
        ratio = f"{self.sys_len / self.ref_len:.3f}" if self.ref_len else "–"
        precisions = "/".join(f"{value:.1f}" for value in self.precisions)
        return f"{precisions} (BP={self.bp:.3f}, ratio={ratio}, hyp_len={self.sys_len}, ref_len={self.ref_len})"

    def details(self) -> dict[str, Any]:
        ratio = self.sys_len / self.ref_len if self.ref_len else None
        lengths = {"length_ratio": ratio, "hyp_len": self.sys_len, "ref_len": self.ref_len}
        return {"precisions": list(self.precisions), "bp": self.bp, **lengths}

    def __str__(self) -> str:
        if not self.ref_len:
            return "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
        return f"BLEU = {self.score:.2f}, {self.verbose}"


def _ngrams(words: list[bytes]) -> Counter[tuple[bytes, ...]]:
    counts: Counter[tuple[bytes, ...]] = Counter()
    for order in range(1, MAX_ORDER + 1):
        counts.update(zip(*(words[start:] for start in range(order)), strict=False))
    return counts


def multi_bleu(hypotheses: Sequence[bytes], *references: Sequence[bytes]) -> MultiBleu:
    """Compute BLEU over tokens as multi-bleu.perl: separated by ASCII white space, no smoothing."""
    if any(len(lines) != len(hypotheses) for lines in references):
        counts = ", ".join(f"{len(lines):,}" for lines in references)
        raise DataError(f"{len(hypotheses):,} hypotheses but {counts} references. Every line needs its own")
    correct, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    hypothesis_length = reference_length = 0
    for hypothesis, *others in zip(hypotheses, *references, strict=True):
        words, lines = hypothesis.split(), [line.split() for line in others]
        hypothesis_length += len(words)
        # The closest length, the shorter one of two; 9999 is where multi-bleu.perl starts looking.
        reference_length += min([(9999, 9999), *((abs(len(words) - len(line)), len(line)) for line in lines)])[1]
        allowed: Counter[tuple[bytes, ...]] = Counter()
        for line in lines:
            allowed |= _ngrams(line)
        for ngram, count in _ngrams(words).items():
            total[len(ngram) - 1] += count
            correct[len(ngram) - 1] += min(count, allowed[ngram])
    precisions = [hits / n if n else 0.0 for hits, n in zip(correct, total, strict=True)]
    penalty = 1.0
    if hypothesis_length < reference_length:
        penalty = math.exp(1 - reference_length / hypothesis_length) if hypothesis_length else 0.0
    score = 0.0
    if all(precisions) and reference_length:
        score = penalty * math.exp(sum(math.log(precision) for precision in precisions) / MAX_ORDER)
    percent = tuple(100 * precision for precision in precisions)
    return MultiBleu(100 * score, percent, penalty, hypothesis_length, reference_length)


def signature(language: str, num_references: int, *, fold_quotes: bool = False) -> str:
    """Return what this BLEU was computed with, in the style of sacreBLEU's signatures."""
    split = "atat" if language == "de" else "none"
    quotes = "|quotes:ascii" if fold_quotes else ""
    tokenizer = f"tok:moses2017-{language}|punct:replace-unicode{quotes}|split:{split}"
    return f"nrefs:{num_references}|case:mixed|{tokenizer}|smooth:none|arithmetic:multi-bleu"


def paper_bleu(
    hypotheses: Sequence[str], *references: Sequence[str], language: str, fold_quotes: bool = False
) -> MultiBleu:
    """Score raw (detokenised) lines with the paper's BLEU; the language is one of LANGUAGES.

    With `fold_quotes` all quotation marks are ASCII on both sides, as in the reference Google published.

    Raises:
        DataError: the numbers of lines differ.
        UsageError: there are no rules for this language.
    """
    texts = [hypotheses, *references]
    return multi_bleu(*([prepare_line(line, language, fold_quotes=fold_quotes) for line in lines] for lines in texts))
