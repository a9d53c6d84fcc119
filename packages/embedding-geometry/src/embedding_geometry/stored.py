"""Reads single matrices from files of safetensors and of NumPy, in float64, and checks what the
files say of them.

V: rows of a matrix    D: width
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.place import SAVED_MATRIX, File, LocalFile
from embedding_geometry.user_files import check_no_pointer

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The types of tensors that are read, and the type of NumPy whose bytes they have."""
_MOST_HEADER_BYTES = 10**8  # the limit of the library safetensors
_BLOCK_VALUES = 2**24


class Matrix(Protocol):
    """A matrix (V, D) in a file."""

    @property
    def name(self) -> str:
        """What the file calls it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its rows and width, as the file says."""

    def read(self) -> NDArray[np.float64]:
        """Return the matrix; ``ValueError`` if it has no floats, or a value that is not finite."""


@dataclass(frozen=True)
class StoredMatrix:
    """A tensor in a file of safetensors."""

    file: File
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Place of its first byte in the file."""

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the matrix a few rows at a time; ``ValueError`` if it is not stored as floats."""
        if self.dtype not in _FLOATS:
            raise ValueError(
                f"{self.file}: {self.name} is stored as {self.dtype}, not one of"
                f" {', '.join(_FLOATS)}; give a checkpoint that is not quantized"
            )
        n_rows, width = self.shape
        dtype = np.dtype(_FLOATS[self.dtype])
        row_bytes = width * dtype.itemsize
        step = max(1, _BLOCK_VALUES // max(1, width))
        for first in range(0, n_rows, step):
            n_read = min(step, n_rows - first)
            content = self.file.read(self.start + first * row_bytes, n_read * row_bytes)
            values = np.frombuffer(content, dtype)
            if self.dtype == "BF16":  # the upper half of a float32
                values = (values.astype("<u4") << 16).view("<f4")
            yield values.astype(np.float64).reshape(n_read, width)

    def read(self) -> NDArray[np.float64]:
        """Return the matrix (V, D); ``ValueError`` if it has no floats, or a value that is not
        finite."""
        _check_memory(str(self.file), self.name, self.shape)
        matrix_VD = np.empty(self.shape)
        first = 0
        for block in self.blocks():
            matrix_VD[first : first + len(block)] = block
            first += len(block)
        _check_finite(str(self.file), self.name, matrix_VD)
        return matrix_VD

    def equals(self, other: "StoredMatrix") -> bool:
        """Tell whether two matrices have the same values."""
        if self.shape != other.shape:
            return False
        return all(
            np.array_equal(one, two) for one, two in zip(self.blocks(), other.blocks(), strict=True)
        )


@dataclass(frozen=True)
class Matrices:
    """The input and the output matrix of a model; ``head`` is None if it is tied, or not in the
    checkpoint."""

    architecture: str
    embeddings: Matrix
    head: Matrix | None
    tied: bool | None
    """None for a matrix without a model, and for a model without transformers whose files do not
    say it."""


def tensors_in(file: File) -> dict[str, StoredMatrix]:
    """Return the tensors of a file of safetensors by name; ``ValueError`` for a file that is
    damaged or cut off.

    The format: https://huggingface.co/docs/safetensors/index#format.
    """
    size = file.size
    if isinstance(file, LocalFile):
        check_no_pointer(file.path)
    length = int.from_bytes(file.read(0, min(8, size)), "little")
    if length > min(_MOST_HEADER_BYTES, size - 8):
        raise _damaged(file, f"its header of {length:,} bytes cannot be in {size:,} bytes")
    content = file.read(8, length)
    try:
        header: dict[str, Any] = json.loads(content)
        return dict(_tensors(file, header, 8 + length, size))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(file, error) from None


def _damaged(file: File, reason: object) -> ValueError:
    return ValueError(f"{file}: not a whole file of safetensors ({reason}); fetch it again")


def _tensors(
    file: File, header: dict[str, Any], data: int, size: int
) -> Iterator[tuple[str, StoredMatrix]]:
    """Yield the tensors of a header whose data begin at the byte ``data`` of the file."""
    header.pop("__metadata__", None)
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
        if start != end or stop < start or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"the place of {name} is not behind the tensor before it")
        if (
            dtype in _FLOATS
            and stop - start != math.prod(shape) * np.dtype(_FLOATS[dtype]).itemsize
        ):
            raise ValueError(f"{name} has {stop - start:,} bytes, which is not {shape} of {dtype}")
        end = stop
        yield name, StoredMatrix(file, name, dtype, shape, data + start)
    if data + end != size:
        raise ValueError(f"its tensors end at byte {data + end:,} of {size:,}")


@dataclass(frozen=True)
class NumpyMatrix:
    """A matrix in a file of ``numpy.save``."""

    path: Path

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its rows and width, as the file says."""
        return self._mapped().shape

    def _mapped(self) -> NDArray[Any]:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"{self.path}: no file, but a folder or a pipe; {SAVED_MATRIX}")
        check_no_pointer(self.path)
        try:
            mapped: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{self.path}: not a whole file of numpy.save, or not of numbers ({error});"
                f" {SAVED_MATRIX}"
            ) from None
        if mapped.dtype.kind == "V":  # NumPy writes types that it does not know as bytes
            raise ValueError(
                f"{self.path}: {mapped.dtype.itemsize} bytes a number and no type, as NumPy writes"
                f" bfloat16 and float8; {SAVED_MATRIX}"
            )
        if mapped.ndim != 2 or mapped.dtype.kind != "f" or not mapped.size:
            raise ValueError(
                f"{self.path}: has the shape {mapped.shape} and the type {mapped.dtype}; give a"
                " matrix of floats, with a row for each token"
            )
        return mapped

    def read(self) -> NDArray[np.float64]:
        """Return the matrix (V, D); ``ValueError`` if it is none of floats, or has a value that is
        not finite."""
        mapped = self._mapped()
        _check_memory(str(self.path), "the matrix", mapped.shape)
        matrix_VD = np.array(mapped, dtype=np.float64, order="C")
        _check_finite(str(self.path), "the matrix", matrix_VD)
        return matrix_VD


def _check_memory(file: str, name: str, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` for a matrix that this machine's memory cannot hold in float64."""
    needed = 8 * math.prod(shape)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"{file}: {name} of the shape {shape} takes {needed / 1e9:,.0f} GB in float64, and this"
            f" machine has {there / 1e9:,.0f} GB of memory; measure it on a larger one"
        )


def _check_finite(file: str, name: str, matrix_VD: NDArray[np.float64]) -> None:
    finite_V = np.isfinite(matrix_VD).all(axis=1)
    if not finite_V.all():
        raise ValueError(
            f"{file}: {name} has a value that is not finite, first in row"
            f" {int(np.argmin(finite_V))}"
        )
