"""Documents of text files and of data sets of the Hugging Face hub, one after the other, in bounded memory."""

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
from typing import IO, Any, cast

from coupled_adam_bench.cells import text_files
from coupled_adam_bench.config import FilesSource, HubSource, Study

MAX_DOCUMENT_BYTES = 8 * 2**20
"""A document of a .txt file that is longer is cut, at a line end where there is one."""
_CHUNK_BYTES = 2**20
_PARQUET_ROWS = 64
_PACKINGS = (".gz", ".xz", ".zst")


class Corpus:
    """The documents of a source that have text, in a fixed order; iterate once.

    ``n_empty`` counts the documents that are empty or only white space and were skipped, ``n_files`` the files read.
    Iteration raises ``ValueError`` for input that is not as it should be, with its file, place and what to do.
    """

    def __init__(self, study: Study) -> None:
        self._source = study.data.source
        self._patterns = study.paths.text
        self.n_empty = 0
        self.n_files = 0

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._source, HubSource):
            yield from self._with_text(_hub_documents(self._source), f"dataset {self._source.dataset}")
        else:
            assert isinstance(self._source, FilesSource)
            for _, path in text_files(self._patterns):
                yield from self._with_text(_file_documents(path, self._source), str(path))
                self.n_files += 1

    def _with_text(self, documents: Iterator[str], origin: str) -> Iterator[str]:
        n_documents = 0
        for text in documents:
            if text and not text.isspace():
                n_documents += 1
                yield text
            else:
                self.n_empty += 1
        if n_documents == 0:
            raise ValueError(f"{origin}: no documents in it: it is empty or has only empty texts; remove or replace it")


def _file_documents(path: Path, source: FilesSource) -> Iterator[str]:
    kind = path.with_suffix("").suffix if path.suffix in _PACKINGS else path.suffix
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(_open(path))
            if kind == ".jsonl":
                yield from _jsonl_documents(path, stream, source.text_field)
            elif kind == ".parquet":
                if path.suffix in _PACKINGS:  # the format needs random access
                    packed, stream = stream, stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(packed, stream, _CHUNK_BYTES)
                yield from _parquet_documents(path, stream, source.text_field)
            else:
                yield from _txt_documents(path, stream, source.txt_document)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path}: truncated or damaged {path.suffix} file ({error}); fetch it again or remove it"
            ) from None


def _open(path: Path) -> IO[bytes]:
    """Open a file, unpacked; reading a damaged one raises EOFError or an error of its format's library."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast("IO[bytes]", lzma.open(path, "rb"))
    if path.suffix == ".zst":
        return cast("IO[bytes]", io.BufferedReader(_ZstdReader(path), _CHUNK_BYTES))
    return path.open("rb")


class _ZstdReader(io.RawIOBase):
    """Unpacks a .zst file; the library's own reader takes the end of a truncated file for the end of the text."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._file = path.open("rb")
        self._library = zstandard
        self._frame: Any = None
        self._packed = self._text = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._packed = self._packed or self._file.read(_CHUNK_BYTES // 8)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                self._text = self._frame.decompress(self._packed)
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        n_bytes = min(len(buffer), len(self._text))
        buffer[:n_bytes] = self._text[:n_bytes]
        self._text = self._text[n_bytes:]
        return n_bytes


def _lines(path: Path, stream: IO[bytes], max_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its end); a line of more than ``max_bytes`` comes in parts."""
    decoder = codecs.getincrementaldecoder("utf-8")()  # a part can end within a character
    number, end = 1, 0
    while True:
        line = stream.readline(max_bytes)
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


def _txt_documents(path: Path, stream: IO[bytes], document: str) -> Iterator[str]:
    line_end = "" if document == "file" else "\r\n"  # what is not part of a document
    parts: list[str] = []
    n_bytes = 0
    for _, text in _lines(path, stream, MAX_DOCUMENT_BYTES):
        line_bytes = len(text.encode())
        is_separator = document == "paragraph" and text.isspace()
        if parts and (is_separator or document == "line" or n_bytes + line_bytes > MAX_DOCUMENT_BYTES):
            yield "".join(parts).rstrip(line_end)
            parts, n_bytes = [], 0
        if not is_separator:
            parts.append(text)
            n_bytes += line_bytes
    if parts:
        yield "".join(parts).rstrip(line_end)


def _jsonl_documents(path: Path, stream: IO[bytes], field: str) -> Iterator[str]:
    for number, text in _lines(path, stream, -1):
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
    """Return the text of a row; ``ValueError`` if it has none."""
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


def _parquet_documents(path: Path, stream: IO[bytes], field: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if stream.seek(0, io.SEEK_END) == 0:
        return
    try:
        # Without these two settings whole row groups are held in memory.
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_CHUNK_BYTES)
        if field not in file.schema_arrow.names:
            _text_of(dict.fromkeys(file.schema_arrow.names), field, str(path))
        number = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[field]):
            for row in batch.to_pylist():
                number += 1
                yield _text_of(row, field, f"{path}, row {number}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: truncated or damaged .parquet file ({error}); fetch it again or remove it") from None


def _hub_documents(source: HubSource) -> Iterator[str]:
    for number, row in enumerate(_hub_rows(source)):
        yield _text_of(row, source.text_field, f"dataset {source.dataset}, row {number}")


def _hub_rows(source: HubSource) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        yield from datasets.load_dataset(
            source.dataset, source.config_name, split=source.split, revision=source.revision, streaming=True
        )
    except Exception as error:  # of many kinds: network, HTTP, unknown names, formats
        names = f"config_name {source.config_name!r}, split {source.split!r}, revision {source.revision!r}"
        raise ValueError(
            f"data.source: cannot read dataset {source.dataset!r} ({names}) of the Hugging Face hub: "
            f"{type(error).__name__}: {error}; connect this machine, correct the names, or download the text and use "
            "the source 'files'"
        ) from error
