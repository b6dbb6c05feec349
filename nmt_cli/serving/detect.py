"""Which language a text is in, among those that the models have. Uses py3langid where it is installed."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

from nmt_cli.corpus.languages import base_of

MOST_CHARACTERS = 2000  # of a text that are looked at


class Detector:
    def __init__(self, sources: Sequence[str], languages: Sequence[str]) -> None:
        """`sources` are the languages that some model translates from, `languages` all there are."""
        self._only = sources[0]
        self._codes = {base_of(code): code for code in reversed(languages)}
        self._lock = threading.Lock()

    @functools.cached_property
    def _identifier(self) -> Any:
        """py3langid, limited to our languages; None where it is not installed or does not know them all.

        It is loaded when it is first asked for: that takes a second and 70 MB.
        """
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ModuleNotFoundError:
            return None
        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        if not self._codes.keys() <= {*identifier.labels}:
            return None
        identifier.set_languages(self._codes.keys())
        return identifier

    def detect(self, text: str) -> list[tuple[str, int]]:
        """Return languages, each with its probability in percent, the likeliest first; 0 where nothing is known."""
        with self._lock:
            identifier = self._identifier
        if not identifier or not any(map(str.isalpha, text)):
            return [(self._only, 0)]
        ranked = identifier.rank(text[:MOST_CHARACTERS])
        return [(self._codes[code], round(100 * probability)) for code, probability in ranked]
