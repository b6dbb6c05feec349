"""A search that waits until a test opens it."""

import threading
from typing import Any

import pytest

from nmt_cli.translation import backends, engine_search
from nmt_cli.translation.segments import Feed, Results


class Gate:
    """The engine's search, which does nothing until it is opened, or fails with an error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened, self.entered, self.error = threading.Event(), list[Any](), None
        real = engine_search.search

        def search(models: Any, feed: Feed) -> Results:
            for results in real(models, self._watched(feed)):
                self.opened.wait(60)
                if self.error:
                    raise self.error
                yield results

        patch.setattr(backends.engine_search, "search", search)

    def _watched(self, feed: Feed) -> Feed:
        for segment in feed:
            if segment:
                self.entered.append(segment)
            yield segment
