"""A memory-mapped array that receives a product: long lines are written to its file, not page by page."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from ...files.file_errors import file_error
from .arrays import ArraySink, ArraySource
from .mapped_source import array_source, backing_file
from .matrix import Array

#: Bytes reordered in memory before they are written, where the file has another order.
_BLOCK_BYTES = 1 << 20
#: Bytes of a line from which on runs to the file are faster than pages of the map: a run that begins or ends within a
#: page makes the system read that page first (benchmarks/records/stream_maps.py).
LONG = 64 << 10


class MappedSink(ArraySink):
    """A writable array in a memory-mapped file.

    Writes to the file are visible in the array at once: both are the same pages of the page cache. Short lines are
    assigned to the array.

    Parameters
    ----------
    array : ndarray
        The array; `array_sink` defines which are supported.
    name : str
        Name in messages.
    descriptor : int
        The file, which is closed with the sink.
    offset : int
        Offset of its first item, in bytes.
    long, block_bytes : int, optional
        Bytes of a line from which on it is written to the file, `LONG` by default, and bytes that are put in order at a
        time.
    """

    def __init__(
        self,
        array: Array,
        name: str,
        descriptor: int,
        offset: int,
        *,
        long: int | None = None,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        super().__init__(array, name)
        self._long, self._block_bytes = LONG if long is None else long, block_bytes
        self._fd, self._offset = descriptor, offset
        # A sink of the caller's memory gets no close call.
        weakref.finalize(self, os.close, descriptor)
        self._columns = abs(array.strides[1]) > abs(array.strides[0])
        self._pitch = array.strides[1] if self._columns else array.strides[0]
        self._stored = array.dtype
        self.scratch_bytes = block_bytes if self._columns or not array.dtype.isnative else 0

    def write(self, row: int, col: int, tile: Array) -> int:
        lines, first, across = (tile.T, col, row) if self._columns else (tile, row, col)
        if not lines.size:
            return 0
        width = lines.shape[1] * self._stored.itemsize
        if width < min(self._long, self._pitch):
            return super().write(row, col, tile)
        start = self._offset + first * self._pitch + across * self._stored.itemsize
        if not self.scratch_bytes and lines.dtype == self._stored and lines.strides[1] == lines.itemsize:
            self._put_lines(lines, start)
            return tile.nbytes
        height = max(self._block_bytes // width, 1)
        for top in range(0, lines.shape[0], height):
            block = np.ascontiguousarray(lines[top : top + height], self._stored)
            self._put_lines(block, start + top * self._pitch)
        return tile.nbytes

    def written(self) -> ArraySource:
        return array_source(self.array, self.name)

    def _put_lines(self, lines: Array, start: int) -> None:
        raw = lines.view(np.uint8)
        if raw.flags.c_contiguous and (raw.shape[1] == self._pitch or len(raw) == 1):
            self._put(raw.reshape(-1), start)
            return
        for number, line in enumerate(raw):
            self._put(line, start + number * self._pitch)

    def _put(self, raw: Array, offset: int) -> None:
        view: Any = raw.data
        while view:
            try:
                count = os.pwrite(self._fd, view, offset)
            except OSError as error:
                raise file_error(error, self.name, written=True) from error
            view, offset = view[count:], offset + count


def array_sink(array: Array, name: str, **sizes: int) -> ArraySink:
    """Return a sink that writes to an array, or to the file that it maps where that is the same.

    Lines must be contiguous and follow each other; the mapping must not be a private copy; and the file of that name
    must still be the one that is mapped. The `sizes` are those of `MappedSink`.
    """
    opened = backing_file(array, os.O_WRONLY) if array.flags.writeable else None
    return ArraySink(array, name) if opened is None else MappedSink(array, name, *opened, **sizes)
