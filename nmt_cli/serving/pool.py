"""The pool of models that translate the texts of all requests. Each language pair has one model."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from nmt_cli.corpus.languages import folded, is_same, match
from nmt_cli.serving.fields import RETRY_SECONDS, Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import LanguageRoute, ServedModel, routes_of
from nmt_cli.serving.work import SHORT_TEXT, Workers
from nmt_cli.system.errors import NmtError, UsageError, from_os_error
from nmt_cli.translation.backends import may_have_gpu
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Pending, Translation
from nmt_cli.translation.stored_models import directions_of
from nmt_cli.translation.translator import Translator

Result = TypeVar("Result")
WARM_UP = "Hello."
# While a CPU thread translates short texts, it also translates up to this many segments of long texts. More would delay
# the short texts.
BACKGROUND_SEGMENTS = 1
# The cost of a text, in characters, is an estimate of the memory and time that its translation takes.
COST_PER_UNIT = 50  # the cost of each line or sentence, in addition to its characters
COST_FACTOR = 4  # the maximum cost of a request is this many times the limit on its characters
SMALL_COST = 2500  # a request may always reserve costs up to this number, and they are not counted


class Budget:
    """A limit on the sum of the amounts that requests reserve at the same time.

    Amounts of up to `small` are always granted and not counted. A larger amount may exceed `limit` only if no other
    amount is counted at that time.
    """

    def __init__(self, limit: int, small: int) -> None:
        self.limit = limit
        self.small = small
        self.used = 0

    @contextlib.contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Reserve an amount during the block. Raise Refusal (429) if other requests have reserved too much."""
        amount = amount if amount > self.small else 0
        if amount and self.used and self.used + amount > self.limit:
            raise Refusal(429, "Too much text is waiting: try again later", retry_after=RETRY_SECONDS)
        self.used += amount
        try:
            yield
        finally:
            self.used -= amount


class ModelPool(contextlib.AbstractContextManager["ModelPool"]):
    """The models of all language pairs. Up to `queue` texts are admitted at a time, or one request with more texts."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        metrics: Metrics,
        *,
        queue: int,
        max_cost: int = COST_FACTOR * 100_000,
        pivot: bool = True,
    ) -> None:
        """`max_cost` limits the cost of one request, and the sum of all costs above SMALL_COST at a time.

        If `pivot` is true, language pairs without a model are translated through other languages, if possible. Raise
        UsageError if two models have the same language pair.
        """
        self.models = models
        self.metrics = metrics
        self.queue = queue
        self.max_cost = max_cost
        self.texts = 0  # number of texts that are admitted but not yet translated
        self.costs = Budget(max_cost, SMALL_COST)
        self.workers = Workers()
        pairs = [(model.source, model.target) for model in models]
        if repeated := next((pair for pair in pairs if pairs.count(pair) > 1), None):
            raise UsageError(f"two models translate {repeated[0]} to {repeated[1]}. Remove one of them")
        self.sources = list(dict.fromkeys(model.source for model in models))
        self.languages = list(dict.fromkeys([*self.sources, *(model.target for model in models)]))
        self.routes = routes_of(models, pivot=pivot)
        self._direct: dict[str, list[str]] = {source: [] for source in self.sources}  # targets that need only one model
        self._targets: dict[str, list[str]] = {source: [] for source in self.sources}
        for (source, target), route in self.routes.items():
            self._targets[source].append(target)
            if len(route.steps) == 1:
                self._direct[source].append(target)
        self.translators = list({id(model.translator): model.translator for model in models}.values())
        metrics.watch(self._load)

    def _load(self) -> tuple[int, int]:
        loads = [translator.load for translator in self.translators]
        return sum(waiting for waiting, _ in loads), sum(searched for _, searched in loads)

    def __exit__(self, *_: object) -> None:
        for translator in self.translators:
            translator.close()

    def targets(self, source: str) -> list[str]:
        """Return the target languages of a source language. List targets that need only one model first."""
        return self._targets.get(source, [])

    def find(self, source: str, target: str) -> LanguageRoute:
        """Return the route between two language codes. Raise Refusal (400) if there is no route."""
        for code in (source, target):
            if match(code, self.languages) is None:
                raise Refusal(400, f"{code[:40]} is not supported")
        # Models may use various codes for a language, such as en, eng and en-US. Prefer the source code in the request.
        # Prefer a target in the requested script, even if the route to a target in another script has fewer models.
        same = [code for code in self.sources if is_same(code, source)]
        same.sort(key=lambda code: folded(code) != folded(source))
        from_codes = same or [match(source, self.sources) or ""]
        for fits in (is_same, lambda *_: True):
            for known in (self._direct, self._targets):
                for from_code in from_codes:
                    codes = [code for code in known.get(from_code, []) if fits(code, target)]
                    if to_code := match(target, codes):
                        return self.routes[from_code, to_code]
        raise Refusal(400, f"{target[:40]} is not available as a target language from {source[:40]}")

    @contextlib.contextmanager
    def admit(self, texts: Sequence[str], options: SearchOptions) -> Iterator[None]:
        """Count texts as waiting during the block.

        Raise Refusal (429) if too much text waits already, and (400) if `texts` cost too much.
        """
        if self.texts and self.texts + len(texts) > self.queue:
            raise Refusal(429, "Too many texts are waiting: try again later", retry_after=RETRY_SECONDS)
        self.texts += len(texts)
        try:
            with self._reserve(sum(map(len, texts)) * options.n_best):
                yield
        finally:
            self.texts -= len(texts)

    def _reserve(self, cost: int, reserved: int = 0) -> contextlib.AbstractContextManager[None]:
        """Reserve `cost` during the block, for a request that has already reserved `reserved`.

        Raise Refusal (400) if the sum exceeds `max_cost`, and Refusal (429) if other requests have reserved too much.
        """
        if cost + reserved > self.max_cost:
            raise Refusal(400, "Invalid request: too many lines, sentences and alternatives. Divide the text")
        return self.costs.reserve(cost)

    async def translate(self, model: ServedModel, units: Sequence[str], options: SearchOptions) -> list[Translation]:
        """Translate units with a model that the caller holds. If this call is cancelled, so is the translation.

        Raise Refusal (500) if translation fails, (400) if it costs too much, and (429) if too much text is waiting.
        """
        try:
            pending = await self._finished(model, units, options)
            return [each.translation() for each in pending]
        except NmtError as error:
            raise Refusal(500, str(error)) from error
        except (OSError, MemoryError) as error:
            text = from_os_error(error) if isinstance(error, OSError) else "there is too little memory"
            raise Refusal(500, str(text)) from error

    async def _finished(self, model: ServedModel, units: Sequence[str], options: SearchOptions) -> list[Pending]:
        characters = sum(map(len, units))
        completion = Completion(len(units))
        begun = time.monotonic()
        pending = list[Pending]()
        ended = False

        def submit(position: int, unit: str) -> None:
            pending.append(model.submit(position, unit, options, completion.count_down))
            if ended:  # the request ended while this call ran in another thread
                pending[-1].cancel()

        def cost(segments: int) -> int:
            return COST_PER_UNIT * segments * options.n_best

        text_cost = characters * options.n_best
        short = characters + COST_PER_UNIT * len(units) <= SHORT_TEXT
        try:
            with self._reserve(cost(len(units)), reserved=text_cost):
                if short and not options.terms:
                    for position, unit in enumerate(units):
                        submit(position, unit)
                else:
                    await self.workers.map_in_thread(submit, range(len(units)), units, short=short)
                segments = sum(len(draft) for each in pending for draft in each.drafts)
                more = max(segments - len(units), 0)  # long units were divided
                with self._reserve(cost(more), reserved=text_cost + cost(len(units))):
                    await completion.future
        finally:
            ended = True
            if completion.remaining:
                for each in pending:
                    each.cancel()
        if short:
            self.metrics.observe(pending, begun)
        else:
            await self.workers.in_thread(self.metrics.observe, pending, begun)
        return pending


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` and return its result. If the client disconnects first, cancel `work` and raise ClientDisconnect."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        disconnected.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Completion:
    """Completes its `future` after `count_down` has been called `remaining` times."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining
        self._loop = asyncio.get_running_loop()
        self.future = self._loop.create_future()
        if not remaining:
            self.future.set_result(None)

    def count_down(self, _: Pending) -> None:
        """Count a call. Any thread may call this method."""
        with contextlib.suppress(RuntimeError):  # raised if the event loop is closed
            self._loop.call_soon_threadsafe(self._count_down)

    def _count_down(self) -> None:
        self.remaining -= 1
        if not self.remaining and not self.future.done():  # cancelling the request cancels the future
            self.future.set_result(None)


def load(directory: Path, precision: str, workers: int | None) -> list[ServedModel]:
    """Load a model and warm up its threads. Return one ServedModel for each language pair."""
    background = None if may_have_gpu() else BACKGROUND_SEGMENTS
    translator = Translator(directory, precision=precision, workers=workers, background_limit=background)
    models = [ServedModel(translator, *each) for each in directions_of(translator.config, translator.tokenizer)]
    for pending in [translator.submit(models[0].prefix + WARM_UP) for _ in translator.backend.searches]:
        pending.result()
    return models
