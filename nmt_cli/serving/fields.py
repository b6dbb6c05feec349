"""What a request says, whether as JSON, form or query string: fields, checked as they are read."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "none", "null", "")
SMALL_BODY = 1 << 16  # bytes; a body of no more is read however many others are
MOST_BYTES = 1 << 25  # of all larger bodies that are being read
RETRY_SECONDS = 1
LARGE = {"q", "text", "entries"}  # fields that have limits of their own
MOST_OTHER = 10_000  # characters of another field
MOST_VALUES = 20_000  # of JSON
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)  # of JSON
MultiPartParser.spool_max_size = 1 << 24  # uploads stay in memory, which the limit of a body bounds


class Refusal(Exception):
    """An answer of 4xx or 5xx, with one sentence; each dialect has its own words around it."""

    def __init__(self, status: int, text: str, *, retry_after: int | None = None, close: bool = False) -> None:
        """`close` ends the connection, of which not all has been read."""
        super().__init__(text)
        self.status, self.text = status, text
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}
        if close:
            self.headers["Connection"] = "close"


@dataclass
class Reading:
    """The bytes of larger bodies that requests are bringing now."""

    bytes: int = 0

    def take(self, count: int) -> None:
        """Count more of them; 503 where they are too many."""
        if self.bytes + count > MOST_BYTES:
            text = "Too many large requests come at once: try again later"
            raise Refusal(503, text, retry_after=RETRY_SECONDS, close=True)
        self.bytes += count


class Fields:
    """The fields of a request; one that a form repeats is a list."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def given(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, *names: str, default: str | None = None) -> str:
        """Return the text of the first of these fields that is there; 400 where there is none, nor a default."""
        for name in names:
            if self.given(name):
                return checked(name, self._values[name])
        if default is None:
            raise Refusal(400, f"Invalid request: missing {names[0]} parameter")
        return default

    def texts(self, name: str, most: int) -> tuple[list[str], bool]:
        """Return one text or several, and whether they came as a list; 400 for more than `most`."""
        if not self.given(name):
            raise Refusal(400, f"Invalid request: missing {name} parameter")
        value = self._values[name]
        several = value if isinstance(value, list) else [value]
        if len(several) > most:
            raise Refusal(400, f"Invalid request: {len(several):,} texts exceed the limit of {most:,}")
        return [checked(name, each) for each in several], isinstance(value, list)

    def whole(self, name: str, low: int, high: int) -> int:
        """Return a whole number, `low` where it is not given."""
        value = self._values.get(name)
        if value is None or value == "":
            return low
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Refusal(400, f"Invalid request: {name} must be a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return a flag in any form that clients send: true, 1, "1", "True", "on"; 400 for anything else."""
        value = self._values.get(name)
        if (found := _truth(value)) is None and value is not None:
            raise Refusal(400, f"Invalid request: {name} must be true or false")
        return bool(found)

    def word(self, name: str, words: tuple[str, ...]) -> str:
        """Return one of some words, the first where it is not given; case is no matter, and "1" and "0" are flags."""
        value = self._values.get(name)
        if "0" in words and (found := _truth(value)) is not None and value != "":
            return str(int(found))
        value = self.text(name, default="").strip().lower() or words[0]
        if value == "default":
            value = words[0]
        if value not in words:
            raise Refusal(400, f"Invalid request: {name} must be {' or '.join(filter(None, words))}")
        return value

    def file(self, name: str) -> UploadFile:
        value = self._values.get(name)
        if not isinstance(value, UploadFile):
            raise Refusal(400, f"Invalid request: missing {name} parameter")
        return value


def _truth(value: Any) -> bool | None:
    """Return the meaning of a flag, or None if the value is no flag."""
    word = str(value).strip().lower() if isinstance(value, str | int) else "?"
    if word in YES:
        return True
    return False if word in NO else None


def checked(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Refusal(400, f"Invalid request: {name} must be text")
    if "\0" in value:
        raise Refusal(400, f"Invalid request: {name} holds a NUL character, which is not text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refusal(400, f"Invalid request: {name} holds half of a surrogate pair, which is not text") from None
    return value


async def read(request: Request, most_bytes: int, most_fields: int, reading: Reading) -> Fields:
    """Read a request's body and query string; 400 where it is not what it says that it is, 413 where it is too large.

    A refused body is read and dropped: a client that still sends would not hear the answer.
    """
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    body = await _body(request, most_bytes, reading)
    small = len(body) <= SMALL_BODY
    if body and (kind.endswith("json") or (not kind and body.lstrip()[:1] == b"{")):
        parse = partial(_object, body)
        return Fields(_bounded(parse() if small else await run_in_threadpool(parse)))
    values = _merged(list(request.query_params.multi_items()))
    if kind in ("multipart/form-data", "application/x-www-form-urlencoded") and body:
        form = _form(request, body, most_bytes, most_fields)
        # A large one is parsed in another thread, which needs a loop of its own for it.
        values |= _merged(await (form if small else run_in_threadpool(asyncio.run, form)))
    return Fields(_bounded(values))


def _bounded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, which stay in memory until the answer; 400 where one that no route reads whole is long."""
    values.pop("context", None)  # DeepL's, of any length, has no meaning here
    for name, value in values.items():
        texts = value if isinstance(value, list) else [value]
        if name not in LARGE and sum(len(text) for text in texts if isinstance(text, str)) > MOST_OTHER:
            raise Refusal(400, f"Invalid request: {name[:40]} has more than {MOST_OTHER:,} characters")
    return values


async def _body(request: Request, most: int, reading: Reading) -> bytes:
    body, size, counted = bytearray(), 0, 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            body += chunk
            if size > most:
                body.clear()
            elif size > SMALL_BODY:
                reading.take(len(chunk))
                counted += len(chunk)
    finally:
        reading.bytes -= counted
    if size > most:
        raise Refusal(413, f"Invalid request: its {size:,} bytes exceed the limit of {most:,}")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    shape = _STRING.sub(b"", body)
    if sum(map(shape.count, (b"[", b"{", b","))) > MOST_VALUES:  # each takes many times its bytes of memory
        raise Refusal(400, f"Invalid request: the body has more than {MOST_VALUES:,} values")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "Invalid request: the body is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise Refusal(400, "Invalid request: the body must be a JSON object")
    return value


async def _form(request: Request, body: bytes, most_bytes: int, most_fields: int) -> list[tuple[str, Any]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    # Starlette decodes fields by any codec of Python that is named here; punycode takes minutes for a megabyte.
    _, options = parse_options_header(request.headers["Content-Type"])
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8", b"us-ascii"):
        raise Refusal(400, "Invalid request: send the form in UTF-8")
    again = Request(request.scope, receive)
    try:
        form = await again.form(max_files=1, max_fields=most_fields, max_part_size=most_bytes)
    except HTTPException as error:
        raise Refusal(400, f"Invalid request: {error.detail}") from None
    return [(name, value) for name, value in form.multi_items() if name == "file" or isinstance(value, str)]


def _merged(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in items:
        if name not in values:
            values[name] = value
        elif isinstance(values[name], list):
            values[name].append(value)
        else:
            values[name] = [values[name], value]
    return values
