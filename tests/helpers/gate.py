"""A search that waits until a test opens it."""

import threading
from typing import Any

import pytest

from nmt_cli.translation import engine_backend
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.segments import Segment


class Gate:
    """Makes the engine's search wait after each call of `run` until `opened` is set, and then raise `error`, if any."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened, self.entered, self.error = threading.Event(), list[Segment](), None
        gate = self

        class Gated(EngineSearch):
            def enter(self, segments: Any) -> None:
                gate.entered.extend(segments)
                super().enter(segments)

            def run(self, steps: int) -> list[Segment]:
                done = super().run(steps)
                gate.opened.wait(60)
                if gate.error:
                    raise gate.error
                return done

        patch.setattr(engine_backend, "EngineSearch", Gated)
