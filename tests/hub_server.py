"""A small stand-in for the hub of data sets on 127.0.0.1, with faults to order."""

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `folder` as the files of one data set.

    Attributes:
        busy: answer 503 to this many more requests for files.
        cut: cut the connection half-way in this many more downloads.
        flip: name of a file served with one byte changed.
        short: name of a file announced as longer than it is.
        requests: "METHOD path [range]" of everything asked.
    """

    daemon_threads = True

    def __init__(self, repo: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.folder = repo, folder
        self.busy = self.cut = 0
        self.flip = self.short = ""
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[str]:
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path} {self.headers['Range'] or ''}".strip())
        repo = self.server.repo
        if path.startswith(f"/api/datasets/{repo}/revision/"):
            siblings = [{"rfilename": name} for name in self.server.files()]
            facts = {"id": repo, "sha": COMMIT, "private": False, "gated": False, "disabled": False, "tags": []}
            self._answer(
                200, json.dumps({**facts, "siblings": siblings}).encode(), {"Content-Type": "application/json"}
            )
        elif path.startswith(f"/datasets/{repo}/resolve/"):
            self._file("/".join(path.split("/")[6:]).removeprefix("/") if repo.count("/") else "")
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_POST = do_GET

    def _file(self, name: str) -> None:
        hub = self.server
        if name not in hub.files():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        if hub.busy > 0:
            hub.busy -= 1
            self._answer(503)
            return
        data = (hub.folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if hub.flip and name.endswith(hub.flip):
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        size = len(data) + (1000 if hub.short and name.endswith(hub.short) else 0)
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if self.headers["Range"] else 200)
        for key, value in (("ETag", f'"{digest}"'), ("X-Repo-Commit", COMMIT), ("X-Linked-Size", str(size))):
            self.send_header(key, value)
        self.send_header("X-Linked-ETag", f'"{digest}"')
        if self.headers["Range"]:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(data)
        if hub.cut > 0 and name.endswith(".parquet"):
            hub.cut -= 1
            end = start + (len(data) - start) // 2
        self.wfile.write(data[start:end])
        if end - start < size - start:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()


@contextlib.contextmanager
def serving(repo: str, folder: Path) -> Iterator[Hub]:
    """Run the hub in a thread for as long as the block lasts."""
    hub = Hub(repo, folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
