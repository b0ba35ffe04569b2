"""Threads that copy the pieces of arrays together with the caller's thread.

To wake one takes as long as to copy a few hundred KiB, by one queue of all; an executor of `concurrent.futures`, with a
future for each, takes several times as long.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .device import current

_Piece = TypeVar("_Piece")


#: Seconds between two looks at whether threads have ended what an interrupted call began.
_LOOK_S = 1e-4


class _Work(Generic[_Piece]):
    """Pieces that threads take one by one; the thread that completes the last one sets the event."""

    def __init__(self, copy: Callable[[_Piece], None], pieces: Sequence[_Piece]) -> None:
        self._copy, self._left = copy, iter(pieces)
        self._count, self._done = len(pieces), itertools.count(1)
        self._ended, self._inside = threading.Lock(), list[None]()
        self._ended.acquire()
        self._error: BaseException | None = None

    def copy_rest(self) -> None:
        """Copy what nobody has begun with."""
        for piece in self._left:
            try:
                self._copy(piece)
            except BaseException as error:
                self._error = self._error or error
            if next(self._done) == self._count:
                self._ended.release()

    def help(self) -> None:
        """Copy in a thread of its own, which no interrupt reaches."""
        self._inside.append(None)
        self.copy_rest()
        self._inside.pop()

    def wait(self) -> None:
        """Wait for the last piece; raise what a copy has raised."""
        self._ended.acquire()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Leave out what nobody has begun with, and wait for the threads that copy."""
        # The interrupted thread may have taken a piece that it never counts.
        for _ in self._left:
            pass
        while self._inside:
            time.sleep(_LOOK_S)


class CopyThreads:
    """Threads that wait for pieces.

    Parameters
    ----------
    ordinal : int
        The GPU whose context is current in them.
    number : int
        Number of threads besides the caller's.
    """

    def __init__(self, ordinal: int, number: int) -> None:
        self._ordinal = ordinal
        self._waiting: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._help, name=f"gemmule-copy-{place}", daemon=True) for place in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, copy: Callable[[_Piece], None], pieces: Sequence[_Piece]) -> None:
        """Call a function with each piece, in the order in which threads become free; in the caller's if it is one."""
        helpers = min(len(self._threads), len(pieces) - 1)
        if helpers < 1:
            for piece in pieces:
                copy(piece)
            return
        work = _Work(copy, pieces)
        try:
            for _ in range(helpers):
                self._waiting.put(work)
            work.copy_rest()
            work.wait()
        except BaseException:
            # Copies that go on would meet those of the next call.
            while not _uninterrupted(work.abandon):
                pass
            raise

    def _help(self) -> None:
        with current(self._ordinal):
            while (work := self._waiting.get()) is not None:
                work.help()
                # The exception of a copy references the caller's arrays.
                del work

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()


def _uninterrupted(wait: Callable[[], None]) -> bool:
    """Call a function, and return whether no interrupt ended it."""
    try:
        wait()
    except KeyboardInterrupt:
        return False
    return True
