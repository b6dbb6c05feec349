"""A connection to an SQLite database in memory, or in a file that several servers on a machine may share."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt_cli.system.errors import BusyError, DataError, OutputError, StorageError

APPLICATION = 0x6E6D7431  # "nmt1" in ASCII; marks the file as a database of nmt
BUSY_SECONDS = 5  # how long to wait while another process writes


class SqliteConnection:
    types: Mapping[str, str] = {
        "identity": "INTEGER PRIMARY KEY",
        "integer": "INTEGER",
        "bytes": "BLOB",
        "no_rowid": " WITHOUT ROWID",
        "rowid": "",  # every table of SQLite has a row id by default
    }

    def __init__(self, path: Path | None) -> None:
        """Open or create a database in the file `path`, or in memory if `path` is None.

        Raise DataError if the file is damaged or not an SQLite database, and OutputError if it cannot be opened.
        """
        self.name = str(path)
        if path:
            _create(path)
        address = str(path.absolute()) if path else ":memory:"
        try:
            self._connection = sqlite3.connect(address, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._use_log()
            self._connection.execute("PRAGMA user_version")
        except sqlite3.OperationalError as error:
            raise OutputError(f"cannot open the database {path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} is damaged or not an SQLite database: {error}") from None

    def _use_log(self) -> None:
        """Switch to write-ahead logging. If another process locks the database, retry: here SQLite does not wait."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    def begin(self, *, durable: bool, part: int) -> None:
        """Begin a transaction. It excludes all other writers, so `part` does not matter."""
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def version(self) -> int | None:
        [[version]] = self._connection.execute("PRAGMA user_version")
        [[application]] = self._connection.execute("PRAGMA application_id")
        [[tables]] = self._connection.execute("SELECT count(*) FROM sqlite_master")
        if application != APPLICATION and (tables or version or application):
            return None
        return int(version)

    def set_version(self, version: int) -> None:
        self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
        self._connection.execute(f"PRAGMA user_version = {version}")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert SQLite's errors to BusyError if another process locks the database, or else to StorageError."""
        try:
            yield
        except sqlite3.Error as error:
            text = f"the database {self.name} cannot be used: {error}"
            if "locked" in str(error):
                raise BusyError(f"{text}. Try again") from None
            raise StorageError(f"{text}. If the disk is full, free some space") from None

    def close(self) -> None:
        self._connection.close()


def _create(path: Path) -> None:
    """Create the file unless it exists. Only the owner may read and write a new file."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise OutputError(f"cannot open the database {path}: {error.strerror}") from None
