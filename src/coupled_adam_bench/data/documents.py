"""Reads the documents of a file of text, one by one, in bounded memory: .txt, .jsonl and .parquet, packed or not."""

import codecs
import gzip
import io
import json
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from coupled_adam_bench.study.inputs import PACKINGS

MAX_DOCUMENT_BYTES = 8 * 2**20
"""Largest document of a .txt file; a longer one is cut, at a line end if there is one."""
MAX_LINE_BYTES = 128 * 2**20
"""Largest line of a .jsonl file, which is read whole; a book has a hundredth of this."""
_PARQUET_ROWS = 64
_CHUNK_BYTES = 2**20


def file_documents(path: Path, origin: str, text_field: str, txt_document: str) -> Iterator[str]:
    """Yield the documents of a file; messages call it ``origin``."""
    kind = kind_of(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(_open(path))
            if kind in (".jsonl", ".json", ".ndjson"):
                yield from _jsonl_documents(origin, stream, text_field)
            elif kind == ".parquet":
                if path.suffix in PACKINGS:  # the format needs random access
                    packed, stream = stream, stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(packed, stream, _CHUNK_BYTES)
                yield from _parquet_documents(origin, stream, text_field)
            else:
                yield from _txt_documents(origin, stream, txt_document)
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's; those of gzip and zstd have none
                raise
            raise ValueError(
                f"{origin}: truncated or damaged {path.suffix} file ({error}); fetch it again or remove it"
            ) from None


def _open(path: Path) -> Any:
    """Return what a file holds, unpacked; reading a damaged one raises EOFError or an error of its format's library."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".xz":
        return lzma.open(path)
    if path.suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), _CHUNK_BYTES)
    return path.open("rb")


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


def _lines(path: str, stream: IO[bytes], max_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its end); a line of more than ``max_bytes`` is split."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a split can be within a character
    number = 1
    while True:
        line = stream.readline(max_bytes)
        try:
            text = decoder.decode(line, final=not line)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: not UTF-8: byte {error.object[error.start]:#04x} in line {number}; convert the file, for "
                "example with iconv"
            ) from None
        if not line:
            return
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
    for number, text in _lines(path, stream, MAX_LINE_BYTES):
        place = f"{path}, line {number}"
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{place}: not valid JSON ({error}); each line must be one JSON object of at most "
                f"{MAX_LINE_BYTES:,} bytes"
            ) from None
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


def _parquet_documents(origin: str, stream: IO[bytes], field: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if stream.seek(0, io.SEEK_END) == 0:
        return
    try:
        # With pyarrow's defaults for these two settings, whole row groups would be held in memory.
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_CHUNK_BYTES)
        if field not in file.schema_arrow.names:
            _text_of(dict.fromkeys(file.schema_arrow.names), field, origin)
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=[field])
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield _text_of(row, field, f"{origin}, row {number}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{origin}: truncated or damaged .parquet file ({error}); fetch it again or remove it"
        ) from None
