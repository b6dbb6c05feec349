"""Convert source text in capitals or title case to sentence case, and its translation back to the case of the source.

Models have mostly seen sentence case, and their tokenizers often split a word in capitals into single letters. There
are three styles. A sentence whose words are all in capitals is "upper". A line whose words begin with capitals, except
for some short words, is "title". A sentence in which only some words are in capitals is "words". A word is converted to
the form that the tokenizer encodes with the fewest tokens, because that form is usually the most frequent one.
"""

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nmt_cli.corpus import letter_case
from nmt_cli.corpus.languages import base_of
from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import FIRST_TOKENS, Tokenizer

UPPER, TITLE, WORDS = "upper", "title", "words"
# Minimum number of words that makes a style certain. Fewer words in capitals may be an acronym or a name, and fewer
# words in title case may be names. If the style is uncertain, the model translates the text in both forms, and the
# better translation wins.
SURE_UPPER = 3
SURE_TITLE = 5
FEWEST_TITLED = 3  # minimum capitalized words of a line in title case; two are usually a name
MOST_PHRASES = 64  # maximum multiword phrases that keep their case in a translation; more would take too long
SHORT_WORD = 3  # maximum letters of a word that may be lowercase in title case
SHORTEST_STEM = 3  # minimum letters of a stem (see `_stem`), and of a word to be converted in the style WORDS
# Acronyms that many languages share. Acronyms of two letters count only in the languages of _NO_SHORT_WORDS, because
# some of them are ordinary words in other languages. An unlisted acronym stays in capitals if it is a single token or
# has no vowels.
_ACRONYMS = """
AIDS ASAP ATM BBC BMW CD CEO CIA CNN CV DIY DNA DVD EU FAQ FBI FIFA GPS HIV HTML IBM ID IQ LCD LED MTV NASA NATO NBA NFL
NGO OK OPEC PC PDF RNA SMS SUV TV UEFA UFO UK UN UNESCO UNICEF URL USA USB USSR VIP VW WC WTO
"""
ACRONYMS = frozenset(_ACRONYMS.split())

_SPACED = re.compile(r"\S+")
_LETTERS = re.compile(r"\w+")
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
EDGES = "\"'.,;:!?()[]\u2026\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u00bf\u00a1"
# Words that keep their case: addresses, placeholders, tags, paths, variables, and abbreviations such as U.S. and R&B.
_FIXED = re.compile(r"[{}<>\\@_#]|://|^/|%[\w(]|\$[\w{]|\w\.\w|\w&\w|^[a-z]+:")
_ORDINAL = re.compile(r"\d+(?:ST|ND|RD|TH|S)")
# Roman numerals of at least two letters, such as XIV.
_ROMAN = re.compile(r"(?=..)M{0,3}(?:C[MD]|D?C{0,3})(?:X[CL]|L?X{0,3})(?:I[XV]|V?I{0,3})")
_VI_IS_A_WORD = "sv", "da", "nb", "nn", "no", "it", "es", "pt"
_CAPITALIZES_NOUNS = "de", "lb"
_NO_SHORT_WORDS = "en", "de", "nl", "lb"  # languages without one-letter words, except "a" and "I" in English


@dataclass(frozen=True)
class Case:
    """The letter case in which to write a segment's translation."""

    style: str  # UPPER, TITLE or WORDS
    source: str  # language code of the source text
    language: str  # language code of the translation
    kept: frozenset[str] = frozenset()  # words and phrases that keep their case
    capitals: frozenset[str] = frozenset()  # for WORDS: the converted forms of the words in capitals
    prefix: str = ""  # forced beginning of the translation, as the caller wrote it

    def written(self, text: str) -> str:
        """Return a translation converted to the style UPPER or TITLE. For WORDS, see `emphasized`."""
        phrases = sorted((each for each in self.kept if " " in each), key=len, reverse=True)
        if not phrases:
            return _SPACED.sub(self._changed, text)
        parts = re.split(f"({'|'.join(map(_whole, phrases[:MOST_PHRASES]))})", text)
        return "".join(part if i % 2 else _SPACED.sub(self._changed, part) for i, part in enumerate(parts))

    def _changed(self, match: re.Match[str]) -> str:
        if match[0].strip(EDGES) in self.kept:
            return match[0]
        if self.style == TITLE:
            return letter_case.title(match[0], self.language)
        return _LETTERS.sub(
            lambda word: word[0] if word[0] in self.kept else letter_case.upper(word[0], self.language), match[0]
        )

    def emphasized(self, text: str, source: Sequence[str], target: Sequence[str], positions: Sequence[int]) -> str:
        """Return a translation in which each word that is aligned with a word in `capitals` is in capitals.

        `source` and `target` are the tokens of the two sides. `positions[i]` is the index of the source token that is
        aligned with target token i. If `text` and `target` have different numbers of words, return `text` unchanged.
        """
        loud = set[int]()
        for word in _by_word(source):
            if "".join(source[i] for i in word).lstrip("\u2581").strip(EDGES) in self.capitals:
                loud.update(word)
        words, spans = text.split(" "), list(_by_word(target))
        if len(words) != len(spans):
            return text
        for index, span in enumerate(spans):
            first = next((i for i in span if any(map(str.isalpha, target[i]))), span[0])
            if first < len(positions) and positions[first] in loud:
                words[index] = letter_case.upper(words[index], self.language)
        return " ".join(words)


@dataclass(frozen=True)
class Part:
    """One or more neighboring sentences of a line that have the same style."""

    text: str  # the text to translate
    case: Case | None = None
    given: str = ""  # the text before conversion, if the model must choose between `given` and `text`; otherwise ""


@dataclass(frozen=True)
class _Token:
    """A run of text without white space."""

    start: int  # offset of `core` in the text
    core: str  # the token without surrounding quotes and punctuation
    kind: str  # "upper", "title", "lower", "caseless", or "" if the token keeps its case


def unusual(text: str) -> bool:
    """Check quickly whether a text may have more capitals than ordinary sentences."""
    words = text.split()
    if any(len(word) > 1 and word.isupper() for word in words):
        return True
    return len(words) > 1 and 5 * sum(word[0].isupper() for word in words) >= 3 * len(words)


class Caser:
    """Converts source text in capitals or title case to sentence case."""

    def __init__(self, tokenizer: Tokenizer, source: str, target: str, tags: Sequence[str] = ()) -> None:
        """`source` and `target` are language codes. `tags` are names of source tokens that do not select a language."""
        self.tokenizer = tokenizer
        self.source = base_of(source)
        self.target = target
        self.tags = tags

    def parts(
        self, text: str, sentences: Iterable[tuple[int, int]], terms: Terms | None = None, *, may_ask: bool = True
    ) -> list[Part]:
        """Return the parts of a normalized text, given the start and end of each sentence.

        The phrases of `terms` and their translations keep their case, unless a term ignores case. If a part's style is
        uncertain and `may_ask` is true, the part has both forms, so that the caller can let the model choose. If
        `may_ask` is false, such a part is converted only if it is in capitals. If nothing is converted, the whole text
        is a single part.
        """
        spans = list(sentences)
        head = FIRST_TOKENS.match(text)
        front, language = (f"{head[0].rstrip()} ", self._language(head[0])) if head else ("", self.target)
        exact = [match for match in (terms.spans(text) if terms else ()) if not match[0].any_case]
        kept = {form for term, _, _ in exact for form in term.forms}
        fixed = [(start, end) for _, start, end in exact]
        tokens = [token for token in self._tokens(text, fixed) if not head or token.start >= head.end()]
        words = [token.start for token in tokens if any(map(str.isalnum, token.core))]
        firsts = {words[index] for start, _ in spans if (index := bisect_left(words, start)) < len(words)}
        found = list[Part]()
        for style, sure, start, end in _groups(tokens, spans, self.source):
            own = _within(tokens, (start, end))
            before = front if start else ""
            part = Part(before + text[start:end])
            if sure or may_ask or style == UPPER:
                converted, changed = self._sentence_case(text[start:end], start, own, firsts, style)
                if changed:
                    names = {token.core for token in own if not token.kind and any(map(str.isalpha, token.core))}
                    loud = changed if style == WORDS else frozenset[str]()
                    case = Case(style, self.source, language, frozenset(kept | names), loud)
                    part = Part(before + converted, case, part.text if may_ask and not sure else "")
            found.append(part)
        return found if any(part.case for part in found) else [Part(text)]

    def _language(self, head: str) -> str:
        """Return the target language that the tokens before a text select."""
        code = head.split("<<", 1)[0][2:]
        return self.target if code in self.tags else code

    def prefix(self, text: str) -> str:
        """Return the forced beginning of a translation, converted to sentence case if it is in capitals."""
        target = Caser(self.tokenizer.target, self.target, self.target)
        [part, *others] = target.parts(text, [(0, len(text))], may_ask=False)
        return part.text if not others and part.case and part.case.style == UPPER else text

    def _tokens(self, text: str, fixed: Sequence[tuple[int, int]]) -> Iterator[_Token]:
        starts = [start for start, _ in fixed]
        for match in _SPACED.finditer(text):
            core = match[0].strip(EDGES)
            if core:
                start = match.start() + match[0].index(core)
                before = bisect_left(starts, start + len(core))  # number of phrases that begin before the core ends
                inside = before > 0 and fixed[before - 1][1] > start
                yield _Token(start, core, "" if inside else _kind_of(core))

    def _sentence_case(
        self, part: str, start: int, tokens: Sequence[_Token], firsts: set[int], style: str
    ) -> tuple[str, frozenset[str]]:
        """Return a part of a text in sentence case, and the words that have changed, in their new form.

        `start` is the offset of the part in the text. `firsts` holds the offsets of the first words of sentences.
        """
        pieces, last, changed = list[str](), start, set[str]()
        for token in tokens:
            new = token.core
            titled = style == TITLE and token.kind == UPPER and len(token.core) == 1
            shouted = style == WORDS and token.kind == UPPER and self._is_shouted(token.core)
            if token.kind == style or titled or shouted:
                is_first = token.start in firsts
                words = [self._usual(each, first=is_first and not i) for i, each in enumerate(_WORD.findall(new))]
                gaps = _WORD.split(new)
                new = "".join(itertools.chain(*itertools.zip_longest(gaps, words, fillvalue="")))
            if new != token.core:
                changed.add(new)
            pieces += [part[last - start : token.start - start], new]
            last = token.start + len(token.core)
        return "".join([*pieces, part[last - start :]]), frozenset(changed)

    def _usual(self, word: str, *, first: bool) -> str:
        """Return the usual form of a word that has capitals. `first` tells whether the word begins a sentence."""
        if any(map(str.isdigit, word)):
            return word.lower() if self.source == "en" and _ORDINAL.fullmatch(word) else word
        small = letter_case.lower(word, self.source)
        large = f"\u0130{small[1:]}" if word[0] == "\u0130" else letter_case.capitalized(small, self.source)
        if self.source == "en" and (small == "i" or small[:2] in ("i'", "i\u2019")):
            return large
        if len(word) == 1:
            alone = self.source in _NO_SHORT_WORDS and not (self.source == "en" and small == "a")
            return word if first or alone else small
        forms = [*([] if first else [small]), large]
        if self.source in _CAPITALIZES_NOUNS and "ss" in small:
            forms += [form.replace("ss", "\u00df") for form in forms]
        spelled = {form: self.tokenizer.encode([_stem(form)])[0] for form in [*forms, small, word]}
        return word if self._is_acronym(word, spelled) else self._best(forms, spelled)

    def _best(self, forms: Sequence[str], spelled: dict[str, list[int]]) -> str:
        """Return the form with the fewest tokens.

        In German and Luxembourgish, a tie goes to the capitalized form if the forms have several tokens, and otherwise
        to the lowercase form. In other languages, the capitalized form wins only if it is a single token and the
        lowercase form is not, because a difference between larger numbers of tokens means little.
        """
        fewest = min(len(spelled[form]) for form in forms)
        equal = [form for form in forms if len(spelled[form]) == fewest]
        if self.source in _CAPITALIZES_NOUNS:
            capitals = [form for form in equal if form[0].isupper()]
            return capitals[0] if capitals and fewest > 1 else equal[0]
        return equal[0] if fewest == 1 else forms[0]

    def _is_acronym(self, word: str, spelled: dict[str, list[int]]) -> bool:
        """Return whether a word is an acronym or a Roman numeral in capitals. `spelled` maps its forms to token ids."""
        if not word.isupper() or not word.isalpha():
            return False
        if word in ACRONYMS and (len(word) > 2 or self.source in _NO_SHORT_WORDS):
            return True
        is_word = any(len(ids) == 1 for form, ids in spelled.items() if form != word)
        if is_word and not set(word) <= set("IVX"):
            return False
        if word == "VI" and self.source in _VI_IS_A_WORD:
            return False
        no_vowel = word.isascii() and not set(word) & set("AEIOUY")
        return len(spelled[word]) == 1 or no_vowel or bool(_ROMAN.fullmatch(word))

    def _is_shouted(self, core: str) -> bool:
        """Return whether the tokenizer needs many tokens for a word in capitals, but few for its usual form."""
        word = max(map(_stem, _WORD.findall(core)), key=len)
        if len(word) < SHORTEST_STEM or word in ACRONYMS or any(map(str.isdigit, core)):
            return False
        usual = self._usual(word, first=False)
        given, known = map(len, self.tokenizer.encode([word, usual]))
        return usual != word and 2 * given > len(word) and (known == 1 or 5 * known <= 2 * len(word))


def _kind_of(core: str) -> str:
    """Return the `kind` of the _Token with this core."""
    if not any(map(str.isalpha, core)) or _FIXED.search(core):
        return ""
    if not core.isascii() and any(c.isalpha() and not (c.isupper() or c.islower() or c.istitle()) for c in core):
        return "caseless"
    words = [word[0] for word in _WORD.finditer(core)]
    if core.isupper():
        return UPPER
    endings = [word.removeprefix("IJ" if word[:2] == "IJ" else word[0]) for word in words]
    if any(ending != ending.lower() for ending in endings):
        return ""  # iPhone, McDonald's
    return "title" if words[0][0].isupper() else "lower"


def _groups(
    tokens: Sequence[_Token], sentences: Sequence[tuple[int, int]], source: str
) -> Iterator[tuple[str, bool, int, int]]:
    """Group neighboring sentences of the same style. A line in title case is a single group.

    For each group, yield its style, whether the style is certain, and the group's start and end in the text.
    """
    if (title := _title_of(tokens, source)) and sentences:
        yield TITLE, title == "sure", sentences[0][0], sentences[-1][1]
        return
    all_upper = {token.kind for token in tokens} <= {"", UPPER}
    styled = [(_style_of(_within(tokens, span), all_upper), *span) for span in sentences]
    for style, group in itertools.groupby(styled, lambda each: each[0]):
        spans = list(group)
        start, end = spans[0][1], spans[-1][2]
        words = sum(token.kind == UPPER for token in _within(tokens, (start, end)))
        yield style, style == WORDS or words >= SURE_UPPER, start, end


def _style_of(tokens: Sequence[_Token], all_upper: bool) -> str:
    """Return UPPER or WORDS for a sentence. A short sentence is UPPER only if the whole text is in capitals."""
    kinds = [token.kind for token in tokens if token.kind]
    long = any(len(token.core) > 1 for token in tokens if token.kind)
    enough = len(kinds) >= (1 if all_upper else SURE_UPPER)
    return UPPER if long and enough and set(kinds) == {UPPER} else WORDS


def _title_of(tokens: Sequence[_Token], source: str) -> str:
    """Return "sure" or "unsure" for a line in title case, and "" for any other line.

    Short words may be lowercase, as in "The Lord of the Rings". In languages that capitalize nouns, they may not,
    because an ordinary sentence in such a language could look the same.
    """
    kinds = [token.kind for token in tokens if token.kind]
    titled = kinds.count("title")
    if titled < FEWEST_TITLED or "caseless" in kinds:
        return ""
    if "lower" not in kinds:
        return "sure" if len(kinds) >= SURE_TITLE else "unsure"
    small = [token.core for token in tokens if token.kind == "lower"]
    framed = "lower" not in (kinds[0], kinds[-1]) and len(small) < titled
    return "unsure" if framed and source not in _CAPITALIZES_NOUNS and max(map(len, small)) <= SHORT_WORD else ""


def _within(tokens: Sequence[_Token], span: tuple[int, int]) -> Sequence[_Token]:
    first, last = (bisect_left(tokens, offset, key=lambda token: token.start) for offset in span)
    return tokens[first:last]


def _stem(word: str) -> str:
    """Return a word without its ending after an apostrophe: "Anna" for "Anna's", "İstanbul" for "İstanbul'da".

    If fewer than SHORTEST_STEM letters would be left, return the whole word.
    """
    stem = re.split("['\u2019]", word, maxsplit=1)[0]
    return stem if len(stem) >= SHORTEST_STEM else word


def _by_word(tokens: Sequence[str]) -> Iterator[list[int]]:
    """Yield, for each word, the indices of its tokens."""
    word = list[int]()
    for index, token in enumerate(tokens):
        if token.startswith("\u2581") and word:
            yield word
            word = []
        word.append(index)
    if word:
        yield word


def _whole(phrase: str) -> str:
    """Return a regular expression that matches a phrase, but not inside longer words."""
    before = r"(?<!\w)" if phrase[0].isalnum() else ""
    after = r"(?!\w)" if phrase[-1].isalnum() else ""
    return before + re.escape(phrase) + after
