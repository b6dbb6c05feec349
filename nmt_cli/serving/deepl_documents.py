"""DeepL's routes for documents: a client uploads a file, asks for its status, and downloads its translation once."""

import asyncio
import hmac
import secrets
import time
from dataclasses import dataclass, field
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message

from nmt_cli.serving import files
from nmt_cli.serving.deepl import open_request
from nmt_cli.serving.fields import RETRY_SECONDS, Refusal
from nmt_cli.serving.service import Service

MAX_WAITING = 20  # maximum documents whose translation is not finished
MAX_RUNNING = 2  # maximum documents that are translated at the same time
MAX_KEPT = 100  # maximum documents, including translated ones
MAX_BYTES = 1 << 26  # maximum bytes of all uploaded files and translations
RUN_SECONDS = 600  # time to translate a document
BUSY_SECONDS = 5  # pause before the next attempt if the server was too busy to translate a document
KEEP_SECONDS = 1800  # how long a translation is kept
NOT_FOUND = "There is no such document, or it has expired"


@dataclass(eq=False)
class Job:
    """A document. `data` is the uploaded file, and later its translation."""

    kind: str  # one of the values in files.KINDS
    suffix: str
    pair: tuple[str, str]  # source and target language; the source may be "auto"
    data: bytes
    id: str = field(default_factory=lambda: secrets.token_hex(16).upper())
    key: str = field(default_factory=lambda: secrets.token_hex(32).upper())
    status: str = "queued"  # or translating, done, error
    error: str = ""
    characters: int = 0
    ended: float = 0.0  # on the monotonic clock

    @property
    def waits(self) -> bool:
        return self.status in ("queued", "translating")

    def summary(self) -> dict[str, object]:
        own: dict[str, object] = {"document_id": self.id, "status": self.status}
        if self.waits:
            own["seconds_remaining"] = 1
        elif self.error:
            own["error_message"] = self.error
        else:
            own["billed_characters"] = self.characters
        return own


class Jobs:
    """The documents of a server, in memory."""

    def __init__(self) -> None:
        self._jobs = dict[str, Job]()
        self._running: asyncio.Semaphore | None = None  # created on first use, because it belongs to the event loop

    def add(self, request: Request, job: Job) -> None:
        """Start translating a document. Raise Refusal (429) if MAX_WAITING or MAX_BYTES would be exceeded."""
        self._remove_old(job)
        waiting = sum(each.waits for each in self._jobs.values())
        size = sum(len(each.data) for each in self._jobs.values())
        if waiting >= MAX_WAITING or size + len(job.data) > MAX_BYTES:
            raise Refusal(429, "Too many documents are waiting: try again later", retry_after=RETRY_SECONDS)
        self._jobs[job.id] = job
        service: Service = request.app.state.service
        service.pool.workers.start(self._translate(_detached(request), job))

    def find(self, document_id: str, key: str) -> Job:
        """Return the document with this id. Raise Refusal (404) if there is none, or its key is not `key`."""
        self._remove_old()
        job = self._jobs.get(document_id)
        if not job or not hmac.compare_digest(job.key.encode(), key.encode()):
            raise Refusal(404, NOT_FOUND)
        return job

    def take(self, job: Job) -> bytes:
        """Return a translation and delete its document. Raise Refusal (503) if it is unfinished, (404) if it failed."""
        if job.waits:
            raise Refusal(503, "The document is being translated: try again later", retry_after=RETRY_SECONDS)
        if job.error:
            raise Refusal(404, NOT_FOUND)
        del self._jobs[job.id]
        return job.data

    async def _translate(self, request: Request, job: Job) -> None:
        self._running = self._running or asyncio.Semaphore(MAX_RUNNING)
        try:
            async with self._running, asyncio.timeout(RUN_SECONDS):
                job.status = "translating"
                job.data = await _translated(request, job)
                job.characters = request.state.characters
                job.status = "done"
        except Refusal as refusal:
            job.error = refusal.text
        except TimeoutError:
            job.error = f"The document took longer than {RUN_SECONDS} seconds"
        except Exception:
            job.error = "The server failed: this is a bug in nmt serve"
            raise  # so that the event loop logs it
        finally:
            if job.status != "done":
                job.status, job.data = "error", b""
            job.ended = time.monotonic()

    def _remove_old(self, *added: Job) -> None:
        """Remove expired documents. Then remove ended ones, oldest first, until the rest and `added` fit the limits."""
        ended = sorted((job for job in self._jobs.values() if not job.waits), key=lambda job: job.ended)
        size = sum(len(job.data) for job in [*self._jobs.values(), *added])
        for job in ended:
            expired = time.monotonic() - job.ended > KEEP_SECONDS
            if expired or size > MAX_BYTES or len(self._jobs) + len(added) > MAX_KEPT:
                del self._jobs[job.id]
                size -= len(job.data)


async def _translated(request: Request, job: Job) -> bytes:
    """Return the translation of a document. While the server is too busy, try again every BUSY_SECONDS."""
    while True:
        try:
            return await files.translated(request, job.kind, job.data, job.pair)
        except Refusal as refusal:
            if refusal.status != 429:
                raise
        await asyncio.sleep(BUSY_SECONDS)


def _detached(request: Request) -> Request:
    """Return a copy of a request. The copy ignores disconnections, because the client does not wait for the result."""

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    return Request({**request.scope, "state": dict(request.scope.get("state", {}))}, receive)


async def upload(request: Request) -> JSONResponse:
    service, fields = await open_request(request, max_bytes=files.MAX_FILE_BYTES)
    file = fields.file("file")
    name = PurePath(fields.text("filename", default="") or file.filename or "")
    suffix = name.suffix.lower()
    if suffix not in files.KINDS:
        kinds = ", ".join(sorted(files.KINDS))
        raise Refusal(400, f"Invalid request: file format not supported. Send one of {kinds}")
    if fields.text("output_format", default=suffix[1:]).lower() not in (suffix[1:], ""):
        raise Refusal(400, "Invalid request: output_format must be the format of the file")
    if fields.text("glossary_id", "glossary_ids", default=""):
        raise Refusal(400, "Invalid request: glossary_id is not supported for documents")
    pair = fields.text("source_lang", default="") or "auto", fields.text("target_lang")
    if pair[0] != "auto" and not service.needs_no_translation(*pair):
        service.pool.find(*pair)
    job = Job(files.KINDS[suffix], suffix, pair, await file.read())
    request.app.state.jobs.add(request, job)
    return JSONResponse({"document_id": job.id, "document_key": job.key})


async def _job(request: Request) -> Job:
    _, fields = await open_request(request)
    jobs: Jobs = request.app.state.jobs
    return jobs.find(request.path_params["id"], fields.text("document_key"))


async def status(request: Request) -> JSONResponse:
    return JSONResponse((await _job(request)).summary())


async def result(request: Request) -> Response:
    job = await _job(request)
    headers = {"Content-Disposition": f'attachment; filename="translated{job.suffix}"'}
    return Response(request.app.state.jobs.take(job), media_type="application/octet-stream", headers=headers)


ROUTES = [
    Route("/v2/document", upload, methods=["POST"]),
    Route("/v2/document/{id}", status, methods=["GET", "POST"]),
    Route("/v2/document/{id}/result", result, methods=["GET", "POST"]),
]
