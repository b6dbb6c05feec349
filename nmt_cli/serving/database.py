"""Store glossaries, hashes of API keys, and each key's usage per day. Texts to translate are not stored.

The database is in memory, in an SQLite file that several servers on one machine may share, or in PostgreSQL for servers
on several machines. This module, `sqlite_connection.py` and `key_store.py` use no package of the extra `serve`, so that
`nmt keys` works without that extra.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nmt_cli.serving.sqlite_connection import SqliteConnection
from nmt_cli.system.errors import DataError

URL_SCHEMES = "postgresql:", "postgres:"
# Each entry upgrades the schema by one version. Never change a released entry; append a new one.
MIGRATIONS = (
    """
    CREATE TABLE keys (
        id {identity},
        name TEXT NOT NULL UNIQUE,
        hash {bytes} NOT NULL UNIQUE,
        created TEXT NOT NULL,
        revoked TEXT,
        per_minute {integer},
        per_day {integer},
        minute {integer} NOT NULL DEFAULT 0,
        minute_requests {integer} NOT NULL DEFAULT 0
    );
    CREATE TABLE usage (
        key {integer} NOT NULL REFERENCES keys (id),
        day TEXT NOT NULL,
        requests {integer} NOT NULL,
        characters {integer} NOT NULL,
        PRIMARY KEY (key, day)
    ){no_rowid};
    CREATE TABLE glossaries (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        created TEXT NOT NULL{rowid}
    );
    CREATE TABLE dictionaries (
        glossary TEXT NOT NULL REFERENCES glossaries (id) ON DELETE CASCADE,
        source TEXT NOT NULL,
        target TEXT NOT NULL,
        entries TEXT NOT NULL,
        terms {integer} NOT NULL,
        forms {integer} NOT NULL,
        PRIMARY KEY (glossary, source, target){rowid}
    );
    """,
)


class Connection(Protocol):
    """A connection to a database. Only one thread may use it at a time.

    Statements use only SQL that both SQLite and PostgreSQL understand, with a `?` for each value.
    """

    name: str  # for messages: a path, or an address without a password
    types: Mapping[str, str]  # SQL for the names in braces in MIGRATIONS

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute a statement. Return the selected rows."""
        ...

    def begin(self, *, durable: bool, part: int) -> None: ...  # see `Database.transaction`

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def version(self) -> int | None:
        """Return the version of the schema, 0 for an empty database, or None for the database of another program."""
        ...

    def set_version(self, version: int) -> None: ...

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Convert temporary errors, such as another process's lock, to BusyError, and other errors to StorageError."""
        ...

    def close(self) -> None: ...


def is_url(place: str | Path) -> bool:
    """Return whether `place` is the URL of a PostgreSQL database."""
    return str(place).startswith(URL_SCHEMES)


def connect(place: str | Path | None) -> Connection:
    """Connect to a database.

    `place` is the path of an SQLite file, which is created if it is missing, or a postgresql:// URL. None means a new
    database in memory.
    """
    if place is None or not is_url(place):
        return SqliteConnection(None if place is None else Path(place))
    from nmt_cli.serving.postgres_connection import PostgresConnection  # needs an extra

    return PostgresConnection(str(place))


class Database:
    """A connection to the database. Threads may share it; it runs one call at a time."""

    def __init__(self, place: str | Path | None = None) -> None:
        """Open a database and bring its schema to the newest version.

        Raise DataError if the database is damaged, or belongs to another program or a newer nmt. Raise UsageError if
        `place` is a malformed URL. Raise OutputError, BusyError or StorageError if the database cannot be opened.
        """
        self.place = place
        self._lock = threading.Lock()
        self._connection = connect(place)
        self._migrate()

    def another(self) -> "Database":
        """Return another connection to the database, or this one if the database is in memory."""
        return Database(self.place) if self.place else self

    def _migrate(self) -> None:
        name = self._connection.name
        with self.transaction() as connection:
            version = connection.version()
            if version is None:
                raise DataError(f"{name} belongs to another program. Choose another database")
            if version > len(MIGRATIONS):
                raise DataError(f"a newer nmt wrote {name}: its schema has version {version}. Update nmt")
            for statements in MIGRATIONS[version:]:
                for statement in filter(str.strip, statements.format_map(connection.types).split(";")):
                    connection.execute(statement)
            if version < len(MIGRATIONS):
                connection.set_version(len(MIGRATIONS))

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True, part: int = 0) -> Iterator[Connection]:
        """Run the block in a transaction. An exception rolls it back. Other writers wait until the block ends.

        A committed transaction survives a crash of the process; a `durable` one also survives a crash of the machine.
        In PostgreSQL, writers wait only for writers with the same `part`, such as the id of an API key.
        """
        connection = self._connection
        with self._lock, connection.errors():
            connection.begin(durable=durable, part=part)
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def read(self, statement: str, *values: object) -> list[Any]:
        with self._lock, self._connection.errors():
            return self._connection.execute(statement, values)

    def close(self) -> None:
        self._connection.close()
