"""The way of host arrays to a GPU and back: pinned memory for staging and device memory that stay between calls.

An array of the caller's is pageable. The driver stages such a copy by one thread, which suits small arrays. For large
ones several threads fill pinned chunks, each of which crosses the link while the next ones are filled. The result comes
back the same way, and the pages of its new memory, which the system clears at first touch, are touched by several
threads; those of large results by one more meanwhile, since threads wait for each other where BLAS's own threads spin.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from gemmule.core.cpus import usable_cpus

from .copy_threads import CopyThreads
from .device import current
from .driver import call, driver
from .memory import DeviceBuffer, is_pinned, usable_memory

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of pinned memory that stay allocated for each GPU, and of a piece that one thread copies at a time.
PINNED_BYTES, CHUNK_BYTES = 64 << 20, 2 << 20
#: Bytes that are worth another thread.
LEAST_PIECE_BYTES = 1 << 20
_ALIGNMENT = 64
#: Bytes of a call from which arrays are staged here, and not by the driver, where no rates say so: there, and back.
STAGED_FROM = 64 << 20, 64 << 20
#: Bytes of device memory that stay allocated at most for each GPU; products that need more allocate it at each call.
KEPT_BYTES = 256 << 20
#: Threads that copy at most: a few reach the memory's bandwidth.
MOST_THREADS = 8
#: Bytes of a result from which its pages are pre-faulted while the factors cross the link.
PAGES_FROM = 32 << 20
#: Linux's advice to make pages writable, as if each were written, since 5.14.
_POPULATE_WRITE = 23
_GRAIN = 2 << 20


def copy_threads() -> int:
    """Return how many threads copy; 0 leaves it to the caller's own."""
    usable = usable_cpus()
    return min(usable, MOST_THREADS) if usable > 2 else 0


def populate(x: Array) -> None:
    """Pre-fault the pages of a contiguous array at once; no element changes, and nothing is done where Linux cannot."""
    if sys.platform == "linux":
        begin, end = x.ctypes.data & -mmap.PAGESIZE, (x.ctypes.data + x.nbytes) & -mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(end - begin, 0)), _POPULATE_WRITE)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


#: A host array, and the device address of its elements in C order.
Copy: TypeAlias = tuple[Array, int]
#: Offset of a piece of an array in pinned memory, its device address, and the piece.
_Piece: TypeAlias = tuple[int, int, Array]


class _Half:
    """Half of the pinned memory, and events: of all copies that use it, and of each piece that comes back."""

    __slots__ = ("_address", "_copied", "_is_recorded", "_memory", "_stream", "received")

    def __init__(self, memory: Array, pieces: int) -> None:
        untimed = int(driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._memory, self._address = memory, int(memory.ctypes.data)
        self._stream: int | None = None
        self._is_recorded = False
        self._copied, *self.received = (call("cuEventCreate", untimed) for _ in range(1 + pieces))

    def wait(self) -> None:
        """Wait until no copy uses it."""
        if self._stream is not None:
            if self._is_recorded:
                call("cuEventSynchronize", self._copied)
            else:
                call("cuStreamSynchronize", self._stream)
            self._stream = None

    def use(self, stream: int) -> None:
        """Let `wait` wait for the stream: of copies that an interrupt leaves behind there is no event."""
        self._is_recorded, self._stream = False, stream

    def record(self) -> None:
        """Let `wait` wait for the copies that were queued so far."""
        call("cuEventRecord", self._copied, self._stream)
        self._is_recorded = True

    def close(self) -> None:
        self.wait()
        for event in (self._copied, *self.received):
            call("cuEventDestroy", event)

    def at(self, begin: int, piece: Array) -> tuple[int, Array]:
        """Return the address of the memory of a piece, and that memory in its shape."""
        memory = self._memory[begin : begin + piece.nbytes]
        if piece.ndim > 1:
            memory = memory.view(piece.dtype.newbyteorder("=")).reshape(piece.shape)
        return self._address + begin, memory


class Staging:
    """Pinned memory, and the threads that fill and empty it, the caller's among them.

    A thread queues the copy of what it has filled by itself: threads that hand over to each other wait for Python's
    lock. The link empties one half of the memory while the other is filled; every call begins with the first, of which
    the CPU's caches have the most. All copies are of one stream.

    Parameters
    ----------
    nbytes, chunk : int
        Bytes in all, and of a piece at most, which fits into half of them.
    threads : int, optional
        Threads that copy, `copy_threads` by default; 0 leaves it to the caller's own.
    """

    def __init__(
        self, ordinal: int, *, nbytes: int = PINNED_BYTES, chunk: int = CHUNK_BYTES, threads: int | None = None
    ) -> None:
        self._chunk, self._half_bytes, self._ordinal = chunk, nbytes // 2, ordinal
        self._number = max(copy_threads() if threads is None else threads, 1)
        with current(ordinal):
            self._address = int(call("cuMemAllocHost", nbytes))
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._address))
            self._most_pieces = -(-self._half_bytes // min(chunk, LEAST_PIECE_BYTES))
            halves = memory[: 2 * self._half_bytes].reshape(2, -1)
            self._halves = [_Half(half, self._most_pieces) for half in halves]
        # After all that can fail: each failed call would leave threads behind.
        self._threads = CopyThreads(ordinal, self._number - 1)

    def close(self) -> None:
        """Give memory and threads back."""
        self._threads.close()
        with current(self._ordinal):
            for half in self._halves:
                half.close()
            call("cuMemFreeHost", self._address)

    def send(self, copies: Sequence[Copy], stream: int) -> None:
        """Queue copies of arrays to device memory, in C order; the arrays have been read on return."""
        for half, part in self._parts(copies):

            def fill(work: _Piece, half: _Half = half) -> None:
                begin, address, piece = work
                pinned, memory = half.at(begin, piece)
                np.copyto(memory, piece)
                call("cuMemcpyHtoDAsync", address, pinned, piece.nbytes, stream)

            half.wait()
            half.use(stream)
            self._threads.run(fill, part)
            half.record()

    def receive(self, target: Array, address: int, stream: int) -> None:
        """Copy device memory, elements in C order, into an array; wait for completion."""

        def empty(work: tuple[Any, Array, Array]) -> None:
            event, memory, piece = work
            call("cuEventSynchronize", event)
            np.copyto(piece, memory)

        coming: list[tuple[Any, Array, Array]] = []
        for half, part in self._parts([(target, address)]):
            queued = []
            half.use(stream)
            for event, (begin, source, piece) in zip(half.received[: len(part)], part, strict=True):
                pinned, memory = half.at(begin, piece)
                call("cuMemcpyDtoHAsync", pinned, source, piece.nbytes, stream)
                call("cuEventRecord", event, stream)
                queued.append((event, memory, piece))
            half.record()
            self._threads.run(empty, coming)
            coming = queued
        self._threads.run(empty, coming)

    def _parts(self, copies: Sequence[Copy]) -> Iterator[tuple[_Half, list[_Piece]]]:
        """Yield the pieces of arrays, of one half of the memory and then of the other, and so on."""
        nbytes = sum(x.nbytes for x, _ in copies)
        size = min(max(-(-nbytes // self._number), LEAST_PIECE_BYTES), self._chunk)
        halves, part, begin = itertools.cycle(self._halves), list[_Piece](), 0
        for x, address in copies:
            for offset, piece in _pieces(x, size):
                if begin + piece.nbytes > self._half_bytes or len(part) == self._most_pieces:
                    yield next(halves), part
                    part, begin = [], 0
                part.append((begin, address + offset, piece))
                # Elements of any type begin there.
                begin += -(-piece.nbytes // _ALIGNMENT) * _ALIGNMENT
        yield next(halves), part


def in_pieces(x: Array) -> bool:
    """Return whether an array is copied piece by piece in its own order, without a contiguous copy first."""
    return (x.flags.c_contiguous and x.dtype.isnative) or (x.ndim == 2 and x.shape[1] * x.itemsize <= CHUNK_BYTES)


def _pieces(x: Array, most: int) -> Sequence[tuple[int, Array]]:
    """Return the parts of an array, of at most so many bytes, and where each begins in C order."""
    if x.flags.c_contiguous and x.dtype.isnative:
        flat = x.reshape(-1).view(np.uint8)
        return [(begin, flat[begin : begin + most]) for begin in range(0, flat.size, most)]
    width = x.shape[1] * x.itemsize
    rows = max(most // max(width, 1), 1)
    return [(begin * width, x[begin : begin + rows]) for begin in range(0, x.shape[0], rows)]


class Link:
    """A GPU with a stream, and with memory for host arrays that pass through it; one product at a time.

    Attributes
    ----------
    stream : int
        The driver's handle of the stream.
    lock : threading.Lock
        Held by who uses it.
    staged_from : tuple of int
        Bytes of a call from which arrays are staged here, and not by the driver: there, and back.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.lock = ordinal, threading.Lock()
        self.staged_from: tuple[float, float] = STAGED_FROM
        with current(ordinal):
            self.stream = int(call("cuStreamCreate", int(driver().CUstream_flags.CU_STREAM_NON_BLOCKING)))
        self._kept: DeviceBuffer | None = None
        # Contiguous copies that the stream may still read.
        self._read: list[Array] = []

    @functools.cached_property
    def _staging(self) -> Staging:
        return Staging(self.ordinal)

    @functools.cached_property
    def _prefaulting(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "gemmule-prefault")

    def prefault(self, target: Array) -> None:
        """Let a thread pre-fault the pages of an array that will be received, if it is large."""
        if target.nbytes >= PAGES_FROM and target.flags.c_contiguous and copy_threads():
            self._prefaulting.submit(populate, target)

    def send(self, copies: Sequence[Copy], staging: Staging | None = None) -> None:
        """Queue copies of host arrays to device memory, in C order.

        They may be changed once the stream has come so far.
        """
        staged: list[Copy] = []
        nbytes = sum(x.nbytes for x, _ in copies)
        for x, address in copies:
            source = x
            if not in_pieces(source):
                source = np.ascontiguousarray(source, source.dtype.newbyteorder("="))
                # The driver may read pageable memory later, on systems where the GPU accesses it directly.
                self._read.append(source)
            if not source.nbytes:
                continue
            if staging is None and self._by_driver(source, nbytes < self.staged_from[0]):
                call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self.stream)
            else:
                staged.append((source, address))
        if staged:
            (staging or self._staging).send(staged, self.stream)

    def receive(self, target: Array, address: int, staging: Staging | None = None) -> None:
        """Copy device memory, elements in C order, into a host array, and wait for it."""
        into = target if in_pieces(target) else np.empty(target.shape, target.dtype.newbyteorder("="))
        if staging is None and self._by_driver(into, into.nbytes < self.staged_from[1]):
            if into.nbytes:
                call("cuMemcpyDtoHAsync", into.ctypes.data, address, into.nbytes, self.stream)
            call("cuStreamSynchronize", self.stream)
        else:
            (staging or self._staging).receive(into, address, self.stream)
        self._read.clear()
        if into is not target:
            target[...] = into

    @staticmethod
    def _by_driver(x: Array, small: bool) -> bool:
        """Return whether the driver copies an array, in one piece."""
        whole = x.flags.c_contiguous and x.dtype.isnative
        return not x.nbytes or (whole and (small or is_pinned(x)))

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes of device memory are free."""
        return (self._kept is not None and nbytes <= self._kept.nbytes) or nbytes <= usable_memory(self.ordinal)

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[int]:
        """Return a block with device memory of so many bytes; work on the stream may use it."""
        if nbytes > KEPT_BYTES:
            with DeviceBuffer(nbytes, self.ordinal, self.stream) as buffer:
                yield buffer.address
            return
        if self._kept is None or self._kept.nbytes < nbytes:
            if self._kept is not None:
                self._kept.free()
                self._kept = None
            self._kept = DeviceBuffer(max(-(-nbytes // _GRAIN), 1) * _GRAIN, self.ordinal, self.stream)
        yield self._kept.address


@functools.cache
def link_of(ordinal: int) -> Link:
    """Return the link to a GPU."""
    return Link(ordinal)
