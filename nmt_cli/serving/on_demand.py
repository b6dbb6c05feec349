"""Models that are loaded when a request needs them, and unloaded after some time without requests."""

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine

from anyio import CapacityLimiter, to_thread

from nmt_cli.serving.fields import Refusal
from nmt_cli.system.console import say, warn
from nmt_cli.system.errors import NmtError, from_os_error
from nmt_cli.system.operating_system import resident_bytes, trim_malloc
from nmt_cli.translation.stored_models import StoredModel
from nmt_cli.translation.translator import Translator

LOADS = 2  # models that may be loading at the same time
RETRY_SECONDS = 60  # time after a failed load during which requests do not load the model again, and fail at once


def _free() -> None:
    """Return the memory of unused objects to the operating system."""
    gc.collect()  # a translator's queue and threads refer to each other, so reference counting does not free them
    trim_malloc()


class OnDemand:
    """A stored model whose Translator is loaded on demand, and may be unloaded when no request holds the model."""

    def __init__(self, model: StoredModel, loader: "Loader") -> None:
        self.model = model
        self._loader = loader
        self.translator: Translator | None = None
        self.users = 0  # number of requests that use the translator or wait for it
        self.last_used = 0.0  # when a request last ended, in monotonic time
        self.timer: asyncio.TimerHandle | None = None  # for the next check whether the model is idle
        self._loading: asyncio.Task[None] | None = None
        self._failed_at = -math.inf  # when loading last failed

    @property
    def loaded_translator(self) -> Translator:
        """The translator. Use it only in the block of `held`, where the model is loaded."""
        assert self.translator
        return self.translator

    @property
    def load(self) -> tuple[int, int]:
        """A tuple (waiting segments, segments being searched)."""
        return self.translator.load if self.translator else (0, 0)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Load the model if necessary, and keep it loaded within the block. Raise Refusal (500) if loading fails.

        A cancelled request does not stop the loading, because other requests may be waiting for it.
        """
        self.users += 1
        try:
            if not self.translator:
                if not self._loading and time.monotonic() - self._failed_at >= RETRY_SECONDS:
                    self._loading = asyncio.ensure_future(self._load_translator())
                if self._loading:
                    await asyncio.shield(self._loading)
                if not self.translator:
                    source, target, _ = self.model.directions[0]
                    text = f"The model for {source} to {target} cannot be loaded. The server's log has the reason"
                    raise Refusal(500, text)
            yield
        finally:
            self.users -= 1
            self.last_used = time.monotonic()
            if not self.users and self.translator:
                self._loader.released(self)

    async def _load_translator(self) -> None:
        try:
            self.translator = await self._loader.load(self.model)
        except (NmtError, OSError, ValueError, RuntimeError, MemoryError) as error:
            self._failed_at = time.monotonic()
            reason = from_os_error(error) if isinstance(error, OSError) else error
            warn(f"{self.model.path} cannot be loaded: {str(reason) or 'there is too little memory'}")
        finally:
            self._loading = None
        if self.translator and not self.users:  # all requests that waited for the model have ended
            self._loader.released(self)
        await self._loader.make_room()

    async def unload(self) -> None:
        """Unload the translator, unless a request has begun to use it since this call was scheduled."""
        if self.users:
            return
        translator, self.translator = self.translator, None
        if translator:
            await to_thread.run_sync(translator.close)
            del translator
            await to_thread.run_sync(_free)
            say(f"unloaded {self.model.path}")

    def close(self) -> None:
        if self.translator:
            self.translator.close()


class Loader:
    """Loads models, and unloads idle ones."""

    def __init__(
        self,
        load: Callable[[StoredModel], Translator],
        *,
        idle: float,
        memory: float = math.inf,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """Unload a model after `idle` seconds without requests.

        While `resident()`, the memory of the process, exceeds `memory` bytes, unload idle models sooner.
        """
        self._load_model = load
        self._idle = idle
        self._memory = memory
        self._resident = resident
        self._limiter: CapacityLimiter | None = None  # created by the first load, while the event loop runs
        self._making_room = False
        self._tasks = set[asyncio.Task[None]]()
        self.models = list[OnDemand]()

    def add(self, model: StoredModel) -> OnDemand:
        self.models.append(OnDemand(model, self))
        return self.models[-1]

    async def load(self, model: StoredModel) -> Translator:
        self._limiter = self._limiter or CapacityLimiter(LOADS)
        begun = time.monotonic()
        translator = await to_thread.run_sync(self._load_model, model, limiter=self._limiter)
        say(f"loaded {model.path} in {time.monotonic() - begun:.1f} s")
        return translator

    def released(self, model: OnDemand) -> None:
        """Schedule the unloading of a model that no request holds any longer. If memory is short, make room now."""
        if not model.timer and self._idle < math.inf:
            model.timer = asyncio.get_running_loop().call_later(self._idle, self._check_idle, model)
        if self._resident() > self._memory:
            self._start(self.make_room())

    def _check_idle(self, model: OnDemand) -> None:
        model.timer = None
        seconds_left = self._idle - (time.monotonic() - model.last_used)
        if model.users or not model.translator:
            return
        if seconds_left > 0:
            model.timer = asyncio.get_running_loop().call_later(seconds_left, self._check_idle, model)
        else:
            self._start(model.unload())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # a strong reference, because the event loop keeps only a weak one
        task.add_done_callback(self._tasks.discard)

    async def make_room(self) -> None:
        """Unload idle models, least recently used first, while the process exceeds its memory limit."""
        if self._making_room:
            return
        self._making_room = True
        try:
            while self._resident() > self._memory:
                unused = [model for model in self.models if model.translator and not model.users]
                if not unused:
                    return
                await min(unused, key=lambda model: model.last_used).unload()
        finally:
            self._making_room = False
