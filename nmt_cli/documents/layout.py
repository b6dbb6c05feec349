"""Insert marks into a translation: order the marks between two words, set spaces, and add tags."""

from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from operator import itemgetter

from nmt_cli.documents.segment import Mark, MarkedSegment, Part, Parts

_OPENING = "([{\u00a1\u00bf\u201e\u201c\u2018\u00ab"


@dataclass(frozen=True)
class MarkInGap:
    mark: Mark
    path: list[int]  # the indices of the elements around the mark, outermost first


@dataclass
class _Item:
    """Text or a standalone mark in its final position."""

    path: list[int]
    parts: Parts  # the parts of a mark, or []
    text: str  # the translated text, or ""
    space: str = ""  # the white space before the item


def lay_out(
    segment: MarkedSegment,
    text: str,
    units: list[tuple[int, int]],
    paths: list[list[int]],
    marks: dict[int, list[MarkInGap]],
) -> Parts:
    """Return the parts of a translation: its marks and its escaped text.

    `units` are spans in `text`. Each unit is a word, a part of a word, or punctuation. `paths` lists the elements
    around each unit, outermost first. `marks` maps each gap between units to its standalone marks. The number of units
    before a gap identifies the gap.
    """
    items, end = list[_Item](), 0
    for gap in range(len(units) + 1):
        start, stop = units[gap] if gap < len(units) else (len(text), len(text))
        space = text[end:start]
        space = " " if space.isspace() else space
        if 0 < gap < len(units) and gap not in marks and paths[gap] == paths[gap - 1] and space in ("", " "):
            items[-1].text += space + text[start:stop]
            end = stop
            continue
        left = paths[gap - 1] if gap else []
        right = paths[gap] if gap < len(units) else []
        here = _ordered(marks.get(gap, []), left, right)
        spaces = _spaces(space, text[:end].strip(), text[start:], [each.mark for each in here])
        items += [_Item(each.path, each.mark.parts, "", before) for each, before in zip(here, spaces, strict=False)]
        items.append(_Item(right, [], text[start:stop], spaces[-1]))
        end = stop
    return _joined(segment, items)


def _ordered(marks: list[MarkInGap], left: list[int], right: list[int]) -> list[MarkInGap]:
    """Sort the marks in a gap.

    Marks inside elements of the unit on the left go first, and marks inside elements of the unit on the right go last.
    If marks that must keep their order would change it, move them out of elements that do not contain both units.
    """

    def by_path(each: MarkInGap) -> tuple[int, int]:
        return -_common_length(each.path, left), _common_length(each.path, right)

    found = sorted(marks, key=by_path)
    if [each.mark for each in found if each.mark.ordered] != [each.mark for each in marks if each.mark.ordered]:
        both = left[: _common_length(left, right)]
        found = sorted((MarkInGap(each.mark, both) if each.mark.ordered else each for each in marks), key=by_path)
    return found


def _common_length(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix of two paths."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _spaces(space: str, left: str, right: str, marks: list[Mark]) -> list[str]:
    """Return the spaces to write in a gap: one before each mark, and one at the end of the gap.

    `space` is the text in the gap, usually white space. `left` is all text before it, and `right` all text after it.
    """
    if not marks:
        return [space if space.strip() or (left and right) else ""]
    if left and right and not space and all(mark.joins for mark in marks):  # within a word, as in "d'autres"
        return [""] * (len(marks) + 1)
    first, last = marks[0].before, marks[-1].after
    between = [bool(a.after or b.before) for a, b in pairwise(marks)]
    before = bool(left) and _is_apart(first, left[-1], space) and (space != "" or not right or left[-1] not in _OPENING)
    may_follow = space != "" or not left or right[:1].isalnum() or right[:1] in _OPENING
    after = bool(right) and _is_apart(last, right[0], space) and may_follow
    apart = [before, *between, after]
    if space.strip():  # text that belongs to no unit
        return [space, *(" " if each else "" for each in apart[1:])]
    # Whether the source has two words with nothing but marks between them, as in "a<br>b"
    only_marks_separate = first.isalnum() and last.isalnum() and not all(mark.joins for mark in marks)
    if space and left and right and not any(apart) and not only_marks_separate:
        apart[-1] = True
    return [" " if each else "" for each in apart]


def _is_apart(neighbor: str, character: str, space: str) -> bool:
    """Return whether to write a space between a mark and a character of the translation.

    `neighbor` is `Mark.before` or `Mark.after`. `space` is the text in the gap. If `neighbor` is " ", write a space. If
    `neighbor` is a letter or digit, write none. Otherwise, write one if `character` is a letter or digit, or if
    `space` is not empty and the two characters differ.
    """
    if neighbor == " " or neighbor.isalnum():
        return neighbor == " "
    return character.isalnum() or (space != "" and character != neighbor)


def _joined(segment: MarkedSegment, items: list[_Item]) -> Parts:
    """Join the items, and open and close elements where the path changes."""
    pieces, path = list[tuple[bool, Part]](), list[int]()  # (whether the part is translated text, part)
    for item in items:
        common = _common_length(path, item.path)
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
        parts += [segment.escape("".join(map(str, own)))] if translated else own
    return parts
