"""Read a data set from the Hugging Face hub, at one commit, or from parquet files in a mirror."""

import contextlib
import functools
import glob
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli.corpus import catalog
from nmt_cli.corpus.downloads import with_retries
from nmt_cli.corpus.raw_text import RawText, Source, Split
from nmt_cli.corpus.readers import CHUNK, MAX_LINE_BYTES, Chunk
from nmt_cli.recipe import schema
from nmt_cli.system.console import is_live
from nmt_cli.system.errors import DataError, DownloadError, MissingError, NmtError, UsageError

# nmt's name of a split -> its names on the hub.
HUB_SPLITS = {"train": {"train"}, "dev": {"validation", "valid", "dev", "val"}, "test": {"test"}}


class HubSource(Source):
    """WMT14 at its pinned commit, or hub:OWNER/NAME at the given revision, by default the newest commit."""

    def __init__(self, corpus: schema.Corpus, mirror: Path | None) -> None:
        super().__init__(corpus, mirror)
        name = str(corpus.name)
        self.revision: str | None
        if name.startswith("hub:"):
            self.repository, _, revision = name.removeprefix("hub:").partition("@")
            self.revision = revision or None
            self.held_out_rows = dict[str, int]()
        else:
            self.repository, self.revision = catalog.WMT14_REPOSITORY, catalog.WMT14_REVISION
            self.held_out_rows = catalog.WMT14_HELD_OUT_ROWS
        self.address = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/datasets/{self.repository}"

    @property
    def origin(self) -> str:
        return str(self.mirror or self.address)

    @property
    def fills_cache(self) -> bool:
        return not (self.mirror or self.corpus.limit)

    def local_files(self) -> list[Path]:
        return [Path(file) for files in self.mirror_files().values() for file in files]

    def published_size(self) -> catalog.Size:
        unknown = catalog.Size(None, None, self.corpus.rows)
        if self.repository != catalog.WMT14_REPOSITORY:
            return unknown
        return catalog.WMT14_SIZES.get(str(self.corpus.config), unknown)

    def count_pairs(self) -> int | None:
        return sum(map(_parquet_rows, self.mirror_files()["train"])) if self.mirror else None

    def mirror_files(self) -> dict[str, list[str]]:
        """Return the parquet files of each split in the mirror, or {} if there is no mirror.

        The split of a file is a word in its path, as in CONFIG/train-00000-of-00002.parquet. Raises MissingError if
        files are missing.
        """
        if not self.mirror:
            return {}
        config, files = self.corpus.config, dict[str, list[str]]()
        directory = self.mirror / (config or "")
        for path in sorted(directory.rglob("*.parquet")):
            words = re.split("[^a-z]+", str(path.relative_to(directory)))
            for split, names in HUB_SPLITS.items():
                if not names.isdisjoint(words):
                    files.setdefault(split, []).append(str(path))
        for split in HUB_SPLITS if self.repository == catalog.WMT14_REPOSITORY else ["train"]:
            if split not in files:
                missing = f"{config or 'data'}/{split if split != 'dev' else 'validation'}-*.parquet"
                raise MissingError(
                    f"{self.mirror} has no {missing}. Download these files from {self.address} to that directory"
                )
        for split, paths in files.items():
            shards = re.findall(r"-\d{5}-of-(\d{5})\b", " ".join(paths))
            if shards and len(shards) < int(shards[0]) and not (split == "train" and self.corpus.limit):
                missing = f"only {len(shards)} of the {int(shards[0])} files of the {split} split"
                raise MissingError(f"{self.mirror} has {missing}. Download the others from {self.address}")
        return files

    def open(self, downloads: Path, work: Path) -> RawText:
        files = self.mirror_files()
        with self.converted_errors() as datasets:
            if self.mirror:
                origin, advice = str(self.mirror), None
                patterns = {split: [glob.escape(path) for path in paths] for split, paths in files.items()}
                data = datasets.load_dataset("parquet", data_files=patterns, cache_dir=str(work), streaming=True)
            else:
                builder = self._builder(datasets)
                origin, advice = f"{self.address} at {builder.hash}", f"Remove {builder.cache_dir} and run again"
                if self.corpus.limit and not Path(builder.cache_dir).exists():
                    data = builder.as_streaming_dataset()
                else:
                    # Skip the checks of `datasets`, because nmt itself counts the rows when it reads them.
                    with_retries(functools.partial(builder.download_and_prepare, verification_mode="no_checks"))
                    data = builder.as_dataset()
        text = RawText(origin, {}, [Path(file) for names in files.values() for file in names], advice)
        rows = {"train": self.corpus.rows, **self.held_out_rows}
        for split, names in HUB_SPLITS.items():
            if name := next((str(name) for name in data if str(name) in names), None):
                count = rows.get(split) or getattr((data[name].info.splits or {}).get(name), "num_examples", None)
                label = f"{self.corpus.config or self.corpus.name}/{name}"
                text.splits[split] = Split(label, self.chunks(data[name]), count)
        if "train" not in text.splits:
            raise DataError(f"{origin} has no train split, only {', '.join(map(str, data))}")
        return text

    def _builder(self, datasets: Any) -> Any:
        if os.path.lexists(self.repository):  # the package `datasets` would read this path instead of the hub
            name = self.repository
            raise UsageError(
                f"the local path {name} hides corpus hub:{name}. Rename the path, or run in another directory"
            )
        builder = datasets.load_dataset_builder(self.repository, self.corpus.config, revision=self.revision)
        pinned = self.revision and re.fullmatch("[0-9a-f]{40}", self.revision)
        if pinned and builder.hash != self.revision:  # offline, `datasets` uses any commit in its cache
            raise ConnectionError(f"the cache holds commit {builder.hash}, not {self.revision}")
        return builder

    def chunks(self, data: Any) -> Iterator[Chunk]:
        """Yield the pairs of a split.

        They are either in the column `translation`, which holds both languages, or in one column per language.
        """
        limit = self.corpus.limit
        tables = data.with_format("arrow").iter(min(CHUNK, limit or CHUNK))
        with self.converted_errors(), contextlib.closing(tables):
            for table in tables:
                flat, sides = table.flatten(), list[list[bytes | None]]()
                for language in (self.corpus.src, self.corpus.tgt):
                    column = next((c for c in (f"translation.{language}", language) if c in flat.column_names), None)
                    if column is None:
                        raise ValueError(f"no column for {language!r}, only {', '.join(flat.column_names)}")
                    lines = [line or b"" for line in flat.column(column).cast("binary").to_pylist()]
                    sides.append([None if len(line) > MAX_LINE_BYTES else line for line in lines])
                yield Chunk(sides[0], sides[1])

    @contextlib.contextmanager
    def converted_errors(self) -> Iterator[Any]:
        """Yield the package `datasets`. Convert its errors, and those of its dependencies, to NmtErrors with advice.

        Errors of the operating system, such as for a full disk, are raised without conversion.
        """
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
        except Exception as error:  # six packages are involved, each with its own errors
            for cause in (error, error.__cause__):
                if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, ConnectionError):
                    raise cause from None  # for example, the disk is full
            reason = " ".join(str(error.__cause__ or error).split())[:150]
            if isinstance(error, datasets.exceptions.DatasetsError | ValueError | RuntimeError):
                advice = f"See {self.address} for its configurations"
                raise DataError(f"{self.repository} cannot be used: {reason}. {advice}") from None
            directory = self.corpus.config or "data"
            tree = f"{self.address}/tree/{self.revision or 'main'}/{directory}"
            advice = f"Try again later, or download {tree} to DIR/{directory} and pass --mirror DIR"
            raise DownloadError(f"cannot download {self.repository}: {reason}. {advice}") from None


def _parquet_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a complete parquet file: {str(error)[:100]}. Download it again") from None
