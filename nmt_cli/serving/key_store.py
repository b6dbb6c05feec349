"""Store API keys in the database, with their limits and usage.

A key has 32 random bytes, and the database stores only its SHA-256 hash. Such a key cannot be guessed from its hash, so
a slow hash, as used for passwords, would only delay requests.
"""

import datetime
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nmt_cli.serving.database import Database
from nmt_cli.system.errors import MissingError, OutputError, UsageError, printable

PREFIX = "nmt_"
KEY_BYTES = 32
MAX_NAME = 100  # characters
DAY_SECONDS = 24 * 3600


@dataclass(frozen=True)
class ApiKey:
    id: int
    name: str
    created: str  # ISO 8601, in UTC
    revoked: str | None  # likewise; None: not revoked
    per_minute: int | None  # maximum requests per minute; None: no limit
    per_day: int | None  # maximum characters per day; None: no limit


@dataclass(frozen=True)
class Exceeded:
    """A limit that a request would exceed."""

    text: str
    seconds: int  # until the counter restarts
    of_day: bool  # whether the limit is per day, not per minute


_LIST = "SELECT id, name, created, revoked, per_minute, per_day FROM keys ORDER BY id"
_FIND = "SELECT hash, id, name, created, revoked, per_minute, per_day FROM keys WHERE hash = ?"
_SET_LIMITS = "UPDATE keys SET per_minute = ?, per_day = ? WHERE name = ?"
_KEEP_LIMITS = "UPDATE keys SET per_minute = coalesce(?, per_minute), per_day = coalesce(?, per_day) WHERE name = ?"
# The limits of a key, its requests in the given minute, and its characters on the given day
_USED = (
    "SELECT per_minute, per_day, CASE minute WHEN ? THEN minute_requests ELSE 0 END, coalesce(characters, 0) "
    "FROM keys LEFT JOIN usage ON usage.key = keys.id AND day = ? WHERE id = ?"
)


class KeyStore:
    """The API keys in a database. Several servers may use the database at the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, per_minute: int | None = None, per_day: int | None = None) -> str:
        """Make a key and return it. Only the hash of the key is stored.

        Raise UsageError if the name is empty, too long or not printable, and OutputError if another key has this name.
        """
        name = " ".join(name.split())
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise UsageError(
                f"a key's name must have 1 to {MAX_NAME} printable characters, not {printable(name, 50)!r}"
            )
        key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
        with self._database.transaction() as connection:
            if connection.execute("SELECT 1 FROM keys WHERE name = ?", (name,)):
                raise OutputError(f"a key named {name} already exists. Choose another name")
            connection.execute(
                "INSERT INTO keys (name, hash, created, per_minute, per_day) VALUES (?, ?, ?, ?, ?)",
                (name, _hash(key), _now(), per_minute, per_day),
            )
        return key

    def revoke(self, name: str) -> None:
        """Revoke a key for good, but keep its name and usage. Raise MissingError if there is no such key."""
        self._change(name, "UPDATE keys SET revoked = coalesce(revoked, ?) WHERE name = ?", _now())

    def limit(self, name: str, per_minute: int | None, per_day: int | None) -> ApiKey:
        """Change the limits of a key, and return its record.

        If one limit is None, it does not change. If both are None, both limits are removed. Raise MissingError if there
        is no such key.
        """
        has_limits = per_minute is not None or per_day is not None
        self._change(name, _KEEP_LIMITS if has_limits else _SET_LIMITS, per_minute, per_day)
        return next(key for key in self if key.name == name)

    def _change(self, name: str, statement: str, *values: object) -> None:
        """Run an SQL statement with `values` and, last, the key's name. Raise MissingError if there is no such key."""
        with self._database.transaction() as connection:
            if not connection.execute("SELECT 1 FROM keys WHERE name = ?", (name,)):
                raise MissingError(f"there is no key {printable(name, 100)!r}. See: nmt keys list")
            connection.execute(statement, (*values, name))

    def __iter__(self) -> Iterator[ApiKey]:
        return (ApiKey(*row) for row in self._database.read(_LIST))

    @property
    def exist(self) -> bool:
        """Whether a key was ever added. Revoked keys count: a server with only revoked keys still requires a key."""
        return bool(self._database.read("SELECT 1 FROM keys LIMIT 1"))

    def find(self, key: str) -> ApiKey | None:
        """Return the record of a key, or None if it is unknown or revoked.

        The duration of a call reveals nothing about other keys. The look-up depends only on the hash, and hashes are
        then compared in constant time.
        """
        digest = _hash(key)
        rows = self._database.read(_FIND, digest)
        for found, *columns in rows:
            api_key = ApiKey(*columns)
            if hmac.compare_digest(found, digest) and not api_key.revoked:
                return api_key
        return None

    def charge(self, key: ApiKey, characters: int, now: float | None = None) -> Exceeded | None:
        """Count a request and its characters. If that would exceed a limit, count nothing and return the limit.

        All servers that use the database share the counts. Minutes and days follow the UTC clock. `now` is in seconds
        since 1970; None means the current time.
        """
        now = time.time() if now is None else now
        minute = int(now // 60)
        day = _day(now)
        with self._database.transaction(durable=False, part=key.id) as connection:
            [(per_minute, per_day, requests, used)] = connection.execute(_USED, (minute, day, key.id))
            if per_minute is not None and requests >= per_minute:
                text = f"The key's limit of {per_minute:,} requests per minute is reached"
                return Exceeded(text, 60 - int(now % 60), of_day=False)
            if per_day is not None and used + characters > per_day:
                text = f"The request would exceed the key's limit of {per_day:,} characters per day"
                return Exceeded(text, DAY_SECONDS - int(now % DAY_SECONDS), of_day=True)
            connection.execute(
                "UPDATE keys SET minute = ?, minute_requests = ? WHERE id = ?", (minute, requests + 1, key.id)
            )
            connection.execute(
                "INSERT INTO usage VALUES (?, ?, 1, ?) ON CONFLICT (key, day) DO UPDATE SET "
                "requests = usage.requests + 1, characters = usage.characters + excluded.characters",
                (key.id, day, characters),
            )
        return None

    def characters_today(self, key: ApiKey) -> int:
        rows = self._database.read("SELECT characters FROM usage WHERE key = ? AND day = ?", key.id, _day(time.time()))
        return int(rows[0][0]) if rows else 0

    def usage(self) -> list[tuple[str, str, int, int]]:
        """Return tuples (day, name of the key, requests, characters), newest day first."""
        rows = self._database.read(
            "SELECT day, name, requests, characters FROM usage JOIN keys ON keys.id = usage.key ORDER BY day DESC, name"
        )
        return list(rows)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _day(now: float) -> str:
    return datetime.datetime.fromtimestamp(now, datetime.UTC).date().isoformat()
