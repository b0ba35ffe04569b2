"""Threads that copy the pieces of arrays together with the caller's thread.

To wake one takes as long as to copy a few hundred KiB, by one queue of all; an executor of `concurrent.futures`, with a
future for each, takes several times as long.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .device import current

_Piece = TypeVar("_Piece")


class _Work(Generic[_Piece]):
    """Pieces that threads take one by one; who ends the last one says so."""

    def __init__(self, copy: Callable[[_Piece], None], pieces: Sequence[_Piece]) -> None:
        self._copy, self._left = copy, iter(pieces)
        self._count, self._done = len(pieces), itertools.count(1)
        self._ended, self._is_complete = threading.Lock(), False
        self._ended.acquire()
        self._error: BaseException | None = None

    def help(self) -> None:
        """Copy what nobody has begun with."""
        for piece in self._left:
            try:
                self._copy(piece)
            except BaseException as error:
                self._error = self._error or error
            if next(self._done) == self._count:
                self._is_complete = True
                self._ended.release()

    def wait(self) -> None:
        """Wait for the last piece; raise what a copy has raised."""
        interrupt: KeyboardInterrupt | None = None
        while not self._is_complete:
            try:
                self._ended.acquire()
            except KeyboardInterrupt as error:
                # Copies that go on would meet those of the next call. It may be held already.
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if self._error is not None:
            raise self._error


class CopyThreads:
    """Threads that wait for pieces.

    Parameters
    ----------
    ordinal : int
        The GPU whose context is current in them.
    number : int
        How many there are besides the caller's.
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
        for _ in range(helpers):
            self._waiting.put(work)
        work.help()
        work.wait()

    def _help(self) -> None:
        with current(self._ordinal):
            while (work := self._waiting.get()) is not None:
                work.help()
                # What a copy has raised holds arrays of the caller's.
                del work

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
