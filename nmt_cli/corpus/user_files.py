"""Text from the user's parallel files, with general text mixed in if the recipe names any, and from corpus.sources."""

import codecs
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from itertools import chain
from pathlib import Path

from nmt_cli.corpus import bitext
from nmt_cli.corpus.catalog import Size
from nmt_cli.corpus.cleaning import has_low_score
from nmt_cli.corpus.raw_text import RawText, Source, Split, checked_chunks, first_pairs, text_bytes
from nmt_cli.corpus.readers import Chunk, FilePair, count_pairs, read_files
from nmt_cli.corpus.size_estimate import BYTES_PER_PAIR
from nmt_cli.corpus.store import HELD_OUT
from nmt_cli.recipe import schema
from nmt_cli.system.console import say
from nmt_cli.system.errors import DataError

MOST_REPEATS = 10  # a mix has at most this many copies of the user's text, and of the general text


class UserFilesSource(Source):
    """The user's files, and the named corpora and hub data sets in corpus.sources."""

    def __init__(self, corpus: schema.Corpus, mirror: Path | None, named: Mapping[int, Source] | None = None) -> None:
        """`named` maps the index of each named corpus in corpus.sources to its source."""
        super().__init__(corpus, mirror)
        self.named = named or {}
        # `self.own` is this source without the named corpora.
        own = {"sources": [entry for entry in corpus.sources if entry.files]}
        self.own = UserFilesSource(corpus.model_copy(update=own), None) if self.named else self
        self.generated = not self.own.local_files() and all(source.generated for source in self.named.values())

    @property
    def origin(self) -> str:
        return _listed(["local files"] if self.own.local_files() else [], self.named.values())

    @property
    def fills_cache(self) -> bool:
        return any(source.fills_cache for source in self.named.values())

    def local_files(self) -> list[Path]:
        pairs = [*train_files(self.corpus), *held_out_files(self.corpus).values(), *general_files(self.corpus)]
        names = [*chain(*pairs), *chain(*(entry.files for entry in self.corpus.sources))]
        files = chain(*(source.local_files() for source in self.named.values()))
        return [*map(Path, names), *files]

    def published_size(self) -> Size:
        return Size(0, None, self.corpus.rows)

    def size(self) -> Size:
        if not self.named:
            return super().size()
        own = self.own.size() if self.own.local_files() else Size(0, 0, 0)
        # Count a corpus once, even if several entries use its splits.
        distinct = {source.corpus.model_dump_json(): source for source in self.named.values()}
        sizes = [astuple(size) for size in (own, *(source.size() for source in distinct.values()))]
        return Size(*(None if None in each else sum(each) for each in zip(*sizes, strict=True)))

    def count_pairs(self) -> int | None:
        if self.corpus.format == "trees":
            return None
        if not self.named:
            return super().count_pairs()
        train = [source for index, source in self.named.items() if self.corpus.sources[index].split == "train"]
        own = self.own.count_pairs() if self.own.local_files() else 0
        counts = [own, *(source.count_pairs() for source in train)]
        return None if None in counts else sum(filter(None, counts))

    def open_named(self, downloads: Path, work: Path) -> dict[int, RawText]:
        named = {index: source.open(downloads, work / str(index)) for index, source in self.named.items()}
        for index, opened in named.items():
            wanted = self.corpus.sources[index].split
            if wanted not in opened.splits:
                found = ", ".join(opened.splits)
                raise DataError(f"{opened.origin} has no {wanted} set, only {found}. Correct corpus.sources")
        return named

    def open(self, downloads: Path, work: Path) -> RawText:
        named = self.open_named(downloads, work)
        own = self.own.local_files()
        files = [*own, *chain(*(opened.files for opened in named.values()))]
        origin = _listed(["local files"] if own else [], named.values())
        text = RawText(origin, {}, files, "Correct the files")
        train = train_files(self.corpus)
        general = general_files(self.corpus)
        for (src, _), times in Counter(train).items():
            if times > 1:
                say(f"{src} is listed {times} times, so its pairs are repeated. They do not count as duplicates")
        name = ", ".join([*chain(*train, *general), *self._names("train")])
        if general:
            chunks = mixed(train, general, self.corpus.mix_share, text.hashes)
            text.splits["train"] = Split(name, chunks)
        elif self.corpus.limit and len(train_parts(self.corpus)) > 1:
            text.splits["train"] = Split(name, self._shared_limit(self.corpus.limit, text.hashes, named))
        else:
            chunks = split_chunks(self.corpus, "train", train, text.hashes, named)
            text.splits["train"] = Split(name, chunks, self.corpus.rows)
        for split, files_of_split in held_out_files(self.corpus).items():
            chunks = split_chunks(self.corpus, split, [files_of_split], text.hashes, named)
            text.splits[split] = Split(", ".join(files_of_split), chunks)
        for split in ("dev", "test"):
            if split not in text.splits and (names := self._names(split)):
                text.splits[split] = Split(", ".join(names), split_chunks(self.corpus, split, [], text.hashes, named))
        return text

    def _shared_limit(self, limit: int, hashes: dict[Path, str], named: Mapping[int, RawText]) -> Iterator[Chunk]:
        """Yield `limit` training pairs, taken from the parts of the text in proportion to their sizes in bytes.

        Each part gives at least one pair if `limit` allows it. If a part has too few pairs, later parts give more.
        """
        parts = train_parts(self.corpus)
        sizes = list(map(self._text_bytes, parts))
        for number, index in enumerate(parts):
            if not limit:
                return
            share = round(limit * sizes[number] / sum(sizes[number:]))
            share = max(1, min(share, limit - len(parts[number + 1 :])))
            if index is None:
                chunks = read_files(train_files(self.corpus), hashes)
            else:
                chunks = entry_chunks(self.corpus, index, hashes, named)
            for chunk in first_pairs(chunks, share):
                yield chunk
                limit -= len(chunk.src)

    def _text_bytes(self, index: int | None) -> int:
        """Estimate the size, in bytes, of a part of the training text. The result is never 0."""
        if index is not None and index in self.named:
            size = self.named[index].size()
            return size.text_bytes or (size.pairs or 1) * BYTES_PER_PAIR
        names = chain(*train_files(self.corpus)) if index is None else self.corpus.sources[index].files
        return max(1, text_bytes(file for file in map(Path, names) if file.is_file()))

    def _names(self, split: str) -> list[str]:
        return [entry.name for entry in self.corpus.sources if entry.split == split]


def _listed(own: list[str], others: Iterable[Source | RawText]) -> str:
    """Return the distinct origins of several texts in one line."""
    return "; ".join(dict.fromkeys([*own, *(each.origin for each in others)]))


def split_chunks(
    corpus: schema.Corpus,
    split: str,
    files: list[FilePair],
    hashes: dict[Path, str],
    named: Mapping[int, RawText] | None = None,
) -> Iterator[Chunk]:
    """Yield the pairs in `files`, and then the pairs of the split's entries in corpus.sources.

    `named` maps the index of each entry that names a corpus to its opened text. For a held-out set, drop the entries'
    pairs that have low scores, and begin source lines with the tokens that the model needs. In training text, cleaning
    does both.
    """
    for chunk in read_files(files, hashes):
        yield chunk if split == "train" else _prefixed(chunk, corpus)
    for index, entry in enumerate(corpus.sources):
        if entry.split == split:
            for chunk in entry_chunks(corpus, index, hashes, named):
                yield chunk if split == "train" else _prefixed(_without_low_scores(chunk, corpus), corpus)


def entry_chunks(
    corpus: schema.Corpus, index: int, hashes: dict[Path, str], named: Mapping[int, RawText] | None = None
) -> Iterator[Chunk]:
    """Yield the raw pairs of an entry of corpus.sources. For `named`, see `split_chunks`."""
    if named and index in named:
        return _named_chunks(corpus, index, named[index], hashes)
    return bitext.read_source(corpus, index, hashes)


def _named_chunks(corpus: schema.Corpus, index: int, text: RawText, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the pairs of an entry that names a corpus. At the end, store the SHA-256 of the files read in `hashes`.

    Stop early, without hashes, after corpus.limit training pairs, because further pairs may have to be downloaded.
    """
    keys = [(entry.corpus, entry.config, entry.src, entry.tgt, entry.split) for entry in corpus.sources]
    split, rows = corpus.sources[index].split, 0
    for chunk in checked_chunks(text, split, None):
        yield chunk._replace(source=index, repetition=keys[:index].count(keys[index]))
        rows += len(chunk.src)
        if split == "train" and corpus.limit and rows >= corpus.limit:
            return
    hashes.update(text.hashes)


def _without_low_scores(chunk: Chunk, corpus: schema.Corpus) -> Chunk:
    kept = [index for index in range(len(chunk.src)) if not has_low_score(corpus, chunk, index)]
    return chunk._replace(src=[chunk.src[i] for i in kept], tgt=[chunk.tgt[i] for i in kept])


def _prefixed(chunk: Chunk, corpus: schema.Corpus) -> Chunk:
    prefix = corpus.prefix(chunk.source).encode()
    if not prefix:
        return chunk
    return chunk._replace(src=[line and prefix + line.removeprefix(codecs.BOM_UTF8) for line in chunk.src])


def train_files(corpus: schema.Corpus) -> list[FilePair]:
    return list(zip(corpus.train_src, corpus.train_tgt, strict=True))


def train_parts(corpus: schema.Corpus) -> list[int | None]:
    """Return the index in corpus.sources of each part of the real training text. None stands for `train_src`."""
    own = [None] if corpus.train_src else []
    return [*own, *(index for index, entry in enumerate(corpus.sources) if entry.split == "train")]


def general_files(corpus: schema.Corpus) -> list[FilePair]:
    """Return the files whose general text is mixed into the training text."""
    return list(zip(corpus.mix_src, corpus.mix_tgt, strict=True))


def held_out_files(corpus: schema.Corpus) -> dict[str, FilePair]:
    """Return the files of each held-out set for which `corpus` names files."""
    named = {split: (getattr(corpus, f"{split}_src"), getattr(corpus, f"{split}_tgt")) for split in HELD_OUT}
    return {split: files for split, files in named.items() if files[0]}


def thinned(chunks: Iterable[Chunk], share: float) -> Iterator[Chunk]:
    """Yield `share` (0 to 1) of the pairs, evenly spread."""
    read = 0
    for chunk in chunks:
        kept_before = [int((read + i) * share + 0.5) for i in range(len(chunk.src) + 1)]
        keep = [i for i in range(len(chunk.src)) if kept_before[i] < kept_before[i + 1]]
        yield Chunk([chunk.src[i] for i in keep], [chunk.tgt[i] for i in keep], chunk.repetition)
        read += len(chunk.src)


def mixed(own: list[FilePair], general: list[FilePair], share: float, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the user's pairs, and then general pairs, which are `share` of all pairs that are yielded.

    The user's pairs are repeated as often as the amount of general text allows, up to MOST_REPEATS times. If the
    general text is too small even for one copy, it is repeated, also up to MOST_REPEATS times. If that is not enough,
    the share of general pairs is smaller than `share`.
    """
    own_pairs = count_pairs(read_files(own, {}))
    general_pairs = count_pairs(read_files(general, {}))
    if not (own_pairs and general_pairs):
        empty = general if own_pairs else own
        raise DataError(f"{', '.join(chain(*empty))}: there is no text to mix. Check the files")
    wanted = own_pairs * share / (1 - share)  # general pairs for each repetition of the user's pairs
    times = max(1, min(MOST_REPEATS, int(general_pairs / wanted)))
    passes = min(times * wanted / general_pairs, MOST_REPEATS)
    say(f"training text: {times} x your {own_pairs:,} pairs, and {passes:.2g} x the {general_pairs:,} general pairs")
    whole = math.ceil(passes)
    yield from read_files(own * times, hashes)
    yield from thinned(read_files(general * whole, hashes), passes / whole)
