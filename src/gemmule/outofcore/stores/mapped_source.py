"""A memory-mapped array as the source of a large product: its file is read with long requests, not page by page."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from ..journal.fingerprint import mapped_file
from .arrays import ArraySource, file_range
from .matrix import Array
from .raw_file import RawMatrix

_MAPS = "/proc/self/maps"


class MappedSource(ArraySource):
    """An array in a memory-mapped file; close it.

    Writes to the array are visible in the file at once: both are the same pages of the page cache.

    Parameters
    ----------
    array : ndarray
        The array; `open_mapped` defines which are supported.
    name : str
        Name in messages.
    descriptor : int
        The file, which is closed with the source.
    offset : int
        Offset of its first item, in bytes.
    """

    def __init__(self, array: Array, name: str, descriptor: int, offset: int) -> None:
        super().__init__(array, name)
        self._fd = descriptor
        lines = array if self.order == "C" else array.T
        shape = lines.shape[0], lines.strides[0] // array.itemsize
        fortran = self.order == "F"
        self._items = RawMatrix(
            descriptor, self.path or name, offset, shape[::-1] if fortran else shape, fortran, not array.dtype.isnative
        )

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        return self._items.read(rows, cols, out)

    def close(self) -> None:
        """Close the file; the array belongs to the caller."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def array_source(array: Array, name: str) -> ArraySource:
    """Return a source that reads an array, or the file that it maps where it can."""
    return open_mapped(array, name) or ArraySource(array, name)


def open_mapped(array: Array, name: str) -> MappedSource | None:
    """Return a source that reads the file of a memory-mapped array; None where that would not be the same.

    Lines must be contiguous and follow each other; the mapping must not be a private copy; and the file of that name
    must still be the one that is mapped.
    """
    opened = backing_file(array, os.O_RDONLY)
    return None if opened is None else MappedSource(array, name, *opened)


def backing_file(array: Array, flags: int) -> tuple[int, int] | None:
    """Open the file that an array maps; return the descriptor, and where the items begin.

    None where reading and writing the file would not be the same as reading and writing the array.
    """
    span = file_range(array)
    if span is None or array.ndim != 2 or not array.size or _is_private(array):
        return None
    lines = array if abs(array.strides[1]) <= abs(array.strides[0]) else array.T
    item = array.itemsize
    if lines.strides[1] != item or lines.strides[0] % item or lines.strides[0] < lines.shape[1] * item:
        return None
    path = mapped_file(array)
    if path is None:
        return None
    try:
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_size < span[1] or status.st_ino != _mapped_inode(array.ctypes.data):
        os.close(descriptor)
        return None
    return descriptor, span[0]


def _is_private(array: Array) -> bool:
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap):
            return str(base.mode) == "c"
        base = getattr(base, "base", None)
    return True


def _mapped_inode(address: int) -> int | None:
    """Return the inode of the file that is mapped at an address, None where the system does not say."""
    with contextlib.suppress(OSError), open(_MAPS, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            first, _, last = fields[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                return int(fields[4])
    return None
