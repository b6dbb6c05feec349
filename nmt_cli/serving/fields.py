"""Read the fields of a request from JSON, a form or the query string, and check their values."""

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

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off", "none", "null", "")
SMALL_BODY = 1 << 16  # bytes; bodies up to this size do not count toward MAX_BODY_MEMORY
MAX_BODY_MEMORY = 1 << 25  # maximum total bytes of the larger bodies that are being read at the same time
RETRY_SECONDS = 1  # for the Retry-After header when the server is overloaded
LARGE_FIELDS = {"q", "text", "entries"}  # fields with limits of their own
MAX_FIELD_CHARACTERS = 10_000  # maximum characters of any other field
MAX_JSON_VALUES = 20_000
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # a JSON string, or the start of one
MultiPartParser.spool_max_size = 1 << 24  # bytes; keep uploads in memory, because the size of a body is limited


class Refusal(Exception):
    """An error response with a status of 4xx or 5xx and a short message.

    Docstrings of this package write the status in parentheses: Refusal (400).
    """

    def __init__(self, status: int, text: str, *, retry_after: int | None = None, close: bool = False) -> None:
        """If `close` is true, close the connection, because the rest of the body is not read."""
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}
        if close:
            self.headers["Connection"] = "close"


@dataclass
class BodyMemory:
    """Counts the bytes of all large bodies that are being read."""

    bytes: int = 0

    def add(self, count: int) -> None:
        """Count more bytes. Raise Refusal (503) if the total would exceed MAX_BODY_MEMORY."""
        if self.bytes + count > MAX_BODY_MEMORY:
            text = "Too many large requests at once: try again later"
            raise Refusal(503, text, retry_after=RETRY_SECONDS, close=True)
        self.bytes += count


class Fields:
    """The fields of a request. If a form or a query string repeats a field, its value is a list."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, *names: str, default: str | None = None) -> str:
        """Return the value of the first field in `names` that is present, or the default.

        Raise Refusal (400) if the value is not text, or if all these fields are missing and there is no default.
        """
        for name in names:
            if self.has(name):
                return checked_text(name, self._values[name])
        if default is None:
            raise Refusal(400, f"Invalid request: missing {names[0]} parameter")
        return default

    def texts(self, name: str, limit: int) -> tuple[list[str], bool]:
        """Return the texts in a field, and whether the field is a list.

        Raise Refusal (400) if the field is missing, holds anything but text, or has more than `limit` texts.
        """
        if not self.has(name):
            raise Refusal(400, f"Invalid request: missing {name} parameter")
        value = self._values[name]
        several = value if isinstance(value, list) else [value]
        if len(several) > limit:
            raise Refusal(400, f"Invalid request: {len(several):,} texts exceed the limit of {limit:,}")
        return [checked_text(name, each) for each in several], isinstance(value, list)

    def integer(self, name: str, low: int, high: int) -> int:
        """Return an integer. If the field is missing or empty, return `low`.

        Raise Refusal (400) unless the integer is from `low` to `high`.
        """
        value = self._values.get(name)
        if value is None or value == "":
            return low
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Refusal(400, f"Invalid request: {name} must be a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Parse a flag, such as true, 1 or "on". A missing flag is false. Raise Refusal (400) if it is no flag."""
        value = self._values.get(name)
        if (found := _flag(value)) is None and value is not None:
            raise Refusal(400, f"Invalid request: {name} must be true or false")
        return bool(found)

    def choice(self, name: str, words: tuple[str, ...]) -> str:
        """Return the value of a field in lowercase. Raise Refusal (400) unless it is one of `words`.

        A missing or empty field, or the value "default", means the first word. If "0" is one of the words, a
        true flag, such as "on", counts as "1", and a false flag, such as "off", as "0".
        """
        value = self._values.get(name)
        if "0" in words and (found := _flag(value)) is not None and value != "":
            return str(int(found))
        value = self.text(name, default="").strip().lower() or words[0]
        if value == "default":
            value = words[0]
        if value not in words:
            raise Refusal(400, f"Invalid request: {name} must be {' or '.join(filter(None, words))}")
        return value

    def objects(self, name: str, limit: int) -> list["Fields"]:
        """Return the JSON objects in a field. Raise Refusal (400) unless it is a list of at most `limit` objects."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise Refusal(400, f"Invalid request: {name} must be a list of objects")
        if len(value) > limit:
            raise Refusal(400, f"Invalid request: {name} has more than {limit:,} objects")
        return [Fields(each) for each in value]

    def file(self, name: str) -> UploadFile:
        value = self._values.get(name)
        if not isinstance(value, UploadFile):
            raise Refusal(400, f"Invalid request: missing {name} parameter")
        return value


def _flag(value: Any) -> bool | None:
    """Parse a flag. Return None if the value is not a flag."""
    word = str(value).strip().lower() if isinstance(value, str | int) else "?"
    if word in YES:
        return True
    return False if word in NO else None


def checked_text(name: str, value: Any) -> str:
    """Return `value`. Raise Refusal (400) if it is not a string, or has NUL characters or lone surrogates."""
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


async def read(request: Request, max_bytes: int, max_fields: int, memory: BodyMemory) -> Fields:
    """Return the fields of a JSON body, or else the fields of the query string and of the form in the body.

    Raise Refusal (400) if the body is malformed, Refusal (413) if it is too large, and Refusal (503) if too many large
    bodies are being read. A body that is too large is still read to its end, because clients do not read the response
    while they are sending.
    """
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    body = await _body(request, max_bytes, memory)
    small = len(body) <= SMALL_BODY
    if body and (kind.endswith("json") or (not kind and body.lstrip()[:1] == b"{")):
        parse = partial(_object, body)
        return Fields(_bounded(parse() if small else await run_in_threadpool(parse)))
    values = _merged(list(request.query_params.multi_items()))
    if kind in ("multipart/form-data", "application/x-www-form-urlencoded") and body:
        form = _form(request, body, max_bytes, max_fields)
        # A large form would block this event loop, so a thread parses it with another one.
        values |= _merged(await (form if small else run_in_threadpool(asyncio.run, form)))
    return Fields(_bounded(values))


def _bounded(values: dict[str, Any]) -> dict[str, Any]:
    """Drop "context". To limit memory, raise Refusal (400) if a field outside LARGE_FIELDS is too long."""
    values.pop("context", None)  # DeepL allows any length, and this server ignores the field
    for name, value in values.items():
        texts = value if isinstance(value, list) else [value]
        size = sum(len(text) for text in texts if isinstance(text, str))
        if name not in LARGE_FIELDS and size > MAX_FIELD_CHARACTERS:
            raise Refusal(400, f"Invalid request: {name[:40]} has more than {MAX_FIELD_CHARACTERS:,} characters")
    return values


async def _body(request: Request, limit: int, memory: BodyMemory) -> bytes:
    body = bytearray()
    size = 0
    counted = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            body += chunk
            if size > limit:
                body.clear()
            elif size > SMALL_BODY:
                memory.add(len(chunk))
                counted += len(chunk)
    finally:
        memory.bytes -= counted
    if size > limit:
        raise Refusal(413, f"Invalid request: its {size:,} bytes exceed the limit of {limit:,}")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    shape = _STRING.sub(b"", body)
    if sum(map(shape.count, (b"[", b"{", b","))) > MAX_JSON_VALUES:  # a parsed value takes more memory than its JSON
        raise Refusal(400, f"Invalid request: the body has more than {MAX_JSON_VALUES:,} values")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "Invalid request: the body is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise Refusal(400, "Invalid request: the body must be a JSON object")
    return value


async def _form(request: Request, body: bytes, max_bytes: int, max_fields: int) -> list[tuple[str, Any]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    # Starlette would use any Python codec in the header. Some, such as punycode, take minutes, so accept only UTF-8.
    _, options = parse_options_header(request.headers["Content-Type"])
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8", b"us-ascii"):
        raise Refusal(400, "Invalid request: send the form in UTF-8")
    again = Request(request.scope, receive)
    try:
        form = await again.form(max_files=1, max_fields=max_fields, max_part_size=max_bytes)
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
