"""Read the files of corpus.sources, in any supported format, as chunks of pairs."""

import codecs
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli.corpus import bitext_tables, bitext_xml, readers
from nmt_cli.corpus.bitext_tables import Columns
from nmt_cli.corpus.opening import opened, uncompressed_name
from nmt_cli.corpus.raw_rows import Column, RawRows, Unparsed
from nmt_cli.corpus.readers import CHUNK, Chunk
from nmt_cli.recipe import schema
from nmt_cli.recipe.text_source import TextSource
from nmt_cli.storage import artefact
from nmt_cli.system.errors import UsageError

# Suffix -> format. Files with other suffixes are plain text.
SUFFIXES = {
    ".tsv": "tsv", ".csv": "csv", ".tmx": "tmx", ".xlf": "xliff", ".xliff": "xliff", ".jsonl": "jsonl",
    ".parquet": "parquet", ".zip": "opus",
}  # fmt: skip
MOST_BYTES = 1 << 24  # maximum size of a chunk, unless a single piece, such as a line, is larger
TABLES = "tsv", "csv", "jsonl", "parquet"  # formats with columns


def format_of(entry: TextSource) -> str:
    """Return the `format` of an entry. If it is not set, the suffix of the first file determines the format."""
    suffix = Path(uncompressed_name(Path(entry.files[0]))).suffix if entry.files else ""
    return entry.format or SUFFIXES.get(suffix.lower(), "text")


def is_bitext(path: Path) -> bool:
    """Return whether a file name has the suffix of a format with both languages in one file."""
    return Path(uncompressed_name(path)).suffix.lower() in SUFFIXES


def read_source(corpus: schema.Corpus, index: int, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the pairs of entry `index` of corpus.sources. After reading a file, store its SHA-256 in `hashes`.

    Raises UsageError if the settings of the entry do not fit its format.
    """
    entry, section = corpus.sources[index], corpus.of_source(index)
    _check_options(entry)
    earlier = [other.files for other in corpus.sources[:index]].count(entry.files)
    if format_of(entry) == "text":
        if len(entry.files) != 2:
            listed = ", ".join(entry.files) or "none"
            raise UsageError(f"corpus.sources: plain text needs two files, source and target, not {listed}")
        for chunk in readers.read_pairs(entry.files[0], entry.files[1], earlier, hashes):
            yield chunk._replace(source=index)
        return
    for name in entry.files:
        with _rows(entry, section, Path(name), hashes) as rows:
            yield from _chunks(rows, earlier, index)


def _check_options(entry: TextSource) -> None:
    """Raise UsageError if an entry has a setting that its format does not support."""
    kind = format_of(entry)
    if (entry.columns or entry.score) and kind not in TABLES:
        name = entry.files[0]
        raise UsageError(f"corpus.sources: {kind} has no columns. Remove columns and score from the entry of {name}")
    if entry.finished and kind != "xliff":
        raise UsageError(f"corpus.sources: finished is only for XLIFF, and {entry.files[0]} is {kind}. Remove finished")


def _chunks(raw: RawRows, repetition: int, index: int) -> Iterator[Chunk]:
    """Yield the rows of a file in chunks of up to CHUNK pairs, or of fewer pairs if lines are very long."""
    pieces, rows, size = list[tuple[int, Any]](), 0, 0
    try:
        for number, count, piece_size, content in raw.pieces:
            if pieces and (rows + count > CHUNK or size + piece_size > MOST_BYTES):
                yield _chunk(Unparsed(pieces, rows, raw.parse), repetition, index)
                pieces, rows, size = [], 0, 0
            pieces.append((number, content))
            rows += count
            size += piece_size
    except Exception:
        if pieces:  # the rows before this error may contain an earlier error, which must be reported first
            yield _chunk(Unparsed(pieces, rows, raw.parse), repetition, index)
        raise
    if pieces:
        yield _chunk(Unparsed(pieces, rows, raw.parse), repetition, index)


def _chunk(rows: Unparsed, repetition: int, index: int) -> Chunk:
    return Chunk(Column(rows, 0), Column(rows, 1), repetition, index, scores=Column(rows, 2))


@contextlib.contextmanager
def _rows(entry: TextSource, section: schema.Corpus, path: Path, hashes: dict[Path, str]) -> Iterator[RawRows]:
    """Open a file of an entry. After the `with` block has read all rows, store the file's SHA-256 in `hashes`."""
    kind, languages = format_of(entry), (section.src, section.tgt)
    if kind in ("parquet", "opus"):  # files that need random access cannot be hashed while they are read
        if not path.is_file() or path.suffix in (".gz", ".bz2", ".xz", ".zst"):
            with opened(path, {}):
                raise UsageError(f"{path} is a compressed {kind} file, which nmt cannot read. Decompress it first")
        columns = _columns(entry, languages, named=True)
        yield bitext_tables.read_opus(path, *languages) if kind == "opus" else bitext_tables.read_parquet(path, columns)
        hashes[path] = artefact.sha256(path)
        return
    with opened(path, hashes) as file:
        if file.peek(3)[:3] == codecs.BOM_UTF8:
            file.read(3)
        if kind in TABLES:
            readers.check_plain(file.peek(4), str(path))
        if kind == "tmx":
            yield bitext_xml.read_tmx(file, path, *languages)
        elif kind == "xliff":
            yield bitext_xml.read_xliff(file, path, *languages, entry.finished)
        elif kind == "jsonl":
            yield bitext_tables.read_json_lines(file, path, _columns(entry, languages, named=True))
        else:
            read = bitext_tables.read_csv if kind == "csv" else bitext_tables.read_tsv
            yield read(file, path, _columns(entry, languages, named=False))


def _columns(entry: TextSource, languages: tuple[str, str], *, named: bool) -> Columns:
    """Return the columns of an entry, by default the language codes if its format has `named` columns, else 1 and 2."""
    names = entry.columns or (list(languages) if named else ["1", "2"])
    if len(names) != 2:
        raise UsageError(f"corpus.sources: columns must list two columns, source and target, not {', '.join(names)}")
    if not named:
        wrong = next((name for name in [*names, entry.score or "1"] if re.fullmatch("0+", name)), None)
        numbers = {name.isdecimal() for name in [*names, *([entry.score] if entry.score else [])]}
        if wrong or len(numbers) > 1:
            raise UsageError("corpus.sources: columns and score must all be names, or all be numbers from 1 on")
    chosen = named or bool(entry.columns or entry.score)
    return Columns(names[0], names[1], entry.score, None if chosen else languages)
