"""Store and parse the glossaries of DeepL's API. All API keys share the same glossaries."""

import csv
import datetime
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from nmt_cli.corpus.languages import base_of
from nmt_cli.corpus.terms import Terms, words
from nmt_cli.serving.database import Connection, Database
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError

MAX_GLOSSARIES = 1000  # as many as DeepL allows; Weblate makes one per project and language pair
MAX_ENTRIES = 5000  # maximum number of terms in a dictionary
MAX_FORMS = 50_000  # maximum number of translations in all glossaries together
MAX_PARSED_FORMS = 10_000  # maximum number of translations in the cache of parsed dictionaries; they take about 6 MB
MAX_LINES = 20_000  # maximum lines in the entries of a dictionary, including empty lines
MAX_NAME = 1000  # maximum characters of a glossary's name
QUOTA_EXCEEDED = 456  # an HTTP status that only DeepL uses
FORMATS = "tsv", "csv"


@dataclass(frozen=True)
class Dictionary:
    """The terms of a glossary for one language pair."""

    source: str  # language code without script and region
    target: str  # likewise
    term_count: int
    form_count: int  # number of translations; a term may have several


@dataclass(frozen=True)
class Glossary:
    key: str
    name: str
    created: str  # ISO 8601, in UTC
    dictionaries: tuple[Dictionary, ...]  # exactly one in version 2 of DeepL's API

    def dictionary(self, source: str, target: str) -> Dictionary:
        """Return the dictionary for two language codes. Raise Refusal (400) if there is none."""
        for each in self.dictionaries:
            if (base_of(source), base_of(target)) == (each.source, each.target):
                return each
        pairs = ", ".join(f"{each.source} to {each.target}" for each in self.dictionaries) or "no languages yet"
        raise Refusal(400, f"Invalid request: the glossary is for {pairs}")


class Glossaries:
    """The glossaries in a database. Call synchronous methods outside the event loop, because they block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._parsed = OrderedDict[bytes, Terms]()  # a cache: hash of entries -> terms, most recently used last

    def all(self) -> list[Glossary]:
        """Return all glossaries, oldest first."""
        rows = self._database.read(
            "SELECT id, name, created, source, target, terms, forms FROM glossaries "
            "LEFT JOIN dictionaries ON glossary = id ORDER BY glossaries.rowid, dictionaries.rowid"
        )
        return [_glossary(list(group)) for _, group in groupby(rows, key=lambda row: row[0])]

    def get(self, key: str) -> Glossary:
        rows = self._database.read(
            "SELECT id, name, created, source, target, terms, forms FROM glossaries "
            "LEFT JOIN dictionaries ON glossary = id WHERE id = ? ORDER BY dictionaries.rowid",
            key,
        )
        if not rows:
            raise Refusal(404, "There is no such glossary")
        return _glossary(rows)

    def add(self, name: str, dictionaries: Mapping[tuple[str, str], Terms]) -> Glossary:
        """Store a new glossary with the terms of each language pair. Raise Refusal (456) if a limit is exceeded."""
        key = str(uuid.uuid4())
        created = datetime.datetime.now(datetime.UTC).isoformat()
        rows = [_row(key, pair, terms) for pair, terms in dictionaries.items()]
        with self._database.transaction() as connection:
            [[count]] = connection.execute("SELECT count(*) FROM glossaries")
            if count >= MAX_GLOSSARIES:
                raise Refusal(QUOTA_EXCEEDED, f"There are {MAX_GLOSSARIES:,} glossaries already: delete one first")
            connection.execute("INSERT INTO glossaries VALUES (?, ?, ?)", (key, name, created))
            for row in rows:
                _put(connection, row)
        return self.get(key)

    def rename(self, key: str, name: str) -> None:
        with self._database.transaction() as connection:
            _check_exists(connection, key)
            connection.execute("UPDATE glossaries SET name = ? WHERE id = ?", (name, key))

    async def extend(self, key: str, pair: tuple[str, str], terms: Terms, workers: Workers) -> None:
        """Add terms to a dictionary. Create the dictionary if necessary.

        Raise Refusal (404) if the glossary does not exist, (400) if the dictionary would have too many terms, and (456)
        if all glossaries together would have too many translations.

        The terms are merged before the transaction begins, so that other writers do not wait. If one of them changes
        the dictionary in the meantime, the terms are merged again.
        """
        while True:
            rows = await workers.in_database(self._database.read, _READ, key, *pair)
            old = rows[0][0] if rows else None
            merged = await workers.in_thread(_merged, await self.terms(old, workers), terms) if old else terms
            if await workers.in_database(self._replace_unchanged, key, pair, merged, old):
                return

    def _replace_unchanged(self, key: str, pair: tuple[str, str], terms: Terms, old: str | None) -> bool:
        """Replace a dictionary if its stored entries are still `old`. Return whether the dictionary was replaced."""
        row = _row(key, pair, terms)
        with self._database.transaction() as connection:
            _check_exists(connection, key)
            stored = connection.execute(_READ, (key, *pair))
            if (stored[0][0] if stored else None) != old:
                return False
            _put(connection, row)
        return True

    def replace(self, key: str, pair: tuple[str, str], terms: Terms) -> Glossary:
        """Store a dictionary in a glossary, in place of any dictionary for the same languages."""
        row = _row(key, pair, terms)
        with self._database.transaction() as connection:
            _check_exists(connection, key)
            _put(connection, row)
        return self.get(key)

    def remove_dictionary(self, key: str, source: str, target: str) -> None:
        values = key, base_of(source), base_of(target)
        with self._database.transaction() as connection:
            if not connection.execute(_READ, values):
                raise Refusal(404, "There is no such dictionary")
            connection.execute("DELETE FROM dictionaries WHERE glossary = ? AND source = ? AND target = ?", values)

    def remove(self, key: str) -> None:
        with self._database.transaction() as connection:
            _check_exists(connection, key)
            connection.execute("DELETE FROM glossaries WHERE id = ?", (key,))

    def entries(self, key: str, source: str, target: str) -> str:
        """Return the entries of a dictionary. Each line has a phrase, a tab, and the translations, separated by |."""
        dictionary = self.get(key).dictionary(source, target)
        return _entries(self._database.read(_READ, key, dictionary.source, dictionary.target))

    async def terms(self, entries: str, workers: Workers) -> Terms:
        """Parse a dictionary's entries, or return their terms from the cache. Parsing 5,000 terms takes 0.1 s."""
        digest = hashlib.sha256(entries.encode()).digest()
        if digest not in self._parsed:
            self._parsed[digest] = await workers.in_thread(parse, entries, "tsv")
        terms = self._parsed[digest]
        self._parsed.move_to_end(digest)
        while len(self._parsed) > 1 and sum(map(_form_count, self._parsed.values())) > MAX_PARSED_FORMS:
            self._parsed.popitem(last=False)
        return terms


_READ = "SELECT entries FROM dictionaries WHERE glossary = ? AND source = ? AND target = ?"


def _check_exists(connection: Connection, key: str) -> None:
    if not connection.execute("SELECT 1 FROM glossaries WHERE id = ?", (key,)):
        raise Refusal(404, "There is no such glossary")


def _merged(old: Terms, new: Terms) -> Terms:
    """Merge terms. The new translations of a phrase replace the old ones. Raise Refusal (400) for too many terms."""
    by_phrase = {words(term.source): term for term in [*old.terms, *new.terms]}
    if len(by_phrase) > MAX_ENTRIES:
        raise Refusal(400, f"Invalid request: the dictionary would have more than {MAX_ENTRIES:,} terms")
    return Terms(by_phrase.values())


def _entries(rows: list[tuple[str]]) -> str:
    if not rows:  # the dictionary has just been deleted
        raise Refusal(404, "There is no such dictionary")
    return rows[0][0]


def _glossary(rows: list[Any]) -> Glossary:
    """Return a glossary. `rows` has one row per dictionary, or a single row with nulls if there is no dictionary."""
    key, name, created, *_ = rows[0]
    return Glossary(key, name, created, tuple(Dictionary(*row[3:]) for row in rows if row[3]))


def _row(key: str, pair: tuple[str, str], terms: Terms) -> tuple[object, ...]:
    entries = "\n".join(f"{term.source}\t{'|'.join(term.forms)}" for term in terms.terms)
    return (key, *pair, entries, len(terms.terms), _form_count(terms))


def _put(connection: Connection, row: tuple[object, ...]) -> None:
    """Insert or replace a dictionary. Raise Refusal (456) if all glossaries would have too many translations."""
    connection.execute(
        "INSERT INTO dictionaries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (glossary, source, target) "
        "DO UPDATE SET (entries, terms, forms) = (excluded.entries, excluded.terms, excluded.forms)",
        row,
    )
    [[total]] = connection.execute("SELECT sum(forms) FROM dictionaries")
    if total > MAX_FORMS:
        text = f"The glossaries would have {total:,} translations, more than {MAX_FORMS:,}: delete a glossary first"
        raise Refusal(QUOTA_EXCEEDED, text)


def _form_count(terms: Terms) -> int:
    return sum(len(term.forms) for term in terms.terms)


def parse(entries: str, kind: str) -> Terms:
    """Parse the entries in a request. `kind` is their format, tsv or csv. The resulting terms are case-sensitive.

    A target may list several translations, separated by |. Raise Refusal (400) if an entry is malformed, a source is
    repeated, or there are too many entries.
    """
    lines = list[str]()
    try:
        for number, cells in _rows(entries, kind):
            lines += [""] * (number - 1 - len(lines))  # so that messages give the right line number
            lines.append(" " + "\t".join(cells))  # the space keeps a leading # from starting a comment
        if sum(map(bool, lines)) > MAX_ENTRIES:
            raise DataError(f"entries has more than {MAX_ENTRIES:,} terms")
        return Terms.parse(lines, "entries")
    except (DataError, csv.Error) as error:
        raise Refusal(400, f"Invalid request: {error}") from None


def _rows(entries: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number (from 1) and [source, target] of each entry. CSV rows may also have two language codes."""
    lines = entries.removeprefix("\ufeff").split("\n")
    if len(lines) > MAX_LINES:
        raise DataError(f"entries has more than {MAX_LINES:,} lines")
    rows = _csv_rows(lines) if kind == "csv" else [(number, line.split("\t")) for number, line in enumerate(lines, 1)]
    widths = {2, 4} if kind == "csv" else {2}
    for number, cells in rows:
        if not any(map(str.strip, cells)):
            continue
        if len(cells) not in widths:
            raise DataError(f"entries, line {number:,} is not a term: it must have a source and a target")
        yield number, [" ".join(cell.split()) for cell in cells[:2]]


def _csv_rows(lines: list[str]) -> list[tuple[int, list[str]]]:
    reader = csv.reader((line.removesuffix("\r") + "\n" for line in lines), strict=True)
    first = 1
    rows = list[tuple[int, list[str]]]()
    try:
        for row in reader:
            rows.append((first, row))
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"entries, line {first:,} is not valid CSV: {error}") from None
    return rows
