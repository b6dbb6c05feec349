"""Items: the pieces of text and the marks of a paragraph or subtitle, before they become a segment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt_cli.documents.segment import Parts


@dataclass(frozen=True)
class Item:
    source: str = ""  # the markup or text of the item, unless it has `parts`
    kind: str = "text"  # or "mark", "break" (line break or tab), "open" or "close" (a pair of tags with the same name)
    name: str = ""  # the name of a tag; office documents also name texts
    parts: Parts = field(default_factory=list)  # the content of a mark if it is to be translated
    joins: bool = False  # whether the words on both sides of a mark may form one word


def inner(items: Sequence[Item]) -> tuple[int, int]:
    """Return the range (start, end) of the items without the marks at both ends and the tags around the whole text.

    If no item contains text, return the range of all items.
    """
    partners, opened = dict[int, int](), list[int]()
    words = list[int]()
    for index, item in enumerate(items):
        if item.kind == "open":
            opened.append(index)
        elif item.kind == "close" and opened and items[opened[-1]].name == item.name:
            partners[index] = opened.pop()
            partners[partners[index]] = index
        elif item.kind == "text" and item.source.strip():
            words.append(index)
    if not words:
        return 0, len(items)
    first, last = 0, len(items)
    while first < words[0]:
        partner = partners.get(first, -1)
        if words[0] < partner < words[-1]:
            break
        if partner > words[-1]:
            last = min(last, partner)
        first += 1
    while last > words[-1] + 1 and not first <= partners.get(last - 1, -1) < words[-1]:
        last -= 1
    return first, last
