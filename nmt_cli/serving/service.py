"""What all routes share: the models, the limits, and how a request becomes translations."""

import asyncio
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from nmt_cli.corpus.languages import base_of, is_same, match, name_of
from nmt_cli.corpus.terms import Terms
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import fields as reader
from nmt_cli.serving.detect import SURE, Detector
from nmt_cli.serving.fields import Fields, Reading, Refusal
from nmt_cli.serving.glossaries import Glossaries
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import Model, Pool, while_connected
from nmt_cli.serving.texts import Form, units_of, write
from nmt_cli.serving.work import SHORT
from nmt_cli.system.errors import DataError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Translation

BYTES_PER_CHARACTER = 12  # of a character that JSON or a form escapes
BYTES_PER_TEXT = 64  # around it
OTHER_FIELDS = 50
MOST_ALTERNATIVES = 10
KEY_SCHEMES = "bearer", "deepl-auth-key"  # in the header Authorization


@dataclass(frozen=True)
class Limits:
    characters: int = 100_000  # of all texts of a request
    texts: int = 1000  # of a request
    seconds: float = 60  # from a request's first byte to the beginning of its answer
    body_seconds: float = 30  # until a request's body is there

    @property
    def bytes(self) -> int:
        return BYTES_PER_CHARACTER * self.characters + BYTES_PER_TEXT * self.texts + (1 << 16)


@dataclass(frozen=True)
class Answer:
    texts: list[list[str]]  # of each text the translations, best first, no two the same
    source: str  # the language code
    confidence: int | None = None  # in percent, where the language was not named


@dataclass
class Service:
    pool: Pool
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    keys: Sequence[bytes] = ()  # one of which each request must bring, if there are any
    protect: bool | None = None  # keep placeholders from the model; None: in all but plain text
    characters: int = 0  # of all requests so far
    glossaries: Glossaries = field(default_factory=Glossaries)
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        self.detector = Detector(self.pool.sources, self.pool.languages)

    async def read(self, request: Request) -> Fields:
        """Return a request's fields; 408 where its body takes too long to come."""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                most = self.limits.texts + OTHER_FIELDS
                return await reader.read(request, self.limits.bytes, most, self.reading)
        except TimeoutError:
            text = f"The request's body took longer than {self.limits.body_seconds:g} seconds"
            raise Refusal(408, text, close=True) from None

    def check_key(self, request: Request, fields: Fields, *names: str, missing: int = 400) -> None:
        """403 where the key is not one of ours, `missing` where there is none; it comes as a field or in a header."""
        if not self.keys:
            return
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() not in KEY_SCHEMES:
            key = fields.text(*names, default="") if names else ""
        if not key:
            places = " or ".join([*(f"as {name}" for name in names[:1]), "in the header Authorization"])
            raise Refusal(missing, f"An API key is needed, {places}")
        equal = [hmac.compare_digest(key.strip().encode(), each) for each in self.keys]  # all of them, whichever it is
        if not any(equal):
            raise Refusal(403, "Invalid API key")

    def texts_of(self, request: Request, fields: Fields, name: str) -> tuple[list[str], bool]:
        """Return the texts of a request, and whether they came as a list; count them."""
        texts, several = fields.texts(name, self.limits.texts)
        self.count(request, texts)
        return texts, several

    def count(self, request: Request, texts: Sequence[str]) -> None:
        """Count the texts of a request; 400 where they have too many characters."""
        characters = sum(map(len, texts))
        request.state.texts, request.state.characters = len(texts), characters
        if characters > (most := self.limits.characters):
            raise Refusal(400, f"Invalid request: request ({characters:,}) exceeds text limit ({most:,})")
        self.metrics.texts.inc(len(texts))
        self.metrics.characters.inc(characters)
        self.characters += characters

    async def translate(
        self,
        request: Request,
        texts: Sequence[str],
        pair: tuple[str, str],
        form: Form,
        alternatives: int = 0,
        terms: Terms | None = None,
    ) -> Answer:
        """Translate the texts of a request between two languages, the first of which may be "auto"; 400 for languages
        that no model has."""
        source, confidence = await self.language(texts, *pair)
        if self.is_translated(source, pair[1]):
            return Answer([[text] for text in texts], source, confidence)
        model = self.pool.find(source, pair[1])
        form = replace(form, language=model.target)
        options = SearchOptions(n_best=alternatives + 1, alignments=form.marked, terms=terms)
        with self.pool.room(texts, options):
            found = await while_connected(request, self._translated(model, texts, form, options))
        return Answer(found, model.source, confidence)

    async def _translated(
        self, model: Model, texts: Sequence[str], form: Form, options: SearchOptions
    ) -> list[list[str]]:
        short = sum(map(len, texts)) <= SHORT
        workers = self.pool.workers
        in_process = form.marked and not short
        try:
            if in_process:
                units = await workers.in_process(form, texts)
            elif form.marked:
                units = await workers.in_thread(units_of, form, texts, short=True)
            else:
                units = units_of(form, texts)
        except DataError as error:
            raise Refusal(400, f"Invalid request: {error}") from None
        results = await self.pool.translate(model, units, options)
        found = await self._ranks(model, units, results, options)
        if in_process:
            return cast(list[list[str]], await workers.in_process(form, texts, found))
        if short and not form.marked:
            return write(form, texts, found)
        return await workers.in_thread(write, form, texts, found, short=short)

    async def _ranks(
        self,
        model: Model,
        units: Sequence[Sequence[str]],
        results: Sequence[Sequence[Translation]],
        options: SearchOptions,
    ) -> list[list[tuple[Aligned, ...]]]:
        """Return for each text the translations of its units: first the best of each, then the second, and so on."""
        ranks = range(options.n_best)

        def linked(unit: str, translation: Translation) -> list[Aligned]:
            return [model.aligned(unit, translation, rank) for rank in ranks]

        every = chain.from_iterable(results)
        if options.alignments:
            every_unit = list(chain.from_iterable(units))
            short = sum(map(len, every_unit)) <= SHORT
            found = iter(await self.pool.workers.mapped(linked, every_unit, every, short=short))
        else:
            found = ([Aligned(translation.at(rank).text, []) for rank in ranks] for translation in every)
        return [list(zip(*islice(found, len(own)), strict=True)) or [()] for own in units]

    async def language(self, texts: Sequence[str], source: str, target: str) -> tuple[str, int | None]:
        """Return the source language, and how sure that is in percent where it is "auto"; 400 where it is sure that no
        model has it."""
        if source.lower() != "auto":
            return source, None
        found = await run_in_threadpool(self.detector.detect, "\n".join(texts))
        if (first := found[0][0]) not in self.pool.languages:
            told = f"The text was detected as {name_of(first)} ({first}), which is not supported"
            raise Refusal(400, f"{told}: name its language if that is wrong")
        able = {code for code in self.pool.sources if match(target, self.pool.targets(code))}
        for code, sure in found:
            if code in able or (base_of(code) == base_of(target) and sure >= SURE):
                return code, sure
        return found[0]

    def is_translated(self, source: str, target: str) -> bool:
        """Return whether a text in the source language is one in the target language already, and no model changes
        it."""
        codes = [match(code, self.pool.languages) for code in (source, target)]
        if not all(codes) or not is_same(source, target):
            return False
        return not any((model.source, model.target) == (codes[0], codes[1]) for model in self.pool.models)
