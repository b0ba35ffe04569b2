"""The operations queued on the device, and the events of their completion."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .staging import StoppedError


class EventTable:
    """Events of operations by number. Threads post what they have queued, and wait for what others have."""

    def __init__(self) -> None:
        self._events: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        #: Called once when something fails, so that no thread waits for ever.
        self.stops: list[Callable[[], None]] = []

    def post(self, number: int, event: Any) -> None:
        """Tell that an operation was queued, and which event it ends with."""
        with self._changed:
            self._events[number] = event
            self._changed.notify_all()

    def event(self, number: int) -> Any:
        """Return the event of an operation once it was queued.

        Raises
        ------
        StoppedError
            If another thread has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: number in self._events or self._error is not None)
            if number not in self._events:
                raise StoppedError
            return self._events[number]

    def fail(self, error: BaseException) -> None:
        """Let every thread stop; the first error is the one that counts."""
        with self._changed:
            if self._error is None and not isinstance(error, StoppedError):
                self._error = error
            self._changed.notify_all()
        for stop in self.stops:
            stop()

    @property
    def failed(self) -> bool:
        """Whether a thread has failed."""
        return self._error is not None

    def check(self) -> None:
        """Raise the first error."""
        if self._error is not None:
            raise self._error
