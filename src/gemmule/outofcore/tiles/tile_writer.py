"""Writes finished tiles while the next ones are computed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future

import numpy as np

from ..stores.matrix import Array, MatrixSink


class TileWriter:
    """Output tiles on their way into a sink."""

    def __init__(self, sink: MatrixSink, buffers: int, elements: int, thread: Executor) -> None:
        self._sink = sink
        self._free = deque(np.empty(elements, sink.dtype) for _ in range(buffers))
        self._pending: deque[tuple[Future[None], Array]] = deque()
        self._thread = thread
        self.bytes_written = 0

    def take(self, m: int, n: int) -> tuple[Array, Array]:
        """Return a free buffer and the (m, n) tile in it, when there is one; raise what writing has raised."""
        if not self._free:
            self._wait()
        buffer = self._free.popleft()
        return buffer, buffer[: m * n].reshape(m, n)

    def put(self, row: int, col: int, buffer: Array, tile: Array) -> None:
        """Write `tile`, held in `buffer`, to (row, col) as soon as possible."""
        self._pending.append((self._thread.submit(self._write, row, col, tile), buffer))

    def finish(self) -> None:
        """Return when everything is stored."""
        while self._pending:
            self._wait()
        self._sink.flush()

    def _wait(self) -> None:
        future, buffer = self._pending.popleft()
        future.result()
        self._free.append(buffer)

    def _write(self, row: int, col: int, tile: Array) -> None:
        self.bytes_written += self._sink.write(row, col, tile)
