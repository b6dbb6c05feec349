"""One file from the web: pinned, resumed, retried, bounded and verified before it gets its name."""

import contextlib
import email.message
import fcntl
import http.client
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nmt_cli import artefact
from nmt_cli.errors import BusyError, DataError, DownloadError, printable

MAX_UNPINNED_BYTES = 1 << 30


@dataclass(frozen=True)
class Patience:
    """How long to try: attempts, seconds a silent server gets, first pause in seconds, seconds for another process."""

    tries: int = 5
    timeout: float = 30
    pause: float = 1
    wait: float = 600


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != ("http", "127.0.0.1"):
        raise DownloadError(f"refused to download from {printable(url, 120)}: only https is safe")


class _Again(Exception):
    """A failure that another try may cure, and the seconds the server asks for."""

    def __init__(self, cause: object, after: float = 0) -> None:
        super().__init__(printable(cause, 100))
        self.after = after


def fetch(url: str, target: Path, size: int | None, digest: str | None, patience: Patience) -> Path:
    """Download `url` to `target` unless it is there, and return `target`.

    Args:
        url: an https address.
        target: the file's final name, given only after verification.
        size: expected bytes, None where unknown.
        digest: expected SHA-256, None where unknown; without it a cut download starts again from byte 0.
        patience: limits in time.

    Raises:
        DownloadError: the server is unreachable or refuses.
        DataError: what came, or was there, is not the expected file.
        BusyError: another process has been downloading the same file for too long.
    """
    _check_scheme(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target, patience.wait):
        if target.exists():
            if (size, digest) == (None, None) or _matches(target, size, digest):
                return target
            raise DataError(f"{target} is not the file that was downloaded: it was altered. Remove it and run again")
        part = target.with_name(target.name + ".part")
        if digest is None:
            part.unlink(missing_ok=True)
        for attempt in range(1, patience.tries + 1):
            try:
                _attempt(url, part, size, patience.timeout)
                break
            except _Again as again:
                if attempt == patience.tries:
                    raise DownloadError(f"cannot download {url}: {again} ({attempt} tries). Run again later") from None
                pause = patience.pause * 2 ** (attempt - 1) * random.uniform(0.5, 1)  # noqa: S311 - jitter
                time.sleep(min(60, max(pause, again.after)))
        if not _matches(part, size, digest):
            found, bad = artefact.sha256(part), target.with_name(target.name + ".bad")
            part.replace(bad)
            raise DataError(f"{url} has SHA-256 {found[:16]}..., expected {str(digest)[:16]}... Kept as {bad}")
        artefact.sync(part)
        part.replace(target)
        artefact.sync(target.parent)
    return target


def _matches(path: Path, size: int | None, digest: str | None) -> bool:
    return size in (None, path.stat().st_size) and digest in (None, artefact.sha256(path))


@contextlib.contextmanager
def _alone(target: Path, wait: float) -> Iterator[None]:
    """Hold the download of one file; others wait for it and then find it done."""
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise BusyError(f"another process has been downloading {target} for {wait:.0f} s") from None
                time.sleep(0.1)
        yield


def _attempt(url: str, part: Path, size: int | None, timeout: float) -> None:
    """Add to `part` what is missing of it."""
    done = part.stat().st_size if part.exists() else 0
    if size is not None and done >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310 - checked
    try:
        with urllib.request.build_opener(_SafeRedirects).open(request, timeout=timeout) as response:
            headers: email.message.Message = response.headers
            resumed = response.status == 206 and str(headers["Content-Range"]).startswith(f"bytes {done}-")
            if response.status == 206 and not resumed:
                part.unlink()
                raise _Again("the server resumed at a wrong place")
            start = done if resumed else 0
            length = headers["Content-Length"]
            end = start + int(length) if length and length.isdigit() else size
            if size is not None and end != size:  # an error page, or another edition
                raise DataError(f"{url} has {end:,} bytes, expected {size:,}. Do not use this source")
            _copy(response, part, start, MAX_UNPINNED_BYTES if size is None else size, url)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                part.unlink(missing_ok=True)
            elif error.code not in (408, 429) and error.code < 500:
                raise DownloadError(f"cannot download {url}: {error.code} {printable(error.reason, 60)}") from None
            after = error.headers["Retry-After"] or ""
            raise _Again(f"{error.code} {error.reason}", float(after) if after.isdigit() else 0) from None
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _Again(getattr(error, "reason", error)) from None
    if end is not None and part.stat().st_size < end:
        raise _Again(f"the connection was cut at {part.stat().st_size:,} of {end:,} bytes")


def _copy(response: IO[bytes], part: Path, start: int, limit: int, url: str) -> None:
    with part.open("r+b" if part.exists() else "xb") as file:
        file.truncate(start)
        file.seek(start)
        while block := response.read(1 << 16):
            start += len(block)
            if start > limit:
                file.close()
                part.unlink()
                raise DataError(f"{url} is larger than the {limit:,} bytes it should have. Do not use this source")
            file.write(block)
        os.fsync(file.fileno())
