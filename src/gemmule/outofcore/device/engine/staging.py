"""Host memory between matrices and a device: a fixed ring of pinned buffers, filled and emptied by several threads."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from gemmule.core.dataclass import dataclass

from ....executor.streams import DeviceStreams
from ...stores.matrix import AnyDType, Array

Part = tuple[int, int]

#: Bytes that one thread reads into a buffer, or writes from it: several share one, since handing a buffer over takes as
#: long as copying some MiB.
SHARE = 4 << 20


def chunks(rows: Part, cols: Part, itemsize: int, order: str, limit: int) -> Iterator[tuple[Part, Part]]:
    """Yield the parts of a piece of a matrix that fit into `limit` bytes each, long lines first."""
    lines, along = (rows, cols) if order == "C" else (cols, rows)
    length = max(min(along[1] - along[0], limit // itemsize), 1)
    height = max(limit // (length * itemsize), 1)
    for top in range(lines[0], lines[1], height):
        for left in range(along[0], along[1], length):
            line_part = (top, min(top + height, lines[1]))
            along_part = (left, min(left + length, along[1]))
            yield (line_part, along_part) if order == "C" else (along_part, line_part)


class Ring:
    """Pinned buffers of `nbytes` each that are given out in turn."""

    def __init__(self, device: DeviceStreams, count: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._device = device
        self._memory = device.pinned(count * nbytes)
        self._free: deque[tuple[Array, object]] = deque(
            (self._memory[n * nbytes : (n + 1) * nbytes], None) for n in range(count)
        )
        self._changed = threading.Condition()
        self._broken = False

    def take(self) -> Array:
        """Return a buffer once there is a free one and nothing copies from it any more."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free) or self._broken)
            if not self._free or self._broken:
                raise StoppedError
            buffer, event = self._free.popleft()
        if event is not None:
            self._device.synchronize(event)
        return buffer

    def give(self, buffer: Array, event: object = None) -> None:
        """Give a buffer back; it is free when the event has happened."""
        with self._changed:
            self._free.append((buffer, event))
            self._changed.notify()

    def stop(self) -> None:
        """Let everybody who waits for a buffer give up."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class StoppedError(Exception):
    """Something else went wrong first."""


Read = Callable[[slice, slice, Array], int]


@dataclass(frozen=True)
class _Wanted:
    future: Future[Filled]
    read: Read
    dtype: AnyDType
    rows: Part
    cols: Part
    order: str
    shared: bool


@dataclass(frozen=True)
class Filled:
    """A part of a matrix in a pinned buffer."""

    rows: Part
    cols: Part
    buffer: Array
    array: Array
    read: int


def view(buffer: Array, dtype: AnyDType, rows: Part, cols: Part, order: str) -> Array:
    """Return the start of a buffer as a compact matrix of that shape."""
    shape = rows[1] - rows[0], cols[1] - cols[0]
    typed = buffer[: shape[0] * shape[1] * dtype.itemsize].view(dtype)
    return typed.reshape(shape, order="F" if order == "F" else "C")


class _Filling:
    """A buffer that several threads fill."""

    def __init__(self, wanted: _Wanted, buffer: Array) -> None:
        self.wanted, self.buffer = wanted, buffer
        self.array = view(buffer, wanted.dtype, wanted.rows, wanted.cols, wanted.order)
        rows, cols, size = wanted.rows, wanted.cols, wanted.dtype.itemsize
        limit = SHARE if wanted.shared else self.buffer.nbytes
        self.shares = deque(chunks(rows, cols, size, wanted.order, limit))
        self._lock = threading.Lock()
        self._left, self._read = len(self.shares), 0

    def fill(self, rows: Part, cols: Part) -> None:
        """Read one share; the last one marks the buffer full."""
        wanted, future = self.wanted, self.wanted.future
        (top, _), (left, _) = wanted.rows, wanted.cols
        part = self.array[rows[0] - top : rows[1] - top, cols[0] - left : cols[1] - left]
        try:
            read = wanted.read(slice(*rows), slice(*cols), part)
        except BaseException as error:
            with self._lock:
                if not future.done():
                    future.set_exception(error)
            return
        with self._lock:
            self._read += read
            self._left -= 1
            if not self._left and not future.done():
                future.set_result(Filled(wanted.rows, wanted.cols, self.buffer, self.array, self._read))


class Filler:
    """Prefetches pieces of matrices into a ring, in the order of the requests."""

    def __init__(self, ring: Ring, threads: int, device: DeviceStreams) -> None:
        self._ring, self._device = ring, device
        self._waiting: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._filling: _Filling | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"gemmule-fill-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ask(
        self, read: Read, dtype: AnyDType, rows: Part, cols: Part, order: str, *, shared: bool = True
    ) -> list[Future[Filled]]:
        """Start reading a piece; return its parts in order. Who uses a part gives its buffer back.

        `shared` lets several threads fill one buffer: not for matrices whose blocks would be read more than once.
        """
        futures = []
        for part in chunks(rows, cols, dtype.itemsize, order, self._ring.nbytes):
            future: Future[Filled] = Future()
            self._waiting.put(_Wanted(future, read, dtype, *part, order, shared))
            futures.append(future)
        return futures

    def _work(self) -> None:
        with self._device.used():
            while (share := self._next()) is not None:
                filling, rows, cols = share
                filling.fill(rows, cols)

    def _next(self) -> tuple[_Filling, Part, Part] | None:
        """Return the next read, None at the end."""
        # Buffers are taken in the order of the parts: a later part that held the last one would wait for ever.
        with self._turn:
            while self._filling is None or not self._filling.shares:
                wanted = self._waiting.get()
                if wanted is None:
                    self._waiting.put(None)
                    return None
                try:
                    self._filling = _Filling(wanted, self._ring.take())
                except BaseException as error:
                    wanted.future.set_exception(error)
            rows, cols = self._filling.shares.popleft()
            return self._filling, rows, cols

    def stop(self) -> None:
        """Give up what waits, and wait for what reads."""
        self._ring.stop()
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()


def compact_lines(array: Array, order: str) -> bool:
    """Whether a host array has lines of that order, as a copy of lines takes them."""
    if not array.dtype.isnative or array.ndim != 2:
        return False
    lines, along = array.strides if order == "C" else array.strides[::-1]
    shape = array.shape if order == "C" else array.shape[::-1]
    return bool(along == array.itemsize or shape[1] <= 1) and bool(lines >= shape[1] * array.itemsize or shape[0] <= 1)
