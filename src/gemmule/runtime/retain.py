"""Keeping arrays alive until the work that was queued on them is done."""

from __future__ import annotations

import atexit
import collections
import functools
import threading
from collections.abc import Sequence
from typing import Any

from gemmule.core.errors import DriverError

from .device import current, primary_context
from .driver import call, driver

#: Seconds between two looks of the thread, and how much waits for a stream before its calls look themselves. A thread
#: that is woken takes Python's lock from the one that makes the calls, tens of microseconds each time.
PAUSE, MANY = 2e-3, 16
#: Events of a GPU that are kept for later.
MOST_EVENTS = 64

#: An event behind the work, and what is kept for it.
_Kept = tuple[Any, object]


def retain(kept: object, ordinal: int, stream: int) -> None:
    """Keep an object alive until the work queued on the stream so far is done; the caller does not wait.

    It is for memory whose owner does not know of that stream and would reuse it at once.

    Parameters
    ----------
    kept : object
        What owns the memory.
    ordinal : int
        The GPU.
    stream : int
        The driver's handle of the stream.
    """
    bindings = driver()
    status, capturing = bindings.cuStreamIsCapturing(stream)
    if status == bindings.CUresult.CUDA_SUCCESS:
        if capturing != bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            # Nothing runs yet: who replays the graph keeps its memory, as for all that is captured.
            return
        if _keeper().keep_by_known_event(kept, ordinal, stream):
            return
    # There is no event to take, or another context is current than the GPU's.
    with current(ordinal):
        if call("cuStreamIsCapturing", stream) != bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            return
        event = call("cuEventCreate", bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        call("cuEventRecord", event, stream)
    _keeper().keep(event, kept, ordinal, stream)


class _Place:
    """What waits for a stream, the oldest first, and whether a call was made there since the thread looked."""

    __slots__ = ("active", "waiting")

    def __init__(self) -> None:
        self.waiting: collections.deque[_Kept] = collections.deque()
        self.active = True


class Keeper:
    """What is kept, and a thread that lets go of it where no further call does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Events that can be recorded anew, by GPU; and what waits, by GPU and stream.
        self._events: collections.defaultdict[int, list[Any]] = collections.defaultdict(list)
        self._places: collections.defaultdict[tuple[int, int], _Place] = collections.defaultdict(_Place)
        self._wake, self._looking, self._ended = threading.Event(), False, False
        # The GPU whose context is the thread's.
        self._ordinal: int | None = None
        self._thread = threading.Thread(target=self._watch, name="gemmule-retain", daemon=True)
        self._thread.start()
        # A thread that comes back from the driver when Python is gone ends the process with an error.
        atexit.register(self.end)

    def end(self) -> None:
        """Look no more: the process ends, and with it the memory."""
        self._ended = True
        self._wake.set()
        self._thread.join()

    def keep_by_known_event(self, kept: object, ordinal: int, stream: int) -> bool:
        """Keep an object until the work queued on a stream is done, if there is an event that can be recorded now."""
        bindings = driver()
        done: _Kept | None = None
        with self._lock:
            place = self._places[ordinal, stream]
            free, waiting = self._events[ordinal], place.waiting
            if len(waiting) >= MANY and _has_come_in_any_thread(waiting[0][0]):
                done = waiting.popleft()
                event = done[0]
            elif free:
                event = free.pop()
            else:
                return False
            (status,) = bindings.cuEventRecord(event, stream)
            if status != bindings.CUresult.CUDA_SUCCESS:
                return False
            waiting.append((event, kept))
            place.active = True
        # Let go of outside of the lock: what happens then is its owner's affair.
        del done
        self._look_soon()
        return True

    def keep(self, event: Any, kept: object, ordinal: int, stream: int) -> None:
        """Keep an object until an event has come that was recorded on a stream."""
        with self._lock:
            place = self._places[ordinal, stream]
            place.waiting.append((event, kept))
            place.active = True
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking and not self._wake.is_set():
            self._wake.set()

    def _watch(self) -> None:
        # By default a question in one thread would break a stream capture that is under way in another.
        call("cuThreadExchangeStreamCaptureMode", driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        while not self._ended:
            self._wake.wait()
            self._looking = True
            self._wake.clear()
            while self._look():
                self._wake.wait(PAUSE)
            self._looking = False
            if self._places:
                # It came after the last look.
                self._wake.set()

    def _look(self) -> bool:
        """Let go of what is done; return whether there is more to come."""
        done: list[_Kept] = []
        with self._lock:
            for (ordinal, stream), place in list(self._places.items()):
                waiting = place.waiting
                if place.active and len(waiting) >= MANY:
                    # Its own calls look.
                    place.active = False
                    continue
                place.active = False
                try:
                    come = self._come(ordinal, waiting)
                except DriverError:
                    # A broken context reports itself to every later call; there is nothing left to protect.
                    come = len(waiting)
                done += [waiting.popleft() for _ in range(come)]
                if not waiting:
                    del self._places[ordinal, stream]
                self._take_back(ordinal, [event for event, _ in done[len(done) - come :]])
        return bool(self._places) and not self._ended

    def _come(self, ordinal: int, waiting: Sequence[_Kept]) -> int:
        """Return how many events of a stream have come, which they do in order.

        Each question lets the calling thread go on, and waits for it to stop again, so that few are asked.
        """
        if self._ordinal != ordinal:
            call("cuCtxSetCurrent", primary_context(ordinal))
            self._ordinal = ordinal
        some, none = 0, len(waiting)
        if not waiting or _has_come(waiting[-1][0]):
            return none
        while some < none:
            middle = (some + none) // 2
            if _has_come(waiting[middle][0]):
                some = middle + 1
            else:
                none = middle
        return some

    def _take_back(self, ordinal: int, events: Sequence[Any]) -> None:
        free = self._events[ordinal]
        room = MOST_EVENTS - len(free)
        free += events[:room]
        for event in events[room:]:
            driver().cuEventDestroy(event)


def _has_come_in_any_thread(event: Any) -> bool:
    """Whether an event has come, asked by a thread in which a stream may be captured."""
    bindings = driver()
    exchange = bindings.cuThreadExchangeStreamCaptureMode
    _, before = exchange(bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    come = _has_come(event)
    exchange(before)
    return come


def _has_come(event: Any) -> bool:
    """Whether an event has come; or cannot be asked any more."""
    (status,) = driver().cuEventQuery(event)
    return bool(status != driver().CUresult.CUDA_ERROR_NOT_READY)


@functools.cache
def _keeper() -> Keeper:
    """Return the only one."""
    return Keeper()
