"""Reads the documents of text files and of datasets of the Hugging Face hub, one by one, in bounded memory."""

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
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from coupled_adam_bench.config import FilesSource, HubSource, Study
from coupled_adam_bench.data.hub import Listing, download, find_listing
from coupled_adam_bench.data.mirror import corpus_folder, mirrored_file, read_listing
from coupled_adam_bench.data.patience import Patience
from coupled_adam_bench.inputs import PACKINGS, text_files

MAX_DOCUMENT_BYTES = 8 * 2**20
"""Largest document of a .txt file; a longer one is cut, at a line end if there is one."""
MAX_LINE_BYTES = 128 * 2**20
"""Largest line of a .jsonl file, which is read whole; a book has a hundredth of this."""
MAX_RATIO = 200
"""Largest compression ratio of text, which is usually 3 to 10; more means a damaged file or an attack."""
FREE_BYTES = 64 * 2**20
"""Unpacked size up to which any ratio is allowed, because short repetitive files compress very well."""
MAX_EMPTY_LINES = 10**6
"""In a row; more are no text, and a packed file of a few MB can hold billions of them."""
_CHUNK_BYTES = 2**20
_ZSTD_BYTES = 2**10
"""Packed bytes that are unpacked at once; 4 bytes can hold a block of 128 KiB, so this gives at most 32 MiB."""
_PARQUET_ROWS = 64


class Position(NamedTuple):
    """How far a corpus is read."""

    file: int = 0
    """Number of the file that is being read, from 0."""
    document: int = 0
    """Documents of this file that are read, with those that are empty."""
    n_empty: int = 0
    """Documents of all files so far that are empty or only white space, which are skipped."""


START = Position()


class Corpus:
    """The documents of a source that have text, in a fixed order; it can be iterated once.

    ``position`` is the end of the last document that was given out, and ``n_files`` the number of files that were read
    to their end. Files of a dataset of the hub are read in ``paths.hub_mirror``, or downloaded into ``downloads`` one
    by one, and removed when they are read. Iteration raises ``ValueError`` for invalid input, with its file, its
    position and advice.
    """

    def __init__(self, study: Study, downloads: Path | None = None) -> None:
        self._source = study.data.source
        self._patterns = study.paths.text
        self._downloads = downloads
        self._patience = Patience(study.execution.hub_minutes)
        self._mirror = None
        if study.paths.hub_mirror is not None and isinstance(self._source, HubSource):
            self._mirror = corpus_folder(study.paths.hub_mirror, self._source)
        self._start = self.position = START
        self.n_files = 0
        self.shortfall: ValueError | None = None
        """Set if a mirror has only the first files: the texts may be enough for ``data.max_tokens`` all the same."""

    @property
    def n_empty(self) -> int:
        """Number of documents so far that are empty or only white space, which are skipped."""
        return self.position.n_empty

    @cached_property
    def listing(self) -> Listing | None:
        """The files of a dataset of the hub and the place that has them; None for other sources."""
        if not isinstance(self._source, HubSource):
            return None
        mirrored = None if self._mirror is None else read_listing(self._mirror)
        return mirrored or find_listing(self._source, self._patience)

    def start_at(self, position: Position) -> None:
        """Begin after a ``position`` that was reached earlier; the files must be the same."""
        self._start = self.position = position

    def __iter__(self) -> Iterator[str]:
        if self.listing is not None:
            yield from self._hub_documents(self.listing)
            return
        assert isinstance(self._source, FilesSource)
        for number, (_, path) in enumerate(text_files(self._patterns)):
            documents = _file_documents(path, str(path), self._source.text_field, self._source.txt_document)
            yield from self._with_text(documents, number)
            if self._n_given == 0:
                raise _no_documents(str(path))

    def _hub_documents(self, listing: Listing) -> Iterator[str]:
        place, n_given = listing.place, 0
        if self._downloads is None and not listing.is_local:
            raise AssertionError("a dataset of the hub needs a folder for its files")
        for number, file in enumerate(listing.files):
            if number < self._start.file:
                continue
            mirrored = None if self._mirror is None else mirrored_file(self._mirror, file)
            try:
                path = mirrored or download(listing, file, self._downloads or Path(), self._patience)
            except ValueError as error:
                if number == 0 or self._mirror is None:
                    raise
                self.shortfall = ValueError(
                    f"{error}. Of {len(listing.files)} files the first {number} are in {self._mirror}; for more of a "
                    "text that data.max_tokens caps, give `fetch` a larger --bytes-per-token"
                )
                return
            origin = str(path) if listing.is_local else f"dataset {listing.dataset}, {file.path}"
            yield from self._with_text(_file_documents(path, origin, place.text_field, "line"), number)
            n_given += self._n_given
            if mirrored is None and not listing.is_local:
                path.unlink()
        if n_given == 0 and self._start == START:
            raise _no_documents(f"dataset {listing.dataset}")

    def _with_text(self, documents: Iterator[str], number: int) -> Iterator[str]:
        """Yield the documents of file ``number`` that have text, after those that were read earlier."""
        n_empty, self._n_given = self.position.n_empty, 0
        skipped = self._start.document if number == self._start.file else 0
        for count, text in enumerate(documents, 1):
            if count <= skipped:
                continue
            if text and not text.isspace():
                self._n_given += 1
                self.position = Position(number, count, n_empty)
                yield text
            else:
                n_empty += 1
        self.position = self.position._replace(n_empty=n_empty)
        self.n_files = number + 1


def text_bytes(path: Path, field: str) -> int:
    """Return the size of the text in a file of a dataset, for .parquet by what its metadata says."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        groups = pq.ParquetFile(path).metadata
        columns = [
            groups.row_group(i).column(j) for i in range(groups.num_row_groups) for j in range(groups.num_columns)
        ]
        return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    return sum(len(text.encode()) for text in _file_documents(path, str(path), field, "line"))


def _no_documents(origin: str) -> ValueError:
    return ValueError(f"{origin}: no documents in it: it is empty or has only empty texts; remove or replace it")


def _file_documents(path: Path, origin: str, text_field: str, txt_document: str) -> Iterator[str]:
    """Yield the documents of a file; messages call it ``origin``."""
    kind = path.with_suffix("").suffix if path.suffix in PACKINGS else path.suffix
    with ExitStack() as stack:
        try:
            packed = stack.enter_context(path.open("rb"))
            stream = stack.enter_context(_unpack(packed, path)) if path.suffix in PACKINGS else packed
            if kind in (".jsonl", ".json", ".ndjson"):
                yield from _jsonl_documents(origin, stream, text_field)
            elif kind == ".parquet":
                if path.suffix in PACKINGS:  # the format needs random access
                    unpacked, stream = stream, stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(unpacked, stream, _CHUNK_BYTES)
                yield from _parquet_documents(path, origin, stream, text_field)
            else:
                yield from _txt_documents(origin, stream, txt_document)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{origin}: truncated or damaged {path.suffix} file ({error}); fetch it again or remove it"
            ) from None


class _Unpacked:
    """Counts the unpacked bytes of a file; raises ``ValueError`` when they are too many for what was read of it.

    These are the bytes of ``packed`` that were read so far; without it, as of .parquet, those of the whole file.
    """

    def __init__(self, path: Path, packed: IO[bytes] | None = None) -> None:
        self._path, self._packed = path, packed
        self._n_bytes = 0

    def add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        if self._n_bytes <= FREE_BYTES:
            return
        n_packed = self._path.stat().st_size if self._packed is None else self._packed.tell()
        if self._n_bytes > MAX_RATIO * n_packed:
            raise ValueError(
                f"{self._path}: unpacks to more than {MAX_RATIO} times the {n_packed:,} bytes read of it and to more "
                f"than {FREE_BYTES:,}, as no text does; remove it, or, if it is right, unpack it yourself"
            )


def _unpack(packed: IO[bytes], path: Path) -> IO[bytes]:
    """Return what a packed file holds; reading a damaged one raises EOFError or an error of its format's library."""
    readers: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _ZstdReader}
    reader = _CountingReader(readers[path.suffix](packed), _Unpacked(path, packed))
    return cast("IO[bytes]", io.BufferedReader(reader, _CHUNK_BYTES))


class _CountingReader(io.RawIOBase):
    """Passes on the bytes that another reader unpacks, and counts them."""

    def __init__(self, reader: Any, unpacked: _Unpacked) -> None:
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
            self._packed = self._packed or memoryview(self._file.read(_CHUNK_BYTES // 8))
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
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_CHUNK_BYTES)
        pages, unpacked = _Unpacked(path), _Unpacked(path)
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
