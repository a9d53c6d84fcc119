"""Unpacks text files in bounded memory, and refuses what unpacks to more than text does."""

import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

MAX_RATIO = 200
"""Largest compression ratio of text, which is usually 3 to 10; more means a damaged file or an attack."""
FREE_BYTES = 64 * 2**20
"""Unpacked size up to which any ratio is allowed, because short repetitive files compress very well."""
CHUNK_BYTES = 2**20
_ZSTD_BYTES = 2**10
"""Packed bytes that are unpacked at once; 4 bytes can hold a block of 128 KiB, so this gives at most 32 MiB."""


class Unpacked:
    """Counts the unpacked bytes of a file; raises ``ValueError`` when they are too many for what was read of it.

    These are the bytes of ``packed`` that were read so far; without it, as of .parquet, those of the whole file.
    """

    def __init__(self, path: Path, packed: IO[bytes] | None = None) -> None:
        self._path, self._packed = path, packed
        self._n_bytes = 0

    def add(self, n_bytes: int) -> None:
        """Count bytes more."""
        self._n_bytes += n_bytes
        if self._n_bytes <= FREE_BYTES:
            return
        n_packed = self._path.stat().st_size if self._packed is None else self._packed.tell()
        if self._n_bytes > MAX_RATIO * n_packed:
            raise ValueError(
                f"{self._path}: unpacks to more than {MAX_RATIO} times the {n_packed:,} bytes read of it and to more "
                f"than {FREE_BYTES:,}, as no text does; remove it, or, if it is right, unpack it yourself"
            )


def unpack(packed: IO[bytes], path: Path) -> IO[bytes]:
    """Return what a packed file holds; reading a damaged one raises EOFError or an error of its format's library."""
    readers: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _ZstdReader}
    reader = _CountingReader(readers[path.suffix](packed), Unpacked(path, packed))
    return cast("IO[bytes]", io.BufferedReader(reader, CHUNK_BYTES))


class _CountingReader(io.RawIOBase):
    """Passes on the bytes that another reader unpacks, and counts them."""

    def __init__(self, reader: Any, unpacked: Unpacked) -> None:
        self._reader, self._unpacked = reader, unpacked

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._reader.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        n_bytes = int(self._reader.readinto(buffer))
        self._unpacked.add(n_bytes)
        return n_bytes


class _ZstdReader(io.RawIOBase):
    """Unpacks a .zst file and detects truncation, which the library's own reader takes for the end of the text."""

    def __init__(self, packed: IO[bytes]) -> None:
        import zstandard

        self._file = packed
        self._library = zstandard
        self._frame: Any = None
        self._packed = self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._packed = self._packed or memoryview(self._file.read(CHUNK_BYTES // 8))
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            piece, self._packed = self._packed[:_ZSTD_BYTES], self._packed[_ZSTD_BYTES:]
            try:
                self._text = memoryview(self._frame.decompress(piece))
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from None
            if self._frame.eof:
                self._packed = memoryview(self._frame.unused_data + self._packed)
                self._frame = None
        n_bytes = min(len(buffer), len(self._text))
        buffer[:n_bytes] = self._text[:n_bytes]
        self._text = self._text[n_bytes:]
        return n_bytes
