"""The models by language pair, and the texts of all requests that they translate."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from nmt_cli.corpus.languages import match
from nmt_cli.corpus.tokenizer import LANGUAGE
from nmt_cli.documents.alignment import aligned
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving.fields import RETRY_SECONDS, Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.work import SHORT, Workers
from nmt_cli.system.errors import NmtError, UsageError, from_os_error
from nmt_cli.translation.backends import may_have_gpu
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Pending, Translation
from nmt_cli.translation.translator import Translator

Result = TypeVar("Result")
WARM_UP = "Hello."
# Segments of long texts that a thread of a CPU searches at once beside other texts: more would slow down these.
LATER = 1
# What texts cost while they are in hand, in characters: memory, and time in which Python collects garbage.
SEGMENT = 50  # for each line or sentence, beside its own characters
COST_TIMES = 4  # a request, each alternative counted, may cost so many times the characters that it may have
SMALL_COST = 2500  # costs of no more always find room


@dataclass(frozen=True)
class Model:
    translator: Translator
    source: str  # language codes
    target: str
    begin: str = ""  # what a source begins with, if the model has several target languages

    def submit(self, place: int, unit: str, options: SearchOptions, countdown: "_Countdown") -> Pending:
        """Begin to translate a unit of a text, the one at `place`; others' texts do not wait for all of its units."""
        return self.translator.submit(self.begin + unit, options, done=countdown.tell, position=place)

    def aligned(self, unit: str, translation: Translation, rank: int) -> Aligned:
        """Return a unit's translation of this rank, or the last, linked to the unit."""
        found, skip = aligned(self.translator, translation, self.begin + unit, rank), len(self.begin)
        return Aligned(found.text, [(end, max(start - skip, 0)) for end, start in found.links])


class Budget:
    """The memory that requests may hold at once, in any unit.

    Small amounts always pass, and so does a large one if no other is held.
    """

    def __init__(self, most: int, small: int) -> None:
        self.most, self.small, self.held = most, small, 0

    @contextlib.contextmanager
    def holding(self, amount: int) -> Iterator[None]:
        """Hold an amount within the block; 429 where too much is held already."""
        amount = amount if amount > self.small else 0
        if amount and self.held and self.held + amount > self.most:
            raise Refusal(429, "Too much text is waiting: try again later", retry_after=RETRY_SECONDS)
        self.held += amount
        try:
            yield
        finally:
            self.held -= amount


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Translates for all requests. At most `queue` texts are in hand, unless one request alone has more."""

    def __init__(
        self, models: Sequence[Model], metrics: Metrics, *, queue: int, most_cost: int = COST_TIMES * 100_000
    ) -> None:
        """`most_cost` is that of a request, and of all long requests in hand."""
        self.models, self.metrics, self.queue, self.most_cost = models, metrics, queue, most_cost
        self.texts = 0  # in hand
        self.costs = Budget(most_cost, SMALL_COST)
        self.workers = Workers()
        pairs = [(model.source, model.target) for model in models]
        if twice := next((pair for pair in pairs if pairs.count(pair) > 1), None):
            raise UsageError(f"two models translate {twice[0]} to {twice[1]}. Leave one of them out")
        self.sources = list(dict.fromkeys(model.source for model in models))
        self.languages = list(dict.fromkeys([*self.sources, *(model.target for model in models)]))
        self.translators = list({id(model.translator): model.translator for model in models}.values())
        metrics.watch(self._load)

    def _load(self) -> tuple[int, int]:
        loads = [translator.load for translator in self.translators]
        return sum(waiting for waiting, _ in loads), sum(searched for _, searched in loads)

    def __exit__(self, *_: object) -> None:
        for translator in self.translators:
            translator.close()

    def targets(self, source: str) -> list[str]:
        return [model.target for model in self.models if model.source == source]

    def find(self, source: str, target: str) -> Model:
        """Return the model of two language codes; 400 where there is none."""
        for asked in (source, target):
            if match(asked, self.languages) is None:
                raise Refusal(400, f"{asked[:40]} is not supported")
        from_code = match(source, self.sources)
        to_code = match(target, self.targets(from_code or ""))
        for model in self.models:
            if (model.source, model.target) == (from_code, to_code):
                return model
        raise Refusal(400, f"{target[:40]} is not available as a target language from {source[:40]}")

    @contextlib.contextmanager
    def room(self, texts: Sequence[str], options: SearchOptions) -> Iterator[None]:
        """Hold room for texts within the block; 429 where too many others are in hand, 400 for too much text."""
        if self.texts and self.texts + len(texts) > self.queue:
            raise Refusal(429, "Too many texts are waiting: try again later", retry_after=RETRY_SECONDS)
        self.texts += len(texts)
        try:
            with self.holding(sum(map(len, texts)) * options.n_best):
                yield
        finally:
            self.texts -= len(texts)

    def holding(self, cost: int, beside: int = 0) -> contextlib.AbstractContextManager[None]:
        """Hold a cost; 400 if that and the cost `beside` are too much for a request."""
        if cost + beside > self.most_cost:
            raise Refusal(400, "Invalid request: its lines, sentences and alternatives are too many. Divide the text")
        return self.costs.holding(cost)

    async def translate(
        self, model: Model, texts: Sequence[Sequence[str]], options: SearchOptions
    ) -> list[list[Translation]]:
        """Translate the units of texts. Those of a caller that is cancelled are given up."""
        units = list(chain.from_iterable(texts))
        try:
            pending = await self._translated(model, units, options)
            results = iter([one.translation() for one in pending])
        except NmtError as error:
            raise Refusal(500, str(error)) from error
        except (OSError, MemoryError) as error:
            told = from_os_error(error) if isinstance(error, OSError) else "there is too little memory"
            raise Refusal(500, str(told)) from error
        return [[next(results) for _ in text] for text in texts]

    async def _translated(self, model: Model, units: Sequence[str], options: SearchOptions) -> list[Pending]:
        characters = sum(map(len, units))
        countdown, begun, pending = _Countdown(len(units)), time.monotonic(), list[Pending]()
        over = False

        def submit(place: int, unit: str) -> None:
            pending.append(model.submit(place, unit, options, countdown))
            if over:  # since this call began, in another thread
                pending[-1].cancel()

        def cost(segments: int) -> int:
            return SEGMENT * segments * options.n_best

        text_cost, short = characters * options.n_best, characters + SEGMENT * len(units) <= SHORT
        try:
            with self.holding(cost(len(units)), beside=text_cost):
                if short and not options.terms:
                    for place, unit in enumerate(units):
                        submit(place, unit)
                else:
                    await self.workers.mapped(submit, range(len(units)), units, short=short)
                segments = sum(len(draft) for one in pending for draft in one.drafts)
                more = max(segments - len(units), 0)
                with self.holding(cost(more), beside=text_cost + cost(len(units))):
                    await countdown.over
        finally:
            over = True
            if countdown.left:
                for one in pending:
                    one.cancel()
        if short:
            self.metrics.observe(pending, begun)
        else:
            await self.workers.in_thread(self.metrics.observe, pending, begun)
        return pending


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work, which is cancelled with ClientDisconnect when the client goes away before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


class _Countdown:
    """Counts the texts of a request that are not translated yet, in the thread of the server."""

    def __init__(self, left: int) -> None:
        self.left, self._loop = left, asyncio.get_running_loop()
        self.over = self._loop.create_future()
        if not left:
            self.over.set_result(None)

    def tell(self, _: Pending) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._one_less)

    def _one_less(self) -> None:
        self.left -= 1
        if not self.left and not self.over.done():  # it is cancelled with its request
            self.over.set_result(None)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def load(directory: Path, precision: str, workers: int | None) -> list[Model]:
    """Load a model, and translate with it once; return it for each of its target languages."""
    later = None if may_have_gpu() else LATER
    translator = Translator(directory, precision=precision, workers=workers, background_limit=later)
    source, target = translator.recipe.corpus.src, translator.recipe.corpus.tgt
    pieces = translator.tokenizer.tokens(list(range(translator.tokenizer.vocabulary_size)))
    tokens = [found[1] for piece in pieces if (found := LANGUAGE.fullmatch(piece))]
    models = [Model(translator, source, token[2:-2], f"{token} ") for token in tokens]
    models = models or [Model(translator, source, target)]
    for one in [translator.submit(models[0].begin + WARM_UP) for _ in translator.backend.searches]:
        one.result()
    return models
