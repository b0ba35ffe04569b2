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
import mmap
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeAlias

import numpy as np

from gemmule.core.cpus import usable_cpus

from .device import current
from .driver import call, driver
from .memory import DeviceBuffer, is_pinned, usable_memory

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of pinned memory that stay allocated for each GPU, and of a chunk that one thread copies at a time.
PINNED_BYTES, CHUNK_BYTES = 64 << 20, 4 << 20
#: Bytes of a piece at least, of arrays that are copied by several threads.
LEAST_PIECE_BYTES = 256 << 10
#: Bytes of an array from which it is staged here, and not by the driver, where no rates say so: there, and back.
STAGED_FROM = 64 << 20, 64 << 20
#: Bytes of device memory that stay allocated at most for each GPU; products that need more allocate it at each call.
KEPT_BYTES = 256 << 20
#: Threads that copy at most: a few reach the memory's bandwidth.
MOST_THREADS = 8
#: Bytes of a result from which its pages are made while the factors cross the link.
PAGES_FROM = 32 << 20
#: Linux's advice to make pages writable, as if each were written, since 5.14.
_POPULATE_WRITE = 23
_GRAIN = 2 << 20


def copy_threads() -> int:
    """Return how many threads copy; 0 leaves it to the caller's own."""
    usable = usable_cpus()
    return min(usable, MOST_THREADS) if usable > 2 else 0


def populate(x: Array) -> None:
    """Let the system make the pages of a contiguous array at once; nothing is changed, or done where it cannot."""
    if sys.platform == "linux":
        begin, end = x.ctypes.data & -mmap.PAGESIZE, (x.ctypes.data + x.nbytes) & -mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(end - begin, 0)), _POPULATE_WRITE)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


#: A chunk, where a piece of an array begins in C order, and the piece.
_Piece: TypeAlias = "tuple[_Chunk, int, Array]"


class _Chunk:
    """A piece of pinned memory, `queued` while a copy of the GPU's may use it; one thread at a time has it."""

    __slots__ = ("address", "event", "memory", "queued")

    def __init__(self, memory: Array, event: Any) -> None:
        self.memory, self.address, self.event = memory, int(memory.ctypes.data), event
        self.queued = False

    def fill(self, piece: Array) -> None:
        np.copyto(self._like(piece), piece)

    def empty(self, piece: Array) -> None:
        np.copyto(piece, self._like(piece))

    def _like(self, piece: Array) -> Array:
        memory = self.memory[: piece.nbytes]
        return memory if piece.ndim == 1 else memory.view(piece.dtype.newbyteorder("=")).reshape(piece.shape)

    def record(self, stream: int) -> None:
        """Mark the copy that was queued last as the one that uses it."""
        call("cuEventRecord", self.event, stream)
        self.queued = True

    def wait(self) -> None:
        """Wait until no copy uses it."""
        if self.queued:
            call("cuEventSynchronize", self.event)
            self.queued = False


class Staging:
    """Pinned chunks, used in turn, and the threads that fill and empty them, the caller's among them.

    A thread queues the copy of what it has filled by itself: threads that hand over to each other wait for Python's
    lock. The pieces of an array go through half of the chunks at a time, while the link empties the other half.

    Parameters
    ----------
    nbytes, chunk : int
        Bytes in all, and of a chunk.
    threads : int, optional
        Threads that copy, `copy_threads` by default; 0 leaves it to the caller's own.
    """

    def __init__(
        self, ordinal: int, *, nbytes: int = PINNED_BYTES, chunk: int = CHUNK_BYTES, threads: int | None = None
    ) -> None:
        self.chunk, self._ordinal = chunk, ordinal
        self._threads = copy_threads() if threads is None else threads
        self._pool = ThreadPoolExecutor(self._threads - 1, "gemmule-copy") if self._threads > 1 else None
        self._used = 0
        with current(ordinal):
            self._address = int(call("cuMemAllocHost", nbytes))
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._address))
            untimed = int(driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self._chunks = [
                _Chunk(memory[begin : begin + chunk], call("cuEventCreate", untimed))
                for begin in range(0, nbytes - chunk + 1, chunk)
            ]
        self._half = max(len(self._chunks) // 2, 1)

    def close(self) -> None:
        """Give memory and threads back."""
        if self._pool is not None:
            self._pool.shutdown()
        with current(self._ordinal):
            for chunk in self._chunks:
                chunk.wait()
                call("cuEventDestroy", chunk.event)
            call("cuMemFreeHost", self._address)

    def send(self, source: Array, address: int, stream: int) -> None:
        """Queue the copy of an array to device memory, where it lies in C order; it has been read on return."""
        for part in self._parts(source):

            def fill(work: _Piece) -> None:
                chunk, offset, piece = work
                chunk.wait()
                chunk.fill(piece)
                call("cuMemcpyHtoDAsync", address + offset, chunk.address, piece.nbytes, stream)
                chunk.record(stream)

            self._run(fill, part)

    def receive(self, address: int, target: Array, stream: int) -> None:
        """Copy device memory into an array, whose elements lie there in C order; wait until it is complete."""

        def queue(part: Sequence[_Piece]) -> None:
            for chunk, offset, piece in part:
                chunk.wait()
                call("cuMemcpyDtoHAsync", chunk.address, address + offset, piece.nbytes, stream)
                chunk.record(stream)

        def empty(work: _Piece) -> None:
            chunk, _, piece = work
            chunk.wait()
            chunk.empty(piece)

        coming: Sequence[_Piece] = ()
        for part in self._parts(target):
            queue(part)
            self._run(empty, coming)
            coming = part
        self._run(empty, coming)

    def _parts(self, x: Array) -> Iterator[Sequence[_Piece]]:
        """Yield the pieces of an array with the chunks that they go through, of half of the chunks at a time."""
        size = min(max(x.nbytes // max(2 * self._threads, 1), LEAST_PIECE_BYTES), self.chunk)
        pieces = _pieces(x, size)
        for begin in range(0, len(pieces), self._half):
            part = pieces[begin : begin + self._half]
            yield [(self._next(), offset, piece) for offset, piece in part]

    def _next(self) -> _Chunk:
        chunk = self._chunks[self._used % len(self._chunks)]
        self._used += 1
        return chunk

    def _run(self, copy: Callable[[_Piece], None], part: Sequence[_Piece]) -> None:
        """Call a function with each piece, in the order in which threads become free."""
        left = iter(part)
        if self._pool is None or len(part) <= 1:
            for piece in left:
                copy(piece)
            return

        def work() -> None:
            with current(self._ordinal):
                for piece in left:
                    copy(piece)

        helpers = [self._pool.submit(work) for _ in range(min(self._threads, len(part)) - 1)]
        try:
            work()
        finally:
            # One that has not begun yet finds nothing to do.
            begun = [helper for helper in helpers if not helper.cancel()]
            wait(begun)
        for helper in begun:
            helper.result()


def in_pieces(x: Array) -> bool:
    """Whether an array is copied in its own order piece by piece, so that it needs no contiguous copy first."""
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
        Bytes of an array from which it is staged here, and not by the driver: there, and back.
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
    def _page_maker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "gemmule-pages")

    def expect(self, target: Array) -> None:
        """Let a thread make the pages of an array that will be received, if it is large."""
        if target.nbytes >= PAGES_FROM and target.flags.c_contiguous and copy_threads():
            self._page_maker.submit(populate, target)

    def send(self, source: Array, address: int, staging: Staging | None = None) -> None:
        """Queue the copy of a host array to device memory, where it lies in C order.

        It may be changed once the stream has come so far.
        """
        if not source.nbytes:
            return
        if not in_pieces(source):
            source = np.ascontiguousarray(source, source.dtype.newbyteorder("="))
            # The driver may read pageable memory later, where the GPU reaches it by itself.
            self._read.append(source)
        whole = source.flags.c_contiguous and source.dtype.isnative
        if whole and staging is None and (source.nbytes < self.staged_from[0] or is_pinned(source)):
            call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self.stream)
        else:
            (staging or self._staging).send(source, address, self.stream)

    def receive(self, address: int, target: Array, staging: Staging | None = None) -> None:
        """Copy device memory, elements in C order, into a host array, and wait for it."""
        self._receive(address, target, staging)
        self._read.clear()

    def _receive(self, address: int, target: Array, staging: Staging | None) -> None:
        if not target.nbytes:
            call("cuStreamSynchronize", self.stream)
            return
        into = target if in_pieces(target) else np.empty(target.shape, target.dtype.newbyteorder("="))
        whole = into.flags.c_contiguous and into.dtype.isnative
        if whole and staging is None and (into.nbytes < self.staged_from[1] or is_pinned(into)):
            call("cuMemcpyDtoHAsync", into.ctypes.data, address, into.nbytes, self.stream)
            call("cuStreamSynchronize", self.stream)
        else:
            (staging or self._staging).receive(address, into, self.stream)
        if into is not target:
            target[...] = into

    def has_room(self, nbytes: int) -> bool:
        """Whether there is device memory of so many bytes."""
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
