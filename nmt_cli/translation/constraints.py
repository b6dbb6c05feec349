"""Lexical constraints: a translation must contain one of the forms of each term. engine.c follows the same rules.

A hypothesis meets a term when it contains any form of the term. The forms of all terms are combined in an Aho-Corasick
automaton over tokens (Aho and Corasick 1975). The state of a hypothesis has two parts: the node of the automaton that
its last tokens reach, and the set of terms that it has met. A complete form meets its term only when the next token
begins a new word. Until then, the last word of the form may be the beginning of a longer word.

For every hypothesis, each step considers the W best tokens (W is the beam) and every token that begins or continues a
form of an unmet term. EOS is considered only when all terms are met. The candidates are divided into banks by progress,
which is the number of tokens of terms that they contain (Post and Vilar 2018). The best candidate of each bank
survives, higher banks first, then the second best of each bank, and so on until W candidates survive (Hu et al. 2019).
A candidate that ends with EOS is finished, and the next candidate survives in its place. When `n_best` hypotheses are
finished, the search continues only while an unfinished hypothesis that has met or begun all terms can win. The other
hypotheses are ignored, because they rarely meet their missing terms in time to win.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nmt_cli.corpus.terms import Term
from nmt_cli.corpus.tokenizer import EOS, UNK, WIDE, Tokenizer

MIN_BEAM, MAX_BEAM = 8, 64  # limits of `Constraints.width`
MAX_TERMS = 64  # maximum terms per segment: engine.c stores the terms as the bits of a 64-bit number
MAX_TOKENS = 1024  # maximum tokens of all forms together: the time of a step grows with the square of their number


class State(NamedTuple):
    node: int  # 0 if the last tokens do not begin a form
    met: int  # bit t is set if term t is met


START = State(0, 0)


class Candidate(NamedTuple):
    total: float  # log-probability
    row: int  # the row of the hypothesis that this candidate continues
    id: int


class Constraints:
    """The automaton of terms. A term is a list of forms, and a form is a list of token ids.

    `begins` (see `Tokenizer.begins`) tells for each token whether it completes the word before it. `sizes` holds the
    number of tokens in each term's longest form. The other lists have one item per node. `gains[node][term]` is the
    progress towards a term at a node: the size of the term minus the number of tokens that are missing until a form is
    complete, or 0 if the last tokens do not begin a form of the term.
    """

    def __init__(self, terms: Sequence[Sequence[Sequence[int]]], begins: bytes) -> None:
        self.begins = begins
        self.sizes = [max(map(len, forms)) for forms in terms]
        self.tokens = [0]
        self.parents = [0]
        self._children: dict[tuple[int, int], int] = {}
        ends = [(self._add(form), term) for term, forms in enumerate(terms) for form in forms]
        self.gains = [[0] * len(terms) for _ in self.tokens]
        self.fails = [0] * len(self.tokens)  # for each node, the node of its longest proper suffix that begins a form
        for node, term in ends:
            for left, passed in enumerate(self._path(node)):
                self.gains[passed][term] = max(self.gains[passed][term], self.sizes[term] - left)
        for node in sorted(range(1, len(self.tokens)), key=lambda each: len(list(self._path(each)))):
            if self.parents[node]:
                self.fails[node] = self._next_node(self.fails[self.parents[node]], self.tokens[node])
            self.gains[node] = list(map(max, self.gains[node], self.gains[self.fails[node]]))
        self._ended = [self._mask(gains) for gains in self.gains]
        self._all = (1 << len(terms)) - 1

    def _add(self, form: Sequence[int]) -> int:
        node = 0
        for token in form:
            if (node, token) not in self._children:
                self._children[node, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
            node = self._children[node, token]
        return node

    def _path(self, node: int) -> Iterator[int]:
        while node:
            yield node
            node = self.parents[node]

    def _next_node(self, node: int, token: int) -> int:
        while node and (node, token) not in self._children:
            node = self.fails[node]
        return self._children.get((node, token), 0)

    def _mask(self, gains: Sequence[int]) -> int:
        return sum(1 << term for term, gain in enumerate(gains) if gain == self.sizes[term])

    @property
    def width(self) -> int:
        """The beam to search with: room for one hypothesis of each bank, but at least MIN_BEAM and at most MAX_BEAM."""
        # Round up, so that more segments have the same beam: torch searches only segments with equal beams together.
        banks = -(-(1 + sum(self.sizes)) // 4) * 4
        return min(max(MIN_BEAM, banks), MAX_BEAM)

    def after(self, state: State, token: int) -> State:
        met = state.met | self._ended[state.node] if self.begins[token] else state.met
        return State(self._next_node(state.node, token), met)

    def progress(self, state: State) -> int:
        """Return the progress of a hypothesis: the number of tokens of terms that it contains."""
        met = state.met | self._ended[state.node]
        gains = zip(self.gains[state.node], self.sizes, itertools.count(), strict=False)
        open_ = [(gain, size) for gain, size, term in gains if not met >> term & 1]
        return sum(self.sizes) - sum(size for _, size in open_) + max((gain for gain, _ in open_), default=0)

    def begun(self, state: State) -> bool:
        """Return whether each term is met or begun."""
        return all(gain or state.met >> term & 1 for term, gain in enumerate(self.gains[state.node]))

    def wanted(self, state: State) -> list[int]:
        """Return the tokens that begin or continue a form of an unmet term."""
        found = []
        for node in range(1, len(self.tokens)):
            if self.parents[node] in (0, state.node):
                met = self.after(state, self.tokens[node]).met
                if any(gain and not met >> term & 1 for term, gain in enumerate(self.gains[node])):
                    found.append(self.tokens[node])
        return list(dict.fromkeys(found))

    def choose(self, candidates: Sequence[Candidate], states: Sequence[State], width: int) -> list[Candidate]:
        """Return the finished candidates, best first, and then up to `width` survivors, best first."""
        banks, ranked = Counter[int](), []
        for candidate in sorted(candidates, key=lambda each: (-each.total, each.row, each.id)):
            state = self.after(states[candidate.row], candidate.id)
            if candidate.id == EOS and state.met != self._all:
                continue
            progress = self.progress(state)
            ranked.append((banks[progress], -progress, candidate))
            banks[progress] += 1
        ranked.sort(key=lambda each: each[:2])
        ends = [candidate for _, _, candidate in ranked[:width] if candidate.id == EOS]
        alive = [candidate for _, _, candidate in ranked if candidate.id != EOS][:width]
        return ends + sorted(alive, key=lambda each: (-each.total, each.row, each.id))


def constraints_of(terms: Sequence[Term], tokenizer: Tokenizer) -> Constraints | None:
    """Return the constraints for terms, or None if the target tokenizer `tokenizer` can encode none of the forms.

    Terms in excess of MAX_TERMS, and forms for which MAX_TOKENS leaves no room, are left out.
    """
    spelled, room = list[list[list[int]]](), MAX_TOKENS
    for term in terms[:MAX_TERMS]:
        forms = []
        for ids in (_spelled(form, tokenizer) for form in term.forms):
            if ids and UNK not in ids and len(ids) <= room:
                forms.append(ids)
                room -= len(ids)
        if forms:
            spelled.append(forms)
    return Constraints(spelled, tokenizer.begins) if spelled else None


def _spelled(form: str, tokenizer: Tokenizer) -> list[int]:
    (ids,) = tokenizer.encode([form])
    # The tokenizer puts a space token before a Chinese or Japanese word only at the beginning of a line. Remove this
    # token, because the form may stand anywhere in the line.
    spaced = tokenizer.tokens(ids[:1]) == ["\u2581"] and re.match(f"[{WIDE}]", form)
    return ids[1:] if spaced else ids
