"""Models with perfect word links: the source as it is, and its words backwards."""

import re

from nmt_cli.documents.placement import Aligned


def same(text: str) -> Aligned:
    """A model that says the source again."""
    return Aligned(text, [(end, end - 1) for end in (match.end() for match in re.finditer(r"\s*\S", text))])


def backwards(text: str) -> Aligned:
    """A model that says the source's words in the opposite order."""
    words = [(match.start(), match[0]) for match in re.finditer(r"\S+", text)][::-1]
    links, end = list[tuple[int, int]](), -1
    for start, word in words:
        end += len(word) + 1
        links.append((end, start))
    return Aligned(" ".join(word for _, word in words), links)
