"""A thread for each stream: it takes operations in order and queues them on the device."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ....executor.streams import DeviceStreams
from ..planner.operation import Op
from .event_table import EventTable

#: Queued operations of a thread, whose data are prefetched.
AHEAD = 8

T = TypeVar("T")


class Lane(Generic[T]):
    """One stream and the thread that feeds it, or none where nothing on the host is waited for.

    Parameters
    ----------
    name : str
        Name of the stream.
    event_table : EventTable
        Operations queued so far.
    run : callable
        ``run(stream, op, prepared)`` queues an operation and returns the event before it, and the one after it.
    done : callable
        Told of every operation with its two events.
    threaded : bool
        Whether it has a thread of its own; else operations are queued by who adds them.
    rank : int
        Whether its kernels come before those that other streams have queued, 1, or after them, -1.
    """

    def __init__(
        self,
        name: str,
        device: DeviceStreams,
        event_table: EventTable,
        run: Callable[[Any, Op, T], tuple[Any, Any]],
        done: Callable[[Op, Any, Any], None],
        *,
        threaded: bool = True,
        rank: int = 0,
    ) -> None:
        self.stream = device.stream(rank=rank)
        self._device, self._event_table, self._run, self._done = device, event_table, run, done
        self._waiting: queue.Queue[tuple[Op, T] | None] = queue.Queue(AHEAD)
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._work, name=f"gemmule-{name}", daemon=True)
            self._thread.start()

    def put(self, op: Op, prepared: T) -> None:
        """Add an operation; wait while there are many."""
        if self._thread is None:
            self._queue(op, prepared)
        else:
            self._waiting.put((op, prepared))

    def _queue(self, op: Op, prepared: T) -> None:
        for number in op.after:
            self._device.wait(self.stream, self._event_table.event(number))
        start, end = self._run(self.stream, op, prepared)
        self._event_table.post(op.number, end)
        self._done(op, start, end)

    def _work(self) -> None:
        with self._device.used():
            while (item := self._waiting.get()) is not None:
                if self._event_table.failed:
                    # Queued operations are dropped.
                    continue
                try:
                    self._queue(*item)
                except BaseException as error:
                    self._event_table.fail(error)

    def finish(self) -> None:
        """Wait until everything is queued; again, where that was interrupted."""
        if self._thread is not None and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
