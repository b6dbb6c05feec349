"""Lexical constraints: forms of terms that every translation must contain. engine.c follows the same rules.

A term is met by any of its forms. The forms of all terms make up an automaton of tokens (Aho and Corasick 1975). The
state of a hypothesis has two parts: the node of the automaton that its last tokens lead to, and the set of terms that
it has met. A complete form meets its term only when the next token begins a word: until then, its last word may be the
beginning of a longer one.

For every hypothesis, each step considers the best W tokens and every token that continues a form of an unmet term. It
considers EOS only when all terms are met. These candidates are put in banks by their progress, the number of tokens of
terms that they contain (Post and Vilar 2018). The best candidate of each bank survives, higher banks first, then the
second best of each bank, and so on until W survive (Hu et al. 2019). Candidates that end with EOS are finished, and as
many others survive in their place. A search is over when no hypothesis that has met or begun all terms can win. Other
hypotheses do not prolong it: to win, they would have to end soon, which their missing terms mostly prevent.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nmt_cli.corpus.terms import Term
from nmt_cli.corpus.tokenizer import EOS, UNK, WIDE, Tokenizer

MIN_BEAM, MAX_BEAM = 8, 64  # of a search with constraints
MAX_TERMS = 64  # of a segment: each is one bit of a number in engine.c
MAX_TOKENS = 1024  # of all forms together: the time of a step grows with the square of this number


class State(NamedTuple):
    node: int  # 0: not within a form
    met: int  # bit t: term t is met


START = State(0, 0)


class Candidate(NamedTuple):
    total: float  # log-probability
    row: int  # of the hypothesis that it continues
    id: int


class Constraints:
    """The automaton of terms. A term is a list of forms, and a form is a list of token ids.

    `begins` is `Tokenizer.begins`. `sizes` holds the number of tokens of each term's longest form. The other lists have
    one item per node. `gains[node][term]` is the term's size minus the number of tokens that the form at the node still
    lacks, or 0 if the node is in none of the term's forms.
    """

    def __init__(self, terms: Sequence[Sequence[Sequence[int]]], begins: bytes) -> None:
        self.begins = begins
        self.sizes = [max(map(len, forms)) for forms in terms]
        self.tokens = [0]
        self.parents = [0]
        self._children: dict[tuple[int, int], int] = {}
        ends = [(self._add(form), term) for term, forms in enumerate(terms) for form in forms]
        self.gains = [[0] * len(terms) for _ in self.tokens]
        self.fails = [0] * len(self.tokens)  # node of the longest suffix that begins another form
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
        """The smallest beam with room for one hypothesis per bank, from MIN_BEAM to MAX_BEAM."""
        banks = -(-(1 + sum(self.sizes)) // 4) * 4  # rounded, because torch searches only one width at a time
        return min(max(MIN_BEAM, banks), MAX_BEAM)

    def after(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        met = state.met | self._ended[state.node] if self.begins[token] else state.met
        return State(self._next_node(state.node, token), met)

    def progress(self, state: State) -> int:
        """Return the number of tokens of terms in a hypothesis."""
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
        """Return the finished candidates and then the survivors, each best first."""
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
    """Return the constraints for terms, or None if the tokenizer of the target text can spell none of them."""
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
    # A Chinese or Japanese word has a space token before it only at the beginning of a line.
    spaced = tokenizer.tokens(ids[:1]) == ["\u2581"] and re.match(f"[{WIDE}]", form)
    return ids[1:] if spaced else ids
