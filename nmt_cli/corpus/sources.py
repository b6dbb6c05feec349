"""Where the text of a corpus comes from: generated, Multi30k's files, data sets of the hub, or the user's files."""

import contextlib
import errno
import functools
import glob
import http.client
import logging
import math
import os
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from nmt_cli.corpus.readers import CHUNK, MAX_LINE_BYTES, Chunk, read_pairs
from nmt_cli.recipe import files as recipe_files
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.named import NAMED_CORPORA
from nmt_cli.storage import artefact
from nmt_cli.system.console import is_live, say
from nmt_cli.system.errors import DataError, DownloadError, MissingError, NmtError, UsageError, meant

SPLITS = {"train": {"train"}, "dev": {"validation", "valid", "dev", "val"}, "test": {"test"}}  # ours: on the hub
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
# Bytes to download, bytes of text and training pairs, for --dry-run (WMT14: by configuration, as its card says).
SIZES = {
    "toy": (0, 2_200_000, 20_000),
    "multi30k": (1_300_000, 4_000_000, 29_000),
    "de-en": (818_467_512, 1_358_406_800, 4_508_785),
    "fr-en": (7_777_527_744, 14_752_522_252, 40_836_715),
}
HELD_OUT = ("dev", "test", "general")
HELD_OUT_ROWS = {"wmt14": {"dev": 3000, "test": 3003}, "multi30k": {"dev": 1014, "test": 1000}}
MOST_REPEATS = 10  # of one's own text where there is much general text beside it
MOST_COUNTED = 1 << 30  # bytes of text whose lines a dry run counts
PAUSES = (1, 4)  # seconds between the three tries of a download

Files = list[tuple[str, str]]  # source and target side


@dataclass(frozen=True)
class Split:
    name: str  # in messages
    chunks: Iterable[Chunk]
    rows: int | None = None  # how many pairs there must be; None: any number


@dataclass(frozen=True)
class Text:  # of a corpus, to be read once
    origin: str
    splits: dict[str, Split]
    files: list[Path] = field(default_factory=list)  # those on this machine that hold it
    advice: str | None = None  # what to do where a split has another number of rows; None: that is worth a warning
    hashes: dict[Path, str] = field(default_factory=dict)  # SHA-256 of the files that were read to the end


def choose(name: str | None, typed: dict[str, Any], out: Path | None, overrides: Sequence[str]) -> schema.Corpus:
    """Return the corpus section for what was typed after `nmt prepare`, options by their names in the section."""
    values = {key: value for key, value in typed.items() if value is not None}
    if "tokenizer" in values:
        values["tokenizer"] = {"file": str(values["tokenizer"])}
    src, tgt = values.pop("src", None), values.pop("tgt", None)  # files, or one language each
    if bool(src) != bool(tgt):
        raise UsageError("give both sides: --src FILE --tgt FILE")
    if name and name.startswith("hub:"):
        if not src:
            raise UsageError("a hub data set needs its languages: --src en --tgt de")
        base = {"name": name, "src": src[0], "tgt": tgt[0]}
    elif name and src:
        raise UsageError(f"{name} brings its own text; leave it out to prepare the files of --src and --tgt")
    elif name and (name.endswith((".yaml", ".yml")) or Path(name).is_file() or name in dict(recipe_files.listed())):
        try:
            base, overrides = loading.load(Path(name), overrides).corpus.model_dump(), ()
        except UsageError as error:
            if name.endswith((".yaml", ".yml")) or name in dict(recipe_files.listed()):
                raise
            raise UsageError(f"{error}. To prepare your own text: nmt prepare --src {name} --tgt FILE") from None
    elif not src:
        base = {"name": name or "toy-en-de"}
    else:
        base = {"name": out.name if out else "mine", "train_src": src, "train_tgt": tgt}
        for side, files in (("src", src), ("tgt", tgt)):  # a language code ends the name: news.de.gz, news.zh-CN
            stem = re.sub(r"(?<!\.gz)(?<!\.txt)(\.gz|\.txt)+$", "", files[0])
            code = re.search(r"\.([A-Za-z]{2,3})([-_][A-Za-z]{2,4})?$", stem)
            base[side] = code[1] if code else side
    plain = functools.reduce(loading.merge, map(loading.override, overrides), {"corpus": {**base, **values}})
    return loading.from_plain(plain, "the options").corpus


def family(corpus: schema.Corpus) -> str:
    """Return "own", "toy", "multi30k" or "hub"; UsageError where the corpus is unknown or says two things at once."""
    name = corpus.name or ""
    named = name in NAMED_CORPORA or name.startswith("hub:")
    if corpus.train_src:
        if named:
            raise UsageError(f"corpus {name} brings its own text: give your files another corpus.name")
        return "own"
    if name.startswith("hub:") and not re.fullmatch(r"hub:[\w.-]+/[\w.-]+(@[\w./-]+)?", name):
        raise UsageError(f"corpus {name[:60]}: write it as hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    if corpus.mix_src or corpus.general_src or corpus.hold_out:
        raise UsageError(f"corpus {name}: mix_src, general_src and hold_out go with your own files, corpus.train_src")
    if not named:
        known = f"{', '.join(NAMED_CORPORA)}; also hub:OWNER/NAME, or give your own files"
        question = f"{meant(name, NAMED_CORPORA)} ".lstrip()
        raise UsageError(f"unknown corpus {name[:60]!r}. {question}Known: {known}")
    return "hub" if name.startswith(("hub:", "wmt14-")) else name.split("-")[0]


def open_text(corpus: schema.Corpus, mirror: Path | None, downloads: Path, work: Path) -> Text:
    """Return the text of a corpus, from `mirror` or downloaded to `downloads` (of the hub: to its client's cache)."""
    kind = family(corpus)
    if mirror is not None and not mirror.is_dir():
        raise MissingError(f"no directory {mirror} (--mirror)")
    if kind == "hub":
        return _hub(corpus, mirror, work)
    if kind == "toy":
        from nmt_cli.corpus.toy import read_splits

        sides = {split: Chunk(*pairs[1::-1]) if corpus.src == "de" else pairs for split, pairs in read_splits().items()}
        return Text(origin(corpus, mirror), {split: Split(split, [pairs]) for split, pairs in sides.items()})
    if kind == "own":
        advice: str | None = "Correct the files"
        pairs = {"train": list(zip(corpus.train_src, corpus.train_tgt, strict=True))}
        for (listed, _), times in Counter(pairs["train"]).items():
            if times > 1:
                say(f"{listed} is listed {times} times: its pairs are repeated, and that is no reason to drop them")
        sets = {split: (getattr(corpus, f"{split}_src"), getattr(corpus, f"{split}_tgt")) for split in HELD_OUT}
        pairs |= {split: [files] for split, files in sets.items() if files[0]}
    else:
        folder = mirror or downloads / "multi30k"
        advice = None if mirror else f"Remove {folder} and run again"
        stems = {split: f"{folder}/{stem}" for split, stem in MULTI30K_STEMS.items()}
        pairs = {split: [(f"{stem}.{corpus.src}.gz", f"{stem}.{corpus.tgt}.gz")] for split, stem in stems.items()}
    mix = list(zip(corpus.mix_src, corpus.mix_tgt, strict=True))
    files = [Path(name) for names in [*pairs.values(), mix] for name in chain(*names)]
    text = Text(origin(corpus, mirror), {}, files, advice)
    for file in text.files if kind == "multi30k" else ():
        fetch(file, mirror)
    rows = {"train": corpus.rows, **HELD_OUT_ROWS.get(kind, {})}
    for split, names in pairs.items():
        text.splits[split] = Split(", ".join(chain(*names)), read(names, text.hashes), rows.get(split))
    if mix:
        chunks = _mixed(pairs["train"], mix, corpus.mix_share, text.hashes)
        text.splits["train"] = Split(", ".join(chain(*pairs["train"], *mix)), chunks)
    return text


def read(names: Files, hashes: dict[Path, str]) -> Iterator[Chunk]:
    for i, sides in enumerate(names):
        yield from read_pairs(*sides, names[:i].count(sides), hashes)


def _count(names: Files) -> int:
    return sum(len(chunk.src) for chunk in read(names, {}))


def _thinned(chunks: Iterable[Chunk], share: float) -> Iterator[Chunk]:
    """Yield this share of the pairs, evenly spread."""
    read = 0
    for chunk in chunks:
        places = [int((read + i) * share + 0.5) for i in range(len(chunk.src) + 1)]
        keep = [i for i in range(len(chunk.src)) if places[i] < places[i + 1]]
        yield Chunk([chunk.src[i] for i in keep], [chunk.tgt[i] for i in keep], chunk.repetition)
        read += len(chunk.src)


def _mixed(own: Files, mix: Files, share: float, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield one's own pairs and general ones, which are `share` of all; the own ones again while others are unused."""
    pairs, general = _count(own), _count(mix)
    if not (pairs and general):
        raise DataError(f"{', '.join(chain(*(mix if pairs else own)))}: there is no text in it to mix")
    wanted = pairs * share / (1 - share)
    times = max(1, min(MOST_REPEATS, int(general / wanted)))
    passes = min(times * wanted / general, MOST_REPEATS)
    say(f"training text: {times} x your {pairs:,} pairs, and {passes:.2g} x the {general:,} general pairs")
    whole = math.ceil(passes)
    yield from read(own * times, hashes)
    yield from _thinned(read(mix * whole, hashes), passes / whole)


def origin(corpus: schema.Corpus, mirror: Path | None) -> str:
    remote = str(mirror or (MULTI30K_URL if family(corpus) == "multi30k" else _data_set(corpus)[2]))
    return {"own": "local files", "toy": "generated"}.get(family(corpus), remote)


def local_files(corpus: schema.Corpus, mirror: Path | None) -> list[Path]:
    """Return the files that hold the text before anything is downloaded: the user's own, or a mirror's."""
    if not mirror and family(corpus) != "own":
        return []
    with tempfile.TemporaryDirectory() as work:
        return open_text(corpus, mirror, Path(work), Path(work)).files


def estimate(corpus: schema.Corpus, mirror: Path | None) -> tuple[int | None, int | None, int | None]:
    """Return bytes to download, bytes of text and training pairs, all rough; None is unknown."""
    if files := local_files(corpus, mirror):
        sizes = [f.stat().st_size * (3 if f.suffix in (".gz", ".parquet") else 1) for f in files if f.is_file()]
        return 0, sum(sizes) if len(sizes) == len(files) else None, corpus.rows
    named = corpus.config if _data_set(corpus)[0] == WMT14 else family(corpus)
    return SIZES.get(str(named), (None, None, corpus.rows))


def count_pairs(corpus: schema.Corpus, mirror: Path | None) -> int | None:
    """Return the training pairs in files on this machine; None where there are none yet, or counting takes minutes.

    MissingError where a file is not there.
    """
    kind = family(corpus)
    if corpus.format == "trees" or (kind != "own" and not mirror):
        return None
    if kind == "hub":
        return sum(map(_rows, _mirror_files(corpus, mirror or Path())["train"]))
    with tempfile.TemporaryDirectory() as work:
        text = open_text(corpus, mirror, Path(work), Path(work))
        for file in text.files:
            if not file.is_file():
                raise MissingError(f"{file} is not there. Check the path")
        if sum(file.stat().st_size for file in text.files) > MOST_COUNTED:
            return None
        return sum(len(chunk.src) for chunk in text.splits["train"].chunks)


def _rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no whole parquet file: {str(error)[:100]}. Fetch it again") from None


def _retried(download: Callable[[], Any]) -> Any:
    """Call `download`, and again after each of PAUSES while the server or the connection fails."""
    for pause in PAUSES:
        try:
            return download()
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", 0) in (401, 403, 404, 410) or getattr(error, "errno", 0) == errno.ENOSPC:
                raise
        time.sleep(pause)
    return download()


def fetch(file: Path, mirror: Path | None) -> None:
    """Download a file of Multi30k unless it is there, and compare it with its pin."""
    url, pin = f"{MULTI30K_URL}/{file.name}", MULTI30K_PINS.get(file.name)
    if not file.is_file():
        if mirror:
            raise MissingError(f"{mirror} has no {file.name}. Fetch {url} and put it there")
        try:
            data = _retried(lambda: urllib.request.urlopen(url, timeout=30).read())  # noqa: S310 - a constant above
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(f"cannot download {url}: {error}. Try later, or pass --mirror DIR") from None
        artefact.replace_file(file, data)
    if pin not in (None, artefact.sha256(file)):
        raise DataError(f"{file} is not the file at {url}: its SHA-256 differs. Remove it and run again")


def _data_set(corpus: schema.Corpus) -> tuple[str, str | None, str]:
    """Return the repository on the hub, its revision (None: the newest commit) and its address."""
    repo, _, revision = str(corpus.name).removeprefix("hub:").partition("@")
    if str(corpus.name).startswith("wmt14-"):
        repo, revision = WMT14, WMT14_REVISION
    return repo, revision or None, f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/datasets/{repo}"


@contextlib.contextmanager
def _hub_errors(corpus: schema.Corpus) -> Iterator[Any]:
    """Yield the package `datasets`; turn what it and the libraries below it raise into errors that say what to do."""
    import datasets
    import huggingface_hub

    for library in ("datasets", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if not is_live():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        yield datasets
    except NmtError:
        raise
    except Exception as error:  # of any of the six packages that take part
        for cause in (error, error.__cause__):
            if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, ConnectionError):
                raise cause from None  # a full disk and the like
        (repo, revision, address), place = _data_set(corpus), corpus.config or "data"
        what = " ".join(str(error.__cause__ or error).split())[:150]
        if isinstance(error, datasets.exceptions.DatasetsError | ValueError | RuntimeError):
            raise DataError(f"{repo} cannot be used: {what}. See {address} for its configurations") from None
        advice = f"Try later, or fetch {address}/tree/{revision or 'main'}/{place} into DIR/{place}"
        raise DownloadError(f"cannot download {repo}: {what}. {advice} and pass --mirror DIR") from None


def _mirror_files(corpus: schema.Corpus, mirror: Path) -> dict[str, list[str]]:
    """Return the parquet files of each split in a mirror: `CONFIG/train-*` or another name with the split as a word."""
    folder, files = mirror / (corpus.config or ""), dict[str, list[str]]()
    repo, _, address = _data_set(corpus)
    for path in sorted(folder.rglob("*.parquet")):
        words = re.split("[^a-z]+", str(path.relative_to(folder)))
        for split, names in SPLITS.items():
            if not names.isdisjoint(words):
                files.setdefault(split, []).append(str(path))
    for split in SPLITS if repo == WMT14 else ["train"]:
        if split not in files:
            where = f"{corpus.config or 'data'}/{split if split != 'dev' else 'validation'}-*.parquet"
            raise MissingError(f"{mirror} has no {where}. Fetch it from {address} into that place")
    for split, paths in files.items():
        shards = re.findall(r"-\d{5}-of-(\d{5})\b", " ".join(paths))
        if shards and len(shards) < int(shards[0]) and not (split == "train" and corpus.limit):
            raise MissingError(f"{mirror} has only {len(shards)} of the {int(shards[0])} files of {split}")
    return files


def _hub(corpus: schema.Corpus, mirror: Path | None, work: Path) -> Text:
    """Return the text of a data set at one commit: the pinned one, or else the newest; or of a mirror's files."""
    advice, files, (repo, revision, address) = None, dict[str, list[str]](), _data_set(corpus)
    with _hub_errors(corpus) as datasets:
        if mirror:
            place, files = str(mirror), _mirror_files(corpus, mirror)
            patterns = {split: [glob.escape(path) for path in paths] for split, paths in files.items()}
            data = datasets.load_dataset("parquet", data_files=patterns, cache_dir=str(work), streaming=True)
        else:
            if os.path.lexists(repo):  # datasets prefers it
                raise UsageError(f"corpus hub:{repo}: {repo} is a directory here. Rename it, or run elsewhere")
            builder = datasets.load_dataset_builder(repo, corpus.config, revision=revision)
            place, advice = f"{address} at {builder.hash}", f"Remove {builder.cache_dir} and run again"
            if revision and re.fullmatch("[0-9a-f]{40}", revision) and builder.hash != revision:  # offline
                raise ConnectionError(f"the cache holds commit {builder.hash}, not {revision}")
            if corpus.limit and not Path(builder.cache_dir).exists():
                data = builder.as_streaming_dataset()
            else:
                # Rows are counted when they are read.
                _retried(functools.partial(builder.download_and_prepare, verification_mode="no_checks"))
                data = builder.as_dataset()
    text = Text(place, {}, [Path(file) for names in files.values() for file in names], advice)
    rows = {"train": corpus.rows, **(HELD_OUT_ROWS["wmt14"] if corpus.name in NAMED_CORPORA else {})}
    for split, names in SPLITS.items():
        if name := next((str(name) for name in data if str(name) in names), None):
            count = rows.get(split) or getattr((data[name].info.splits or {}).get(name), "num_examples", None)
            text.splits[split] = Split(f"{corpus.config or corpus.name}/{name}", _hub_chunks(corpus, data[name]), count)
    if "train" not in text.splits:
        raise DataError(f"{place} has no split train, only {', '.join(map(str, data))}")
    return text


def _hub_chunks(corpus: schema.Corpus, data: Any) -> Iterator[Chunk]:
    """Yield the pairs of one split: a column `translation` that holds both languages, or two columns of text."""
    tables = data.with_format("arrow").iter(min(CHUNK, corpus.limit or CHUNK))
    with _hub_errors(corpus), contextlib.closing(tables):
        for table in tables:
            flat, sides = table.flatten(), list[list[bytes | None]]()
            for language in (corpus.src, corpus.tgt):
                column = next((c for c in (f"translation.{language}", language) if c in flat.column_names), None)
                if column is None:
                    raise ValueError(f"no text in {language!r} among its columns {', '.join(flat.column_names)}")
                lines = [line or b"" for line in flat.column(column).cast("binary").to_pylist()]
                sides.append([None if len(line) > MAX_LINE_BYTES else line for line in lines])
            yield Chunk(sides[0], sides[1])
