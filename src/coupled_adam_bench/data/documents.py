"""Reads the documents of a file of text, one by one, in bounded memory: .txt, .jsonl and .parquet, packed or not.

What unpacks to more than text does is refused.
"""

import codecs
import gzip
import io
import json
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from coupled_adam_bench.study.inputs import PACKINGS

MAX_DOCUMENT_BYTES = 8 * 2**20
"""Largest document of a .txt file; a longer one is cut, at a line end if there is one."""
MAX_LINE_BYTES = 128 * 2**20
"""Largest line of a .jsonl file, which is read whole; a book has a hundredth of this."""
MAX_EMPTY_LINES = 10**6
"""In a row; more are no text, and a packed file of a few MB can hold billions of them."""
_PARQUET_ROWS = 64
MAX_RATIO = 200
"""Largest compression ratio of text, which is usually 3 to 10; more means a damaged file or an attack."""
FREE_BYTES = 64 * 2**20
"""Unpacked size up to which any ratio is allowed, because short repetitive files compress very well."""
CHUNK_BYTES = 2**20


def file_documents(path: Path, origin: str, text_field: str, txt_document: str) -> Iterator[str]:
    """Yield the documents of a file; messages call it ``origin``."""
    kind = kind_of(path)
    with ExitStack() as stack:
        try:
            packed = stack.enter_context(path.open("rb"))
            stream = stack.enter_context(unpack(packed, path)) if path.suffix in PACKINGS else packed
            if kind in (".jsonl", ".json", ".ndjson"):
                yield from _jsonl_documents(origin, stream, text_field)
            elif kind == ".parquet":
                if path.suffix in PACKINGS:  # the format needs random access
                    unpacked, stream = stream, stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(unpacked, stream, CHUNK_BYTES)
                yield from _parquet_documents(path, origin, stream, text_field)
            else:
                yield from _txt_documents(origin, stream, txt_document)
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's; those of gzip and zstd have none
                raise
            raise ValueError(
                f"{origin}: truncated or damaged {path.suffix} file ({error}); fetch it again or remove it"
            ) from None


def kind_of(path: Path) -> str:
    """Return the ending of a file, without that of its packing."""
    return path.with_suffix("").suffix if path.suffix in PACKINGS else path.suffix


def text_bytes(path: Path, field: str) -> int:
    """Return the size of the text in a file of a dataset, for .parquet by what its metadata says."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        groups = pq.ParquetFile(path).metadata
        columns = [
            groups.row_group(i).column(j) for i in range(groups.num_row_groups) for j in range(groups.num_columns)
        ]
        return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    return sum(len(text.encode()) for text in file_documents(path, str(path), field, "line"))


def _lines(path: str, stream: IO[bytes], max_bytes: int, whole: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its end); a line of more than ``max_bytes`` is split.

    With ``whole``, such a line raises ``ValueError`` instead.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()  # a split can be within a character
    number, end, n_empty = 1, 0, 0
    while True:
        line = stream.readline(max_bytes)
        n_empty = n_empty + 1 if line in (b"\n", b"\r\n") else 0
        if n_empty > MAX_EMPTY_LINES:
            raise ValueError(
                f"{path}, line {number}: more than {MAX_EMPTY_LINES:,} empty lines in a row, as in no text; remove them"
            )
        if whole and len(line) == max_bytes and not line.endswith(b"\n"):
            raise ValueError(
                f"{path}, line {number}: longer than {max_bytes:,} bytes; each line must be one document: split it"
            )
        try:
            text = decoder.decode(line if end else line.removeprefix(codecs.BOM_UTF8), final=not line)
        except UnicodeDecodeError as error:
            offset = end + len(line) - len(error.object) + error.start
            raise ValueError(
                f"{path}: not UTF-8: byte {error.object[error.start]:#04x} at offset {offset} of the unpacked text, "
                f"line {number}; convert the file, for example with iconv"
            ) from None
        if not line:
            return
        end += len(line)
        yield number, text
        number += line.endswith(b"\n")


def _txt_documents(path: str, stream: IO[bytes], document: str) -> Iterator[str]:
    line_end = "" if document == "file" else "\r\n"  # line ends that do not belong to the document
    lines: list[str] = []
    n_bytes = 0
    for _, text in _lines(path, stream, MAX_DOCUMENT_BYTES):
        line_bytes = len(text.encode())
        is_separator = document == "paragraph" and text.isspace()
        if lines and (is_separator or document == "line" or n_bytes + line_bytes > MAX_DOCUMENT_BYTES):
            yield "".join(lines).rstrip(line_end)
            lines, n_bytes = [], 0
        if not is_separator:
            lines.append(text)
            n_bytes += line_bytes
    if lines:
        yield "".join(lines).rstrip(line_end)


def _jsonl_documents(path: str, stream: IO[bytes], field: str) -> Iterator[str]:
    for number, text in _lines(path, stream, MAX_LINE_BYTES, whole=True):
        place = f"{path}, line {number}"
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: not valid JSON ({error}); each line must be one JSON object") from None
        if not isinstance(row, dict):
            raise ValueError(f"{place}: a JSON {type(row).__name__}, but each line must be an object with {field!r}")
        yield _text_of(row, field, place)


def _text_of(row: dict[str, Any], field: str, place: str) -> str:
    """Return the text of a row; raise ``ValueError`` if it has no valid text."""
    if field not in row:
        fields = ", ".join(map(repr, row)) or "none"
        raise ValueError(f"{place}: no field {field!r}; fields there: {fields}; set data.source.text_field")
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(
            f"{place}: field {field!r} is {type(text).__name__}, not text; remove the row, or set "
            "data.source.text_field to another field"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: field {field!r} is not valid Unicode (half of a surrogate pair at character {error.start}); "
            "remove the row"
        ) from None
    return text


def _parquet_documents(path: Path, origin: str, stream: IO[bytes], field: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if stream.seek(0, io.SEEK_END) == 0:
        return
    try:
        # With pyarrow's defaults for these two settings, whole row groups would be held in memory.
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=CHUNK_BYTES)
        pages, unpacked = Unpacked(path), Unpacked(path)
        for group in range(file.metadata.num_row_groups):
            pages.add(file.metadata.row_group(group).total_byte_size)
        if field not in file.schema_arrow.names:
            _text_of(dict.fromkeys(file.schema_arrow.names), field, origin)
        number = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[field]):
            for row in batch.to_pylist():
                number += 1
                text = _text_of(row, field, f"{origin}, row {number}")
                unpacked.add(len(text))
                yield text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{origin}: truncated or damaged .parquet file ({error}); fetch it again or remove it"
        ) from None


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
    readers: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _zst_open}
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


def _zst_open(packed: IO[bytes]) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(packed, "zstd")
