"""A small stand-in on 127.0.0.1 for the Hugging Face Hub that fails as a test tells it to."""

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLIENT = {"HF_HUB_DISABLE_XET": "1", "USE_TORCH": "0"}  # environment: plain downloads, without importing torch


class Hub(ThreadingHTTPServer):
    """Serves `folder` as the data set or model `repo` at one commit, and its files under their plain names too."""

    daemon_threads = True

    def __init__(self, repo: str, folder: Path, commit: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.folder, self.commit = repo, folder, commit
        self.cut, self.busy, self.status = 0, 0, 503  # downloads to cut half-way; requests to answer with `status`
        self.requests: list[str] = []  # "METHOD path"
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.server, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if not path.startswith(("/api", "/datasets")):
            self._resolve(Path(path).name)
        elif not (asked := re.match(f"(/api)?/(datasets|models)/{hub.repo}/(resolve|tree|revision)/([^/]+)/?", path)):
            self._missing("RepoNotFound")
        elif asked[4] not in ("main", hub.commit):
            self._missing("RevisionNotFound")
        else:
            {"resolve": self._resolve, "tree": self._tree, "revision": self._revision}[asked[3]](path[asked.end() :])

    do_HEAD = do_POST = do_GET

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self, code: str) -> None:
        self._answer(404, b"", {"X-Error-Code": code, "X-Repo-Commit": self.server.commit})

    def _revision(self, _: str) -> None:
        folder = self.server.folder
        siblings = [{"rfilename": p.relative_to(folder).as_posix()} for p in folder.rglob("*") if p.is_file()]
        about = {"id": self.server.repo, "sha": self.server.commit, "siblings": siblings}
        self._answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _tree(self, under: str) -> None:
        entries = []
        for path in sorted((self.server.folder / under).glob("*")):
            entry = {"type": "directory" if path.is_dir() else "file", "oid": COMMIT, "size": path.stat().st_size}
            entries.append({**entry, "path": path.relative_to(self.server.folder).as_posix()})
        self._answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str) -> None:
        hub, is_data = self.server, name.endswith((".parquet", ".gz"))
        if not (hub.folder / name).is_file():
            return self._missing("EntryNotFound")
        if self.command == "GET" and is_data and hub.busy > 0:
            hub.busy -= 1
            return self._answer(hub.status, b"", {})
        data = (hub.folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Linked-ETag": f'"{digest}"', "X-Repo-Commit": hub.commit}
        first, _, last = (self.headers["Range"] or "").removeprefix("bytes=").partition("-")
        start, end = int(first or 0), int(last or len(data) - 1) + 1
        if self.headers["Range"]:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        if self.command == "GET" and is_data and hub.cut > 0:
            hub.cut -= 1
            headers["Content-Length"], body = str(len(body)), body[: len(body) // 2]
            self.close_connection = True
        self._answer(206 if self.headers["Range"] else 200, body, headers)


@contextlib.contextmanager
def serving(repo: str, folder: Path, commit: str = COMMIT) -> Iterator[Hub]:
    """Run the hub in a thread for as long as the block lasts."""
    with Hub(repo, folder, commit) as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield hub
        finally:
            hub.shutdown()
