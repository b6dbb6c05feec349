"""Multi30k: six small files, downloaded one by one or read from a mirror."""

import errno
import gzip
import http.client
import urllib.error
from contextlib import nullcontext
from email.message import Message
from pathlib import Path
from typing import Any

import hub_server
import pytest
import texts

from nmt_cli.corpus import catalog, downloads, filter_stats, store
from nmt_cli.corpus.multi30k import fetch
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, DownloadError, MissingError

FRENCH = {"name": "multi30k-en-fr", "tokenizer": {"vocabulary_size": "400"}}


def held_out(count: int) -> list[tuple[str, str]]:
    """Return pairs unlike those of training, so that few lines are candidates for near-duplicates."""
    return [(f"sentence {count} {i}", f"phrase {count} {i}") for i in range(count)]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with English and French files, fewer training pairs, and no published hashes."""
    monkeypatch.setattr(catalog, "MULTI30K_SHA256", {})
    (tmp_path / "mirror").mkdir()
    for stem, pairs in (("train", texts.pairs(290)), ("val", held_out(1014)), ("test_2016_flickr", held_out(1000))):
        for language, lines in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"mirror/{stem}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path / "mirror"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pauses between tries, recorded but not waited for."""
    slept = list[int]()
    monkeypatch.setattr(downloads.time, "sleep", slept.append)
    return slept


def test_a_mirror_with_other_counts_gives_a_warning(
    mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = texts.run(texts.corpus(FRENCH), tmp_path / "out", mirror=mirror)
    assert "train has 290 pairs, but 29,000 are expected" in capsys.readouterr().err
    corpus = store.open_corpus(out)
    assert len(corpus.src) == 290
    assert corpus.lines("dev")[0] == [src for src, _ in held_out(1014)]
    assert len(corpus.manifest["sources"]) == 6


def test_a_download_with_other_counts_is_refused_but_kept(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server.serving("multi30k", mirror) as hub:
        monkeypatch.setattr(catalog, "MULTI30K_URL", hub.url)
        with pytest.raises(DataError, match=r"290 pairs, but 29,000 are expected.*corpus\.rows=290"):
            texts.run(texts.corpus(FRENCH), tmp_path / "out")
        out = texts.run(texts.corpus({**FRENCH, "rows": 290}), tmp_path / "out")
        assert (len(store.open_corpus(out).src), len(hub.requests)) == (290, 6)  # each is downloaded once


def test_a_file_with_a_wrong_hash_is_refused(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_mirror, downloaded = mirror / "val.fr.gz", tmp_path / "downloads" / "val.fr.gz"
    with hub_server.serving("multi30k", mirror) as hub:
        monkeypatch.setattr(catalog, "MULTI30K_URL", hub.url)
        for sha256, valid in ((artefact.sha256(in_mirror), True), ("0" * 64, False)):
            monkeypatch.setattr(catalog, "MULTI30K_SHA256", {in_mirror.name: sha256})
            for file, directory in ((downloaded, None), (downloaded, None), (in_mirror, mirror)):
                with nullcontext() if valid else pytest.raises(DataError, match="its SHA-256 differs"):
                    fetch(file, directory)
            downloaded.unlink()


def test_a_file_missing_from_the_mirror_is_named_with_its_address(mirror: Path, tmp_path: Path) -> None:
    (mirror / "val.fr.gz").unlink()
    for name, directory, message in (
        ("multi30k-en-fr", mirror, r"has no val\.fr\.gz\. Download https://"),
        ("multi30k-en-fr", tmp_path / "none", "is not a directory"),
        ("wmt14-en-de", mirror, r"has no de-en/train-\*\.parquet"),
    ):
        for dry_run in (False, True):
            with pytest.raises(MissingError, match=message):
                texts.run(texts.corpus({"name": name}), tmp_path / "out", mirror=directory, dry_run=dry_run)
        options = PrepareOptions(workers=1, mirror=directory)
        with pytest.raises(MissingError, match=message):
            filter_stats.show(texts.corpus({"name": name}), tmp_path / "out", options)
    assert not (mirror / "val.fr.gz").exists(), "nothing is downloaded to a mirror"


@pytest.mark.parametrize(
    ("name", "fault", "waited", "message"),
    [
        ("file", {}, [], None),
        *(("file", {kind: 2}, [1, 4], None) for kind in ("busy", "cut")),
        *(("file", {kind: 3}, [1, 4], "Try again later") for kind in ("busy", "cut")),
        *(("file", {"busy": 1, "status": code}, [], str(code)) for code in (401, 403, 410)),  # not tried again
        ("none", {}, [], "404"),
        ("val.en", {}, [], "SHA-256"),
    ],
)
def test_a_download_is_tried_three_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[int],
    name: str,
    fault: Any,
    waited: list[int],
    message: str | None,
) -> None:
    for served in ("file", "val.en"):
        (tmp_path / f"{served}.gz").write_bytes(bytes(range(256)) * 100)
    target = tmp_path / "deep" / f"{name}.gz"
    with hub_server.serving("x", tmp_path) as hub:
        monkeypatch.setattr(catalog, "MULTI30K_URL", hub.url)
        vars(hub).update(fault)
        with pytest.raises((DataError, DownloadError), match=message) if message else nullcontext():
            fetch(target, None)
    assert pauses == waited
    assert target.parent.exists() == (message in (None, "SHA-256"))
    assert message or [path.stat().st_size for path in target.parent.iterdir()] == [25_600]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (OSError(errno.ENOSPC, "full"), 1),
        (OSError(errno.ECONNRESET, "reset"), 3),
        (TimeoutError("slow"), 3),
        (http.client.IncompleteRead(b""), 3),
        *(
            (urllib.error.HTTPError("", code, "", Message(), None), tries)
            for code, tries in ((404, 1), (500, 3), (429, 3))
        ),
        (ValueError("ours"), 1),
    ],
    ids=str,
)
def test_only_temporary_errors_are_tried_again(pauses: list[int], error: Exception, tries: int) -> None:
    done = list[int]()

    def download() -> None:
        done.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        downloads.with_retries(download)
    assert (caught.value is error, len(done), pauses) == (True, tries, [1, 4][: tries - 1])
