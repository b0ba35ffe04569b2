"""Host memory between matrices and a device: a fixed ring of pinned buffers, filled and emptied by several threads."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from ...core.streams import DeviceStreams
from ..matrix import AnyDType, Array

Part = tuple[int, int]


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
    """Pinned buffers that are given out in turn.

    Parameters
    ----------
    device : DeviceStreams
        What copies from and to them.
    count, nbytes : int
        Number of buffers, and size of each.
    """

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


@dataclasses.dataclass(frozen=True)
class _Wanted:
    future: Future[Filled]
    read: Read
    dtype: AnyDType
    rows: Part
    cols: Part
    order: str


@dataclasses.dataclass(frozen=True)
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


class Filler:
    """Reads pieces of matrices into a ring ahead of their use, in the order in which they are asked for.

    Parameters
    ----------
    ring : Ring
        Where they go.
    threads : int
        Threads that read.
    """

    def __init__(self, ring: Ring, threads: int) -> None:
        self._ring = ring
        self._waiting: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"gemmule-fill-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, read: Read, dtype: AnyDType, rows: Part, cols: Part, order: str) -> list[Future[Filled]]:
        """Start reading a piece; return its parts in order. Who uses a part gives its buffer back."""
        futures = []
        for part in chunks(rows, cols, dtype.itemsize, order, self._ring.nbytes):
            future: Future[Filled] = Future()
            self._waiting.put(_Wanted(future, read, dtype, *part, order))
            futures.append(future)
        return futures

    def _work(self) -> None:
        while True:
            # Buffers are taken in the order of the parts: a later part that held the last one would wait for ever.
            with self._turn:
                wanted = self._waiting.get()
                if wanted is None:
                    self._waiting.put(None)
                    return
                try:
                    buffer = self._ring.take()
                except BaseException as error:
                    wanted.future.set_exception(error)
                    continue
            try:
                array = view(buffer, wanted.dtype, wanted.rows, wanted.cols, wanted.order)
                read = wanted.read(slice(*wanted.rows), slice(*wanted.cols), array)
                wanted.future.set_result(Filled(wanted.rows, wanted.cols, buffer, array, read))
            except BaseException as error:
                wanted.future.set_exception(error)

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
