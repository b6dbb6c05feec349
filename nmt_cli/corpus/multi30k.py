"""Read Multi30k: six small gzip files, which are downloaded one by one or taken from a mirror."""

import http.client
import urllib.request
from pathlib import Path

from nmt_cli.corpus import catalog
from nmt_cli.corpus.downloads import with_retries
from nmt_cli.corpus.raw_text import RawText, Source, Split
from nmt_cli.corpus.readers import FilePair, read_files
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, DownloadError, MissingError


class Multi30kSource(Source):
    @property
    def origin(self) -> str:
        return str(self.mirror or catalog.MULTI30K_URL)

    def _files(self, directory: Path) -> dict[str, FilePair]:
        """Return the two files of each split."""
        stems = {split: f"{directory}/{stem}" for split, stem in catalog.MULTI30K_FILES.items()}
        src, tgt = self.corpus.src, self.corpus.tgt
        return {split: (f"{stem}.{src}.gz", f"{stem}.{tgt}.gz") for split, stem in stems.items()}

    def local_files(self) -> list[Path]:
        if not self.mirror:
            return []
        files = [Path(name) for pair in self._files(self.mirror).values() for name in pair]
        for file in files:
            fetch(file, self.mirror)
        return files

    def published_size(self) -> catalog.Size:
        return catalog.MULTI30K_SIZE

    def open(self, downloads: Path, work: Path) -> RawText:
        directory = self.mirror or downloads / "multi30k"
        advice = None if self.mirror else f"Remove {directory} and run again"
        text = RawText(self.origin, {}, [], advice)
        rows = {"train": self.corpus.rows, **catalog.MULTI30K_HELD_OUT_ROWS}
        for split, files in self._files(directory).items():
            text.files.extend(map(Path, files))
            text.splits[split] = Split(", ".join(files), read_files([files], text.hashes), rows[split])
        for file in text.files:
            fetch(file, self.mirror)
        return text


def fetch(file: Path, mirror: Path | None) -> None:
    """Download a file of Multi30k unless it exists. Verify its SHA-256, if one is published.

    Nothing is downloaded to a mirror: a missing file raises MissingError. Raises DownloadError if the download fails,
    and DataError if the SHA-256 differs.
    """
    url = f"{catalog.MULTI30K_URL}/{file.name}"
    if not file.is_file():
        if mirror:
            raise MissingError(f"{mirror} has no {file.name}. Download {url} to that directory")
        try:
            data = with_retries(lambda: urllib.request.urlopen(url, timeout=30).read())  # noqa: S310 - a constant
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(f"cannot download {url}: {error}. Try again later, or pass --mirror DIR") from None
        artefact.replace_file(file, data)
    if catalog.MULTI30K_SHA256.get(file.name) not in (None, artefact.sha256(file)):
        raise DataError(f"{file} is not the file at {url}: its SHA-256 differs. Remove it and run again")
