"""LibreTranslate's route /suggest. Clients send better translations, and the server appends them to a file."""

import fcntl
import json
import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nmt_cli.corpus.languages import match
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.service import Service

MAX_FILE_BYTES = 1 << 28


async def suggest(request: Request) -> JSONResponse:
    """Append a suggestion to the server's file. Raise Refusal (403) if the server has no such file."""
    service, fields = await Service.open(request)
    if not service.suggestions:
        raise Refusal(403, "Suggestions are disabled on this server.")
    suggestion = {name: fields.text(name) for name in ("q", "s", "source", "target")}
    service.count(request, [suggestion["q"], suggestion["s"]])
    source, target, pool = suggestion["source"], suggestion["target"], service.pool
    if source.lower() == "auto":
        source = next((code for code in pool.sources if match(target, pool.targets(code))), source)
    pool.find(source, target)
    line = json.dumps(suggestion, ensure_ascii=False) + "\n"
    await service.pool.workers.in_thread(append, service.suggestions, line.encode(), short=True)
    return JSONResponse({"success": True})


def append(path: Path, line: bytes) -> None:
    """Append a line to a file. Only the owner may read a new file.

    Raise Refusal (503) if the file cannot be written or would exceed MAX_FILE_BYTES.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # several servers may share the file
            if os.fstat(file).st_size + len(line) > MAX_FILE_BYTES:
                raise Refusal(503, "The server accepts no more suggestions")
            if (written := os.write(file, line)) < len(line):  # the disk is full
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise Refusal(503, "The server cannot store suggestions")
        finally:
            os.close(file)
    except OSError:
        raise Refusal(503, "The server cannot store suggestions") from None


ROUTES = [Route("/suggest", suggest, methods=["POST"])]
