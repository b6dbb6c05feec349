"""Translate ICU messages. Each branch of a plural or select becomes a whole sentence.

`You have {n, plural, one {# file} other {# files}} now` is translated as "You have # file now" and "You have # files
now", and the translations become the branches of a choice around the whole message. `''` is an apostrophe, and an
apostrophe before a brace begins quoted text. Grammar (plurals, selects, quoting):
https://unicode-org.github.io/icu/userguide/format_parse/messages/
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.plural_categories import CATEGORIES, categories, one_is_exact
from nmt_cli.documents.segment import Parts, render, segments_of

Cut: TypeAlias = Callable[[str, Protection | None], Parts]  # cuts a sentence into parts
FLAG, PLURAL_FLAG = "icu-message-format", "icu-plural"  # flags that select the forms of placeholders

# Maximum numbers of levels, choices, sentences and characters. Messages that exceed one of them are not parsed.
_DEEPEST, _MOST_CHOICES, _MOST_SENTENCES, _LONGEST = 6, 12, 60, 10_000
_CHOICE = re.compile(  # such as "{n, plural, offset:1"
    r"\{\s*+(?P<name>[\w.-]++)\s*+,\s*+(?P<kind>plural|selectordinal|select)\s*+,(?:\s*+offset:\s*+(?P<offset>\d++))?+"
)
_SELECTOR = re.compile(r"(?P<before>\s*+)(?P<name>=\d++|[\w-]++)(?P<gap>\s*+)\{")
_CLOSING = re.compile(r"\s*+\}")
# Text up to a brace. It may contain quoted braces, and tags.
_TEXT = re.compile(r"(?:[^{}'<]|''|'(?![{}#|'])|'[{}#|][^']*+'|<[^<>]*+>|<)++")
# {name} or {n, number, integer}
_ARGUMENT = re.compile(r"\{\s*+[\w.-]++\s*+(?:,(?:[^{}']|'[^']*+'|\{[^{}]*+\})*+)?+\}")
_HASH = re.compile("''|'[{}#|][^']*+'|<[^<>]*+>|(?P<hash>#)")
_APOSTROPHE = re.compile("''?|\u2019")
_SPACE = re.compile("&nbsp;|&#160;|&#[xX][aA]0;")
_QUOTING = re.compile(r"'(?=[{}#|<']|\Z)")
_VARIABLE = re.compile(r"\{\s*+[\w.-]++|#")


@dataclass
class Choice:
    """A plural, selectordinal or select argument."""

    head: str  # the source from the opening brace to the first branch
    name: str
    kind: str
    has_offset: bool
    branches: list[Branch] = field(default_factory=list)
    tail: str = ""  # the closing brace and the white space before the brace

    @property
    def is_plural(self) -> bool:
        return self.kind != "select"


@dataclass
class Branch:
    before: str  # white space before the selector
    selector: str  # such as "one", "=0" or "female"
    gap: str  # white space between the selector and the brace
    nodes: list[Node]


Node: TypeAlias = str | Choice


class _Unusable(Exception):
    """Raised for a message that is invalid, too large, or cannot be divided into whole sentences."""

    pass


@dataclass
class _Leaf:
    """A whole sentence, without choices."""

    source: str
    untranslated: str = ""  # the text of `parts` before translation
    parts: Parts = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        return is_same(self.write(), self.untranslated)

    def write(self) -> str:
        return render(self.parts)


@dataclass
class _Tree:
    """A choice whose branches are whole sentences, or further choices."""

    choice: Choice
    branches: list[tuple[Branch, _Tree | _Leaf]]

    def write(self) -> str:
        inner = [f"{each.before}{each.selector}{each.gap}{{{content.write()}}}" for each, content in self.branches]
        return "".join([self.choice.head, *inner, self.choice.tail])


def is_same(text: str, other: str) -> bool:
    """Return whether two texts are equal, except for white space and the spelling of apostrophes."""
    return text == other or _folded(text) == _folded(other)


def _folded(text: str) -> str:
    return "".join(_SPACE.sub("", _APOSTROPHE.sub("'", text)).split())


class IcuMessage:
    """A message with choices. `parts` contains the parts of all its sentences."""

    def __init__(self, source: str, tree: _Tree, cut: Cut, protection: Protection | None, language: str) -> None:
        self._source = source
        self._tree = tree
        self._leaves = list[_Leaf]()
        self._same_categories = True  # whether source and target have the same plural categories
        self._doubles_apostrophes = "''" in source
        self._language = language
        self._fill(tree, cut, protection)
        self.parts = [part for leaf in self._leaves for part in leaf.parts]

    def _fill(self, tree: _Tree, cut: Cut, protection: Protection | None) -> None:
        """Adapt plurals to the target language, and cut each sentence into parts."""
        if tree.choice.is_plural:
            adapted = _in_categories(tree, self._language)
            self._same_categories = self._same_categories and (
                [each for each, _ in adapted] == [each for each, _ in tree.branches]
            )
            tree.branches = adapted
        flags = {FLAG, PLURAL_FLAG} if tree.choice.is_plural else {FLAG}
        for _, inner in tree.branches:
            if isinstance(inner, _Tree):
                self._fill(inner, cut, protection)
            elif not any(inner is leaf for leaf in self._leaves):
                inner.parts = self._leaf_parts(inner.source, cut, (protection or Protection()).with_flags(flags))
                inner.untranslated = render(inner.parts)
                self._leaves.append(inner)

    def _leaf_parts(self, source: str, cut: Cut, protection: Protection) -> Parts:
        """Cut a sentence into parts. The model sees `''` as one apostrophe."""
        doubled = "''" in source
        parts = cut(source.replace("''", "\u2019"), protection)
        for segment in segments_of(parts):
            if doubled:
                segment.text = segment.text.replace("\u2019", "'")
            segment.escape = partial(self._quoted, segment.escape)
        return parts

    def _quoted(self, escape: Callable[[str], str], text: str) -> str:
        """Escape a sentence. If the message doubles its apostrophes, double those of the sentence.

        Otherwise, replace each apostrophe that would begin quoted text by ’.
        """
        return escape(text.replace("'", "''") if self._doubles_apostrophes else _QUOTING.sub("\u2019", text))

    def write(self) -> str:
        if self._same_categories and all(leaf.is_unchanged for leaf in self._leaves):
            return self._source
        return self._tree.write()


def parse(source: str, cut: Cut, protection: Protection | None, language: str) -> IcuMessage | None:
    """Parse a message. Return None if it has no choices, is invalid or too large, or cannot become sentences."""
    if len(source) > _LONGEST or not _CHOICE.search(source):
        return None
    try:
        nodes, end = _nodes(source, 0, 0)
        if end < len(source) or len(_CHOICE.findall(source)) > _MOST_CHOICES:
            raise _Unusable
        tree = _spread(nodes, None, [_MOST_SENTENCES])
    except _Unusable:
        return None
    return IcuMessage(source, tree, cut, protection, language) if isinstance(tree, _Tree) else None


def _nodes(source: str, offset: int, depth: int) -> tuple[list[Node], int]:
    """Parse text and choices from `offset` to a closing brace or the end. Return them and the offset reached."""
    nodes = list[Node]()
    while offset < len(source) and source[offset] != "}":
        if match := _CHOICE.match(source, offset):
            choice, offset = _choice(source, match, depth)
            nodes.append(choice)
        elif match := _ARGUMENT.match(source, offset) or _TEXT.match(source, offset):
            nodes.append(match[0])
            offset = match.end()
        else:
            raise _Unusable
    return nodes, offset


def _choice(source: str, head: re.Match[str], depth: int) -> tuple[Choice, int]:
    if depth >= _DEEPEST:
        raise _Unusable
    choice, offset = Choice(head[0], head["name"], head["kind"], head["offset"] is not None), head.end()
    while match := _SELECTOR.match(source, offset):
        nodes, offset = _nodes(source, match.end(), depth + 1)
        if source[offset : offset + 1] != "}":
            raise _Unusable
        choice.branches.append(Branch(match["before"], match["name"], match["gap"], nodes))
        offset += 1
    end = _CLOSING.match(source, offset)
    if not end or "other" not in [each.selector for each in choice.branches]:
        raise _Unusable
    choice.tail = end[0]
    return choice, end.end()


def _spread(nodes: list[Node], enclosing: Choice | None, remaining: list[int]) -> _Tree | _Leaf:
    """Move the text before and after each choice into every branch of that choice.

    `nodes` are the content of a branch of `enclosing`, or a whole message if `enclosing` is None. `remaining[0]` is the
    number of sentences that are still allowed.
    """
    index = next((i for i, node in enumerate(nodes) if isinstance(node, Choice)), None)
    if index is None:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise _Unusable
        return _Leaf("".join(map(str, nodes)))
    choice = nodes[index]
    assert isinstance(choice, Choice)
    before, after = ([_moved(node, enclosing, choice) for node in side] for side in (nodes[:index], nodes[index + 1 :]))
    branches = list[tuple[Branch, _Tree | _Leaf]]()
    for branch in choice.branches:
        inside = [_moved(node, None, choice) if isinstance(node, Choice) else node for node in branch.nodes]
        branches.append((branch, _spread([*before, *inside, *after], choice, remaining)))
    return _Tree(choice, branches)


def _moved(node: Node, enclosing: Choice | None, choice: Choice) -> Node:
    """Adapt text that moves from a branch of `enclosing`, or the top level if that is None, into a branch of `choice`.

    "#" stands for the number only directly inside a plural, so replace each "#" whose meaning would change.
    """
    if isinstance(node, Choice):
        return node
    in_plural = enclosing is not None and enclosing.is_plural
    if not in_plural and not choice.is_plural:
        return node
    if in_plural and enclosing and enclosing.has_offset and any(each["hash"] for each in _HASH.finditer(node)):
        raise _Unusable  # outside this plural, nothing can express the number minus the offset
    number = f"{{{enclosing.name}, number}}" if in_plural and enclosing else "'#'"
    return _HASH.sub(lambda match: number if match["hash"] else match[0], node)


def _in_categories(tree: _Tree, language: str) -> list[tuple[Branch, _Tree | _Leaf]]:
    """Adapt the branches of a plural to the categories of a language. Keep explicit branches such as =0."""
    required = categories(language, ordinal=tree.choice.kind == "selectordinal")
    if not required:
        return tree.branches
    by_name = {branch.selector: (branch, inner) for branch, inner in tree.branches}
    other, inner_other = by_name["other"]
    kept = list[tuple[Branch, _Tree | _Leaf]]()
    for branch, inner in tree.branches:
        if branch.selector == "other":
            missing = [name for name in required if name not in by_name]
            kept += [(Branch(other.before, name, other.gap, []), inner_other) for name in missing]
        if branch.selector == "one" and "one" in required and not _suits(branch, other, language):
            inner = inner_other
        # Keep `zero`, because Dart uses it for the count 0 in every language.
        if branch.selector not in CATEGORIES or branch.selector in (*required, "zero"):
            kept.append((branch, inner))
    return kept


def _suits(one: Branch, other: Branch, language: str) -> bool:
    """Return whether the branch "one" fits all numbers that have the category "one" in the target language.

    If the branch lacks a placeholder that the branch "other" has, it fits only the number 1.
    """
    return one_is_exact(language) or _variables(other.nodes) <= _variables(one.nodes)


def _variables(nodes: list[Node]) -> set[str]:
    found = set[str]()
    for node in nodes:
        if isinstance(node, Choice):
            found |= {node.name} | {each for branch in node.branches for each in _variables(branch.nodes)}
        else:
            found |= {re.sub(r"\s", "", each) for each in _VARIABLE.findall(node)}
    return found
