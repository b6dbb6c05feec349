"""The process of `nmt serve`: start, signals, log, and errors in one line."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from texts import ROOT

pytest.importorskip("starlette")
import uvicorn
from serving import LONG, ask, failed, resident, server, start

from nmt_cli.serving import server as server_module
from nmt_cli.serving.connections import Protocol
from nmt_cli.serving.origins import Access
from nmt_cli.serving.pool import ServedModel
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system import signals
from nmt_cli.system.errors import BusyError, UsageError


def test_a_signal_under_load_loses_no_request(model: Path) -> None:
    """Accepted requests are answered, later ones find a closed port, and the exit code is 0."""
    answers, accepted = list[str](), threading.Event()
    with server(str(model)) as (process, address):
        expected = ask(address, LONG)

        def work() -> None:
            answers.append(ask(address, LONG))
            accepted.wait(60)  # texts sent sooner would change nmt_texts_total
            with contextlib.suppress(ConnectionRefusedError, urllib.error.URLError):
                while True:
                    ask(address, "rot")

        clients = [threading.Thread(target=work) for _ in range(8)]
        for client in clients:
            client.start()
        while b"nmt_texts_total 9.0" not in urllib.request.urlopen(f"{address}/metrics", timeout=60).read():
            time.sleep(0.01)
        accepted.set()
        process.terminate()
        for client in clients:
            client.join(60)
        assert process.wait(60) == 0
        assert answers == [expected] * 8
        with pytest.raises(OSError):
            ask(address, "rot")


def test_a_second_signal_ends_at_once(model: Path) -> None:
    with server(str(model), "--char-limit", "10000000") as (process, address):

        def give_up() -> None:
            with contextlib.suppress(OSError):
                ask(address, LONG * 300)

        client = threading.Thread(target=give_up)
        client.start()
        while b"nmt_texts_total 1.0" not in urllib.request.urlopen(f"{address}/metrics", timeout=60).read():
            time.sleep(0.01)
        process.terminate()
        time.sleep(0.2)
        assert process.poll() is None, "it answers the request that it has accepted"
        process.terminate()
        assert process.wait(30) == 143
        client.join(60)


def test_a_quiet_server_has_no_log(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    process = start("--port", port, str(model), "--quiet")
    while process.poll() is None:
        with contextlib.suppress(OSError):
            ask(f"http://127.0.0.1:{port}", "rot")
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert (*process.communicate(timeout=60), process.returncode) == ("", "", 0)


def test_a_port_in_use_is_named(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, line = failed(str(model), "--port", port)
    assert code == 75
    assert f"port {port} of 127.0.0.1 is in use" in line


def test_a_port_taken_during_loading_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets can be bound to a port; the second one to listen fails."""
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def take(*arguments: Any) -> Any:
        other.bind(("127.0.0.1", port))
        other.listen()
        return load(*arguments)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    load = server_module.load
    monkeypatch.setattr(server_module, "load", take)
    with contextlib.closing(other), pytest.raises(BusyError, match=f"port {port} of 127.0.0.1 is in use"):
        server_module.serve(server_module.ServeOptions((model,), port=port))


def test_a_damaged_model_ends_the_server_with_one_line(model: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(model, tmp_path / "model")
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    code, line = failed(str(model), str(damaged), "--port", "0")
    assert code == 65
    assert "model.safetensors" in line
    assert failed(str(tmp_path / "nowhere"), "--port", "0")[0] == 66


def test_public_addresses_need_keys(model: Path, tmp_path: Path) -> None:
    code, line = failed(str(model), "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "--api-key-file" in line
    (tmp_path / "empty").write_text("\n\n")
    assert failed(str(model), "--api-key-file", str(tmp_path / "empty"), "--port", "0")[0] == 65
    assert failed(str(model), "--api-key-file", str(tmp_path / "none"), "--port", "0")[0] == 66
    assert failed(str(model), "--host", "no such host", "--port", "0")[0] == 2


def test_every_setting_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"one\r\n\n  \n two\t\n")
    loaded, seen = list[tuple[Any, ...]](), dict[str, Any]()
    closed = Mock()

    def load(*arguments: Any) -> list[ServedModel]:
        loaded.append(arguments)
        return [ServedModel(closed, "en", arguments[0].name)]

    async def answer(sockets: list[socket.socket]) -> None:
        assert not sockets

    def listening(config: uvicorn.Config, service: Service, ready: str, port: socket.socket, most: int) -> Any:
        seen.update(config=config, ready=ready, port=port.getsockname()[1], most=most)
        return SimpleNamespace(serve=answer)

    port = server_module.bind("127.0.0.1", 0)
    monkeypatch.setattr(server_module, "load", load)
    monkeypatch.setattr(server_module, "_Server", listening)
    monkeypatch.setattr(
        server_module, "create_app", lambda service, access: seen.update(service=service, access=access)
    )
    monkeypatch.setattr(server_module, "bind", lambda *arguments: seen.update(bound=arguments) or port)
    models = Path("de"), Path("fr")
    options = (models, "::1", 7, tmp_path / "keys", 3, "bf16", 5, 6, 8, 1.5, ("http://z",), False, None, ("y",), 9)
    assert server_module.serve(server_module.ServeOptions(*options)) == 0
    assert loaded == [(model, "bf16", 3) for model in models]
    service, config = seen["service"], seen["config"]
    assert (service.pool.queue, service.limits) == (8, Limits(5, 6, 1.5, 30))
    assert (service.keys, service.protect, seen["most"]) == ([b"one", b"two"], False, 9)
    assert seen["access"] == Access(frozenset({"localhost", "::1", "[::1]", "y"}), False, ("http://z",))
    assert service.metrics is service.pool.metrics
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (30, 7)
    assert (config.server_header, config.access_log, config.http) == (False, False, Protocol)
    assert (seen["bound"], seen["ready"]) == (("::1", 7), f"serving en-de, en-fr at http://[::1]:{seen['port']}")
    closed.close.assert_called_once_with()
    assert port.fileno() == -1


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.org", "")],
    ],
)
def test_only_loopback_addresses_need_no_key(host: str, own: bool) -> None:
    options = server_module.ServeOptions((), host)
    if own:
        assert server_module.api_keys(options) == []
    else:
        with pytest.raises(UsageError, match="Pass --api-key-file"):
            server_module.api_keys(options)


def test_the_port_is_bound_before_it_listens() -> None:
    with contextlib.closing(server_module.bind("127.0.0.1", 0)) as port:
        assert port.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(port.getsockname())
        port.listen()
        with pytest.raises(BusyError, match="Stop the process that uses it, or choose another --port"):
            server_module.bind(*port.getsockname())
    with pytest.raises(UsageError, match=r"cannot listen on port 0 of 192\.0\.2\.1: Cannot assign requested address"):
        server_module.bind("192.0.2.1", 0)  # an address reserved for documentation
    message = server_module.bind_error("h", 80, PermissionError(errno.EACCES, "Permission denied"))
    assert isinstance(message, UsageError)
    assert str(message) == "cannot listen on port 80 of h: Permission denied. Choose another --port or --host"


def test_the_server_handles_signals_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    left = list[int]()
    monkeypatch.setattr(signals, "leave", left.append)
    one = server_module._Server(uvicorn.Config("-"), Mock(), "ready", Mock(), 1)
    before = [signal.getsignal(number) for number in signals.CODES]
    with one.capture_signals():
        assert not one.should_exit
        signal.raise_signal(signal.SIGINT)
        assert (one.should_exit, left) == (True, [])
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert left == [143, 130]
    assert [signal.getsignal(number) for number in signals.CODES] == before


def test_without_the_extra_one_line_names_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError(name='starlette')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "nmt_cli", "serve", str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        'nmt serve: error: the package starlette is missing. Install it: pip install "nmt-cli[serve]"'
    )


def test_memory_does_not_grow(model: Path) -> None:
    """Compare it after 150 and after 600 requests of mixed lengths."""
    texts = ["rot", LONG[:400], "der Hund geht. rot"]
    with server(str(model)) as (process, address):
        assert process.stderr
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        for number in range(600):
            ask(address, texts[number % 3])
            if number == 150:
                before = resident(process.pid)
        assert resident(process.pid) < 1.03 * before
        process.terminate()
        drain.join(60)
