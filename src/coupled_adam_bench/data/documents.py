"""Reads the documents of a file of text, one by one, in bounded memory: .txt, .jsonl and .parquet,
packed or not."""

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
from itertools import count
from pathlib import Path
from typing import IO, Any

from coupled_adam_bench.study.plan.inputs import EOT_NAMES, PACKINGS

END_OF_TEXT = EOT_NAMES[0]
"""The mark that some .txt files have between documents."""
MAX_DOCUMENT_BYTES = 8 * 2**20
"""Largest document of a .txt file; a longer one is cut, at a line end if there is one."""
MAX_LINE_BYTES = 128 * 2**20
"""Largest line of a .jsonl file, which is read whole; a book has a hundredth of this."""
_PARQUET_ROWS = 64
_CHUNK_BYTES = 2**20


class RowError(ValueError):
    """Says why a row of a file has no valid text; the rows after it can be read."""


def file_documents(
    path: Path, origin: str, text_field: str, txt_document: str
) -> Iterator[str | RowError]:
    """Yield the documents of a file, which may be empty, and for a row without valid text the error
    that says so.

    Messages call the file ``origin``. ``ValueError`` for a file that cannot be read further.
    """
    kind = kind_of(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(_open(path))
            if kind in (".jsonl", ".json", ".ndjson"):
                yield from _jsonl_documents(origin, stream, text_field)
            elif kind == ".parquet":
                if packing_of(path):  # the format needs random access
                    packed, stream = stream, stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(packed, stream, _CHUNK_BYTES)
                yield from _parquet_documents(origin, stream, text_field)
            else:
                yield from _txt_documents(origin, stream, txt_document)
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                # An error of the disk has a number, and those of gzip and zstd have none.
                raise
            raise ValueError(
                f"{origin}: truncated or damaged {path.suffix} file ({error}); fetch it again or"
                " remove it"
            ) from None


def _open(path: Path) -> Any:
    """Return what a file holds, unpacked; reading a damaged one raises EOFError or an error of its
    format's library."""
    packing = packing_of(path)
    if packing == ".gz":
        return gzip.open(path)
    if packing == ".xz":
        return lzma.open(path)
    if packing == ".zst":
        import pyarrow as pa

        return io.BufferedReader(
            pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), _CHUNK_BYTES
        )
    return path.open("rb")


def kind_of(path: Path) -> str:
    """Return the ending of a file in small letters, without that of its packing."""
    packing = packing_of(path)
    return (path.with_suffix("") if packing else path).suffix.lower()


def packing_of(path: Path) -> str:
    """Return the ending of a packed file in small letters; empty for a file that is not packed."""
    ending = path.suffix.lower()
    return ending if ending in PACKINGS else ""


def text_bytes(path: Path, field: str) -> int:
    """Return the size of the text in a file of a dataset, for .parquet by what its metadata
    says."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        groups = pq.ParquetFile(path).metadata
        columns = [
            groups.row_group(i).column(j)
            for i in range(groups.num_row_groups)
            for j in range(groups.num_columns)
        ]
        return sum(
            column.total_uncompressed_size for column in columns if column.path_in_schema == field
        )
    documents = file_documents(path, str(path), field, "line")
    return sum(len(text.encode()) for text in documents if isinstance(text, str))


def _lines(path: str, stream: IO[bytes], max_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its end); a line of more than ``max_bytes`` is split."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a split can be within a character
    number = 1
    while True:
        line = stream.readline(max_bytes)
        try:
            text = decoder.decode(line, final=not line)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {_not_utf8(error, number)}") from None
        if not line:
            return
        yield number, text
        number += line.endswith(b"\n")


def _txt_documents(path: str, stream: IO[bytes], document: str) -> Iterator[str]:
    line_end = "" if document == "file" else "\r\n"  # line ends that do not belong to the document
    lines: list[str] = []
    n_bytes = 0
    for text, is_next in _pieces(path, stream, document):
        line_bytes = len(text.encode())
        is_separator = document == "paragraph" and text.isspace()
        if lines and (
            is_separator
            or is_next
            or document == "line"
            or n_bytes + line_bytes > MAX_DOCUMENT_BYTES
        ):
            yield "".join(lines).rstrip(line_end)
            lines, n_bytes = [], 0
        if not is_separator:
            lines.append(text)
            n_bytes += line_bytes
    if lines:
        yield "".join(lines).rstrip(line_end)


def _pieces(path: str, stream: IO[bytes], document: str) -> Iterator[tuple[str, bool]]:
    """Yield (piece of a line, whether a mark of end of text is before it), and whole lines of a
    text without such marks."""
    for _, line in _lines(path, stream, MAX_DOCUMENT_BYTES):
        if document != "end_of_text":
            yield line, False
            continue
        first, *others = line.split(END_OF_TEXT)
        yield first, False
        # The mark stands in a line of its own, or before the first word of the next document.
        yield from ((other.lstrip("\r\n"), True) for other in others)


def _whole_lines(stream: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number from 1, line), with None in place of a line of more than ``max_bytes``, which
    is passed over."""
    for number in count(1):
        line: bytes | None = stream.readline(max_bytes + 1)
        if not line:
            return
        if len(line) > max_bytes and not line.endswith(b"\n"):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(_CHUNK_BYTES)
            line = None
        yield number, line


def _jsonl_documents(path: str, stream: IO[bytes], field: str) -> Iterator[str | RowError]:
    for number, line in _whole_lines(stream, MAX_LINE_BYTES):
        if line is None or line.strip():
            yield _text_of_line(path, number, line, field)


def _text_of_line(path: str, number: int, line: bytes | None, field: str) -> str | RowError:
    """Return the text of a line of JSON."""
    place = f"{path}, line {number}"
    rule = f"each line must be one JSON object of at most {MAX_LINE_BYTES:,} bytes"
    if line is None:
        return RowError(f"{place}: not valid JSON (the line is longer); {rule}")
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return RowError(f"{path}: {_not_utf8(error, number)}")
    except (ValueError, RecursionError) as error:
        return RowError(f"{place}: not valid JSON ({error}); {rule}")
    if not isinstance(row, dict):
        return RowError(
            f"{place}: a JSON {type(row).__name__}, but each line must be an object with {field!r}"
        )
    return _text_of(row, field, place)


def _not_utf8(error: UnicodeDecodeError, line: int) -> str:
    byte = error.object[error.start]
    return f"not UTF-8: byte {byte:#04x} in line {line}; convert the file, for example with iconv"


def _text_of(row: dict[str, Any], field: str, place: str) -> str | RowError:
    """Return the text of a row, which is empty if it is null."""
    if field not in row:
        fields = ", ".join(map(repr, row)) or "none"
        return RowError(
            f"{place}: no field {field!r}; fields there: {fields}; set data.source.text_field to"
            " one that holds text"
        )
    text = row[field]
    if text is None:
        return ""
    if not isinstance(text, str):
        return RowError(
            f"{place}: field {field!r} is {type(text).__name__}, not text; write it as text, remove"
            " the row, or set data.source.text_field to another field"
        )
    # JSON can write half of a surrogate pair, for which UTF-8 has no bytes.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return RowError(
            f"{place}: field {field!r} is not valid Unicode (half of a surrogate pair at character"
            f" {error.start}); remove the row"
        )
    return text


def _may_hold_text(kind: Any) -> bool:
    """Tell whether a type of pyarrow has text in another form: as bytes, or within objects."""
    from pyarrow import types

    is_bytes = (
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
        types.is_binary_view,
    )
    values = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_nested(values) or any(test(values) for test in is_bytes)


def _parquet_documents(origin: str, stream: IO[bytes], field: str) -> Iterator[str | RowError]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if stream.seek(0, io.SEEK_END) == 0:
        return
    try:
        # With pyarrow's defaults for these two settings, whole row groups would be held in memory.
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_CHUNK_BYTES)
        if field not in file.schema_arrow.names:
            problem = _text_of(dict.fromkeys(file.schema_arrow.names), field, origin)
            assert isinstance(problem, RowError)
            raise problem
        # The text may well be in such a column, so `data.skip` does not leave it out.
        kind = file.schema_arrow.field(field).type
        if _may_hold_text(kind):
            raise ValueError(
                f"{origin}: the column {field!r} is of the type {kind}, not of strings; write it"
                " again as strings, or set data.source.text_field to another column"
            )
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=[field])
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield _text_of(row, field, f"{origin}, row {number}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{origin}: truncated or damaged .parquet file ({error}); fetch it again or remove it"
        ) from None
