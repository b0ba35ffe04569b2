"""Brings finished tiles from the device to where they belong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...core.streams import DeviceMatrix, DeviceStreams
from ..matrix import Array, MatrixSink
from .board import Board
from .schedule import Store
from .staging import Part, Ring, view

#: Size of a buffer of the result's ring, unless the budget is small.
RING_BYTES = 8 << 20


class Drain:
    """Takes tiles off the device: straight into host memory where that can be, else through pinned buffers.

    Parameters
    ----------
    sink : MatrixSink
        Where tiles go.
    out : ndarray or None
        The sink's memory, if copies can run into it at the full rate.
    device : DeviceStreams
        Where tiles come from.
    board : Board
        What is told of failures.
    pinned : int
        Bytes of the ring.
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
        board: Board,
        *,
        pinned: int,
        threads: int,
        stored: Callable[[int, int], None] | None,
    ) -> None:
        self._sink, self._out, self._device, self._board = sink, out, device, board
        self._stored = stored
        self._lock = threading.Lock()
        self._left: dict[tuple[int, int], int] = {}
        self._ended: set[tuple[int, int]] = set()
        self._futures: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(threads, "gemmule-drain")
        self._ring: Ring | None = None
        if out is None:
            # A buffer holds whole lines of the blocks that the store writes as a whole.
            least = sink.grain[0] * max(sink.shape[1], 1) * sink.dtype.itemsize
            size = max(min(RING_BYTES, pinned // 4), 4096, least)
            self._ring = Ring(device, max(pinned // size, 1), size)
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
                # Nobody asks when: who waits for the stream in the end waits for it.
                self._count(op.nbytes)
                with self._lock:
                    self._left[op.tile] -= 1
                    self.tiles += op.final
                return start, end
            self._submit(self._arrived, op, end)
        else:
            assert self._ring is not None
            for rows in self._heights(op):
                buffer = self._ring.take()
                start = start or self._device.record(stream)
                array = view(buffer, self._sink.dtype, rows, op.cols, "C")
                within = slice(rows[0] - op.rows[0], rows[1] - op.rows[0])
                self._device.copy_out(stream, array, source.part(within, slice(0, source.cols)))
                end = self._device.record(stream)
                with self._lock:
                    self._left[op.tile] += 1
                self._submit(self._write, op, end, rows, buffer, array)
        with self._lock:
            if op.final:
                self._ended.add(op.tile)
        self._over(op.tile)
        return start, end

    def _heights(self, op: Store) -> list[Part]:
        """Cut a part of a tile into what a buffer holds, in whole blocks of the store."""
        assert self._ring is not None
        line = (op.cols[1] - op.cols[0]) * self._sink.dtype.itemsize
        grain = self._sink.grain[0]
        height = max(self._ring.nbytes // max(line, 1) // grain * grain, grain)
        return [(top, min(top + height, op.rows[1])) for top in range(op.rows[0], op.rows[1], height)]

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            if self._board.failed:
                return
            try:
                work(*arguments)
            except BaseException as error:
                self._board.fail(error)

        with self._lock:
            self._futures = [future for future in self._futures if not future.done()]
            self._futures.append(self._pool.submit(guarded))

    # What follows runs in the threads that write.

    def _arrived(self, op: Store, end: Any) -> None:
        self._device.synchronize(end)
        self._count(op.nbytes)
        self._over(op.tile)

    def _write(self, op: Store, end: Any, rows: Part, buffer: Array, array: Array) -> None:
        assert self._ring is not None
        self._device.synchronize(end)
        written = self._sink.write(rows[0], op.cols[0], array)
        self._ring.give(buffer)
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
        if self._ring is not None:
            self._ring.stop()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._pool.shutdown()
