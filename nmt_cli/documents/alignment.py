"""Translate text, and link the translation's tokens to the source. No other module of `documents` runs the model."""

import itertools
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.documents.placement import Aligned
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.translator import Translator

_MOST_PAIRS = 100_000  # maximum pairs of equal characters or words to compare, to limit the time


def translate_aligned(
    translator: Translator, chunks: Iterable[Sequence[str]], options: SearchOptions
) -> Iterator[Aligned]:
    """Yield the translation of each text in `chunks`, in order. The iterator `chunks` runs in another thread."""
    untranslated = deque[str]()

    def recorded() -> Iterator[Sequence[str]]:
        for chunk in chunks:
            untranslated.extend(chunk)
            yield chunk

    for translations in translator.translate_chunks(recorded(), replace(options, alignments=True)):
        for translation in translations:
            yield align(translator, translation, untranslated.popleft())


def align(translator: Translator, translation: Translation, text: str, rank: int = 0) -> Aligned:
    """Return the hypothesis with this rank (from 0), or the last one if there are fewer, with links to the source."""
    rank = min(rank, len(translation.hypotheses) - 1)
    if translation.copy:
        copied = translation.copy.text
        begin = max(text.rfind(copied), 0)
        # A text without letters is copied, so link each visible character to itself.
        ends = [match.end() for match in re.finditer(r"(?<!\s)\s*+\S", copied)]
        return Aligned(copied, [(end, min(begin + end, len(text)) - 1) for end in ends])
    return Aligned(translation.hypotheses[rank].text, _links(translator, translation, text, rank))


def _links(translator: Translator, translation: Translation, text: str, rank: int) -> list[tuple[int, int]]:
    """For each target token, return its end, and the start in `text` of the source token that it attends to most."""
    source, target, pairs = "", "", list[tuple[int, int]]()
    for ids, hypothesis in translation.parts(rank):
        source_text, source_offsets = _decoded(translator.tokenizer, ids[:-1])
        target_text, target_offsets = _decoded(translator.tokenizer.target, hypothesis.ids)
        ends = [len(target) + offset for offset in target_offsets[1:]]
        starts = [len(source) + offset for offset in source_offsets]
        pairs += [(end, starts[origin]) for end, origin in zip(ends, hypothesis.source_positions, strict=False)]
        source += f"{source_text} "
        target += f"{target_text} "
    result = translation.hypotheses[rank].text
    folded = _folded if translation.case else str
    in_source = _by_words(source, text) if translation.corrections else None
    in_source = in_source or offsets_in(folded(source), folded(text))
    in_target = offsets_in(folded(target), folded(result))
    return [(in_target[end], _word_start(text, in_source[start])) for end, start in pairs]


def _folded(text: str) -> str:
    """Convert text to lowercase without changing offsets: keep characters whose lowercase form has another length."""
    return "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, list[int]]:
    """Return the text of tokens and the offset of each token in it. The last offset is the length of the text."""
    [text] = tokenizer.decode([ids])
    spelled = ["", *(token.replace("\u2581", " ") for token in tokenizer.tokens(ids))]
    if "".join(spelled) == f" {text}":
        return text, [max(length - 1, 0) for length in itertools.accumulate(map(len, spelled))]
    # The text of a byte token or unknown token differs from the token, so decode each prefix of the tokens.
    offsets = [len(decoded) for decoded in tokenizer.decode([ids[:count] for count in range(len(ids) + 1)])]
    # A prefix that ends inside a character may decode to a longer text than the next prefix. Offsets must not decrease.
    for index in range(len(ids) - 1, -1, -1):
        offsets[index] = min(offsets[index], offsets[index + 1])
    return text, offsets


def _by_words(decoded: str, text: str) -> list[int] | None:
    """Map offsets as `offsets_in` does, but word by word. `decoded` is `text` with its typos corrected.

    Return None if the two texts do not have the same number of words.
    """
    pairs = [list(re.finditer(r"\S+", each)) for each in (decoded, text)]
    if len(pairs[0]) != len(pairs[1]):
        return None
    offsets = list[int]()
    for corrected, word in zip(*pairs, strict=True):
        offsets += [word.start()] * (corrected.start() - len(offsets))
        offsets += [min(word.start() + index, word.end() - 1) for index in range(len(corrected[0]))]
    return offsets + [len(text)] * (len(decoded) + 1 - len(offsets))


def offsets_in(decoded: str, text: str) -> list[int]:
    """Return the offset in `text` for each offset in `decoded`, which the tokenizer decoded from the text's tokens."""
    if decoded == f"{text} ":
        return list(range(len(decoded) + 1))
    offsets, last = list[int](), 0
    for start, offset, size in _matching_blocks(decoded, text):
        offsets += [last] * (start - len(offsets))
        offsets += range(offset, offset + size)
        last = offset + size
    return offsets + [last] * (len(decoded) + 1 - len(offsets))


def _matching_blocks(decoded: str, text: str) -> list[tuple[int, int, int]]:
    """Return the common substrings of two texts, in order, each as its offsets in both texts and its length.

    Compare characters. If that would take too long, compare words. If that would also take too long,
    return only the common prefix.
    """
    for pattern in (r"(?s:.)", r"\s+|\S+"):
        one, other = re.findall(pattern, decoded), re.findall(pattern, text)
        counts = Counter(other)
        if sum(number * counts[each] for each, number in Counter(one).items()) > _MOST_PAIRS:
            continue
        starts, offsets = ([0, *itertools.accumulate(map(len, each))] for each in (one, other))
        blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        return [(starts[a], offsets[b], starts[a + size] - starts[a]) for a, b, size in blocks]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(decoded, text, strict=False))
    return [(0, 0, sum(1 for _ in same))]


def _word_start(text: str, offset: int) -> int:
    while offset < len(text) - 1 and text[offset].isspace():
        offset += 1
    return min(offset, max(len(text) - 1, 0))
