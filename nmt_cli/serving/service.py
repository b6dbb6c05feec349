"""What all routes share: the models, the limits, and how a request becomes translations."""

import asyncio
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from nmt_cli.corpus.terms import Terms
from nmt_cli.errors import DataError
from nmt_cli.serving import fields as reader
from nmt_cli.serving.detect import Detector
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.glossaries import Glossaries
from nmt_cli.serving.languages import base_of, match
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import SHORT, Model, Pool, call_here
from nmt_cli.serving.texts import Form, Text
from nmt_cli.translation.pending import Options, Translation

BYTES_PER_CHARACTER = 12  # of a character that JSON or a form escapes
BYTES_PER_TEXT = 64  # around it
OTHER_FIELDS = 50
MOST_ALTERNATIVES = 10
SURE = 90  # percent: then a text is taken to be in the target language already
KEY_SCHEMES = "bearer", "deepl-auth-key"  # in the header Authorization


@dataclass(frozen=True)
class Limits:
    characters: int = 100_000  # of all texts of a request
    texts: int = 1000  # of a request
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

    def __post_init__(self) -> None:
        self.detector = Detector(self.pool.sources, self.pool.languages)

    async def read(self, request: Request) -> Fields:
        """Return a request's fields; 408 where its body takes too long to come."""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await reader.read(request, self.limits.bytes, self.limits.texts + OTHER_FIELDS)
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
        to_code = match(pair[1], self.pool.languages)
        if confidence is not None and to_code and base_of(to_code) == base_of(source):
            return Answer([[text] for text in texts], source, confidence)  # there is nothing to translate
        model = self.pool.find(source, pair[1])
        short = form.kind == "text" and not form.protect and sum(map(len, texts)) <= SHORT
        run = call_here if short else run_in_threadpool
        try:
            cut = await run(lambda: [form.read(text, model.target) for text in texts])
        except DataError as error:
            raise Refusal(400, f"Invalid request: {error}") from None
        options = Options(n_best=alternatives + 1, alignments=any(text.aligned for text in cut), terms=terms)
        results = await self.pool.translate(request, model, [text.units for text in cut], options)
        written = await run(_written, model, cut, results, alternatives + 1)
        return Answer(written, model.source, confidence)

    async def language(self, texts: Sequence[str], source: str, target: str) -> tuple[str, int | None]:
        """Return the source language, and how sure that is in percent where it is "auto"."""
        if source != "auto":
            return source, None
        found = await run_in_threadpool(self.detector.detect, "\n".join(texts))
        able = {code for code in self.pool.sources if match(target, self.pool.targets(code))}
        for code, sure in found:
            if code in able or (base_of(code) == base_of(target) and sure >= SURE):
                return code, sure
        return found[0]


def _written(
    model: Model, texts: Sequence[Text], results: Sequence[Sequence[Translation]], ranks: int
) -> list[list[str]]:
    """Return the translations of each text, best first, each once."""
    return [
        list(dict.fromkeys(text.written(model, result, rank) for rank in range(ranks)))
        for text, result in zip(texts, results, strict=True)
    ]
