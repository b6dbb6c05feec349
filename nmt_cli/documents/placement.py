"""Marks on a translation: where the alignment says, all of them, elements balanced and nested as in the source.

Points stand once. The tags of an element are repeated where its words stand apart in the translation ("<b>ruft</b> ihn
<b>an</b>"), unless they must not be: then it has the stretch with fewest wrong words.
"""

import bisect
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from operator import itemgetter

from nmt_cli.documents.segment import Element, Mark, Part, Parts, Segment

# For the place of a point: a neighbour's word counts so many times as much as the next one's, up to so many words away;
# a word after it a little more than one before; a unit between counts so much where the point is on the right side of
# the word, on the wrong side the root of their number; a word that it is not written together with so many times less.
_NEAR, _FAR, _AFTER, _APART, _HELD = 8, 8, 1.1, 0.3, 20
_WORD = re.compile(r"\w+|[^\w\s]")
# Written without spaces between words: Thai, Lao, Burmese, Khmer, Chinese, Japanese. There every token is a unit.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u9fff\U00020000-\U0003ffff]")
_OPENING = "([{\u00a1\u00bf\u201e\u201c\u2018\u00ab"


@dataclass(frozen=True)
class Aligned:
    """A translation, and for each of its tokens where it ends there and at which character of the source, no white
    space, the token begins that it translates."""

    text: str
    links: list[tuple[int, int]]


@dataclass(frozen=True)
class _Unit:
    """A word of the translation, or a mark of punctuation; `origin` is a place in the source."""

    start: int
    end: int
    origin: int
    word: bool = True


Run = tuple[int, int]  # the first unit and the one after the last


def place(segment: Segment, aligned: Aligned) -> Parts:
    """Return the translation as the document spells it, with all marks of the source; that itself if there is none."""
    if segment.forbidden:
        aligned = replace(aligned, text=_allowed(segment.forbidden, segment.text, aligned.text))
    if not aligned.text.strip():
        return segment.result
    units = _units(segment, aligned)
    runs = _runs(segment, units)
    points = _with_empty_elements(segment, runs)
    gaps = _gaps(segment, points, runs, units)
    written = _written(segment, aligned.text, units, runs, points, gaps)
    return [segment.ends[0], *written, segment.ends[1]]


def _allowed(forbidden: re.Pattern[str], source: str, text: str) -> str:
    """Return a text with blanks in place of forbidden additions to its source, so that all offsets stay."""
    own = Counter(match[0] for match in forbidden.finditer(source))

    def written(match: re.Match[str]) -> str:
        own[match[0]] -= 1
        return match[0] if own[match[0]] >= 0 else " " * len(match[0])

    return forbidden.sub(written, text)


def _units(segment: Segment, aligned: Aligned) -> list[_Unit]:
    """Return the translation's words: all tokens of one follow its first."""
    units: list[_Unit] = []
    start = 0
    edges = {mark.at for element in segment.elements for mark in (element.open, element.close)}
    for end, origin in aligned.links:
        token = aligned.text[start:end]
        begin, start = start + len(token) - len(token.lstrip()), end
        if not token.strip():
            continue
        unit = _Unit(begin, begin + len(token.strip()), origin)
        copied = origin in edges and segment.text.startswith(token.strip(), origin)  # the part of a word with a mark
        if units and units[-1].end == begin and _continues(aligned.text, begin) and not copied:
            units[-1] = replace(units[-1], end=unit.end)
        else:
            units.append(unit)
    if not segment.elements and not segment.points:
        return units
    units = [_punctuation(segment.text, aligned.text, unit) for unit in units]
    return [part for unit in units for part in _split(segment, aligned.text, unit)]


def _punctuation(source: str, text: str, unit: _Unit) -> _Unit:
    """Return a unit; one of punctuation comes from the nearest such mark of the source, if there is one: attention is
    of no use for them."""
    mark = text[unit.start : unit.end]
    if any(character.isalnum() for character in mark):
        return unit
    places = [match.start() for match in re.finditer(re.escape(mark), source)]
    nearest = min(places, key=lambda place: abs(place - unit.origin), default=unit.origin)
    return replace(unit, origin=nearest, word=False)


def _continues(text: str, place: int) -> bool:
    sides = text[place - 1 : place + 1]
    return all(side.isalnum() for side in sides) and not _UNSPACED.search(sides)


def _split(segment: Segment, text: str, unit: _Unit) -> list[_Unit]:
    """Return a unit in parts where marks stand inside of the word that it copies."""
    word = text[unit.start : unit.end]
    start = max(unit.origin - len(word) + 1, 0)
    start = segment.text.find(word, start, unit.origin + len(word))
    if start < 0:
        return [unit]
    marks = [mark.at for element in segment.elements for mark in (element.open, element.close)]
    marks += [point.at for point in segment.points]
    cuts = sorted({start, *(at for at in marks if start < at < start + len(word))})
    ends = [*cuts[1:], start + len(word)]
    shift = unit.start - start
    return [replace(unit, start=a + shift, end=b + shift, origin=a) for a, b in zip(cuts, ends, strict=True)]


def _runs(segment: Segment, units: list[_Unit]) -> list[list[Run]]:
    """Return each element's units, in runs: tags are repeated for words that stand apart, where they may be.

    An element with text of which no unit comes has the nearest word that is free; where there is none, it has no units.
    """
    elements = segment.elements
    free: dict[int | None, list[bool]] = {None: [True] * len(units)}  # for the elements inside of each
    runs: list[list[Run]] = []

    def take(number: int) -> None:
        free[number] = [False] * len(units)
        for run in runs[number]:
            free[number][slice(*run)] = [True] * (run[1] - run[0])
            free[elements[number].parent][slice(*run)] = [False] * (run[1] - run[0])

    for number, element in enumerate(elements):
        inside = [element.open.at <= unit.origin < element.close.at for unit in units]
        ends = segment.text[element.open.at : element.close.at].strip()
        if not element.open.hollow and ends[:1].isalnum() and ends[-1:].isalnum():  # so that they mean emphasis
            inside = [own and unit.word for own, unit in zip(inside, units, strict=True)]
        choose = _best_run if element.open.once else _all_runs
        runs.append(choose(inside, free[element.parent], units))
        take(number)
    for number, element in enumerate(elements):
        places = [place for place, allowed in enumerate(free[element.parent]) if allowed and units[place].word]
        if not runs[number] and places and element.open.at < element.close.at:
            first, last = _word_around(segment.text, element)
            places = [place for place in places if first <= units[place].origin < last] or places
            middle = (element.open.at + element.close.at) / 2
            nearest = min(places, key=lambda place: abs(units[place].origin - middle))
            runs[number] = [(nearest, nearest + 1)]
            take(number)
    return runs


def _word_around(text: str, element: Element) -> tuple[int, int]:
    """Return where the words begin and end that an element is a part of; the element's own places if there are none."""
    first, last = element.open.at, element.close.at
    if text[first : first + 1].isalnum():
        while first and text[first - 1].isalnum():
            first -= 1
    if text[last - 1 : last].isalnum():
        while text[last : last + 1].isalnum():
            last += 1
    return first, last


def _all_runs(inside: list[bool], room: list[bool], units: list[_Unit]) -> list[Run]:
    """Return the units inside, and punctuation between two of them; punctuation alone only where there is no word."""
    runs = list[Run]()
    for place in (place for place, own in enumerate(inside) if own and room[place]):
        between = range(runs[-1][1], place) if runs else range(0)
        if runs and all(room[each] and not units[each].word for each in between):
            runs[-1] = runs[-1][0], place + 1
        else:
            runs.append((place, place + 1))
    with_words = [run for run in runs if any(unit.word for unit in units[slice(*run)])]
    return with_words or runs


def _best_run(inside: list[bool], room: list[bool], _units: list[_Unit]) -> list[Run]:
    """Return the longest of the runs within `room` that have most units inside beyond those outside, if any has."""
    best, run, total, start = (0, 0), list[Run](), 0, 0
    for place, (own, allowed) in enumerate(zip(inside, room, strict=True)):
        if total < 0 or not allowed:
            total, start = 0, place + (not allowed)
        if not allowed:
            continue
        total += 1 if own else -1
        if total > 0 and (total, place + 1 - start) > best:
            best, run = (total, place + 1 - start), [(start, place + 1)]
    return run


def _with_empty_elements(segment: Segment, runs: list[list[Run]]) -> list[Mark]:
    """Return the points, in order: those of the source, and each element without units, with all that stands in it."""
    inside: dict[int | None, list[Mark]] = {}
    for point in segment.points:
        inside.setdefault(point.parent, []).append(point)
    for number in reversed(range(len(runs))):
        element, within = segment.elements[number], inside.get(number, [])
        if runs[number]:
            continue
        parts, marks = Parts(), [element.open, *sorted(within, key=lambda mark: mark.order), element.close]
        for left, right in pairwise(marks):
            parts += left.parts
            if " " in (left.after, right.before):
                parts.append(" ")
        parts += element.close.parts
        if not element.open.hollow:
            parts = parts[len(element.open.parts) : -len(element.close.parts)]
        whole = replace(element.open, parts=parts, kind="point", ordered=any(mark.ordered for mark in within))
        whole.joins = " " not in parts and all(mark.joins for mark in within)
        whole.after, whole.parent = element.close.after, element.parent
        inside.setdefault(element.parent, []).append(whole)
    points = [point for number, those in inside.items() if number is None or runs[number] for point in those]
    return sorted(points, key=lambda point: point.order)


def _gaps(segment: Segment, points: list[Mark], runs: list[list[Run]], units: list[_Unit]) -> list[int]:
    """Return for each point how many units stand before it: within the elements around it, and in no other."""
    gaps, least = list[int](), 0
    words = [word.start() for word in _WORD.finditer(segment.text)]
    for point in points:
        around = _around(segment.elements, point.parent)
        others = [run for number, those in enumerate(runs) if number not in around for run in those]
        closed = {gap for first, last in others for gap in range(first + 1, last)}
        allowed = [gap for gap in range(len(units) + 1) if gap not in closed and not (point.ordered and gap < least)]
        within = [gap for gap in allowed if all(_touches(runs[number], gap) for number in around)]
        costs = _costs(words, point, units)
        gaps.append(min(within or allowed, key=costs.__getitem__))
        if point.ordered:
            least = gaps[-1]
    return gaps


def _touches(runs: list[Run], gap: int) -> bool:
    return any(first <= gap <= last for first, last in runs)


def _around(elements: list[Element], number: int | None) -> list[int]:
    """Return the numbers of an element and of all around it, outermost first."""
    chain = []
    while number is not None:
        chain.append(number)
        number = elements[number].parent
    return chain[::-1]


def _costs(words: list[int], point: Mark, units: list[_Unit]) -> list[float]:
    """Return for each gap between units how far a point would stand there from where its neighbours are.

    The units of one source word count as one, and less the more words lie between it and the point. `words` are the
    places where words of the source begin. By these weights 76 % of the words that were taken out of generated text
    found back to their places in the translation, 68 % by counting words on the wrong side.
    """
    right = bisect.bisect_left(words, point.at)
    held = point.before.isalnum() - point.after.isalnum()  # 1 or -1: it is written together with the word before, after
    places: dict[tuple[bool, int], list[int]] = {}  # of the units of each word, before the point or not
    for place, unit in enumerate(units):
        before, number = unit.origin < point.at, bisect.bisect(words, unit.origin) - 1
        distance = max(right - 1 - number if before else number - right, 0)
        if distance < _FAR:
            places.setdefault((before, distance), []).append(place)
    costs = [0.0] * (len(units) + 1)
    for (before, distance), those in places.items():
        weight = (1 if before else _AFTER) / _NEAR**distance
        if held == (-1 if before else 1):
            weight /= _HELD
        if len(those) == 1:  # most of them: the same sums, five times as fast
            [place] = those
            for gap in range(len(costs)):
                past_it = gap - place - 1 if before else place - gap
                costs[gap] += weight * (math.sqrt(-past_it) if past_it < 0 else _APART * past_it)
            continue
        for gap in range(len(costs)):
            past = [gap - place - 1 if before else place - gap for place in those]  # below 0 on the wrong side
            wrong = sum(math.sqrt(-each) for each in past if each < 0) / len(those)
            costs[gap] += weight * (wrong + _APART * min((each for each in past if each >= 0), default=0))
    return costs


@dataclass
class _Item:
    """A unit or a point on its place."""

    path: list[int]  # the elements around it, outermost first
    parts: Parts  # of a point
    text: str  # of a unit
    space: str = ""  # before it


def _written(
    segment: Segment, text: str, units: list[_Unit], runs: list[list[Run]], points: list[Mark], gaps: list[int]
) -> Parts:
    at_gap: dict[int, list[Mark]] = {}
    for point, gap in zip(points, gaps, strict=True):
        at_gap.setdefault(gap, []).append(point)
    paths: list[list[int]] = [[] for _ in units]
    for number, own in enumerate(runs):
        for place in (place for run in own for place in range(*run)):
            paths[place].append(number)
    items, end = list[_Item](), 0
    for gap in range(len(units) + 1):
        unit = units[gap] if gap < len(units) else None
        space = text[end : unit.start if unit else len(text)]
        space = " " if space.isspace() else space
        sides = text[:end].strip(), text[unit.start :] if unit else ""
        here = []
        for point in at_gap.get(gap, []):
            around = _around(segment.elements, point.parent)
            path = [number for number in around if _touches(runs[number], gap)]
            here.append((path, point))
        left = paths[gap - 1] if gap else []
        right = paths[gap] if unit else []
        by_paths = sorted(here, key=lambda each: (-_common(each[0], left), _common(each[0], right)))
        if [each for each in by_paths if each[1].ordered] != [each for each in here if each[1].ordered]:
            both = left[: _common(left, right)]  # their order is worth more than the elements around them
            here = [(both if point.ordered else path, point) for path, point in here]
            by_paths = sorted(here, key=lambda each: (-_common(each[0], left), _common(each[0], right)))
        here = by_paths
        spaces = _spaces(space, *sides, [point for _, point in here])
        items += [_Item(path, point.parts, "", before) for (path, point), before in zip(here, spaces, strict=False)]
        items.append(_Item(right, [], text[unit.start : unit.end] if unit else "", spaces[-1]))
        end = unit.end if unit else end
    return _joined(segment, items)


def _common(one: list[int], other: list[int]) -> int:
    """Return how many numbers two paths have in common at their beginnings."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _spaces(space: str, left: str, right: str, points: list[Mark]) -> list[str]:
    """Return what stands before each point of a gap, and after the last, where `space` parts the units beside it."""
    if not points:
        return [space if space.strip() or (left and right) else ""]
    if left and right and not space and all(point.joins for point in points):  # within a word, as "d'autres"
        return [""] * (len(points) + 1)
    first, last = points[0].before, points[-1].after
    apart = [bool(a.after or b.before) for a, b in pairwise(points)]  # others come together here
    before = bool(left) and _apart(first, left[-1], space) and (space != "" or not right or left[-1] not in _OPENING)
    free = space != "" or not left or right[:1].isalnum() or right[:1] in _OPENING
    after = bool(right) and _apart(last, right[0], space) and free
    apart = [before, *apart, after]
    if space.strip():  # no token's text
        return [space, *(" " if each else "" for each in apart[1:])]
    as_in_source = first.isalnum() and last.isalnum() and not all(point.joins for point in points)
    if space and left and right and not any(apart) and not as_in_source:
        apart[-1] = True
    return [" " if each else "" for each in apart]


def _apart(neighbour: str, character: str, space: str) -> bool:
    """Return whether a space parts a point from a character, given its neighbour in the source; `space` parts the units
    beside it. Punctuation holds on to a point only where it is the same."""
    if neighbour == " " or neighbour.isalnum():
        return neighbour == " "
    return character.isalnum() or (space != "" and character != neighbour)


def _joined(segment: Segment, items: list[_Item]) -> Parts:
    """Return the items with the tags of the elements around them, each opened and closed where paths differ."""
    pieces, path = list[tuple[bool, Part]](), list[int]()  # whether it is the translation's text
    for item in items:
        common = _common(path, item.path)
        for number in reversed(path[common:]):
            pieces += [(False, part) for part in segment.elements[number].close.parts]
        pieces.append((True, item.space))
        for number in item.path[common:]:
            pieces += [(False, part) for part in segment.elements[number].open.parts]
        pieces += [(False, part) for part in item.parts]
        pieces.append((True, item.text))
        path = item.path
    parts = Parts()
    for translated, group in groupby(pieces, key=itemgetter(0)):
        own = [part for _, part in group]
        parts += [segment.write("".join(map(str, own)))] if translated else own
    return parts
