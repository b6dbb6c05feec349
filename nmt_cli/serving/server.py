"""`nmt serve`: open the port, load the models, answer until a signal comes."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from nmt_cli.serving.app import create_app
from nmt_cli.serving.connections import BACKLOG, Listener, Protocol, connections
from nmt_cli.serving.keys import read_keys
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.origins import access, is_loopback
from nmt_cli.serving.pool import COST_TIMES, Pool, load
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system import signals
from nmt_cli.system.console import say
from nmt_cli.system.errors import BusyError, NmtError, UsageError

KEEP_ALIVE_SECONDS = 30
MALLOC = {-8: 2, -1: 1 << 17, -3: 1 << 17}  # M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
SWITCH_SECONDS = 0.001  # after which a thread gives way to others: the event loop waits for each that computes
READ_SECONDS = 0.1  # in which requests that are on their way arrive, once no more are taken
SPARE_SECONDS = 5  # beside those that a translation may take, before connections that are still open are cut


@dataclass(frozen=True)
class ServeOptions:
    models: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 5000
    api_key_file: Path | None = None
    workers: int | None = None
    precision: str = "auto"
    char_limit: int = 100_000
    batch_limit: int = 1000
    queue: int = 5000
    timeout: float = 60
    cors: tuple[str, ...] = ()
    protect: bool | None = None
    allow_host: tuple[str, ...] = ()
    connections: int | None = None


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; then answer what has been asked, and return 0. A second signal ends at once."""
    _return_memory()
    keys = _keys(options)
    allowed = access(options.host, options.allow_host, options.cors)
    with contextlib.closing(_bound(options.host, options.port)) as port:
        metrics = Metrics()
        models = [
            model for directory in options.models for model in load(directory, options.precision, options.workers)
        ]
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # collections skip the loaded modules and models, so requests wait less
        with Pool(models, metrics, queue=options.queue, most_cost=COST_TIMES * options.char_limit) as pool:
            limits = Limits(options.char_limit, options.batch_limit, options.timeout)
            service = Service(pool, metrics, limits, keys, options.protect)
            app = create_app(service, allowed)
            most = connections(options.connections)
            config = uvicorn.Config(
                app,
                http=Protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=most + 1,  # requests, of which some may have lost their connections
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(options.timeout) + SPARE_SECONDS,
            )
            pairs = ", ".join(f"{model.source}-{model.target}" for model in models)
            host = f"[{options.host}]" if ":" in options.host else options.host
            ready = f"serving {pairs} at http://{host}:{port.getsockname()[1]}"
            try:
                asyncio.run(_Server(config, service, ready, port, most).serve(sockets=[]))
            except OSError as error:  # another began to listen while the models were loaded
                raise _cannot_serve(options.host, options.port, error) from None
    return 0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: str, port: socket.socket, most: int) -> None:
        super().__init__(config)
        self._service, self._ready, self._port, self._most = service, ready, port, most
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # no line for each bad request

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener = Listener(self._port, self._most, self._protocol)
        say(self._ready)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and read what has been sent on the others, before those without a request close."""
        self._listener.close()
        await asyncio.sleep(READ_SECONDS)
        await super().shutdown(sockets)
        await self._service.pool.workers.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, when what runs is answered; at the second at once."""

        def stop(number: int, _: FrameType | None) -> None:
            if self.should_exit:
                signals.leave(signals.CODES[number])
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in signals.CODES}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _return_memory() -> None:
    """Let the memory of answered requests go back to the system. By default glibc keeps it, in an arena for each
    thread: a server under load had 361 MB then, not 271."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # mallopt(3); other C libraries have none
        for option, value in MALLOC.items():
            mallopt(option, value)


def _keys(options: ServeOptions) -> list[bytes]:
    """Return the API keys; UsageError where others could reach the server without one."""
    if not options.api_key_file:
        if not is_loopback(options.host):
            raise UsageError(f"others can reach {options.host}: --host needs --api-key-file FILE, with one key a line")
        return []
    return read_keys(options.api_key_file)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that has the port and does not listen yet."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is no address here: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_serve(host, port, error) from None
    return bound


def _cannot_serve(host: str, port: int, error: OSError) -> NmtError:
    if error.errno == errno.EADDRINUSE:
        return BusyError(f"port {port} of {host} is in use. Stop what uses it, or choose another --port")
    return UsageError(f"cannot serve at port {port} of {host}: {error.strerror}. Choose another --port or --host")
