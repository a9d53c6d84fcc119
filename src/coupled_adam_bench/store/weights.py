"""The file format of weights, safetensors, as far as a run's identity needs it: a header with the cell's id; light.

The library writes several entries of metadata in an order that changes from process to process, and with it the SHA-256
of a file. Here they are sorted. Source of the format: https://github.com/huggingface/safetensors#format
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

CELL = "cell"
"""The key of the metadata with the id of the cell that was trained."""
_METADATA = "__metadata__"
_FORMAT = {"format": "pt"}
"""What transformers asks of every file."""
_CHUNK = 1 << 24
_LONGEST_HEADER = 100_000_000
"""What the library takes."""


def header_bytes(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a file of float32 tensors, whose values follow in the order of their names."""
    header: dict[str, Any] = {_METADATA: dict(sorted({**_FORMAT, **metadata}.items()))}
    end = 0
    for name, shape in sorted(shapes.items()):
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    return _framed(header)


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _framed(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _read_header(file: IO[bytes]) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", file.read(8))
    header: dict[str, Any] = json.loads(file.read(min(length, _LONGEST_HEADER)))
    return header


def sha256_without_cell(weights: Path) -> str:
    """Return the SHA-256 that a file of weights would have without the id of its cell, as older versions wrote it."""
    with weights.open("rb") as file:
        header = _read_header(file)
        header[_METADATA].pop(CELL, None)
        found = hashlib.sha256(_framed(header))
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
