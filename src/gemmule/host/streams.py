"""A device made of host memory and threads: what streams a product through a GPU runs on it too, without a GPU.

Each stream is a thread, device memory is memory of its own, poisoned, and a copy takes its source when it runs, not
when it is queued: forgotten waits show.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..executor.streams import Array, DeviceMatrix, DeviceProduct
from .gemm import gemm
from .tiles import HostTileExecutor

#: ``delay(kind, amount)`` are seconds to sleep before a copy_in or copy_out of so many bytes, a product of so many
#: FLOP, or a conversion or transpose of so many elements.
Delay = Callable[[str, int], float]


class _Stream:
    def __init__(self, number: int) -> None:
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"gemmule-stream-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (work := self.work.get()) is not None:
            try:
                work()
            except BaseException as error:
                self.error = self.error or error


class _Event:
    def __init__(self, stream: _Stream) -> None:
        self.stream = stream
        self.happened = threading.Event()
        self.time = 0.0


class HostStreams:
    """A device on the host; a `DeviceStreams`.

    Parameters
    ----------
    delay : callable, optional
        Delay of operations before they run, for tests.
    pinned_arrays : bool
        Copy the caller's arrays without staging.
    whole : tuple of int
        Extents m, n and k whose multiples are reported as fast.
    """

    name = "cpu"

    def __init__(
        self, delay: Delay | None = None, *, pinned_arrays: bool = True, whole: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        self._delay, self._pinned_arrays, self.whole = delay, pinned_arrays, whole
        self._streams: list[_Stream] = []
        self.allocated = 0
        #: Bytes that copies have moved, by direction.
        self.moved = {"copy_in": 0, "copy_out": 0}
        self._lock = threading.Lock()

    def __enter__(self) -> HostStreams:
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in self._streams:
            stream.work.put(None)
        for stream in self._streams:
            stream.thread.join()

    def describe(self) -> str:
        """Say which BLAS computes."""
        return HostTileExecutor().describe()

    def near(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that changes nothing."""
        return contextlib.nullcontext()

    used = near

    def allocate(self, nbytes: int) -> Array:
        """Return poisoned memory: as floats all NaN."""
        self.allocated += nbytes
        return np.full(nbytes, 0xFF, np.uint8)

    def pinned(self, nbytes: int) -> Array:
        return np.full(nbytes, 0xFF, np.uint8)

    def direct(self, array: Array) -> bool:
        """Return whether copies read the array itself; a mapped file is read page by page, at any size of copies."""
        return self._pinned_arrays and not isinstance(array, np.memmap)

    def stream(self, *, rank: int = 0) -> _Stream:  # noqa: ARG002 - threads do not wait for each other
        """Return a new thread."""
        self._streams.append(_Stream(len(self._streams)))
        return self._streams[-1]

    def copy_in(self, stream: _Stream, target: DeviceMatrix, source: Array) -> None:
        self._queue(stream, "copy_in", source.nbytes, lambda: np.copyto(array_of(target), source))

    def copy_out(self, stream: _Stream, target: Array, source: DeviceMatrix) -> None:
        self._queue(stream, "copy_out", target.nbytes, lambda: np.copyto(target, array_of(source)))

    def multiply(self, stream: _Stream, product: DeviceProduct) -> None:
        """Queue a product on the host's BLAS."""

        def work() -> None:
            a, b, d = (array_of(matrix) for matrix in (product.a, product.b, product.d))
            added = array_of(product.c) if product.c is not None else None
            gemm(a, b, d, alpha=product.alpha, beta=product.beta, c=added)
            if product.needed is not None:
                # Whoever looks at the rest shall see it.
                for row, line in enumerate(d):
                    line[product.needed.columns(row) :].view(np.uint8)[:] = 0xFF

        self._queue(stream, "multiply", 2 * product.d.rows * product.d.cols * product.a.cols, work)

    def prepare(self, stream: _Stream, product: DeviceProduct) -> None:
        """Do nothing: BLAS is ready."""

    def convert(self, stream: _Stream, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a rounding copy."""

        def work() -> None:
            array_of(target)[...] = array_of(source)

        self._queue(stream, "convert", target.rows * target.cols, work)

    def prepare_convert(self, stream: _Stream, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Do nothing: NumPy is ready."""

    def transpose(self, stream: _Stream, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a copy of the transpose."""

        def work() -> None:
            array_of(target)[...] = array_of(source).T

        self._queue(stream, "transpose", target.rows * target.cols, work)

    def prepare_transpose(self, stream: _Stream, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Do nothing: NumPy is ready."""

    def record(self, stream: _Stream) -> _Event:
        event = _Event(stream)

        def happen() -> None:
            event.time = time.perf_counter()
            event.happened.set()

        stream.work.put(happen)
        return event

    def wait(self, stream: _Stream, event: _Event) -> None:
        stream.work.put(lambda: self.synchronize(event))

    def synchronize(self, event: _Event) -> None:
        event.happened.wait()
        if event.stream.error is not None:
            raise event.stream.error

    def seconds(self, start: _Event, end: _Event) -> float:
        return end.time - start.time

    def _queue(self, stream: _Stream, kind: str, amount: int, work: Callable[[], Any]) -> None:
        def run() -> None:
            if stream.error is not None:
                return
            if self._delay is not None:
                time.sleep(self._delay(kind, amount))
            work()
            if kind in self.moved:
                with self._lock:
                    self.moved[kind] += amount

        stream.work.put(run)


def array_of(matrix: DeviceMatrix) -> Array:
    """Return a matrix in this device's memory as an array."""
    steps = (matrix.pitch, matrix.dtype.itemsize)
    strides = steps if matrix.order == "C" else steps[::-1]
    if not matrix.rows or not matrix.cols:
        return np.empty((matrix.rows, matrix.cols), matrix.dtype)
    return np.ndarray((matrix.rows, matrix.cols), matrix.dtype, matrix.buffer, matrix.offset, strides)
