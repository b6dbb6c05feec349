"""What a search has to say, and which hypotheses live on then: for torch's search, and as engine.c does it.

A term is met by any of its forms. The forms of all terms are an automaton of tokens (Aho and Corasick 1975): a
hypothesis is in a state, the node it has come to and the terms that it has met. A form that has been said to its end is
met when the next token begins a word: until then it could be the beginning of another word.

Every hypothesis goes on with its best W tokens and with each next token of a form of a term that it has not met, with
EOS only after all terms. What comes out is in banks, by how many tokens of terms it has (Post and Vilar 2018). All
banks live: the best of each, those of the highest bank first, then the second best of each, and so on until there are W
(Hu et al. 2019); those among them that end are finished, and as many others live on. A search is over when no
hypothesis can win that has begun all terms: the others are mostly those that may not end where they would.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nmt_cli.corpus.terms import Term
from nmt_cli.corpus.tokenizer import EOS, UNK, WIDE, Tokenizer

NARROWEST, WIDEST = 8, 64  # hypotheses of a search with constraints
MOST_TERMS = 64  # of a segment: bits of a number in engine.c
MOST_TOKENS = 1024  # of their forms: a step takes time with their square


class State(NamedTuple):
    node: int  # 0: no form has begun
    met: int  # bit t: term t


START = State(0, 0)


class Candidate(NamedTuple):
    total: float  # log-probability
    row: int  # of the hypothesis that goes on
    id: int


class Constraints:
    """The forms of terms, as token ids; `begins` has a byte for each token, as Tokenizer.begins.

    Lists are by node, but `sizes`: the tokens that each term counts for, those of its longest form. `gains`, one for
    each term, say how many of them are said there.
    """

    def __init__(self, terms: Sequence[Sequence[Sequence[int]]], begins: bytes) -> None:
        self.begins, self.sizes = begins, [max(map(len, forms)) for forms in terms]
        self.tokens, self.parents = [0], [0]
        self._children: dict[tuple[int, int], int] = {}
        ends = [(self._add(form), term) for term, forms in enumerate(terms) for form in forms]
        self.gains = [[0] * len(terms) for _ in self.tokens]
        self.fails = [0] * len(self.tokens)  # the longest other form that ends as the one that has come so far
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
        """How many hypotheses it takes, at least: one in each bank."""
        banks = -(-(1 + sum(self.sizes)) // 4) * 4  # few different widths: torch searches one at a time
        return min(max(NARROWEST, banks), WIDEST)

    def after(self, state: State, token: int) -> State:
        met = state.met | self._ended[state.node] if self.begins[token] else state.met
        return State(self._next_node(state.node, token), met)

    def said(self, state: State) -> int:
        """Return how many tokens of terms a hypothesis has."""
        met = state.met | self._ended[state.node]
        gains = zip(self.gains[state.node], self.sizes, itertools.count(), strict=False)
        open_ = [(gain, size) for gain, size, term in gains if not met >> term & 1]
        return sum(self.sizes) - sum(size for _, size in open_) + max((gain for gain, _ in open_), default=0)

    def begun(self, state: State) -> bool:
        """Return whether each term is met or begun."""
        return all(gain or state.met >> term & 1 for term, gain in enumerate(self.gains[state.node]))

    def wanted(self, state: State) -> list[int]:
        """Return the next tokens of forms of terms that are not met."""
        found = []
        for node in range(1, len(self.tokens)):
            if self.parents[node] in (0, state.node):
                met = self.after(state, self.tokens[node]).met
                if any(gain and not met >> term & 1 for term, gain in enumerate(self.gains[node])):
                    found.append(self.tokens[node])
        return list(dict.fromkeys(found))

    def choose(self, candidates: Sequence[Candidate], states: Sequence[State], width: int) -> list[Candidate]:
        """Return those that are finished, then those that live on, best first."""
        banks, ranked = Counter[int](), []
        for candidate in sorted(candidates, key=lambda each: (-each.total, each.row, each.id)):
            state = self.after(states[candidate.row], candidate.id)
            if candidate.id == EOS and state.met != self._all:
                continue
            said = self.said(state)
            ranked.append((banks[said], -said, candidate))
            banks[said] += 1
        ranked.sort(key=lambda each: each[:2])
        ends = [candidate for _, _, candidate in ranked[:width] if candidate.id == EOS]
        alive = [candidate for _, _, candidate in ranked if candidate.id != EOS][:width]
        return ends + sorted(alive, key=lambda each: (-each.total, each.row, each.id))


def constraints_of(terms: Sequence[Term], tokenizer: Tokenizer) -> Constraints | None:
    """Return what a translation must say; None where the tokenizer of target text can spell none of it."""
    spelled, room = list[list[list[int]]](), MOST_TOKENS
    for term in terms[:MOST_TERMS]:
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
    # Before a Chinese or Japanese word there is a space at the beginning of a line alone.
    spaced = tokenizer.tokens(ids[:1]) == ["\u2581"] and re.match(f"[{WIDE}]", form)
    return ids[1:] if spaced else ids
