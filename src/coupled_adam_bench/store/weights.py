"""The file format of weights, safetensors, as far as a run's identity needs it: a header with the
cell's id; light.

The library writes several entries of metadata in an order that changes from process to process, and
with it the SHA-256 of a file. Here they are sorted. Source of the format:
https://github.com/huggingface/safetensors#format
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

CELL = "cell"
"""The key of the metadata with the id of the cell that was trained."""
_METADATA = "__metadata__"
_FORMAT = {"format": "pt"}
"""What transformers asks of every file."""


def header_bytes(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a file of float32 tensors, whose values follow in the order of their
    names."""
    header: dict[str, Any] = {_METADATA: dict(sorted({**_FORMAT, **metadata}.items()))}
    end = 0
    for name, shape in sorted(shapes.items()):
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
