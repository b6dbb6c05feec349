"""DeepL's glossaries: terms that a translation has to say, in memory until the server ends; all API keys share them."""

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

MOST_GLOSSARIES = 100
MOST_ENTRIES = 5000  # of a glossary; its characters are bounded as those of a request's texts are
MOST_FORMS_IN_ALL = 50_000
MOST_PARSED_FORMS = 10_000  # of the glossaries that are kept ready for use, 6 MB; those of others are parsed again
MOST_LINES = 20_000  # of the text that holds the entries of a glossary
MOST_NAME = 1000  # characters
QUOTA_EXCEEDED = 456  # DeepL's own status
FORMATS = "tsv", "csv"


@dataclass(frozen=True)
class Glossary:
    name: str
    source: str  # languages, without countries
    target: str
    tsv: str  # the entries
    terms: int  # how many
    forms: int
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())

    def about(self) -> dict[str, object]:
        return {
            "glossary_id": self.key,
            "name": self.name,
            "ready": True,
            "source_lang": self.source,
            "target_lang": self.target,
            "creation_time": self.created,
            "entry_count": self.terms,
        }

    def check_pair(self, source: str, target: str) -> None:
        """400 unless a request's languages are those of the glossary."""
        if (base_of(source), base_of(target)) != (self.source, self.target):
            raise Refusal(400, f"Invalid request: the glossary is for {self.source} to {self.target}")


class Glossaries:
    def __init__(self) -> None:
        self._by_key = dict[str, Glossary]()
        self._parsed = OrderedDict[str, Terms]()  # of glossaries that were used last

    def __iter__(self) -> Iterator[Glossary]:
        return iter(self._by_key.values())

    def add(self, name: str, source: str, target: str, terms: Terms) -> Glossary:
        if len(self._by_key) >= MOST_GLOSSARIES:
            raise Refusal(QUOTA_EXCEEDED, f"There are {MOST_GLOSSARIES} glossaries already: delete one first")
        own = sum(len(term.forms) for term in terms.terms)
        forms = own + sum(each.forms for each in self)
        if forms > MOST_FORMS_IN_ALL:
            told = (
                f"The glossaries would have {forms:,} translations, of {MOST_FORMS_IN_ALL:,} in all: delete one first"
            )
            raise Refusal(QUOTA_EXCEEDED, told)
        tsv = "\n".join(f"{term.source}\t{'|'.join(term.forms)}" for term in terms.terms)
        glossary = Glossary(name, source, target, tsv, len(terms.terms), own)
        self._by_key[glossary.key] = glossary
        self._keep(glossary, terms)
        return glossary

    def get(self, key: str) -> Glossary:
        if key not in self._by_key:
            raise Refusal(404, "There is no such glossary, or not any more")
        return self._by_key[key]

    def remove(self, key: str) -> None:
        del self._by_key[self.get(key).key]
        self._parsed.pop(key, None)

    async def terms(self, glossary: Glossary, workers: Workers) -> Terms:
        """Return a glossary's terms. A worker parses them if the glossary was not used lately: 5,000 take 0.1 s."""
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
        while len(self._parsed) > 1 and sum(self._by_key[key].forms for key in self._parsed) > MOST_PARSED_FORMS:
            self._parsed.popitem(last=False)


def parse(entries: str, kind: str) -> Terms:
    """Return the terms of entries as tsv or csv, which a request brings; case is as given, and a target may be several
    forms with | between. 400, with the line, for what is no term, and for a phrase that comes twice."""
    lines = list[str]()
    try:
        for number, cells in _rows(entries, kind):
            lines += [""] * (number - 1 - len(lines))
            lines.append(" " + "\t".join(cells))  # the space: in a glossary no line is a comment
        if sum(map(bool, lines)) > MOST_ENTRIES:
            raise DataError(f"entries has more than {MOST_ENTRIES:,} terms")
        return Terms.parse(lines, "entries")
    except (DataError, csv.Error) as error:
        raise Refusal(400, f"Invalid request: {error}") from None


def _rows(entries: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each entry's first line, counted from 1, and its source and target; csv may name the languages after."""
    lines = entries.removeprefix("\ufeff").split("\n")
    if len(lines) > MOST_LINES:
        raise DataError(f"entries has more than {MOST_LINES:,} lines")
    if kind == "csv":
        reader, first = csv.reader((line.removesuffix("\r") + "\n" for line in lines), strict=True), 1
        found = list[tuple[int, list[str]]]()
        try:
            for row in reader:
                found.append((first, row))
                first = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"entries, line {first:,} is no csv: {error}") from None
    else:
        found = [(number, line.split("\t")) for number, line in enumerate(lines, 1)]
    for number, cells in found:
        if not any(map(str.strip, cells)):
            continue
        if len(cells) not in ({2, 4} if kind == "csv" else {2}):
            raise DataError(f"entries, line {number:,} is no term: a source and a target are wanted")
        yield number, [" ".join(cell.split()) for cell in cells[:2]]
