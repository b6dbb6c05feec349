"""The functions that all routes use: limits, API keys, language detection and translation."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from nmt_cli.corpus.languages import base_of, is_same, match, name_of
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import fields as reader
from nmt_cli.serving import route_runner
from nmt_cli.serving.database import Database
from nmt_cli.serving.detect import SURE, Detector
from nmt_cli.serving.fields import BodyMemory, Fields, Refusal
from nmt_cli.serving.glossaries import QUOTA_EXCEEDED, Glossaries
from nmt_cli.serving.key_store import ApiKey, KeyStore
from nmt_cli.serving.keys import is_accepted
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import LanguageRoute
from nmt_cli.serving.pool import ModelPool, while_connected
from nmt_cli.serving.texts import TextFormat, assemble, units_of
from nmt_cli.serving.work import SHORT_TEXT
from nmt_cli.system.errors import DataError
from nmt_cli.translation.options import MODEL_DEFAULTS, SearchOptions

BYTES_PER_CHARACTER = 12  # maximum bytes of a character that is escaped in JSON or in a form
BYTES_PER_TEXT = 64  # bytes for the syntax around a text
OTHER_FIELDS = 50  # maximum number of form fields that are not texts
MAX_ALTERNATIVES = 10
KEY_SCHEMES = "bearer", "deepl-auth-key"  # in the Authorization header
KEY_FIELDS = "api_key", "apiKey", "auth_key"

KEY_SECONDS = 1  # how long a server may still accept a revoked key
MAX_SEARCHES = 1000  # maximum number of cached look-ups of keys

Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """The limits on one request."""

    characters: int = 100_000  # in all texts together
    texts: int = 1000
    seconds: float = 60  # from the headers of the request to the end of the response
    body_seconds: float = 30  # to receive the body of the request

    @property
    def bytes(self) -> int:
        return BYTES_PER_CHARACTER * self.characters + BYTES_PER_TEXT * self.texts + (1 << 16)


@dataclass(frozen=True)
class Answer:
    texts: list[list[str]]  # the distinct translations of each text, best first
    source: str  # language code
    confidence: int | None = None  # in percent, if the language was detected


@dataclass
class Service:
    """The state that all routes share. Each application has one instance."""

    pool: ModelPool
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    keys: Sequence[bytes] = ()  # if not empty, each request needs one of these API keys
    protect: bool | None = None  # keep placeholders away from the model; if None, do so in all formats but plain text
    suggestions: Path | None = None  # a file for suggested translations
    database: Database = field(default_factory=Database)  # in memory by default
    keep: tuple[str, ...] = ()  # words and phrases that are not translated
    characters: int = 0  # in all requests so far
    body_memory: BodyMemory = field(default_factory=BodyMemory)

    def __post_init__(self) -> None:
        self.detector = Detector(self.pool.sources, self.pool.languages)
        self.glossaries = Glossaries(self.database)
        # Key look-ups use a separate connection, so that they do not wait for glossaries.
        self._key_database = self.database.another()
        self.api_keys = KeyStore(self._key_database)
        # API key -> monotonic time at which its last look-up started, and the task of the look-up
        self._searches = dict[str, tuple[float, asyncio.Task[tuple[bool, ApiKey | None]]]]()
        self._has_stored_keys = self.api_keys.exist

    def close(self) -> None:
        """Close the connections to the database."""
        self._key_database.close()
        self.database.close()

    @staticmethod
    async def open(
        request: Request, key_field: str = "api_key", *, missing: int = 400, max_bytes: int = 0
    ) -> tuple["Service", Fields]:
        """Return the service and the fields of a request, after checking its API key. See `read` and `check_key`."""
        service: Service = request.app.state.service
        fields = await service.read(request, max_bytes)
        service.check_key(request, fields, key_field, missing)
        return service, fields

    async def read(self, request: Request, max_bytes: int = 0) -> Fields:
        """Return the fields of a request, and look up its API key.

        Raise Refusal (400) if the body is malformed, (408) if it does not arrive in time, and (413) if it is too large.
        Raise Refusal (503) if too many large bodies are being read or the database cannot be used. For files,
        `max_bytes` raises the limit on the body.
        """
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                max_fields = self.limits.texts + OTHER_FIELDS
                limit = max(max_bytes, self.limits.bytes)
                fields = await reader.read(request, limit, max_fields, self.body_memory)
        except TimeoutError:
            text = f"The request's body took longer than {self.limits.body_seconds:g} seconds"
            raise Refusal(408, text, close=True) from None
        await self.identify(request, fields)
        return fields

    async def identify(self, request: Request, fields: Fields) -> None:
        """Look up the API key of a request in the database. Do nothing if the database is in memory.

        Requests with the same key share a look-up for KEY_SECONDS, because a single thread does all look-ups. Raise
        Refusal (503) if the database fails.
        """
        if not self.database.place:
            return
        key = self._given_key(request, fields)
        begun, search = self._searches.get(key, (-math.inf, None))
        if not search or time.monotonic() - begun > KEY_SECONDS:
            if len(self._searches) >= MAX_SEARCHES:
                self._searches.clear()
            search = asyncio.ensure_future(self.pool.workers.in_database(self._find, key, accounts=True))
            self._searches[key] = time.monotonic(), search
        self._has_stored_keys, request.state.key = await asyncio.shield(search)

    def _find(self, key: str) -> tuple[bool, ApiKey | None]:
        return self.api_keys.exist, self.api_keys.find(key) if key else None

    @property
    def needs_keys(self) -> bool:
        """Whether requests need an API key. They do if the server has a key file, or if the database ever had a key."""
        return bool(self.keys) or self._has_stored_keys

    def key_of(self, request: Request) -> ApiKey | None:
        """Return the API key of a request, or None if the database does not have the key."""
        return getattr(request.state, "key", None)

    def _given_key(self, request: Request, fields: Fields) -> str:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() not in KEY_SCHEMES:
            key = fields.text(*KEY_FIELDS, default="")
        return key.strip()

    def check_key(self, request: Request, fields: Fields, name: str = "", missing: int = 400) -> None:
        """Check the API key in a field or in the Authorization header, if requests need a key.

        Raise Refusal (403) if the key is wrong. If there is no key, raise a Refusal with the status `missing` and a
        message that names the field `name`.
        """
        if not self.needs_keys or self.key_of(request):
            return
        key = self._given_key(request, fields)
        if not key:
            where = f"as {name} or " if name else ""
            raise Refusal(missing, f"An API key is needed, {where}in the Authorization header")
        if not is_accepted(key.encode(), self.keys):
            raise Refusal(403, "Invalid API key")

    async def charge(self, request: Request) -> None:
        """Charge a request and the characters of its texts to its API key, if the key is in the database.

        Raise Refusal (429) if this would exceed a limit of the key. In version 2 of DeepL's API, the status for the
        limit per day is 456 instead. Call this method after the request is admitted, so that a refused request costs
        nothing.
        """
        key = self.key_of(request)
        if not key:
            return
        characters = request.state.characters
        exceeded = await self.pool.workers.in_database(self.api_keys.charge, key, characters, accounts=True)
        if exceeded:
            status = QUOTA_EXCEEDED if exceeded.of_day and request.url.path.startswith("/v2/") else 429
            raise Refusal(status, exceeded.text, retry_after=exceeded.seconds)

    async def stored(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function that uses the database, and return its result. Raise Refusal (503) if the database fails."""
        return await self.pool.workers.in_database(function, *arguments)

    def texts_of(self, request: Request, fields: Fields, name: str) -> tuple[list[str], bool]:
        """Return the texts in a field, and whether the field is a list. Count the texts."""
        texts, is_list = fields.texts(name, self.limits.texts)
        self.count(request, texts)
        return texts, is_list

    def count(self, request: Request, texts: Sequence[str]) -> None:
        """Count the texts of a request. Further calls for the same request do not change the totals of the server.

        Raise Refusal (400) if the texts together are too long.
        """
        characters = sum(map(len, texts))
        is_counted = hasattr(request.state, "texts")
        request.state.texts, request.state.characters = len(texts), characters
        if characters > (limit := self.limits.characters):
            raise Refusal(400, f"Invalid request: request ({characters:,}) exceeds text limit ({limit:,})")
        if not is_counted:
            self.metrics.texts.inc(len(texts))
            self.metrics.characters.inc(characters)
            self.characters += characters

    async def translate(
        self,
        request: Request,
        texts: Sequence[str],
        pair: tuple[str, str],
        text_format: TextFormat,
        options: SearchOptions = MODEL_DEFAULTS,
    ) -> Answer:
        """Translate the texts of a request. Raise Refusal (400) if there is no route between the languages of `pair`.

        The source language may be "auto".
        """
        source, confidence = await self.source_language(texts, *pair)
        if self.needs_no_translation(source, pair[1]):
            await self.charge(request)
            return Answer([[text] for text in texts], source, confidence)
        route = self.route(request, source, pair[1])
        text_format = replace(text_format, language=route.target, keep=self.keep)
        options = replace(options, alignments=text_format.marked)
        with self.pool.admit(texts, options):
            translating = self._translate(request, route, texts, text_format, options)
            translations = await while_connected(request, translating)
        return Answer(translations, route.source, confidence)

    async def _translate(
        self,
        request: Request,
        route: LanguageRoute,
        texts: Sequence[str],
        text_format: TextFormat,
        options: SearchOptions,
    ) -> list[list[str]]:
        units = await self.units_in(text_format, texts)
        await self.charge(request)
        return await self.translate_units(route, units, texts, text_format, options)

    def route(self, request: Request, source: str, target: str) -> LanguageRoute:
        """Return the route between two languages. Raise Refusal (400) if there is none.

        The name of the route is stored in the request, for ROUTE_HEADER.
        """
        route = self.pool.find(source, target)
        request.state.route = route.name
        return route

    async def translate_file(self, request: Request, kind: str, data: bytes, pair: tuple[str, str]) -> bytes:
        """Translate a file and count its characters. `kind` is a name in `documents.formats.FORMATS`.

        The source language in `pair` may be "auto". Raise Refusal (400) if the file is not in this format.
        """
        return await while_connected(request, self._translate_file(request, kind, data, pair))

    async def _translate_file(self, request: Request, kind: str, data: bytes, pair: tuple[str, str]) -> bytes:
        source, target = pair
        known = "" if source.lower() == "auto" else source
        language = match(target, self.pool.languages) or target
        text_format = TextFormat(kind, self.protect, language=language, source_language=known, keep=self.keep)
        workers = self.pool.workers
        try:
            units = await workers.file_units(text_format, data)
        except DataError as error:
            raise Refusal(400, f"Invalid request: {error}") from None
        self.count(request, units)
        source, _ = await self.source_language(units, source, target)
        if self.needs_no_translation(source, target):
            await self.charge(request)
            return data
        options = SearchOptions(n_best=1, alignments=True)
        route = self.route(request, source, target)
        with self.pool.admit(units, options):
            await self.charge(request)
            translated = await route_runner.translate(self.pool, route, units, options)
            return await workers.assemble_file(text_format, data, tuple(ranks[0] for ranks in translated))

    async def units_in(self, text_format: TextFormat, texts: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return the units of each text. Raise Refusal (400) if a text is malformed or has too much markup."""
        try:
            if not text_format.marked:
                return units_of(text_format, texts)
            if _are_short(texts):
                return await self.pool.workers.in_thread(units_of, text_format, texts, short=True)
            return cast(list[list[str]], await self.pool.workers.in_process(text_format, texts))
        except DataError as error:
            raise Refusal(400, f"Invalid request: {error}") from None

    async def translate_units(
        self,
        route: LanguageRoute,
        units: Sequence[Sequence[str]],
        texts: Sequence[str],
        text_format: TextFormat,
        options: SearchOptions,
    ) -> list[list[str]]:
        """Return the distinct translations of each admitted text, best first. `units` holds the units of each text."""
        translated = await route_runner.translate(self.pool, route, list(chain.from_iterable(units)), options)
        results = _by_rank(units, translated, options.n_best)
        if text_format.marked and not _are_short(texts):
            return cast(list[list[str]], await self.pool.workers.in_process(text_format, texts, results))
        if text_format.marked:
            return await self.pool.workers.in_thread(assemble, text_format, texts, results, short=True)
        if _are_short(texts):
            return assemble(text_format, texts, results)
        return await self.pool.workers.in_thread(assemble, text_format, texts, results, short=False)

    async def source_language(self, texts: Sequence[str], source: str, target: str) -> tuple[str, int | None]:
        """Return the source language and None.

        If `source` is "auto", return the detected language and the confidence in percent instead. Raise Refusal
        (400) if the detector is certain that the text is in a language that no model has.
        """
        if source.lower() != "auto":
            return source, None
        detected = await run_in_threadpool(self.detector.detect, "\n".join(texts))
        first, _ = detected[0]
        if first not in self.pool.languages:
            text = f"The text was detected as {name_of(first)} ({first}), which is not supported"
            raise Refusal(400, f"{text}. If that is wrong, set the source language")
        translatable = {code for code in self.pool.sources if match(target, self.pool.targets(code))}
        if detected[0][1] >= SURE and base_of(first) != base_of(target):
            return detected[0]  # even if no model translates it, because another model would return nonsense
        for code, confidence in detected:
            if code in translatable or (base_of(code) == base_of(target) and confidence >= SURE):
                return code, confidence
        return detected[0]

    def needs_no_translation(self, source: str, target: str) -> bool:
        """Return whether both languages are the same and no model translates between their variants."""
        first, second = (match(code, self.pool.languages) for code in (source, target))
        if first is None or second is None or not (is_same(source, target) and is_same(first, second)):
            return False
        return not any((model.source, model.target) == (first, second) for model in self.pool.models)


def _are_short(texts: Sequence[str]) -> bool:
    return sum(map(len, texts)) <= SHORT_TEXT


def _by_rank(
    units: Sequence[Sequence[str]], translated: Iterable[route_runner.Ranks], count: int
) -> list[list[tuple[Aligned, ...]]]:
    """Regroup the translations of units by text. In the result, [i][rank] has one translation of each unit of text i.

    Rank 0 is the best. A unit with fewer than `count` translations repeats its last one.
    """
    padded = ([ranks[min(rank, len(ranks) - 1)] for rank in range(count)] for ranks in translated)
    return [list(zip(*islice(padded, len(own)), strict=True)) or [()] for own in units]
