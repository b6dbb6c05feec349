"""Translate the units of a request along a route.

If the route leads through another language, each sentence is translated by all models in turn. The alignment links of
all steps are composed into links from the last translation to the source. Glossary terms are looked up in the source
sentence, and only the last model has to use them.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nmt_cli.corpus import letter_case
from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import WIDE, normalize, visible
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving.model_routes import LanguageRoute, ServedModel
from nmt_cli.serving.pool import ModelPool
from nmt_cli.serving.work import SHORT_TEXT
from nmt_cli.translation.case import unusual
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.segmenter import sentences_of

_WIDE = re.compile(f"[{WIDE}]")

Ranks = list[Aligned]  # the translations of a unit or sentence, best first


async def translate(pool: ModelPool, route: LanguageRoute, units: Sequence[str], options: SearchOptions) -> list[Ranks]:
    """Return the translations of each unit, best first. They have links only if `options.alignments` is true."""
    if len(route.steps) == 1:
        return await _step(pool, route.steps[0], units, options)
    short = sum(map(len, units)) <= SHORT_TEXT
    units = [unit.replace("\n", " ") for unit in units]  # `sentences_of` would end a sentence at a line feed
    spans = await pool.workers.map_in_thread(sentences_of, units, short=short)
    sentences = [unit[start:end] for unit, own in zip(units, spans, strict=True) for start, end in own]
    texts = sentences
    best = list[Aligned]()  # the previous model's best translation of each sentence
    results = list[Ranks]()
    for step in route.steps:
        last = step is route.steps[-1]
        step_options = options if last else replace(options, n_best=1, terms=None)
        if last and options.terms:
            terms = await pool.workers.in_thread(_terms_of, options.terms, sentences, texts, step)
            step_options = replace(options, terms=terms)
        # Leave the spelling as it is: a translation has no typos, and a correction could change a glossary phrase.
        if best or options.terms:
            step_options = replace(step_options, spelling="off")
        results = await _step(pool, step, texts, step_options)
        if best and options.alignments:
            results = await pool.workers.map_in_thread(_compose, best, results, short=short)
        best = [ranks[0] for ranks in results]
        texts = [each.text for each in best]
    remaining = iter(results)
    by_unit = [[next(remaining) for _ in own] for own in spans]
    return await pool.workers.map_in_thread(_join, spans, by_unit, short=short)


async def _step(pool: ModelPool, model: ServedModel, units: Sequence[str], options: SearchOptions) -> list[Ranks]:
    """Translate units with one model, which is loaded if necessary."""

    def aligned(unit: str, translation: Translation) -> Ranks:
        return [model.aligned(unit, translation, rank) for rank in range(options.n_best)]

    async with model.held():
        translations = await pool.translate(model, units, options)
        if not options.alignments:
            return [[Aligned(each.text, []) for each in one.hypotheses] for one in translations]
        short = sum(map(len, units)) <= SHORT_TEXT
        return await pool.workers.map_in_thread(aligned, units, translations, short=short)


class SentenceTerms(Terms):
    """Glossary terms for the last model. Given an input of this model, `find` returns the terms of the source sentence.

    The lookup ignores case, because the last model may convert text in capitals to sentence case.
    """

    def __init__(self, by_text: Mapping[str, list[Term]], language: str) -> None:
        """`by_text` maps lowercase inputs to terms. `language` is the language of the inputs."""
        super().__init__(())
        self._by_text = by_text
        self._language = language

    def find(self, text: str) -> list[Term]:
        return self._by_text.get(letter_case.lower(text, self._language), [])


def _terms_of(terms: Terms, sentences: Sequence[str], texts: Sequence[str], model: ServedModel) -> SentenceTerms:
    """Find the terms in each source sentence, for the corresponding translation in `texts`, an input of `model`."""
    by_text = dict[str, list[Term]]()
    any_case = Terms([replace(term, any_case=True) for term in terms.terms])
    originals = dict(zip(any_case.terms, terms.terms, strict=True))
    for sentence, text in zip(sentences, texts, strict=True):
        key = letter_case.lower(normalize(visible(model.prefix + text)), model.source)
        own = by_text.setdefault(key, [])
        source = normalize(visible(sentence))
        found = terms.find(source)
        if unusual(source):  # the first model converts capitals, so find phrases in any case
            found = [originals[term] for term in any_case.find(source)]
        own += [term for term in found if term not in own]
    return SentenceTerms(by_text, model.source)


def _compose(first: Aligned, ranks: Ranks) -> Ranks:
    """Return `ranks`, the translations of `first.text`, with their links redirected to the source of `first`."""
    ends = [end for end, _ in first.links]

    def origin(offset: int) -> int:
        """Return the source offset that the token at this offset of `first.text` links to."""
        return first.links[min(bisect_right(ends, offset), len(ends) - 1)][1] if ends else 0

    return [Aligned(each.text, [(end, origin(offset)) for end, offset in each.links]) for each in ranks]


def _join(spans: Sequence[tuple[int, int]], sentences: Sequence[Ranks]) -> Ranks:
    """Join the translations of a unit's sentences. `spans` locates the sentences in the unit.

    A space separates two sentences unless the characters on both sides are Chinese or Japanese.
    """
    joined = Ranks()
    for rank in range(max(map(len, sentences), default=1)):
        text = ""
        links = list[tuple[int, int]]()
        for (start, _), ranks in zip(spans, sentences, strict=True):
            one = ranks[min(rank, len(ranks) - 1)]
            if not one.text.strip():
                continue
            if text and not (_WIDE.match(text[-1]) and _WIDE.match(one.text[0])):
                text += " "
            links += [(len(text) + end, start + origin) for end, origin in one.links]
            text += one.text
        joined.append(Aligned(text, links))
    return joined
