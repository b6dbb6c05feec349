"""Read and write plain files and compressed files: .gz, .bz2, .xz and .zst."""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from nmt_cli.system.errors import DataError, MissingError

BLOCK_BYTES = 1 << 16  # compressed bytes per read call
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


class _HashedFile(io.FileIO):
    """A file whose SHA-256 is computed while it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sha256 = hashlib.sha256()

    def readinto(self, buffer: Any) -> int | None:
        size = super().readinto(buffer)
        self.sha256.update(memoryview(buffer)[:size])
        return size

    def readall(self) -> bytes:
        content = super().readall()
        self.sha256.update(content)
        return content


class _Streams(io.RawIOBase):
    """Decompresses concatenated streams. Unlike BZ2File and LZMAFile, refuses other data after a stream."""

    def __init__(self, packed: Any, decompressor: Callable[[], Any]) -> None:
        self.packed = packed
        self.new = decompressor
        self.stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self.stream.eof:
                packed = self.stream.unused_data.lstrip(b"\0")
                while not packed:
                    if not (block := self.packed.read(BLOCK_BYTES)):
                        return 0
                    packed = block.lstrip(b"\0")  # zero bytes may pad a file
                self.stream = self.new()
            elif self.stream.needs_input and not (packed := self.packed.read(BLOCK_BYTES)):
                raise EOFError("the end of the last stream is missing")
            if data := self.stream.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def uncompressed_name(path: Path) -> str:
    """Return the name of a file without its compression suffix."""
    return path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name


@contextlib.contextmanager
def opened(path: Path, hashes: dict[Path, str]) -> Iterator[io.BufferedReader]:
    """Open a plain or compressed file. If the `with` block reads it to the end, store its SHA-256 in `hashes`.

    Raises MissingError if the file does not exist, and DataError if it is truncated or corrupt.
    """
    if not path.is_file():
        raise MissingError(f"{path} {'is not a file' if path.exists() else 'does not exist'}. Check the path")
    with _HashedFile(path) as raw:
        packed = io.BufferedReader(raw)
        with decompressing(packed, str(path)) as file:
            yield file
            if not packed.read(1):
                hashes[path] = raw.sha256.hexdigest()


@contextlib.contextmanager
def decompressing(packed: Any, name: str) -> Iterator[io.BufferedReader]:
    """Yield a file with the content of an open binary file, decompressed if `name` ends with one of COMPRESSIONS.

    Raises DataError if the file is truncated or corrupt.
    """
    suffix = Path(name).suffix
    try:
        yield _decompressed(packed, suffix)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise _corrupt(name, error) from None
    except OSError as error:
        if error.errno is None and suffix in COMPRESSIONS:  # for corrupt data, bz2 and zstd raise OSError without errno
            raise _corrupt(name, error) from None
        raise


def _decompressed(packed: Any, suffix: str) -> Any:
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=packed))
    if suffix == ".bz2":
        return io.BufferedReader(_Streams(packed, bz2.BZ2Decompressor))
    if suffix == ".xz":
        return io.BufferedReader(_Streams(packed, lzma.LZMADecompressor))
    if suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(packed, "zstd"))
    return packed


@contextlib.contextmanager
def compressing(raw: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Yield a file that writes to `raw`, compressed if `name` ends with one of COMPRESSIONS.

    The same data always give the same bytes.
    """
    suffix = Path(name).suffix
    if suffix == ".gz":
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            yield file  # type: ignore[misc]
    elif suffix == ".bz2":
        with bz2.BZ2File(raw, "wb") as file:
            yield file
    elif suffix == ".xz":
        with lzma.LZMAFile(raw, "wb") as file:
            yield file
    elif suffix == ".zst":
        import pyarrow

        with pyarrow.CompressedOutputStream(raw, "zstd") as file:
            yield file
    else:
        yield raw


def _corrupt(name: str, error: Exception) -> DataError:
    return DataError(f"{name} is truncated or corrupt: {str(error)[:100]}. Copy it again")
