"""LibreTranslate's routes for files. Clients upload a file, and can download the translation for half an hour."""

import secrets
import time
from collections import OrderedDict
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nmt_cli.documents.formats import FORMATS, SUFFIXES
from nmt_cli.serving.fields import Refusal, checked_text
from nmt_cli.serving.service import Service
from nmt_cli.serving.texts import TextFormat

KINDS = SUFFIXES | {".txt": "text"}  # suffix of a file name -> format
MAX_FILE_BYTES = 1 << 24  # maximum bytes of an upload; pictures in a document count too
MAX_FILES = 100  # maximum number of stored files
MAX_BYTES = 1 << 26  # maximum bytes of all stored files
SECONDS = 1800  # how long a file is kept


class FileStore:
    """Keeps translated files in memory until they expire or make room for newer ones."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def put(self, name: str, data: bytes) -> str:
        """Keep a file and return its key, which cannot be guessed."""
        key = f"{secrets.token_urlsafe(16)}.{name}"
        self._files[key] = time.monotonic(), data
        self._bytes += len(data)
        self._evict()
        return key

    def get(self, key: str) -> bytes:
        self._evict()
        if key not in self._files:
            raise Refusal(404, "There is no such file, or it has expired")
        return self._files[key][1]

    def _evict(self) -> None:
        while self._files:
            kept_since, _ = next(iter(self._files.values()))
            fits = len(self._files) <= MAX_FILES and (self._bytes <= MAX_BYTES or len(self._files) == 1)
            if fits and time.monotonic() - kept_since < SECONDS:
                return
            _, (_, data) = self._files.popitem(last=False)
            self._bytes -= len(data)


async def translate_file(request: Request) -> JSONResponse:
    _, fields = await Service.open(request, max_bytes=MAX_FILE_BYTES)
    upload = fields.file("file")
    source = fields.text("source")
    target = fields.text("target")
    suffix = PurePath(upload.filename or "").suffix.lower()
    if suffix not in KINDS:
        raise Refusal(400, f"Invalid request: file format not supported. Send one of {', '.join(sorted(KINDS))}")
    written = await translated(request, KINDS[suffix], await upload.read(), (source, target))
    key = request.app.state.files.put(f"translated{suffix}", written)
    return JSONResponse({"translatedFileUrl": str(request.url_for("download", key=key))})


async def translated(request: Request, kind: str, data: bytes, pair: tuple[str, str]) -> bytes:
    """Return the translation of a file, and count its characters.

    `pair` is the source and target language. Raise Refusal (400) if the file is not in the format `kind`.
    """
    service: Service = request.app.state.service
    if kind in FORMATS and FORMATS[kind].binary:
        return await service.translate_file(request, kind, data, pair)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "Invalid request: file is not text in UTF-8") from None
    byte_order_mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = checked_text("file", text.removeprefix(byte_order_mark))
    service.count(request, [text])
    answer = await service.translate(request, [text], pair, TextFormat(kind, service.protect))
    return (byte_order_mark + answer.texts[0][0]).encode()


async def download(request: Request) -> Response:
    key = request.path_params["key"]
    headers = {"Content-Disposition": f'attachment; filename="translated{PurePath(key).suffix}"'}
    return Response(request.app.state.files.get(key), media_type="application/octet-stream", headers=headers)


ROUTES = [
    Route("/translate_file", translate_file, methods=["POST"]),
    Route("/download_file/{key}", download, name="download"),
]
