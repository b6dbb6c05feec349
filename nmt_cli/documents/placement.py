"""Place the marks of a segment (tags, placeholders and so on) in its translation, guided by the token alignment.

No mark is lost, except emphasis in Markdown if no word is left for it. Each opening tag has its closing tag, and each
standalone mark appears once. If the translated words of an element are not adjacent, its tags are repeated
("<b>ruft</b> ihn <b>an</b>"). If the tags must not be repeated, the element covers the run of words that fits best.
"""

import bisect
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from nmt_cli.documents.layout import MarkInGap, lay_out
from nmt_cli.documents.segment import Element, Mark, MarkedSegment, Parts

# `_costs` uses these numbers to place a standalone mark in a gap between words.
_NEARER = 8  # each word weighs this many times as much as the next word farther from the mark
_FARTHEST = 8  # only this many words on each side of the mark have a weight
_AFTER = 1.1  # weight of a word after the mark, relative to a word equally far before it
# A unit is a word, a part of a word, or punctuation in the translation. If a mark is on the same side of a word as in
# the source, each unit between the word and the mark costs _PAST. Otherwise, the mark would have to cross n units to
# reach that side, and the cost is sqrt(n).
_PAST = 0.3
# If the mark touches only one of its two neighbors, _costs divides the weights of words on the other side by _ATTACHED.
_ATTACHED = 20
_WORD = re.compile(r"\w+|[^\w\s]")
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Chinese, Japanese. There, each token is a unit.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u9fff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Aligned:
    """A translation with a link for each of its tokens.

    A link has two offsets: where the token ends in `text`, and where its source token begins in the source. The source
    token is never white space.
    """

    text: str
    links: list[tuple[int, int]]


@dataclass(frozen=True)
class _Unit:
    """A word, a part of a word, or punctuation in the translation, from offset `start` to `end`."""

    start: int
    end: int
    origin: int  # where the aligned token begins in the source
    is_word: bool = True


_Run: TypeAlias = tuple[int, int]  # the index of the first unit, and the index after the last unit


def place_marks(segment: MarkedSegment, aligned: Aligned) -> Parts:
    """Return the translation, escaped for the document, with all marks. If it is blank, return the source instead.

    If the segment consists of smaller segments, divide the translation among them and return their parts.
    """
    if segment.forbidden:
        aligned = replace(aligned, text=_without_forbidden(segment.forbidden, segment.text, aligned.text))
    if not aligned.text.strip():
        return segment.result
    if segment.divide:
        segment.divide(aligned)
        return segment.result
    units = _units(segment, aligned)
    runs = _runs(segment, units)
    standalone = _with_empty_elements(segment, runs)
    gaps = _gaps(segment, standalone, runs, units)
    paths: list[list[int]] = [[] for _ in units]  # the elements around each unit
    for number, own in enumerate(runs):
        for run in own:
            for index in range(*run):
                paths[index].append(number)
    marks: dict[int, list[MarkInGap]] = {}
    for mark, gap in zip(standalone, gaps, strict=True):
        path = [number for number in _around(segment.elements, mark.parent) if _touches(runs[number], gap)]
        marks.setdefault(gap, []).append(MarkInGap(mark, path))
    written = lay_out(segment, aligned.text, [(unit.start, unit.end) for unit in units], paths, marks)
    before, after = segment.outer_space
    return [before, *written, after]


def _without_forbidden(forbidden: re.Pattern[str], source: str, text: str) -> str:
    """Replace a match of `forbidden` by spaces if the text has it more often than the source. Offsets do not change."""
    allowed = Counter(match[0] for match in forbidden.finditer(source))

    def written(match: re.Match[str]) -> str:
        allowed[match[0]] -= 1
        return match[0] if allowed[match[0]] >= 0 else " " * len(match[0])

    return forbidden.sub(written, text)


def _units(segment: MarkedSegment, aligned: Aligned) -> list[_Unit]:
    """Return the units of the translation. The origin of a word is the origin of its first token."""
    units: list[_Unit] = []
    start = 0
    edges = {mark.offset for element in segment.elements for mark in (element.open, element.close)}
    for end, origin in aligned.links:
        token = aligned.text[start:end]
        begin, start = start + len(token) - len(token.lstrip()), end
        if not token.strip():
            continue
        unit = _Unit(begin, begin + len(token.strip()), origin)
        # A token that copies the source text after a tag begins a unit. The tag can then split a copied word.
        copied = origin in edges and segment.text.startswith(token.strip(), origin)
        if units and units[-1].end == begin and _continues_word(aligned.text, begin) and not copied:
            units[-1] = replace(units[-1], end=unit.end)
        else:
            units.append(unit)
    if not segment.elements and not segment.standalone:
        return units
    units = [_with_own_punctuation(segment.text, aligned.text, unit) for unit in units]
    offsets = [mark.offset for element in segment.elements for mark in (element.open, element.close)]
    offsets += [mark.offset for mark in segment.standalone]
    return [part for unit in units for part in _split(segment.text, aligned.text, unit, offsets)]


def _with_own_punctuation(source: str, text: str, unit: _Unit) -> _Unit:
    """If a unit is punctuation, link it to the nearest equal punctuation in the source.

    The model's alignment of punctuation is unreliable.
    """
    token = text[unit.start : unit.end]
    if any(character.isalnum() for character in token):
        return unit
    around = source.rfind(token, 0, unit.origin + len(token)), source.find(token, unit.origin)
    found = [offset for offset in around if offset >= 0]
    nearest = min(found, key=lambda offset: abs(offset - unit.origin), default=unit.origin)
    return replace(unit, origin=nearest, is_word=False)


def _continues_word(text: str, offset: int) -> bool:
    sides = text[offset - 1 : offset + 1]
    return all(side.isalnum() for side in sides) and not UNSPACED.search(sides)


def _split(source: str, text: str, unit: _Unit, mark_offsets: list[int]) -> list[_Unit]:
    """If a unit copies a source word, split it at the marks inside the word."""
    word = text[unit.start : unit.end]
    start = max(unit.origin - len(word) + 1, 0)
    start = source.find(word, start, unit.origin + len(word))
    if start < 0:
        return [unit]
    cuts = sorted({start, *(offset for offset in mark_offsets if start < offset < start + len(word))})
    ends = [*cuts[1:], start + len(word)]
    shift = unit.start - start
    return [replace(unit, start=a + shift, end=b + shift, origin=a) for a, b in zip(cuts, ends, strict=True)]


def _runs(segment: MarkedSegment, units: list[_Unit]) -> list[list[_Run]]:
    """Return the runs of units inside each element.

    A word is free if the element's parent contains it, but no sibling does. If an element contains text but no unit is
    linked to that text, the element gets the nearest free word. Without a free word, the element gets no run.
    """
    elements = segment.elements
    # free[parent][index] tells whether the unit is in the parent, but in none of the parent's children. The parent None
    # is the whole segment.
    free: dict[int | None, list[bool]] = {None: [True] * len(units)}
    runs: list[list[_Run]] = []

    def take(number: int) -> None:
        free[number] = [False] * len(units)
        for run in runs[number]:
            free[number][slice(*run)] = [True] * (run[1] - run[0])
            free[elements[number].parent][slice(*run)] = [False] * (run[1] - run[0])

    for number, element in enumerate(elements):
        start, end = element.open.offset, element.close.offset
        inside = [start <= unit.origin < end for unit in units]
        text = segment.text[start:end].strip()
        if not element.open.may_be_empty and text[:1].isalnum() and text[-1:].isalnum():
            # Leave out punctuation, because emphasis in Markdown may have no effect next to it.
            inside = [own and unit.is_word for own, unit in zip(inside, units, strict=True)]
        choose = _best_run if element.open.once else _all_runs
        runs.append(choose(inside, free[element.parent], units))
        take(number)
    for number, element in enumerate(elements):
        start, end = element.open.offset, element.close.offset
        candidates = [index for index, is_free in enumerate(free[element.parent]) if is_free and units[index].is_word]
        if not runs[number] and candidates and start < end:
            first, last = _surrounding_words(segment.text, start, end)
            candidates = [index for index in candidates if first <= units[index].origin < last] or candidates
            middle = (start + end) / 2
            nearest = min(candidates, key=lambda index: abs(units[index].origin - middle))
            runs[number] = [(nearest, nearest + 1)]
            take(number)
    return runs


def _surrounding_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Widen a span to whole words."""
    first, last = start, end
    if text[first : first + 1].isalnum():
        while first and text[first - 1].isalnum():
            first -= 1
    if text[last - 1 : last].isalnum():
        while text[last : last + 1].isalnum():
            last += 1
    return first, last


def _all_runs(inside: list[bool], free: list[bool], units: list[_Unit]) -> list[_Run]:
    """Return the runs of units that are free and `inside`. A run includes free punctuation between two such units.

    If any run has a word, leave out the runs without one.
    """
    runs = list[_Run]()
    for index in (index for index, own in enumerate(inside) if own and free[index]):
        between = range(runs[-1][1], index) if runs else range(0)
        if runs and all(free[each] and not units[each].is_word for each in between):
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    with_words = [run for run in runs if any(unit.is_word for unit in units[slice(*run)])]
    return with_words or runs


def _best_run(inside: list[bool], free: list[bool], _units: list[_Unit]) -> list[_Run]:
    """Find the run of free units in which the units inside the element outnumber the others by the most.

    Of equally good runs, prefer the longest. Return a list with this run, or [] if no free unit is inside the element.
    """
    best, run, surplus, start = (0, 0), list[_Run](), 0, 0
    for index, (own, is_free) in enumerate(zip(inside, free, strict=True)):
        if surplus < 0 or not is_free:
            surplus, start = 0, index + (not is_free)
        if not is_free:
            continue
        surplus += 1 if own else -1
        if surplus > 0 and (surplus, index + 1 - start) > best:
            best, run = (surplus, index + 1 - start), [(start, index + 1)]
    return run


def _with_empty_elements(segment: MarkedSegment, runs: list[list[_Run]]) -> list[Mark]:
    """Return the standalone marks in order. An element without units becomes one mark with all the marks inside it."""
    inside: dict[int | None, list[Mark]] = {}
    for mark in segment.standalone:
        inside.setdefault(mark.parent, []).append(mark)
    for number in reversed(range(len(runs))):
        element, within = segment.elements[number], inside.get(number, [])
        if runs[number]:
            continue
        parts, marks = Parts(), [element.open, *sorted(within, key=lambda mark: mark.index), element.close]
        for left, right in pairwise(marks):
            parts += left.parts
            if " " in (left.after, right.before):
                parts.append(" ")
        parts += element.close.parts
        # In Markdown, emphasis may surround code, but may have no effect beside letters. So leave out its tags if they
        # are beside letters or contain nothing.
        beside_letters = element.open.before.isalnum() or element.close.after.isalnum()
        if not element.open.may_be_empty and (beside_letters or not within):
            parts = parts[len(element.open.parts) : -len(element.close.parts)]
        whole = replace(element.open, parts=parts, kind="standalone", ordered=any(mark.ordered for mark in within))
        whole.joins = " " not in parts and all(mark.joins for mark in within)
        whole.after = element.close.after
        whole.parent = element.parent
        inside.setdefault(element.parent, []).append(whole)
    kept = [mark for number, marks in inside.items() if number is None or runs[number] for mark in marks]
    return sorted(kept, key=lambda mark: mark.index)


def _gaps(segment: MarkedSegment, standalone: list[Mark], runs: list[list[_Run]], units: list[_Unit]) -> list[int]:
    """Return the number of units before each mark.

    A mark stays outside the elements that it is outside of in the source. If possible, it also stays inside its own.
    """
    gaps, least = list[int](), 0
    word_starts = [word.start() for word in _WORD.finditer(segment.text)]
    for mark in standalone:
        around = _around(segment.elements, mark.parent)
        others = [run for number, own in enumerate(runs) if number not in around for run in own]
        closed = {gap for first, last in others for gap in range(first + 1, last)}
        allowed = [gap for gap in range(len(units) + 1) if gap not in closed and not (mark.ordered and gap < least)]
        within = [gap for gap in allowed if all(_touches(runs[number], gap) for number in around)]
        costs = _costs(word_starts, mark, units)
        gaps.append(min(within or allowed, key=costs.__getitem__))
        if mark.ordered:
            least = gaps[-1]
    return gaps


def _touches(runs: list[_Run], gap: int) -> bool:
    return any(first <= gap <= last for first, last in runs)


def _around(elements: list[Element], number: int | None) -> list[int]:
    """Return the indices of an element and all elements around it, outermost first."""
    chain = []
    while number is not None:
        chain.append(number)
        number = elements[number].parent
    return chain[::-1]


def _costs(word_starts: list[int], mark: Mark, units: list[_Unit]) -> list[float]:
    """Return the cost of placing a mark in each gap between units.

    The cost is high if the mark would be far from the translations of the words next to it in the source.
    `word_starts` lists the offsets of the words in the source. If several units translate the same word, they share its
    weight. The weights were chosen in a test on generated translations. The test removed words and placed them again as
    if they were marks. 76% of the words returned to their gaps. If _PAST is 0, 68% return.
    """
    right = bisect.bisect_left(word_starts, mark.offset)
    attached = mark.before.isalnum() - mark.after.isalnum()  # 1: only to the word before, -1: only to the word after
    # Each key describes a source word: whether it is before the mark, and how many words are between it and the mark.
    # The values are the indices of the units that translate the word.
    by_word: dict[tuple[bool, int], list[int]] = {}
    for index, unit in enumerate(units):
        before, number = unit.origin < mark.offset, bisect.bisect(word_starts, unit.origin) - 1
        distance = max(right - 1 - number if before else number - right, 0)
        if distance < _FARTHEST:
            by_word.setdefault((before, distance), []).append(index)
    costs = [0.0] * (len(units) + 1)
    for (before, distance), indices in by_word.items():
        weight = (1 if before else _AFTER) / _NEARER**distance
        if attached == (-1 if before else 1):
            weight /= _ATTACHED
        if len(indices) == 1:  # the common case, in which this code is five times as fast as the general code below
            [index] = indices
            for gap in range(len(costs)):
                past_it = gap - index - 1 if before else index - gap
                costs[gap] += weight * (math.sqrt(-past_it) if past_it < 0 else _PAST * past_it)
            continue
        for gap in range(len(costs)):
            past = [gap - index - 1 if before else index - gap for index in indices]  # negative on the wrong side
            wrong = sum(math.sqrt(-each) for each in past if each < 0) / len(indices)
            costs[gap] += weight * (wrong + _PAST * min((each for each in past if each >= 0), default=0))
    return costs
