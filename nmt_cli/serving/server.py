"""Run the server: bind the port, load the models, and serve until a signal arrives."""

import asyncio
import contextlib
import errno
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from nmt_cli.documents.kept import kept
from nmt_cli.serving.app import create_app
from nmt_cli.serving.connections import BACKLOG, Listener, Protocol, connection_limit
from nmt_cli.serving.database import Database
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.keys import read_keys
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import ServedModel, untrained
from nmt_cli.serving.on_demand import Loader
from nmt_cli.serving.origins import access_for, is_loopback
from nmt_cli.serving.pool import COST_FACTOR, ModelPool, load
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system import signals
from nmt_cli.system.console import say, warn
from nmt_cli.system.errors import BusyError, NmtError, UsageError
from nmt_cli.system.operating_system import set_malloc_options
from nmt_cli.translation.stored_models import StoredModel
from nmt_cli.translation.translator import Translator

KEEP_ALIVE_SECONDS = 30
MALLOC = {-8: 2, -1: 1 << 17, -3: 1 << 17}  # glibc's M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
SWITCH_SECONDS = 0.001  # how long a thread may hold the interpreter's lock while the event loop waits for it
READ_SECONDS = 0.1  # after the port closes, requests that are on their way have this much time to arrive
MAX_LISTED = 10  # maximum number of language pairs that the first log line lists
SPARE_SECONDS = 5  # time that a shutdown gives pending requests in addition to their timeout


@dataclass(frozen=True)
class ServeOptions:
    models: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 5000
    api_key_file: Path | None = None
    workers: int | None = None
    precision: str = "auto"
    char_limit: int = 100_000  # maximum characters of a request
    batch_limit: int = 1000  # maximum texts of a request
    queue: int = 5000  # maximum number of texts that wait or are being translated
    timeout: float = 60  # seconds for a request
    cors: tuple[str, ...] = ()
    protect: bool | None = None
    keep: Path | None = None  # a file of words and phrases that are not translated
    allow_host: tuple[str, ...] = ()
    connections: int | None = None  # maximum number; None: the default
    stored: tuple[StoredModel, ...] = ()  # models that are loaded when a request needs them
    idle: float = 3600  # seconds after which an unused stored model is unloaded
    memory: int | None = None  # if the process has more than this many megabytes, unload idle stored models
    pivot: bool = True
    zero_shot: bool = False  # also offer language pairs that a model was not trained to translate
    database: str | Path | None = None  # a file or a postgresql:// URL
    suggestions: Path | None = None  # a file for suggested translations


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT, finish pending requests, and return 0. A second signal ends the server at once."""
    if math.isnan(options.idle):
        raise UsageError("--idle must be a number of seconds, not nan")
    if not math.isfinite(options.timeout):
        raise UsageError(f"--timeout must be a number of seconds, not {options.timeout}")
    if options.suggestions and (options.suggestions.is_dir() or not options.suggestions.parent.is_dir()):
        raise UsageError(f"--suggestions must be a file in an existing directory, not {options.suggestions}")
    _return_memory()
    database = Database(options.database)
    keys = api_keys(options, KeyStore(database).exist)
    words = kept(options.keep, None)
    keep = words.phrases if words else ()
    access = access_for(options.host, options.allow_host, options.cors)
    with contextlib.closing(bind(options.host, options.port)) as port:
        metrics = Metrics()
        models = _models(options)
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # garbage collection delays requests; make it ignore the loaded modules and models
        max_cost = COST_FACTOR * options.char_limit
        limits = Limits(options.char_limit, options.batch_limit, options.timeout)
        with (
            ModelPool(models, metrics, queue=options.queue, max_cost=max_cost, pivot=options.pivot) as pool,
            contextlib.closing(
                Service(
                    pool,
                    metrics,
                    limits,
                    keys,
                    protect=options.protect,
                    keep=keep,
                    suggestions=options.suggestions,
                    database=database,
                )
            ) as service,
        ):
            app = create_app(service, access)
            limit = connection_limit(options.connections)
            config = uvicorn.Config(
                app,
                http=Protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=limit + 1,  # limits requests as well, because some outlive their connections
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(options.timeout) + SPARE_SECONDS,
            )
            host = f"[{options.host}]" if ":" in options.host else options.host
            ready = f"serving {_pairs(models)} at http://{host}:{port.getsockname()[1]}"
            try:
                asyncio.run(_Server(config, service, ready, port, limit).serve(sockets=[]))
            except OSError as error:  # another process began to listen while the models were loading
                raise bind_error(options.host, options.port, error) from None
    return 0


def _models(options: ServeOptions) -> list[ServedModel]:
    """Load `options.models` and return them. For other language pairs, also return stored models, not loaded yet.

    With `zero_shot`, also return pairs that no model was trained to translate.
    """
    models = [model for directory in options.models for model in load(directory, options.precision, options.workers)]
    memory = math.inf if options.memory is None else options.memory * 1_000_000

    def load_stored(model: StoredModel) -> Translator:
        [first, *_] = load(model.open(), options.precision, options.workers)
        assert isinstance(first.translator, Translator)
        return first.translator

    loader = Loader(load_stored, idle=options.idle, memory=memory)
    pairs = {(model.source, model.target) for model in models}
    for stored in options.stored:
        on_demand = loader.add(stored)
        for direction in stored.directions:
            if (pair := direction[:2]) in pairs:
                warn(f"{stored.path} does not serve {'-'.join(pair)}, because another model does")
            else:
                models.append(ServedModel(on_demand, *direction))
                pairs.add(pair)
    return models + (untrained(models) if options.zero_shot else [])


def _pairs(models: Sequence[ServedModel]) -> str:
    """Return the language pairs, or their number if there are many."""
    if len(models) > MAX_LISTED:
        return f"{len(models):,} language pairs"
    return ", ".join(f"{model.source}-{model.target}" for model in models)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: str, port: socket.socket, limit: int) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready
        self._port = port
        self._limit = limit
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # do not log malformed requests

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener = Listener(self._port, self._limit, self._protocol)
        say(self._ready)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections. Before closing idle connections, wait for requests that are on their way."""
        self._listener.close()
        await asyncio.sleep(READ_SECONDS)
        await super().shutdown(sockets)
        await self._service.pool.workers.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down gracefully at the first signal, and at once at the second."""

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
    """Make glibc return freed memory to the system. By default, it keeps the memory in one arena per thread."""
    set_malloc_options(MALLOC)


def api_keys(options: ServeOptions, stored: bool = False) -> list[bytes]:
    """Return the keys in the key file, or no keys if there is no such file.

    Raise UsageError if other machines could use the server without a key. `stored` tells whether the database ever had
    one.
    """
    if not options.api_key_file:
        if not is_loopback(options.host) and not stored:
            raise UsageError(
                f"other machines can reach {options.host}, so API keys are needed. Pass --api-key-file FILE, with one "
                "key per line, or --database FILE with keys from nmt keys add"
            )
        return []
    return read_keys(options.api_key_file)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to the port and return it. The socket does not listen yet."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise bind_error(host, port, error) from None
    return bound


def bind_error(host: str, port: int, error: OSError) -> NmtError:
    if error.errno == errno.EADDRINUSE:
        return BusyError(f"port {port} of {host} is in use. Stop the process that uses it, or choose another --port")
    return UsageError(f"cannot listen on port {port} of {host}: {error.strerror}. Choose another --port or --host")
