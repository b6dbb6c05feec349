"""The only place that knows the model: texts in, translations with the origins of their tokens out."""

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

_MOST_PAIRS = 100_000  # of equal characters, or words, of two spellings that are compared: it takes time for each


def translate_aligned(
    translator: Translator, chunks: Iterable[Sequence[str]], options: SearchOptions
) -> Iterator[Aligned]:
    """Yield the translation of every text in `chunks`, in order; a thread of its own reads the chunks."""
    sent = deque[str]()

    def noted() -> Iterator[Sequence[str]]:
        for chunk in chunks:
            sent.extend(chunk)
            yield chunk

    for translation in translator.translate_chunks(noted(), replace(options, alignments=True)):
        yield aligned(translator, translation, sent.popleft())


def aligned(translator: Translator, translation: Translation, text: str, rank: int = 0) -> Aligned:
    """Return the translation of this rank, or the last, with links to the text."""
    rank = min(rank, len(translation.hypotheses) - 1)
    if translation.copy:
        copied = translation.copy.text
        begin = max(text.rfind(copied), 0)
        ends = [match.end() for match in re.finditer(r"(?<!\s)\s*+\S", copied)]
        return Aligned(copied, [(end, min(begin + end, len(text)) - 1) for end in ends])
    return Aligned(translation.hypotheses[rank].text, _links(translator, translation, text, rank))


def _links(translator: Translator, translation: Translation, text: str, rank: int) -> list[tuple[int, int]]:
    """Return for each target token where it ends in the translation, and where in `text` the source token begins that
    it looks at."""
    source, target, pairs = "", "", list[tuple[int, int]]()
    for ids, hypothesis in translation.parts(rank):
        src_text, src_places = _decoded(translator.tokenizer, ids[:-1])
        tgt_text, tgt_places = _decoded(translator.tokenizer.target, hypothesis.ids)
        ends = [len(target) + each for each in tgt_places[1:]]
        starts = [len(source) + each for each in src_places]
        pairs += [(end, starts[origin]) for end, origin in zip(ends, hypothesis.source_positions, strict=False)]
        source += f"{src_text} "
        target += f"{tgt_text} "
    places = _places(source, text), _places(target, translation.hypotheses[rank].text)
    return [(places[1][end], _word_start(text, places[0][start])) for end, start in pairs]


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, list[int]]:
    """Return the text of some tokens, and where in it each of them begins, and the end."""
    texts = tokenizer.decode([ids[:count] for count in range(len(ids) + 1)])
    places = list(map(len, texts))
    for place in range(len(ids) - 1, -1, -1):  # some bytes of a character decode to more signs than all of them
        places[place] = min(places[place], places[place + 1])
    return texts[-1], places


def _places(own: str, text: str) -> list[int]:
    """Return for each place in a model's own spelling of a text the place in that text."""
    if own == f"{text} ":
        return list(range(len(own) + 1))
    places, last = list[int](), 0
    for start, place, size in _common(own, text):
        places += [last] * (start - len(places))
        places += range(place, place + size)
        last = place + size
    return places + [last] * (len(own) + 1 - len(places))


def _common(own: str, text: str) -> list[tuple[int, int, int]]:
    """Return the places in both and the length of what two spellings have in common, in order: by characters, by words
    where that would take long, and where that would, too, only how they begin."""
    for pattern in (r"(?s:.)", r"\s+|\S+"):
        one, other = re.findall(pattern, own), re.findall(pattern, text)
        counts = Counter(other)
        if sum(number * counts[each] for each, number in Counter(one).items()) > _MOST_PAIRS:
            continue
        starts, places = ([0, *itertools.accumulate(map(len, each))] for each in (one, other))
        blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        return [(starts[a], places[b], starts[a + size] - starts[a]) for a, b, size in blocks]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, text, strict=False))
    return [(0, 0, sum(1 for _ in same))]


def _word_start(text: str, place: int) -> int:
    while place < len(text) - 1 and text[place].isspace():
        place += 1
    return min(place, max(len(text) - 1, 0))
