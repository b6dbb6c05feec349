"""A connection to a PostgreSQL database, which servers on several machines may share. Needs the extra `postgres`."""

import contextlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from nmt_cli.system.errors import BusyError, OutputError, StorageError, UsageError

try:
    from pg8000 import native
except ModuleNotFoundError as error:
    text = f'the package {error.name} is missing. Install it: pip install "nmt-cli[postgres]"'
    raise UsageError(text) from None

LOCKS = 0x6E6D7431  # "nmt1" in ASCII; the first of the two numbers that identify an advisory lock of nmt
BUSY_SECONDS = 5  # how long a statement may take, including the wait for other writers
# How long nmt waits for the server. In a transaction, the server waits equally long for the next statement.
NETWORK_SECONDS = 10
FORM = "postgresql://USER:PASSWORD@HOST/NAME"
MODES = "disable", "prefer", "require", "verify-ca", "verify-full"  # values of sslmode, as in libpq
# SQLSTATE codes of temporary errors: deadlock, too many connections, lock not available, timeout, server starting
BUSY = "40P01", "53300", "55P03", "57014", "57P03"


class PostgresConnection:
    """A `database.Connection` that reconnects after the server restarts or the network fails."""

    types: Mapping[str, str] = {
        "identity": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "integer": "BIGINT",
        "bytes": "BYTEA",
        "no_rowid": "",
        "rowid": ", rowid BIGINT GENERATED ALWAYS AS IDENTITY",
    }

    def __init__(self, url: str) -> None:
        """Connect to the database at a postgresql:// URL.

        Raise UsageError if the URL is malformed, BusyError for a temporary error, and OutputError for other errors.
        """
        self.name, self._arguments = parse(url)
        self._connection: native.Connection | None = None
        self._prepared = dict[str, native.PreparedStatement]()  # keyed by SQL text; one round trip, not three
        self._in_transaction = False
        try:
            self._open()
        except native.Error as error:
            kind = BusyError if _code(error) in BUSY else OutputError
            raise kind(f"cannot open the database {self.name}: {_text(error)}") from None

    def _open(self) -> native.Connection:
        # Make the server end the transaction of a client that has died. Otherwise its locks would last for hours.
        limits = {"statement_timeout": BUSY_SECONDS, "idle_in_transaction_session_timeout": NETWORK_SECONDS}
        settings = {name: f"{seconds}s" for name, seconds in limits.items()}
        try:
            connection = native.Connection(
                **self._arguments, timeout=NETWORK_SECONDS, application_name="nmt", startup_params=settings
            )
        except OSError as error:  # pg8000 does not wrap errors of the TLS handshake in its own exceptions
            raise native.InterfaceError(str(error)) from None
        self._prepared.clear()
        self._connection = connection
        return connection

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute a statement and return its rows.

        If the connection is lost outside a transaction, reconnect and repeat the statement.
        """
        try:
            return self._execute(statement, values)
        except native.Error as error:
            if not _is_lost(error):
                raise
            self.close()
            if self._in_transaction:
                raise
        return self._execute(statement, values)

    def _execute(self, statement: str, values: Sequence[object]) -> list[Any]:
        connection = self._connection or self._open()
        if not values:
            rows = connection.run(statement)
        else:
            if statement not in self._prepared:
                first, *others = statement.split("?")
                numbered = (f":v{number}{part}" for number, part in enumerate(others))
                self._prepared[statement] = connection.prepare(first + "".join(numbered))
            # PostgreSQL rejects NUL characters. Only an id from a URL can have one. U+FFFD makes it match nothing.
            sent = (value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values)
            rows = self._prepared[statement].run(**{f"v{number}": value for number, value in enumerate(sent)})
        return [tuple(row) for row in rows or ()]

    def begin(self, *, durable: bool, part: int) -> None:
        """Begin a transaction that holds the advisory lock numbered `part`. Wait until the lock is free."""
        commit = "on" if durable else "off"
        lock = f"SELECT pg_advisory_xact_lock({LOCKS}, {part % 2**31})"
        try:
            self.execute(f"BEGIN; SET LOCAL synchronous_commit = {commit}; {lock}")
        except native.Error:
            self.rollback()
            raise
        self._in_transaction = True

    def commit(self) -> None:
        self.execute("COMMIT")
        self._in_transaction = False

    def rollback(self) -> None:
        """Roll back the transaction. If the connection is lost, the server rolls it back without a command."""
        self._in_transaction = False
        if self._connection:
            self.execute("ROLLBACK")

    def version(self) -> int | None:
        tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        names = [name for (name,) in self.execute(tables)]
        if "nmt_schema" not in names:
            return None if names else 0
        [[version]] = self.execute("SELECT version FROM nmt_schema")
        return int(version)

    def set_version(self, version: int) -> None:
        self.execute("CREATE TABLE IF NOT EXISTS nmt_schema (version INTEGER NOT NULL)")
        self.execute("DELETE FROM nmt_schema")
        self.execute("INSERT INTO nmt_schema VALUES (?)", (version,))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert temporary errors of the database to BusyError, and its other errors to StorageError."""
        try:
            yield
        except native.Error as error:
            text = f"the database {self.name} cannot be used: {_text(error)}"
            if _code(error) in BUSY:
                raise BusyError(f"{text}. Try again") from None
            raise StorageError(f"{text}. Check the database server and its log") from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(native.Error):  # raised if the connection is already lost
                connection.close()


def parse(url: str) -> tuple[str, dict[str, Any]]:
    """Return a label of the database for messages ("NAME at HOST:PORT"), and the arguments for pg8000.

    Raise UsageError if the URL is malformed. No message shows the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise UsageError(
            f"--database or NMT_DATABASE has a malformed URL. Use {FORM}, and write special characters as %XX"
        ) from None
    name = unquote(parts.path.removeprefix("/"))
    if not (parts.hostname and parts.username and name) or parts.fragment:
        raise UsageError(
            f"the URL in --database or NMT_DATABASE needs a user, a host and a database name, and %23 instead of #. "
            f"Use {FORM}"
        )
    if unknown := options.keys() - {"sslmode", "sslrootcert"}:
        raise UsageError(f"the database URL has the unknown option {min(unknown)!r}. Use only sslmode and sslrootcert")
    arguments = {
        "user": unquote(parts.username),
        "password": unquote(parts.password) if parts.password is not None else None,
        "host": parts.hostname,
        "port": port,
        "database": name,
        "ssl_context": _context(options.get("sslmode", "prefer"), options.get("sslrootcert")),
    }
    return f"{name} at {parts.hostname}:{port}", arguments


def _context(mode: str, certificate: str | None) -> ssl.SSLContext | bool | None:
    """Return pg8000's `ssl_context` for an sslmode of libpq.

    None means TLS (unverified) if the server offers it, and False means no TLS. Raise UsageError if the mode is unknown
    or the certificate cannot be read.
    """
    if mode not in MODES:
        raise UsageError(f"sslmode in the database URL must be one of {', '.join(MODES)}")
    if mode in ("disable", "prefer"):
        return None if mode == "prefer" else False
    try:
        context = ssl.create_default_context(cafile=certificate)
    except OSError as error:  # SSLError is a subclass
        raise UsageError(
            f"cannot read the certificate {certificate} (sslrootcert in the database URL): {error.strerror}"
        ) from None
    context.check_hostname = mode == "verify-full"
    if mode == "require" and not certificate:
        context.verify_mode = ssl.CERT_NONE
    return context


def _code(error: native.Error) -> str:
    """Return the SQLSTATE of an error, or "" if the error is not from the server."""
    first = error.args[0] if error.args else ""
    return str(first.get("C", "")) if isinstance(first, dict) else ""


def _text(error: native.Error) -> str:
    first = error.args[0] if error.args else error
    text = str(first.get("M", first) if isinstance(first, dict) else first)
    return f"{text.rstrip('.')}: {error.__cause__}" if isinstance(error.__cause__, OSError) else text


def _is_lost(error: native.Error) -> bool:
    """Return whether the network, an administrator or a session timeout has ended the connection."""
    code = _code(error)
    return isinstance(error, native.InterfaceError) or code[:3] == "57P" or code[:2] == "08" or code == "25P03"
