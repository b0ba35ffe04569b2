"""NumPy arrays as the source and the sink of a large product."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...core.errors import ArgumentError, ShapeError
from ..journal.fingerprint import file_fingerprint, mapped_file, sampled_checksum, whole_checksum
from .matrix import AnyDType, Array, check_dtype, native


def file_range(array: Array) -> tuple[int, int] | None:
    """Return the first and last byte of a memory-mapped array in its file; None for other arrays."""
    base: Any = array
    while base is not None and not (isinstance(base, np.memmap) and not isinstance(base.base, np.memmap)):
        base = getattr(base, "base", None)
    if base is None or base.filename is None:
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    start = base.offset - base.__array_interface__["data"][0]
    return low + start, high + start


def _matrix_shape(name: str, array: Array) -> tuple[int, int]:
    # NumPy imports masked arrays at first access, which takes a while.
    if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):
        remedy = "data" if name in ("out", "output") else "filled(value)"
        raise ArgumentError(f"{name} is a masked array, which would lose its mask; pass {name}.{remedy}")
    if array.ndim != 2:
        raise ShapeError(f"{name} has shape {array.shape}; a matrix has 2 dimensions; reshape it first")
    return array.shape[0], array.shape[1]


class ArraySource:
    """A NumPy array, memory-mapped ones included, that is read piece by piece.

    Parameters
    ----------
    array : ndarray
        Two-dimensional, any strides and byte order; an attribute of that name, for copies from it.
    name : str
        Name in messages.

    Attributes
    ----------
    array : ndarray
        The array itself, which copies to a GPU may run from.
    """

    def __init__(self, array: Array, name: str = "array") -> None:
        self.name = name
        self.shape = _matrix_shape(name, array)
        check_dtype(array.dtype, name)
        self.dtype: AnyDType = native(array.dtype)
        self.order = "C" if abs(array.strides[1]) <= abs(array.strides[0]) else "F"
        self.stored_itemsize = array.dtype.itemsize
        self.block_shape = (1, 1)
        self.scratch_bytes = 0
        self.path = mapped_file(array)
        self.array = array

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        np.copyto(out, self.array[rows, cols])
        return out.nbytes

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of this array: of all elements where it is in memory only."""
        # The bytes in memory order do not determine the view.
        look: dict[str, Any] = {"stored_in": self.array.dtype.str, "strides": list(self.array.strides)}
        if self.path is None:
            return {"kind": "array", "items": whole_checksum(self.array), **look}
        look["range"] = list(file_range(self.array) or ())
        return {"kind": "memmap", **file_fingerprint(self.path), "items": sampled_checksum(self), **look}

    def close(self) -> None:
        """Do nothing: the array belongs to the caller."""


class ArraySink:
    """A NumPy array that receives a product. What an aborted product wrote stays in it.

    Parameters
    ----------
    array : ndarray
        Two-dimensional and writable, any strides and byte order; an attribute of that name, for copies into it.
    name : str
        Name in messages.

    Attributes
    ----------
    array : ndarray
        The array itself, which copies from a GPU may run into.
    """

    def __init__(self, array: Array, name: str = "output") -> None:
        self.name = name
        self.shape = _matrix_shape(name, array)
        check_dtype(array.dtype, name)
        self.dtype: AnyDType = native(array.dtype)
        self.block_shape = (1, 1)
        self.scratch_bytes = 0
        self.array = array

    def write(self, row: int, col: int, tile: Array) -> int:
        self.array[row : row + tile.shape[0], col : col + tile.shape[1]] = tile
        return tile.nbytes

    def flush(self) -> None:
        """Do nothing: an array has no store behind it."""

    def written(self) -> ArraySource:
        return ArraySource(self.array, self.name)

    def commit(self) -> None:
        """Do nothing: the array is there already."""

    def abort(self) -> None:
        """Do nothing."""
