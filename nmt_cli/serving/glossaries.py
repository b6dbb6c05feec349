"""DeepL's glossaries. They are kept in memory until the server ends, and all API keys share them."""

import csv
import datetime
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from nmt_cli.corpus.languages import base_of
from nmt_cli.corpus.terms import Terms
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError

MAX_GLOSSARIES = 100
MAX_ENTRIES = 5000  # of a glossary; the limit on a request's text bounds their characters
MAX_FORMS = 50_000  # translations in all glossaries
MAX_PARSED_FORMS = 10_000  # in the parsed glossaries that are kept, about 6 MB
MAX_LINES = 20_000  # of the entries in a request
MAX_NAME = 1000  # characters
QUOTA_EXCEEDED = 456  # a status of DeepL's own
FORMATS = "tsv", "csv"


@dataclass(frozen=True)
class Glossary:
    name: str
    source: str  # languages, without countries
    target: str
    tsv: str  # the entries
    term_count: int
    form_count: int  # a term may have several translations
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())

    def summary(self) -> dict[str, object]:
        return {
            "glossary_id": self.key,
            "name": self.name,
            "ready": True,
            "source_lang": self.source,
            "target_lang": self.target,
            "creation_time": self.created,
            "entry_count": self.term_count,
        }

    def check_pair(self, source: str, target: str) -> None:
        """400 unless a request has the languages of the glossary."""
        if (base_of(source), base_of(target)) != (self.source, self.target):
            raise Refusal(400, f"Invalid request: the glossary is for {self.source} to {self.target}")


class Glossaries:
    def __init__(self) -> None:
        self._by_key = dict[str, Glossary]()
        self._parsed = OrderedDict[str, Terms]()  # by key, the glossaries used last

    def __iter__(self) -> Iterator[Glossary]:
        return iter(self._by_key.values())

    def add(self, name: str, source: str, target: str, terms: Terms) -> Glossary:
        if len(self._by_key) >= MAX_GLOSSARIES:
            raise Refusal(QUOTA_EXCEEDED, f"There are {MAX_GLOSSARIES} glossaries already: delete one first")
        form_count = sum(len(term.forms) for term in terms.terms)
        in_all = form_count + sum(each.form_count for each in self)
        if in_all > MAX_FORMS:
            text = f"The glossaries would have {in_all:,} translations, more than {MAX_FORMS:,}: delete one first"
            raise Refusal(QUOTA_EXCEEDED, text)
        tsv = "\n".join(f"{term.source}\t{'|'.join(term.forms)}" for term in terms.terms)
        glossary = Glossary(name, source, target, tsv, len(terms.terms), form_count)
        self._by_key[glossary.key] = glossary
        self._keep(glossary, terms)
        return glossary

    def get(self, key: str) -> Glossary:
        if key not in self._by_key:
            raise Refusal(404, "There is no such glossary")
        return self._by_key[key]

    def remove(self, key: str) -> None:
        del self._by_key[self.get(key).key]
        self._parsed.pop(key, None)

    async def terms(self, glossary: Glossary, workers: Workers) -> Terms:
        """Return a glossary's terms. Those not used recently are parsed again, which takes 0.1 s for 5,000."""
        if glossary.key in self._parsed:
            self._parsed.move_to_end(glossary.key)
            return self._parsed[glossary.key]
        terms = await workers.in_thread(parse, glossary.tsv, "tsv")
        if glossary.key in self._by_key:
            self._keep(glossary, terms)
        return terms

    def _keep(self, glossary: Glossary, terms: Terms) -> None:
        self._parsed[glossary.key] = terms
        self._parsed.move_to_end(glossary.key)
        while len(self._parsed) > 1 and sum(self._by_key[key].form_count for key in self._parsed) > MAX_PARSED_FORMS:
            self._parsed.popitem(last=False)


def parse(entries: str, kind: str) -> Terms:
    """Return the terms in a request's entries, in the format tsv or csv. Matching is case-sensitive.

    A target may list several forms with | between them. A malformed entry or a repeated source gives 400 with its line.
    """
    lines = list[str]()
    try:
        for number, cells in _rows(entries, kind):
            lines += [""] * (number - 1 - len(lines))
            lines.append(" " + "\t".join(cells))  # the space keeps a leading # from starting a comment
        if sum(map(bool, lines)) > MAX_ENTRIES:
            raise DataError(f"entries has more than {MAX_ENTRIES:,} terms")
        return Terms.parse(lines, "entries")
    except (DataError, csv.Error) as error:
        raise Refusal(400, f"Invalid request: {error}") from None


def _rows(entries: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each entry's line number, from 1, with its source and target. Languages may follow in csv."""
    lines = entries.removeprefix("\ufeff").split("\n")
    if len(lines) > MAX_LINES:
        raise DataError(f"entries has more than {MAX_LINES:,} lines")
    rows = _csv_rows(lines) if kind == "csv" else [(number, line.split("\t")) for number, line in enumerate(lines, 1)]
    widths = {2, 4} if kind == "csv" else {2}
    for number, cells in rows:
        if not any(map(str.strip, cells)):
            continue
        if len(cells) not in widths:
            raise DataError(f"entries, line {number:,} is no term: it must have a source and a target")
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
        raise DataError(f"entries, line {first:,} is no csv: {error}") from None
    return rows
