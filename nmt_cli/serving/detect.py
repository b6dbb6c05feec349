"""Which language a text is in. Uses py3langid where it is installed."""

import copy
import functools
import threading
from collections.abc import Sequence
from typing import Any

from nmt_cli.corpus.languages import NAMES, base_of

MOST_CHARACTERS = 2000  # of a text that are looked at
SURE = 90  # percent: then a text is in a language that no model has, or in the target language already
# Languages so near to each other that one is easily taken for another
NEAR = [{"nb", "nn", "no", "da"}, {"bs", "hr", "sr"}, {"id", "ms"}]


class Detector:
    def __init__(self, sources: Sequence[str], languages: Sequence[str]) -> None:
        """`sources` are the languages that some model translates from, `languages` all there are."""
        self._only = sources[0]
        self._codes = {base_of(code): code for code in reversed(languages)}
        self._lock = threading.Lock()

    @functools.cached_property
    def _identifiers(self) -> tuple[Any, Any] | None:
        """py3langid twice, for the languages of the models and for all that have a name; None where it is not installed
        or does not know those of the models.

        It is loaded when it is first asked for: that takes a second and 70 MB.
        """
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ModuleNotFoundError:
            return None
        everything = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        if not self._codes.keys() <= {*everything.labels}:
            return None
        ours = copy.copy(everything)
        ours.set_languages(self._codes.keys())
        near = set().union(*map(_near, self._codes))
        everything.set_languages({*everything.labels} & NAMES.keys() - near | self._codes.keys())
        return ours, everything

    def detect(self, text: str) -> list[tuple[str, int]]:
        """Return the models' languages, each with its probability in percent, the likeliest first; 0 where nothing is
        known. A language that no model has comes first where it is sure, and lowers the others where it is not."""
        with self._lock:
            identifiers = self._identifiers
        if not identifiers or not any(map(str.isalpha, text)):
            return [(self._only, 0)]
        ours, everything = identifiers
        text = text[:MOST_CHARACTERS]
        among_all, ranked = everything.rank(text), ours.rank(text)
        best = among_all[0][0]
        probability = sum(sure for code, sure in among_all if code in _near(best))
        found = list[tuple[str, int]]()
        if best not in self._codes:
            ranked = [(code, dict(among_all)[code]) for code, _ in ranked]
            if 100 * probability >= SURE:
                found.append((best, round(100 * probability)))
        return found + [(self._codes[code], round(100 * probability)) for code, probability in ranked]


def _near(code: str) -> set[str]:
    return next((group for group in NEAR if code in group), {code})
