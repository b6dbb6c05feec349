import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.corpus.download import Patience, fetch
from nmt_cli.errors import BusyError, DataError, DownloadError

DATA = bytes(range(256)) * 1000
SIZE, DIGEST = len(DATA), hashlib.sha256(DATA).hexdigest()
QUICK = Patience(tries=4, timeout=0.5, pause=0.01, wait=5)


class Server(ThreadingHTTPServer):
    """Plays a list of answers, one per request; the last one again and again."""

    daemon_threads = True
    script: list[str]
    ranges: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        script = self.server.script
        kind = script.pop(0) if len(script) > 1 else script[0]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and kind != "no-range" else 0
        body, headers, status = DATA[start:], {}, 206 if start else 200
        if kind.isdigit():
            status, body, headers = int(kind), b"", {"Retry-After": "0"}
        elif kind.startswith(("http", "ftp", "file")):
            status, body, headers = 302, b"", {"Location": kind}
        elif kind == "loop":
            status, body, headers = 302, b"", {"Location": self.path}
        elif kind == "html":
            body = b"<html>Please log in</html>"
        elif kind == "large":
            body = DATA + b"more"
        elif kind == "flip":
            body = b"x" + DATA[1:]
        elif kind == "wrong-range":
            status, headers = 206, {"Content-Range": f"bytes 7-{SIZE - 1}/{SIZE}"}
        elif kind == "stall":
            threading.Event().wait(1.5)
        if start and "Content-Range" not in headers:
            headers["Content-Range"] = f"bytes {start}-{SIZE - 1}/{SIZE}"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (100 if kind == "lie" else 0)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body[: len(body) // 2] if kind == "cut" else body)


@contextlib.contextmanager
def serving(*script: str) -> Iterator[tuple[str, Server]]:
    server = Server(("127.0.0.1", 0), Handler)
    server.script, server.ranges = list(script), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file", server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(url: str, target: Path, **more: Any) -> Path:
    return fetch(url, target, **{"size": SIZE, "digest": DIGEST, "patience": QUICK, **more})


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        (["ok"], 1),
        (["503", "500", "ok"], 3),
        (["429", "ok"], 2),
        (["cut", "ok"], 2),
        (["cut", "cut", "cut", "ok"], 4),
        (["cut", "no-range"], 2),
        (["cut", "wrong-range", "ok"], 3),
        (["cut", "416", "ok"], 3),
        (["stall", "ok"], 2),
    ],
    ids=str,
)
def test_the_file_comes_in_the_end(tmp_path: Path, script: list[str], requests: int) -> None:
    with serving(*script) as (url, server):
        target = get(url, tmp_path / "deep" / "file")
        assert target.read_bytes() == DATA
        assert len(server.ranges) == requests
        assert [p.name for p in target.parent.iterdir() if not p.name.startswith(".")] == ["file"]


def test_a_cut_download_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    with serving("cut", "ok") as (url, server):
        get(url, tmp_path / "file")
        assert server.ranges == [None, f"bytes={SIZE // 2}-"]


def test_what_a_killed_run_left_is_resumed_and_verified_whole(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(DATA[:1000])
    with serving("ok") as (url, server):
        get(url, tmp_path / "file")
        assert server.ranges == ["bytes=1000-"]
    (tmp_path / "file").unlink()
    (tmp_path / "file.part").write_bytes(b"z" * 1000)
    with serving("ok") as (url, _), pytest.raises(DataError):
        get(url, tmp_path / "file")


def test_without_a_hash_a_part_of_unknown_origin_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"z" * 1000)
    with serving("ok") as (url, server):
        assert get(url, tmp_path / "file", size=None, digest=None).read_bytes() == DATA
        assert server.ranges == [None]


@pytest.mark.parametrize(
    ("script", "error", "requests"),
    [
        (["404"], DownloadError, 1),
        (["403"], DownloadError, 1),
        (["500"], DownloadError, 4),
        (["stall"], DownloadError, 4),
        (["loop"], DownloadError, None),
        (["ftp://127.0.0.1/x"], DownloadError, 1),
        (["http://example.invalid/x"], DownloadError, 1),
        (["file:///etc/passwd"], DownloadError, 1),
        (["flip"], DataError, 1),
        (["large"], DataError, 1),
        (["html"], DataError, 1),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(
    tmp_path: Path, script: list[str], error: type[Exception], requests: int | None
) -> None:
    with serving(*script) as (url, server):
        with pytest.raises(error):
            get(url, tmp_path / "file")
        assert requests in (None, len(server.ranges))
    assert not (tmp_path / "file").exists()


def test_an_error_page_of_unknown_size_is_caught_by_its_hash_and_kept_aside(tmp_path: Path) -> None:
    with serving("html") as (url, _), pytest.raises(DataError, match="expected"):
        get(url, tmp_path / "file", size=None)
    assert (tmp_path / "file.bad").read_bytes().startswith(b"<html>")
    assert not (tmp_path / "file").exists()


def test_an_announced_length_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    with serving("lie") as (url, _), pytest.raises(DownloadError, match="cut"):
        get(url, tmp_path / "file", size=None, digest=None)


def test_nobody_listens(tmp_path: Path) -> None:
    with serving("ok") as (url, _):
        pass
    with pytest.raises(DownloadError, match="4 tries"):
        get(url, tmp_path / "file")


def test_only_https_leaves_this_machine(tmp_path: Path) -> None:
    for url in ("http://example.invalid/x", "file:///etc/passwd", "ftp://example.invalid/x"):
        with pytest.raises(DownloadError, match="https"):
            get(url, tmp_path / "file")


def test_a_file_that_is_there_is_verified_and_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with serving("ok") as (url, server):
        get(url, tmp_path / "file")
        (tmp_path / "file").write_bytes(b"x" + DATA[1:])
        with pytest.raises(DataError, match="altered"):
            get(url, tmp_path / "file")
        assert server.ranges == []


def test_two_processes_download_once(tmp_path: Path) -> None:
    """fcntl locks belong to a process, so the second is one."""
    import multiprocessing

    with serving("ok") as (url, server):
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=get, args=(url, tmp_path / "file")) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]
        assert len(server.ranges) == 1


def test_waiting_for_another_process_has_an_end(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import fcntl,sys,time; f=open(sys.argv[1],'a'); fcntl.lockf(f,2); print(1,flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path / ".file.lock"], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BusyError):
            get("https://example.invalid/", tmp_path / "file", patience=Patience(wait=0.2))
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
