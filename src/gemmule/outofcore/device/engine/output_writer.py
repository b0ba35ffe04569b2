"""Brings finished tiles from the device to where they belong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ....executor.streams import DeviceMatrix, DeviceStreams
from ...stores.matrix import Array, MatrixSink
from ..planner.operation import Store
from .event_table import EventTable
from .staging import SHARE, Part, Ring, view


class _Come:
    """A buffer that several threads write from, once the device has filled it."""

    def __init__(self, device: DeviceStreams, end: Any, ring: Ring, buffer: Array, shares: int) -> None:
        self._device, self._end, self._ring, self._buffer = device, end, ring, buffer
        self._there, self._left = False, shares
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until the device has filled it; called by one thread."""
        with self._lock:
            if not self._there:
                self._device.synchronize(self._end)
                self._there = True

    def done(self) -> None:
        """Tell that a share is written; with the last one the buffer is free."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._ring.give(self._buffer)


class Drain:
    """Takes tiles off the device: straight into host memory where that can be, else through pinned buffers.

    Parameters
    ----------
    sink : MatrixSink
        Destination of tiles.
    out : ndarray or None
        The sink's memory, if copies can run into it at the full rate.
    device : DeviceStreams
        Ring of buffers that hold tiles.
    event_table : EventTable
        Record of failures.
    buffers : tuple of int, optional
        Number of pinned buffers, and bytes of each; None where none are needed.
    threads : int
        Threads that write.
    stored : callable, optional
        Told of every tile that is written.
    """

    def __init__(
        self,
        sink: MatrixSink,
        out: Array | None,
        device: DeviceStreams,
        event_table: EventTable,
        *,
        buffers: tuple[int, int] | None,
        threads: int,
        stored: Callable[[int, int], None] | None,
    ) -> None:
        self._sink, self._out, self._device, self._event_table = sink, out, device, event_table
        self._stored = stored
        self._lock = threading.Lock()
        self._left: dict[tuple[int, int], int] = {}
        self._ended: set[tuple[int, int]] = set()
        self._pool = ThreadPoolExecutor(threads, "gemmule-drain")
        # Pinning takes a while, in which the first operands are read.
        self._ring = None if buffers is None else self._pool.submit(Ring, device, *buffers)
        self.bytes_written = 0
        self.tiles = 0

    def store(self, stream: Any, op: Store, source: DeviceMatrix) -> tuple[Any, Any]:
        """Queue the copies of a tile's part; return the events before and after them."""
        with self._lock:
            self._left[op.tile] = self._left.get(op.tile, 0) + 1
        start = end = None
        if self._out is not None:
            start = self._device.record(stream)
            self._device.copy_out(stream, self._out[slice(*op.rows), slice(*op.cols)], source)
            end = self._device.record(stream)
            if self._stored is None:
                # No event: the final wait for the stream covers it.
                self._count(op.nbytes)
                with self._lock:
                    self._left[op.tile] -= 1
                    self.tiles += op.final
                return start, end
            with self._lock:
                self._left[op.tile] += 1
            self._submit(self._arrived, op, end)
        else:
            assert self._ring is not None
            ring = self._ring.result()
            for rows in self._heights(op.rows, op, ring.nbytes):
                buffer = ring.take()
                start = start or self._device.record(stream)
                array = view(buffer, self._sink.dtype, rows, op.cols, "C")
                within = slice(rows[0] - op.rows[0], rows[1] - op.rows[0])
                self._device.copy_out(stream, array, source.part(within, slice(0, source.cols)))
                end = self._device.record(stream)
                shares = self._heights(rows, op, SHARE)
                with self._lock:
                    self._left[op.tile] += len(shares)
                come = _Come(self._device, end, ring, buffer, len(shares))
                for share in shares:
                    self._submit(self._write, op, come, share, array[share[0] - rows[0] : share[1] - rows[0]])
        with self._lock:
            if op.final:
                self._ended.add(op.tile)
        self._over(op.tile)
        return start, end

    def _heights(self, rows: Part, op: Store, limit: int) -> list[Part]:
        """Cut rows of a part of a tile into what `limit` bytes hold, in whole blocks of the store."""
        line = (op.cols[1] - op.cols[0]) * self._sink.dtype.itemsize
        block = self._sink.block_shape[0]
        height = max(limit // max(line, 1) // block * block, block)
        return [(top, min(top + height, rows[1])) for top in range(rows[0], rows[1], height)]

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            if self._event_table.failed:
                return
            try:
                work(*arguments)
            except BaseException as error:
                self._event_table.fail(error)

        self._pool.submit(guarded)

    # The methods below run in the threads that write.

    def _arrived(self, op: Store, end: Any) -> None:
        self._device.synchronize(end)
        self._count(op.nbytes)
        self._over(op.tile)

    def _write(self, op: Store, come: _Come, rows: Part, array: Array) -> None:
        come.wait()
        written = self._sink.write(rows[0], op.cols[0], array)
        come.done()
        self._count(written)
        self._over(op.tile)

    def _count(self, written: int) -> None:
        with self._lock:
            self.bytes_written += written

    def _over(self, tile: tuple[int, int]) -> None:
        with self._lock:
            self._left[tile] -= 1
            if self._left[tile] or tile not in self._ended:
                return
            self._ended.discard(tile)
            self.tiles += 1
        if self._stored is not None:
            self._stored(*tile)

    def stop(self) -> None:
        """Let everybody who waits for a buffer give up."""
        if self._ring is not None and self._ring.exception() is None:
            self._ring.result().stop()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._pool.shutdown()
