"""Reads slices of a source ahead of their use, into a fixed number of buffers."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Executor, Future

import numpy as np

from ..stores.matrix import Array, MatrixSource
from .slots import Slots


class SliceReader:
    """Slices of one source in memory.

    Parameters
    ----------
    source : MatrixSource
        Source of the slices.
    slots : int
        Slices that are in memory together.
    elements : int
        Elements of the largest slice.
    thread : Executor
        Executor of the reads: one thread, so that slices arrive in the order of the requests.
    """

    def __init__(self, source: MatrixSource, slots: int, elements: int, thread: Executor) -> None:
        self._source = source
        self._slots = Slots(slots)
        self._buffers = [np.empty(elements, source.dtype) for _ in range(slots)]
        self._arrivals: dict[int, Future[Array]] = {}
        self._thread = thread
        self.bytes_read = 0

    def ask(self, key: Hashable, rows: slice, cols: slice) -> Future[Array]:
        """Return the slice called `key`, which is read if it is not in memory.

        It stays valid until as many other slices as there are slots have been requested.
        """
        slot, held = self._slots.claim(key)
        if not held:
            self._arrivals[slot] = self._thread.submit(self._read, slot, rows, cols)
        return self._arrivals[slot]

    def _read(self, slot: int, rows: slice, cols: slice) -> Array:
        shape = rows.stop - rows.start, cols.stop - cols.start
        # The buffer takes the order of the source: then every read is as long as the source allows.
        piece = self._buffers[slot][: shape[0] * shape[1]].reshape(
            shape, order="F" if self._source.order == "F" else "C"
        )
        self.bytes_read += self._source.read(rows, cols, piece)
        return piece
