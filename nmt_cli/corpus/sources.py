"""Where the text of a corpus comes from: generated, Multi30k's files, data sets of the hub, or the user's files."""

import contextlib
import difflib
import functools
import hashlib
import http.client
import itertools
import os
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt_cli import artefact, recipe
from nmt_cli.corpus.readers import MAX_LINE_BYTES, Chunk, read_pairs
from nmt_cli.errors import DataError, DownloadError, MissingError, NmtError, UsageError

SPLITS = {"train": ("train",), "dev": ("validation", "valid", "dev", "val"), "test": ("test",)}  # ours: on the hub
MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_STEMS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
# SHA-256 of the raw files. None are known for French and Czech: their lines are counted, their hashes recorded.
MULTI30K_PINS = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
WMT14, WMT14_REVISION = "wmt/wmt14", "b199e406369ec1b7634206d3ded5ba45de2fe696"
HELD_OUT_ROWS = {"wmt14": {"dev": 3000, "test": 3003}, "multi30k": {"dev": 1014, "test": 1000}}
BYTES_PER_PAIR = 250  # of news text, both sides
TOY_PAIRS, TOY_BYTES = 20_000, 2_200_000
# Bytes to download and bytes of text of WMT14 by configuration (the data set's card).
WMT14_BYTES = {"de-en": (818_467_512, 1_358_406_800), "fr-en": (7_777_527_744, 14_752_522_252)}
PAUSES = (1, 4)  # seconds between the three tries of a download


@dataclass(frozen=True)
class Split:
    """The text of one split: its name in messages, how to read it, and how many pairs it must have, if known."""

    name: str
    chunks: Callable[[], Iterator[Chunk]]
    rows: int | None


@dataclass
class Text:
    """The text of a corpus.

    Attributes:
        advice: what to do where a split has another number of rows; None: that is only worth a warning.
        bytes: roughly those of the text.
        files: those on this machine that hold the text: the user's, or a mirror's.
        sources: name, bytes, rows and SHA-256 of what was read, filled while it is read.
    """

    origin: str
    advice: str | None
    bytes: int = 0
    files: list[Path] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)

    def add_files(self, split: str, pairs: Sequence[tuple[Path, Path]], rows: int | None) -> None:
        """Add a split that is in parallel text files."""
        files = [file for pair in pairs for file in pair]
        self.files += files
        self.bytes += _text_bytes(files)
        name = ", ".join(map(str, files))
        readers = [functools.partial(read_pairs, *pair, self.sources) for pair in pairs]
        self.splits[split] = Split(name, lambda: itertools.chain.from_iterable(read() for read in readers), rows)


def _text_bytes(files: Iterable[Path]) -> int:
    """Return roughly the bytes of text in plain or packed files."""
    return sum(
        file.stat().st_size * (3 if file.suffix in (".gz", ".parquet") else 1) for file in files if file.is_file()
    )


def describe(file: Path) -> dict[str, Any]:
    """Return what a manifest says of a source file."""
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": artefact.sha256(file)}


def family(corpus: recipe.Corpus) -> str:
    """Return "own", "toy", "multi30k" or "hub".

    Raises:
        UsageError: the corpus is unknown, or says two things at once.
    """
    name = corpus.name or ""
    named = name in recipe.NAMED_CORPORA or name.startswith("hub:")
    for split in ("dev", "test"):
        if (getattr(corpus, f"{split}_src") is None) != (getattr(corpus, f"{split}_tgt") is None):
            raise UsageError(f"corpus.{split}_src and corpus.{split}_tgt go together: give both or neither")
    if corpus.train_src:
        if named:
            raise UsageError(f"corpus {name} brings its own text: give your files another corpus.name")
        return "own"
    if name.startswith("hub:"):
        if not re.fullmatch(r"hub:[\w.-]+/[\w.-]+(@[\w./-]+)?", name):
            raise UsageError(f"corpus {name[:60]}: write it as hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
        return "hub"
    if not named:
        near = difflib.get_close_matches(name, recipe.NAMED_CORPORA, 1, 0.5)
        advice = f"Did you mean {near[0]}?" if near else f"Named corpora: {', '.join(recipe.NAMED_CORPORA)}."
        raise UsageError(f"unknown corpus {name[:60]!r}. {advice} For your own text give its files")
    return "hub" if name.startswith("wmt14-") else name.split("-")[0]


def open_text(corpus: recipe.Corpus, mirror: Path | None, downloads: Path, work: Path) -> Text:
    """Return the text of a corpus, downloading or generating what is not there.

    Args:
        corpus: what to open.
        mirror: directory that holds the files of a named corpus or hub data set in their original layout.
        downloads: directory for downloaded files (the hub's client has a cache of its own).
        work: directory for generated and temporary files.

    Raises:
        UsageError, MissingError, DownloadError, DataError: there is no such text.
    """
    kind = family(corpus)
    if mirror is not None and not mirror.is_dir():
        raise MissingError(f"no directory {mirror} (--mirror)")
    if kind == "hub":
        return _hub(corpus, mirror, work)
    if kind == "multi30k":
        return _multi30k(corpus, mirror, downloads / "multi30k")
    if kind == "toy":
        return _toy(corpus, work)
    text = Text("local files", "Correct the files or corpus.rows")
    text.add_files(
        "train", [(Path(s), Path(t)) for s, t in zip(corpus.train_src, corpus.train_tgt, strict=True)], corpus.rows
    )
    for split in ("dev", "test"):
        src, tgt = getattr(corpus, f"{split}_src"), getattr(corpus, f"{split}_tgt")
        if src:
            text.add_files(split, [(Path(src), Path(tgt))], None)
    return text


def _toy(corpus: recipe.Corpus, work: Path) -> Text:
    from nmt_cli.corpus import toy

    generated, text = toy.generate(corpus.seed), Text("generated", None)
    for split in SPLITS:
        for i, language in enumerate(("en", "de")):
            lines = "".join(pair[i] + "\n" for pair in getattr(generated, split))
            (work / f"{split}.{language}").write_bytes(lines.encode())
        text.add_files(split, [(work / f"{split}.{corpus.src}", work / f"{split}.{corpus.tgt}")], None)
    return text


def _multi30k(corpus: recipe.Corpus, mirror: Path | None, downloads: Path) -> Text:
    text = Text(MULTI30K_URL, None if mirror else f"Remove {downloads} and run again")
    rows = {"train": corpus.rows, **HELD_OUT_ROWS["multi30k"]}
    for split, stem in MULTI30K_STEMS.items():
        src, tgt = ((mirror or downloads) / f"{stem}.{language}.gz" for language in (corpus.src, corpus.tgt))
        for path in (src, tgt):
            url, pin = f"{MULTI30K_URL}/{path.name}", MULTI30K_PINS.get(path.name)
            if not path.is_file():
                if mirror:
                    raise MissingError(f"{mirror} has no {path.name}. Fetch {url} and put it there")
                fetch(url, path, pin)
            elif pin not in (None, artefact.sha256(path)):
                raise DataError(f"{path} is not the file of {MULTI30K_URL}. Remove it and run again, or fetch it there")
        text.add_files(split, [(src, tgt)], rows[split])
    return text


def fetch(url: str, target: Path, sha256: str | None) -> None:
    """Download a small file to `target`; it has that name only when it is complete and its SHA-256 right.

    Raises:
        DownloadError: the server cannot be reached, or refuses.
        DataError: what came is another file.
    """
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own constant, https
                data, size = response.read(), response.headers["Content-Length"]
            if size is not None and len(data) != int(size):
                raise OSError(f"cut at {len(data):,} of {size} bytes")
            break
        except (OSError, http.client.HTTPException) as error:
            if pause is None or getattr(error, "code", 500) in (401, 403, 404, 410):
                raise DownloadError(f"cannot download {url}: {error}. Try later, or pass --mirror DIR") from None
            time.sleep(pause)
    if sha256 not in (None, hashlib.sha256(data).hexdigest()):
        raise DataError(f"{url} is not the expected file: its SHA-256 differs. Get it elsewhere and pass --mirror DIR")
    artefact.make_directory(target.parent)
    artefact.replace_file(target, data)


def _hub_name(corpus: recipe.Corpus) -> tuple[str, str | None]:
    """Return the repository on the hub and the revision of it: a commit, a branch, or None for the newest."""
    name = corpus.name or ""
    if name.startswith("wmt14-"):
        return WMT14, WMT14_REVISION
    repo, _, revision = name.removeprefix("hub:").partition("@")
    return repo, revision or None


def _address(repo: str) -> str:
    return f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/datasets/{repo}"


@contextlib.contextmanager
def _hub_errors(corpus: recipe.Corpus) -> Iterator[None]:
    """Turn what `datasets` and the libraries below it raise into errors that say what to do."""
    import datasets

    repo, folder = _hub_name(corpus)[0], corpus.config or "data"
    try:
        yield
    except NmtError:
        raise
    except Exception as error:  # of any of the six packages that take part
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, ConnectionError):
                raise cause from None  # a full disk and the like
            cause = cause.__cause__
        what = " ".join(str(error.__cause__ or error).split())[:150]
        if isinstance(error, datasets.exceptions.DatasetsError | ValueError | RuntimeError):
            advice = f"Check its name, --config and languages at {_address(repo)}"
            raise DataError(f"{repo} cannot be used: {what}. {advice}") from None
        raise DownloadError(
            f"cannot download {repo}: {what}. Try later, or fetch {_address(repo)}/tree/main/{folder} into DIR/{folder}"
            " and pass --mirror DIR"
        ) from None


def _builder(corpus: recipe.Corpus) -> Any:
    """Return the `datasets` builder of a data set at one commit: the pinned one, or else the newest.

    All splits are read through it, so they are of the same commit.
    """
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    repo, revision = _hub_name(corpus)
    builder = datasets.load_dataset_builder(repo, corpus.config, revision=revision)
    if revision and re.fullmatch("[0-9a-f]{40}", revision) and builder.hash != revision:  # what is cached, offline
        raise ConnectionError(f"the cache holds commit {builder.hash}, not {revision}")
    return builder


def _mirror_builder(corpus: recipe.Corpus, mirror: Path, work: Path) -> Any:
    """Return the builder of the parquet files in a mirror, `CONFIG/train-*` or in another layout of the hub."""
    import datasets

    folder = mirror / (corpus.config or "")
    files: dict[str, list[str]] = {}
    if folder.is_dir() and any(folder.rglob("*.parquet")):
        inferred = datasets.load_dataset_builder("parquet", data_dir=str(folder), cache_dir=str(work))
        files = {
            str(split): [f for f in files if f.endswith(".parquet")]
            for split, files in inferred.config.data_files.items()
        }
        files = {split: paths for split, paths in files.items() if paths}
    wanted = SPLITS.values() if (corpus.name or "").startswith("wmt14-") else [SPLITS["train"]]
    for words in wanted:
        if not set(words) & set(files):
            where = f"{corpus.config or 'data'}/{words[0]}-*.parquet"
            raise MissingError(
                f"{mirror} has no {where}. Fetch it from {_address(_hub_name(corpus)[0])} into that place"
            )
    for split, paths in files.items():
        shards = [match for match in (re.search(r"-(\d{5})-of-(\d{5})", path) for path in paths) if match]
        first = all(int(match[1]) == i for i, match in enumerate(shards))
        if shards and len(shards) < int(shards[0][2]) and not (split == "train" and corpus.limit and first):
            raise MissingError(
                f"{mirror} has only {len(shards)} {split} files of the {int(shards[0][2])} that there are"
            )
    return datasets.load_dataset_builder("parquet", data_files=files, cache_dir=str(work))


def _hub(corpus: recipe.Corpus, mirror: Path | None, work: Path) -> Text:
    try:
        import datasets
    except ImportError:
        raise MissingError("this corpus needs the package datasets. Run: pip install datasets") from None
    repo, _ = _hub_name(corpus)
    with _hub_errors(corpus):
        builder = _mirror_builder(corpus, mirror, work) if mirror else _builder(corpus)
        card = builder.info.splits or {}
        prepared = mirror is None and Path(builder.cache_dir).exists()
        streamed = not prepared and (mirror is not None or corpus.limit is not None)
        if not prepared and not streamed:
            try:
                builder.download_and_prepare(verification_mode="no_checks")  # rows are counted when they are read
            except datasets.exceptions.DatasetGenerationError:
                _check_downloads(builder, repo)
                raise
            _check_downloads(builder, repo)
    if mirror:
        text = Text(str(mirror), None)
        text.files = [Path(path) for paths in builder.config.data_files.values() for path in paths]
        text.bytes = _text_bytes(text.files)
    else:
        text = Text(f"{_address(repo)} at {builder.hash}", f"Remove {builder.cache_dir} and run again")
        text.bytes = builder.info.dataset_size or WMT14_BYTES.get(str(corpus.config), (0, 0))[1]
    rows = {"train": corpus.rows, **(HELD_OUT_ROWS["wmt14"] if repo == WMT14 else {})}
    names = set(builder.info.splits or builder.config.data_files)
    for split, words in SPLITS.items():
        for name in [word for word in words if word in names][:1]:
            expected = rows.get(split) or (card[name].num_examples if name in card else None)
            data = functools.partial(builder.as_streaming_dataset if streamed else builder.as_dataset, split=name)
            if split == "train" and corpus.limit:
                expected = min(expected or corpus.limit, corpus.limit)
            limit = corpus.limit if split == "train" else None
            label = f"{corpus.config or repo}/{name}"
            chunks = functools.partial(_hub_chunks, corpus, data, label, limit, text.sources)
            text.splits[split] = Split(label, chunks, expected)
    if "train" not in text.splits:
        raise DataError(f"{_address(repo)} has no split train, only {', '.join(map(str, names))}")
    return text


def _check_downloads(builder: Any, repo: str) -> None:
    """Compare downloads with the SHA-256 they are named by; remove a damaged one and what was made of it."""
    from huggingface_hub import try_to_load_from_cache

    urls = [url for files in builder.config.data_files.values() for url in files]
    for name in (url.partition(f"@{builder.hash}/")[2] for url in urls):
        file = try_to_load_from_cache(repo, name, repo_type="dataset", revision=builder.hash)
        blob = Path(file).resolve() if isinstance(file, str) else Path()
        if re.fullmatch("[0-9a-f]{64}", blob.name) and artefact.sha256(blob) != blob.name:
            blob.unlink()
            shutil.rmtree(builder.cache_dir, ignore_errors=True)
            raise DataError(f"{repo}: {name} was damaged on its way and is removed. Run the same command again")


def _hub_chunks(
    corpus: recipe.Corpus, open_data: Callable[[], Any], name: str, limit: int | None, sources: list[dict[str, Any]]
) -> Iterator[Chunk]:
    """Yield the pairs of one split: a column `translation` that holds both languages, or two columns of text."""
    rows = size = 0
    digest = hashlib.sha256()
    with _hub_errors(corpus), contextlib.closing(open_data().with_format("arrow").iter(batch_size=4096)) as tables:
        for table in tables:
            flat = table.flatten() if limit is None else table.slice(0, limit - rows).flatten()
            sides = []
            for language in (corpus.src, corpus.tgt):
                column = next((c for c in (f"translation.{language}", language) if c in flat.column_names), None)
                if column is None:
                    columns = ", ".join(flat.column_names)
                    raise DataError(f"{name} has no text in {language!r}; it has the columns {columns[:150]}")
                lines = [line or b"" for line in flat.column(column).cast("binary").to_pylist()]
                digest.update(b"\n".join(lines) + b"\n")
                size += sum(map(len, lines))
                sides.append([None if len(line) > MAX_LINE_BYTES else line for line in lines])
            rows += len(flat)
            yield sides[0], sides[1]
            if rows == limit:
                break
    sources.append({"name": name, "bytes": size, "rows": rows, "sha256": digest.hexdigest()})


@dataclass(frozen=True)
class Estimate:
    """Roughly what a corpus takes: bytes to download and from where, bytes of text, training pairs; None: unknown."""

    download: int | None
    origin: str
    text: int | None
    pairs: int | None
    arrow: int = 0  # bytes that `datasets` writes into its cache beside the download


def estimate(corpus: recipe.Corpus, mirror: Path | None) -> Estimate:
    """Return roughly what preparing a corpus takes. Only a data set that is not a named corpus costs a request."""
    kind = family(corpus)
    if kind == "toy":
        return Estimate(0, "generated", TOY_BYTES, TOY_PAIRS)
    if kind == "own" or mirror is not None:
        files = [*map(Path, corpus.train_src + corpus.train_tgt)] if mirror is None else [*mirror.rglob("*.*")]
        missing = [str(path) for path in files if not path.exists()]
        if missing:
            return Estimate(0, f"your files; {missing[0]} is missing", None, corpus.rows)
        size = _text_bytes(files)
        return Estimate(0, str(mirror or "your files"), size, corpus.rows or size // BYTES_PER_PAIR)
    if kind == "multi30k":
        return Estimate(1_300_000, MULTI30K_URL, 4_000_000, corpus.rows or 29_000)
    repo, revision = _hub_name(corpus)
    if repo == WMT14:
        download, size, rows = *WMT14_BYTES.get(str(corpus.config), (None, None)), corpus.rows
    else:
        download = size = rows = None
        with contextlib.suppress(NmtError, ImportError), _hub_errors(corpus):
            info = _builder(corpus).info
            download, size = info.download_size, info.dataset_size
            rows = corpus.rows or (info.splits["train"].num_examples if info.splits else None)
    arrow = 0 if corpus.limit else size or 0
    return Estimate(
        download, f"{_address(repo)} at {revision or 'its newest commit'}", size, rows or corpus.limit, arrow
    )
