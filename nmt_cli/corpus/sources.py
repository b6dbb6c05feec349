"""Where the text of a corpus comes from: named corpora, data sets of the hub, or the user's files.

Everything ends as files on this machine, found here and read by `readers`. Owns huggingface_hub.
"""

import difflib
import errno
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt_cli import artefact, console, recipe
from nmt_cli.corpus import download, readers
from nmt_cli.corpus.choose import choose as choose
from nmt_cli.corpus.readers import Part
from nmt_cli.errors import DataError, DownloadError, MissingError, UsageError, printable

SPLITS = {"train": ("train",), "dev": ("validation", "valid", "dev", "val"), "test": ("test",)}
HELD_OUT_ROWS = {"wmt14": {"dev": 3000, "test": 3003}, "multi30k": {"dev": 1014, "test": 1000}}
MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_STEMS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
# Bytes and SHA-256 of the raw files. None are known for French and Czech: their lines are counted, their hashes kept.
MULTI30K_PINS = {
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "test_2016_flickr.en.gz": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.de.gz": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
}
HUB_PINS = {
    "wmt/wmt14/fr-en/train-00000-of-00030.parquet": "09ba03062833aeaf53092cc6519d73250418c5508c0697243cb5d5b064ff1dc4"
}
BYTES_PER_PAIR = 250  # of news text, both sides
TOY_PAIRS, BYTES_PER_TOY_PAIR = 20_000, 110
# Bytes that a first run downloads and bytes of the text, for --dry-run (the data set's card).
KNOWN_BYTES: dict[str, tuple[int | None, int | None]] = {
    "de-en": (818_467_512, 1_358_406_800),
    "fr-en": (7_777_527_744, 14_752_522_252),
}
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Sources:
    """The files of a corpus, and what is known about them beforehand."""

    parts: dict[str, list[Part]]
    rows: dict[str, int] = field(default_factory=dict)  # expected, by split
    digests: dict[Path, str] = field(default_factory=dict)  # expected SHA-256
    downloaded: bool = False  # then other counts are an error; a mirror may hold an excerpt
    origin: str = "local files"


def family(corpus: recipe.Corpus) -> str:
    """Return "own", "toy", "multi30k" or "hub".

    Raises:
        UsageError: the corpus is unknown, or says two things at once.
    """
    name, own = corpus.name or "", bool(corpus.train_src)
    named = name in recipe.NAMED_CORPORA or name.startswith("hub:")
    for split in ("dev", "test"):
        sides = [getattr(corpus, f"{split}_{side}") is None for side in ("src", "tgt")]
        if sides[0] != sides[1]:
            raise UsageError(f"corpus.{split}_src and corpus.{split}_tgt go together: give both or neither")
    if own and named:
        raise UsageError(f"corpus {name} brings its own text: give your files another corpus.name")
    if own:
        return "own"
    if name.startswith("hub:"):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name[4:]):
            raise UsageError(f"corpus {printable(name, 60)}: write it as hub:owner/name")
        return "hub"
    if not named:
        near = difflib.get_close_matches(name, recipe.NAMED_CORPORA, 1, 0.5)
        advice = f"Did you mean {near[0]}?" if near else f"Named corpora: {', '.join(recipe.NAMED_CORPORA)}."
        raise UsageError(f"unknown corpus {printable(name, 60)!r}. {advice} For your own text give its files")
    return "hub" if name.startswith("wmt14-") else name.split("-")[0]


def find(corpus: recipe.Corpus, mirror: Path | None, downloads: Path, work: Path) -> Sources:
    """Return the files of a corpus, downloading or generating what is not there.

    Args:
        corpus: what to find.
        mirror: directory that holds the files of a named corpus or hub data set in their original layout.
        downloads: directory for downloaded files (the hub's client has a cache of its own).
        work: directory for generated files.

    Raises:
        UsageError, MissingError, DownloadError, DataError: there is no such text.
    """
    kind = family(corpus)
    if mirror is not None and not mirror.is_dir():
        raise MissingError(f"no directory {mirror} (--mirror)")
    if kind == "toy":
        return _toy(corpus, work)
    if kind == "hub":
        return _hub(corpus, mirror)
    if kind == "multi30k":
        return _multi30k(corpus, mirror, downloads / "multi30k")
    parts = {"train": [Part(Path(s), Path(t)) for s, t in zip(corpus.train_src, corpus.train_tgt, strict=True)]}
    for split in ("dev", "test"):
        src, tgt = getattr(corpus, f"{split}_src"), getattr(corpus, f"{split}_tgt")
        parts[split] = [Part(Path(src), Path(tgt))] if src else []
    return Sources(parts, _train_rows(corpus), downloaded=True)


def _toy(corpus: recipe.Corpus, work: Path) -> Sources:
    from nmt_cli.corpus import toy

    made = toy.generate(corpus.seed)
    parts = {}
    for split, pairs in (("train", made.train), ("dev", made.dev), ("test", made.test)):
        for i, language in enumerate(("en", "de")):
            (work / f"{split}.{language}").write_bytes("".join(pair[i] + "\n" for pair in pairs).encode())
        parts[split] = [Part(work / f"{split}.{corpus.src}", work / f"{split}.{corpus.tgt}")]
    return Sources(parts, origin="generated")


def _multi30k(corpus: recipe.Corpus, mirror: Path | None, downloads: Path) -> Sources:
    parts, digests = {}, {}
    for split, stem in MULTI30K_STEMS.items():
        files = []
        for language in (corpus.src, corpus.tgt):
            name = f"{stem}.{language}.gz"
            size, digest = MULTI30K_PINS.get(name, (None, None))
            path = (mirror or downloads) / name
            if mirror is None:
                download.fetch(f"{MULTI30K_URL}/{name}", path, size, digest, download.Patience())
            elif not path.is_file():
                raise MissingError(f"{mirror} has no {name}. Fetch {MULTI30K_URL}/{name} and put it there")
            if digest is not None:
                digests[path] = digest
            files.append(path)
        parts[split] = [Part(*files)]
    rows = {**_train_rows(corpus), **HELD_OUT_ROWS["multi30k"]}
    return Sources(parts, rows, digests, downloaded=mirror is None, origin=MULTI30K_URL)


def _train_rows(corpus: recipe.Corpus) -> dict[str, int]:
    return {} if corpus.rows is None else {"train": corpus.rows}


def _hub(corpus: recipe.Corpus, mirror: Path | None) -> Sources:
    """Find the parquet files of a hub data set: in the mirror, else whole in the hub's cache, else downloaded."""
    wmt = (corpus.name or "").startswith("wmt14-")
    repo = "wmt/wmt14" if wmt else (corpus.name or "")[4:]
    where, files = _mirrored(corpus, mirror) if mirror else _cached(corpus, repo) or _downloaded(corpus, repo)
    missing = [split for split in (SPLITS if wmt else ["train"]) if not files[split]]
    if missing:
        layout = f"{corpus.config or 'data'}/{SPLITS[missing[0]][0]}-*.parquet"
        raise MissingError(f"{where} has no {layout}. Fetch it from {_address(repo)} into that place")
    rows = {**_train_rows(corpus), **(HELD_OUT_ROWS["wmt14"] if wmt else {})}
    if not _complete(files["train"]) and corpus.limit:
        rows.pop("train", None)
    digests = {}
    for path in (path for split in files.values() for path in split):
        blob = path.resolve().name  # the hub's cache names large files by their SHA-256
        pin = HUB_PINS.get(f"{repo}/{corpus.config}/{path.name}")
        if mirror is None and (pin or re.fullmatch("[0-9a-f]{64}", blob)):
            digests[path] = pin or blob
    parts = {split: [Part(path, path) for path in paths] for split, paths in files.items()}
    return Sources(parts, rows, digests, downloaded=mirror is None, origin=where)


def _pick(names: Sequence[str], config: str | None) -> dict[str, list[str]]:
    """Sort the parquet files of a data set into splits by the usual layouts: `CONFIG/train-*`, `data/train/*`."""
    picked: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in sorted(names):
        *folders, file = name.split("/")
        if not file.endswith(".parquet") or (config and config not in folders):
            continue
        for split, words in SPLITS.items():
            if file.split(".")[0].split("-")[0] in words or (folders and folders[-1] in words):
                picked[split].append(name)
    return picked


def _complete(files: Sequence[Path | str]) -> bool:
    shards = [match for match in (_SHARD.search(str(file)) for file in files) if match]
    return bool(files) and (not shards or len(shards) == int(shards[0][2]))


def _enough(corpus: recipe.Corpus, files: dict[str, list[Path]]) -> bool:
    """Return whether no file has to be fetched: all shards are there, or the first ones hold `limit` pairs."""
    train = files["train"]
    first = [match[1] for match in map(_SHARD.search, map(str, train)) if match] == [
        f"{i:05}" for i in range(len(train))
    ]
    limited = corpus.limit and first and sum(readers.parquet_rows(path) for path in train) >= corpus.limit
    return bool(limited or _complete(train)) and all(not files[s] or _complete(files[s]) for s in ("dev", "test"))


def _listed(root: Path, config: str | None) -> dict[str, list[Path]]:
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.parquet")]
    return {split: [root / name for name in picked] for split, picked in _pick(names, config).items()}


def _mirrored(corpus: recipe.Corpus, mirror: Path) -> tuple[str, dict[str, list[Path]]]:
    files = _listed(mirror, corpus.config)
    for split, paths in files.items():
        if paths and not _complete(paths) and not (split == "train" and _enough(corpus, files)):
            raise MissingError(f"{mirror} has only {len(paths)} {split} files of those that {paths[0].name} counts")
    return str(mirror), files


def _cached(corpus: recipe.Corpus, repo: str) -> tuple[str, dict[str, list[Path]]] | None:
    """Return what the hub's cache holds if it is enough: no request is made then, so it works without a network."""
    from huggingface_hub import constants

    snapshots = Path(constants.HF_HUB_CACHE) / f"datasets--{repo.replace('/', '--')}" / "snapshots"
    for folder in sorted(snapshots.glob("*")):
        files = _listed(folder, corpus.config)
        if files["train"] and files["test"] and _enough(corpus, files):
            return f"{_address(repo)} at {folder.name}", files
    return None


def _downloaded(corpus: recipe.Corpus, repo: str) -> tuple[str, dict[str, list[Path]]]:
    """Download the files of one configuration; those of train only as far as `limit` needs them."""
    import huggingface_hub
    from huggingface_hub.errors import HTTPError, RevisionNotFoundError  # type: ignore[attr-defined]
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    for revision in ("main", "refs/convert/parquet"):
        try:
            info = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=10)
        except RevisionNotFoundError:
            continue
        except (HTTPError, OSError) as error:
            raise _unreachable(repo, corpus.config, error) from None
        picked = _pick([sibling.rfilename for sibling in info.siblings or []], corpus.config)
        if picked["train"]:
            break
    else:
        raise DataError(f"{_address(repo)} has no parquet files for train, configuration {corpus.config}. Check both")
    console.say(f"downloading {sum(map(len, picked.values()))} files of {repo} at {info.sha}")
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for split in ("test", "dev", "train"):
        rows = 0
        for name in picked[split]:
            if split == "train" and corpus.limit and rows >= corpus.limit:
                break
            files[split].append(_fetch(repo, name, str(info.sha), corpus.config))
            rows += readers.parquet_rows(files[split][-1]) if corpus.limit else 0
    return f"{_address(repo)} at {info.sha}", files


def _fetch(repo: str, name: str, revision: str, config: str | None) -> Path:
    """Download one file with the hub's client, which resumes; here only a busy server is asked again."""
    import huggingface_hub
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    tries = 5
    for attempt in range(1, tries + 1):
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name, repo_type="dataset", revision=revision))
        except (HTTPError, OSError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
                raise
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status not in (408, 429, 500, 502, 503, 504) or attempt == tries:
                raise _unreachable(repo, config, error) from None
            time.sleep(2 ** (attempt - 1) * random.uniform(0.5, 1))  # noqa: S311 - jitter
    raise AssertionError


def _address(repo: str) -> str:
    return f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/datasets/{repo}"


def _unreachable(repo: str, config: str | None, error: Exception) -> DownloadError:
    folder = config or "data"
    return DownloadError(
        f"cannot download {repo}: {printable(error, 70)}. Try later, or fetch {_address(repo)}/tree/main/{folder} "
        f"into DIR/{folder} and pass --mirror DIR"
    )


def inspect(sources: Sources) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Return the facts of every file and the number of pairs, both by split, after checking hashes, sides and counts.

    Raises:
        DataError: a file is not what it should be. A downloaded one is set aside, so that the next run fetches it.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    counts = {}
    for split, parts in sources.parts.items():
        found[split], rows = [], 0
        for part in parts:
            hashes = [_checked_hash(path, sources.digests.get(path)) for path in part.files]
            facts = readers.scan(part)
            found[split] += [{**fact, "sha256": digest} for fact, digest in zip(facts, hashes, strict=True)]
            rows += facts[0]["rows"]
        counts[split] = rows
        expected = sources.rows.get(split, rows) if parts else rows
        if rows != expected:
            text = f"{split} has {rows:,} pairs, {expected:,} are expected ({sources.origin})"
            if sources.downloaded:
                fix = f", or accept it with corpus.rows={rows}" if split == "train" else ""
                raise DataError(f"{text}. Fetch it again{fix}")
            console.warn(f"{text}: this is an excerpt or another edition, and results will differ")
    return found, counts


def check_unchanged(sources: Sources, facts: dict[str, list[dict[str, Any]]]) -> None:
    """Refuse files that changed since `inspect` described them."""
    for split, parts in sources.parts.items():
        paths = (path for part in parts for path in part.files)
        for path, fact in zip(paths, facts[split], strict=True):
            if artefact.sha256(path) != fact["sha256"]:
                raise DataError(f"{path} changed while it was read. Run the same command again when it is complete")


@dataclass(frozen=True)
class Estimate:
    """What preparing a corpus needs, roughly: bytes to download and from where, bytes of text, training pairs.

    None is what only a request to the hub, or a file that is missing, would tell.
    """

    download: int | None
    origin: str
    text: int | None
    pairs: int | None


def estimate(corpus: recipe.Corpus, mirror: Path | None) -> Estimate:
    """Return roughly what preparing a corpus takes, without any request."""
    kind = family(corpus)
    if kind == "toy":
        return Estimate(0, "generated", TOY_PAIRS * BYTES_PER_TOY_PAIR, TOY_PAIRS)
    if kind == "own" or mirror is not None:
        pairs = zip(corpus.train_src, corpus.train_tgt, strict=True)
        files = {Path(file) for pair in pairs for file in pair} if mirror is None else set(mirror.rglob("*"))
        packed = sum(path.stat().st_size for path in files if path.is_file())
        size = packed * (3 if any(path.suffix in (".gz", ".zst", ".parquet") for path in files) else 1)
        missing = [str(path) for path in sorted(files) if not path.exists()]
        if missing:
            return Estimate(0, f"your files; {missing[0]} is missing", None, corpus.rows)
        return Estimate(0, str(mirror or "your files"), size, corpus.rows or size // BYTES_PER_PAIR)
    if kind == "multi30k":
        return Estimate(1_300_000, MULTI30K_URL, 4_000_000, corpus.rows or 29_000)
    wmt = (corpus.name or "").startswith("wmt14-")
    repo = "wmt/wmt14" if wmt else (corpus.name or "")[4:]
    cached = _cached(corpus, repo) is not None
    download, text = KNOWN_BYTES.get(str(corpus.config), (None, None)) if wmt else (None, None)
    origin = f"{_address(repo)}, in the hub's cache" if cached else _address(repo)
    return Estimate(0 if cached else download, origin, text, corpus.rows or corpus.limit)


def _checked_hash(path: Path, expected: str | None) -> str:
    """Return the SHA-256 of a file; a wrong one in the hub's cache is set aside, so that the next run fetches it."""
    readers.check_file(path)
    digest = artefact.sha256(path)
    if expected in (None, digest):
        return digest
    kept = f" See {path.parent}"
    if path.is_symlink():
        blob = path.resolve()
        path.unlink()
        blob.rename(blob.with_name(blob.name + ".bad"))
        kept = " It is set aside as .bad: run again to fetch it anew"
    raise DataError(f"{path.name} has SHA-256 {digest[:16]}..., expected {str(expected)[:16]}...: it is damaged.{kept}")
