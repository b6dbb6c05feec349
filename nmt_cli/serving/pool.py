"""The models by language pair, and the texts of all requests that they translate."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from nmt_cli.corpus.languages import match
from nmt_cli.corpus.tokenizer import LANGUAGE
from nmt_cli.errors import NmtError, UsageError, from_os_error
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.translation.backends import may_have_gpu
from nmt_cli.translation.pending import Options, Pending, Translation
from nmt_cli.translation.translator import Translator

Result = TypeVar("Result")
RETRY_SECONDS = 1
WARM_UP = "Hello."
SHORT = 1000  # characters whose tokens are found about as soon as another thread takes over
LINE = 50  # that each line counts more
# Segments of long texts that a thread of a CPU searches at once beside other texts: more would slow down these.
LATER = 1


async def call_here(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function as `run_in_threadpool` would, but in this thread, which takes a tenth of a millisecond less."""
    return function(*arguments)


@dataclass(frozen=True)
class Model:
    translator: Translator
    source: str  # language codes
    target: str
    begin: str = ""  # what a source begins with, if the model has several target languages

    def submit(self, units: Sequence[str], options: Options, done: "_Countdown") -> list[Pending]:
        """Begin to translate parts of a text; those of others do not wait for all of them."""
        return [
            self.translator.submit(self.begin + unit, options, done=done.tell, place=place)
            for place, unit in enumerate(units)
        ]


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Translates for all requests. At most `queue` texts are in hand, unless one request alone has more; each request
    is answered within `timeout` seconds or not at all."""

    def __init__(self, models: Sequence[Model], metrics: Metrics, *, queue: int, timeout: float) -> None:
        self.models, self.metrics = models, metrics
        self.queue, self.timeout, self.texts = queue, timeout, 0
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

    async def translate(
        self, request: Request, model: Model, texts: Sequence[Sequence[str]], options: Options
    ) -> list[list[Translation]]:
        """Translate texts, each given by what of it is translated by itself.

        429 where too many others are in hand, 504 after the time limit. A client that goes away takes its texts along.
        """
        if self.texts and self.texts + len(texts) > self.queue:
            raise Refusal(429, "Too many texts are waiting: try again later", retry_after=RETRY_SECONDS)
        self.texts += len(texts)
        units = [unit for text in texts for unit in text]
        countdown, begun, pending = _Countdown(len(units)), time.monotonic(), list[Pending]()
        try:
            short = sum(len(unit) + LINE for unit in units) <= SHORT
            run = call_here if short else run_in_threadpool
            pending = await run(model.submit, units, options, countdown)
            await self._finish(request, countdown)
            self.metrics.observe(pending, begun)
            results = iter([one.translation() for one in pending])
        except NmtError as error:
            raise Refusal(500, str(error)) from error
        except (OSError, MemoryError) as error:
            told = from_os_error(error) if isinstance(error, OSError) else "there is too little memory"
            raise Refusal(500, str(told)) from error
        finally:
            self.texts -= len(texts)
            if countdown.left:
                for one in pending:
                    one.cancel()
        return [[next(results) for _ in text] for text in texts]

    async def _finish(self, request: Request, countdown: "_Countdown") -> None:
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({countdown.over, gone}, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if countdown.left and gone.done():
            raise ClientDisconnect
        if countdown.left:
            raise Refusal(504, f"The translation took longer than {self.timeout:g} seconds")


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
        if not self.left:
            self.over.set_result(None)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def load(directory: Path, precision: str, workers: int | None) -> list[Model]:
    """Load a model, and translate with it once; return it for each of its target languages."""
    later = None if may_have_gpu() else LATER
    translator = Translator(directory, precision=precision, workers=workers, later=later)
    source, target = translator.recipe.corpus.src, translator.recipe.corpus.tgt
    pieces = translator.tokenizer.tokens(list(range(translator.tokenizer.vocabulary_size)))
    tokens = [found[1] for piece in pieces if (found := LANGUAGE.fullmatch(piece))]
    models = [Model(translator, source, token[2:-2], f"{token} ") for token in tokens]
    models = models or [Model(translator, source, target)]
    for one in [translator.submit(models[0].begin + WARM_UP) for _ in translator.backend.searches]:
        one.result()
    return models
