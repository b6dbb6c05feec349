"""Detect languages with the model of py3langid, using a third of the memory that py3langid itself needs."""

import copy
import functools
import lzma
import shutil
import tempfile
import threading
from array import array
from collections.abc import Collection, Sequence
from typing import Any

from nmt_cli.corpus.languages import NAMES, base_of, near

MAX_CHARACTERS = 2000  # only the beginning of a longer text is used
SURE = 90  # percent; with this probability, a language is detected even if no model translates it
BLOCK = 1024  # states compared at once, to limit memory


class Detector:
    """Detects the language of texts, among all known languages."""

    def __init__(self, sources: Sequence[str], languages: Sequence[str]) -> None:
        """`sources` lists the models' source languages. `languages` lists the models' source and target languages."""
        self._default = sources[0]
        self._sources = {base_of(code) for code in sources}
        self._codes = {base_of(code): code for code in reversed(languages)}
        self._lock = threading.Lock()

    @functools.cached_property
    def _identifiers(self) -> tuple[Any, Any] | None:
        """Two classifiers: one for the models' languages, one for all known languages.

        The second one omits languages that are easily mistaken for a language of the models. The value is None if
        py3langid is not installed or knows no source language. Loading the classifiers takes a second and 25 MB.
        """
        easily_mistaken = set().union(*map(near, self._codes))
        try:
            everything = load_classifier(NAMES.keys() - easily_mistaken | self._codes.keys())
        except ModuleNotFoundError:
            return None
        known = {*everything.labels}
        if known.isdisjoint(self._sources):
            return None
        ours = copy.copy(everything)
        ours.set_languages(self._codes.keys() & known)
        return ours, everything

    def detect(self, text: str) -> list[tuple[str, int]]:
        """Return the languages of the models with their probabilities in percent, most probable first.

        A language without a model is listed first if it is the most probable one, and if it and the languages easily
        mistaken for it have a total probability of at least SURE. If there are no classifiers (`_identifiers`) or the
        text has no letters, the only result is the first source language, with probability 0.
        """
        with self._lock:
            identifiers = self._identifiers
        if not identifiers or not any(map(str.isalpha, text)):
            return [(self._default, 0)]
        ours, everything = identifiers
        text = text[:MAX_CHARACTERS]
        among_all = everything.rank(text)
        ranked = ours.rank(text)
        best = among_all[0][0]
        probability = sum(value for code, value in among_all if code in near(best))
        found = list[tuple[str, int]]()
        if best not in self._codes:
            probabilities = dict(among_all)
            ranked = [(code, probabilities[code]) for code, _ in ranked]
            if 100 * probability >= SURE:
                found.append((best, round(100 * probability)))
        return found + [(self._codes[code], round(100 * value)) for code, value in ranked]


def load_classifier(languages: Collection[str]) -> Any:
    """Return a classifier of py3langid for the given languages. Leave out languages that py3langid does not know."""
    import numpy as np
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

    with tempfile.TemporaryFile() as file:
        with lzma.open(MODEL_DIR / MODEL_FILE) as compressed:
            shutil.copyfileobj(compressed, file, 1 << 20)
        file.seek(0)
        with np.load(file, allow_pickle=False) as model:  # each array is read when it is used
            transitions = Transitions(model["nextmove"], model["nextmove_row"])
            labels = model["classes"].tolist()
            columns = [column for column, label in enumerate(labels) if label in languages]
            weights = model["ptc"][:, columns]
            biases = model["pc"][columns]
            features = array("i", model["out_feat"].tolist())
    kept = [labels[column] for column in columns]
    rows = range(len(features))
    return LanguageIdentifier(weights, biases, kept, transitions, features, norm_probs=True, tk_row=rows)


class Transitions:
    """The next states of a byte automaton. As in a full table, the index of a next state is `state << 8 | byte`.

    A state stores only the transitions in which it differs from its fallback state, as in an Aho-Corasick automaton.
    The transitions of py3langid's model take 2 MB instead of 39.
    """

    def __init__(self, table: Any, rows: Any) -> None:
        """`rows` gives the row of `table` for each state. A row holds 256 next states. State 0 is the start."""
        import numpy as np

        table = table.reshape(-1, 256)
        fallbacks = np.zeros(len(rows), np.uint32)
        known = np.zeros(len(rows), bool)
        level = np.zeros(1, np.intp)  # the states at one depth
        edges = []
        while len(level):
            known[level] = True
            reached = [level[:0]]
            for block in np.split(level, range(BLOCK, len(level), BLOCK)):
                own = table[rows[block]]
                inherited = table[rows[fallbacks[block]]] if block[0] else np.zeros_like(own)
                at, edge_bytes = np.nonzero(own != inherited)
                targets = own[at, edge_bytes]
                edges.append((block[at], edge_bytes.astype(np.uint8), targets))
                new = ~known[targets]  # a new state falls back to the target that its parent inherits for this byte
                fallback = inherited[at, edge_bytes][new]
                fallbacks[targets[new]] = np.where(known[fallback], fallback, 0)
                reached.append(targets[new])
            level = np.unique(np.concatenate(reached)).astype(np.intp)
        states, edge_bytes, targets = (np.concatenate(column) for column in zip(*edges, strict=True))
        order = np.argsort(states, kind="stable")
        self._edge_bytes = edge_bytes[order].tobytes()
        self._targets = array("I", targets[order].tobytes())
        self._starts = array("I", np.searchsorted(states[order], range(len(rows) + 1)).astype(np.uint32).tobytes())
        self._fallbacks = array("I", fallbacks.tobytes())

    def __getitem__(self, index: int) -> int:
        state, byte = index >> 8, index & 255
        starts = self._starts
        while (at := self._edge_bytes.find(byte, starts[state], starts[state + 1])) < 0:
            if not state:
                return 0
            state = self._fallbacks[state]
        return self._targets[at]
