"""The server's data base: glossaries, hashes of API keys, and usage by key and day. It stores no text of a request.

It is an SQLite file that several servers may share, or memory. This module and `key_store.py` need no other package, so
that `nmt keys` works without the extra `serve`.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli.system.errors import BusyError, DataError, OutputError, StorageError

APPLICATION = 0x6E6D7431  # "nmt1", in the header of the file
BUSY_SECONDS = 5  # how long to wait for another process that writes
# Each entry upgrades the schema by one version. Never change an entry that was released: append another.
MIGRATIONS = (
    """
    CREATE TABLE keys (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        hash BLOB NOT NULL UNIQUE,
        created TEXT NOT NULL,
        revoked TEXT,
        per_minute INTEGER,
        per_day INTEGER,
        minute INTEGER NOT NULL DEFAULT 0,
        minute_requests INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE usage (
        key INTEGER NOT NULL REFERENCES keys (id),
        day TEXT NOT NULL,
        requests INTEGER NOT NULL,
        characters INTEGER NOT NULL,
        PRIMARY KEY (key, day)
    ) WITHOUT ROWID;
    CREATE TABLE glossaries (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        created TEXT NOT NULL
    );
    CREATE TABLE dictionaries (
        glossary TEXT NOT NULL REFERENCES glossaries (id) ON DELETE CASCADE,
        source TEXT NOT NULL,
        target TEXT NOT NULL,
        entries TEXT NOT NULL,
        terms INTEGER NOT NULL,
        forms INTEGER NOT NULL,
        PRIMARY KEY (glossary, source, target)
    );
    """,
)


class Database:
    """A connection to the data base. Threads may share it: each call waits until the one before has ended."""

    def __init__(self, path: Path | None = None) -> None:
        """Open or create the file at a path, or a data base in memory.

        DataError if the file belongs to another program or a newer nmt, OutputError if it cannot be opened.
        """
        self.path = path
        self._lock = threading.Lock()
        name = ":memory:"
        if path:
            name = str(path.absolute())
            _create(path)
        try:
            self._connection = sqlite3.connect(name, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._use_log()
            self._migrate()
        except sqlite3.OperationalError as error:
            raise OutputError(f"cannot open the data base {path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} is damaged or no SQLite data base: {error}") from None

    def _use_log(self) -> None:
        """Switch to write-ahead logging. SQLite does not wait by itself if another process does the same."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _migrate(self) -> None:
        """Bring the schema to the newest version, in one transaction."""
        execute = self._connection.execute
        with self.transaction() as connection:
            [[version]] = execute("PRAGMA user_version")
            [[application]] = execute("PRAGMA application_id")
            [[tables]] = execute("SELECT count(*) FROM sqlite_master")
            if application != APPLICATION and (tables or version or application):
                raise DataError(f"{self.path} is the data base of another program. Choose another file")
            if version > len(MIGRATIONS):
                raise DataError(f"a newer nmt wrote {self.path}: its schema has version {version}. Update nmt")
            for statements in MIGRATIONS[version:]:
                for statement in filter(str.strip, statements.split(";")):
                    connection.execute(statement)
            if version < len(MIGRATIONS):
                execute(f"PRAGMA application_id = {APPLICATION}")
                execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Write within the block: all of it or, after an exception, nothing is stored.

        A transaction survives the death of the process; a `durable` one is on the disk and survives that of the
        machine.
        """
        execute = self._connection.execute
        with self._lock, self._errors():
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise

    def read(self, statement: str, *values: object) -> list[Any]:
        with self._lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert SQLite's errors: BusyError if another process keeps the data base locked, else StorageError."""
        try:
            yield
        except sqlite3.Error as error:
            text = f"the data base {self.path} cannot be used: {error}"
            if "locked" in str(error):
                raise BusyError(f"{text}. Try again") from None
            raise StorageError(f"{text}. If the disk is full, free some space") from None

    def close(self) -> None:
        self._connection.close()


def _create(path: Path) -> None:
    """Create the file, which only its owner may read, unless it exists."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise OutputError(f"cannot open the data base {path}: {error.strerror}") from None
