"""Keeping arrays alive until the work that was queued on them is done."""

from __future__ import annotations

import atexit
import collections
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

from gemmule.core.errors import DriverError

from .device import current, primary_context
from .driver import call, driver

#: Seconds between two looks at what is still to be done, and calls that hurry the next one. A thread that is woken for
#: each call takes Python's lock from the one that makes them, tens of microseconds each time.
PAUSE, MANY = 2e-3, 32
#: Cached events of a GPU, for reuse.
MOST_EVENTS = 64

#: GPU, stream, an event recorded after the work, and the objects retained for it.
_Kept = tuple[int, int, Any, object]


def retain(kept: object, ordinal: int, stream: int) -> None:
    """Keep an object alive until the work queued on the stream so far is done; the caller does not wait.

    It is for memory whose owner does not know of that stream and would reuse it at once.

    Parameters
    ----------
    kept : object
        Owner of the memory.
    stream : int
        The driver's handle of the stream.
    """
    bindings = driver()
    status, capturing = bindings.cuStreamIsCapturing(stream)
    if status == bindings.CUresult.CUDA_SUCCESS:
        if capturing != bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            # Nothing runs yet: who replays the graph keeps its memory, as for all that is captured.
            return
        keeper = _keeper()
        try:
            event = keeper.events[ordinal].pop()
        except IndexError:
            event = None
        if event is not None:
            (status,) = bindings.cuEventRecord(event, stream)
            if status == bindings.CUresult.CUDA_SUCCESS:
                keeper.keep((ordinal, stream, event, kept))
                return
    else:
        event = None
    # There is no event to take, or another context is current than the GPU's.
    with current(ordinal):
        if call("cuStreamIsCapturing", stream) != bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            return
        if event is None:
            event = call("cuEventCreate", bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        call("cuEventRecord", event, stream)
    _keeper().keep((ordinal, stream, event, kept))


class Keeper:
    """A thread that looks at events, and lets go of what belongs to those that have come.

    Attributes
    ----------
    events : mapping of int to list of CUevent
        By GPU, events that can be recorded anew.
    """

    def __init__(self) -> None:
        self.events: collections.defaultdict[int, list[Any]] = collections.defaultdict(list)
        self._given: collections.deque[_Kept] = collections.deque()
        # By the stream's handle, for one may wait long while others go on.
        self._waiting: dict[tuple[int, int], collections.deque[_Kept]] = {}
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

    def keep(self, what: _Kept) -> None:
        """Keep an object alive until its event has come."""
        self._given.append(what)
        if (not self._looking or len(self._given) >= MANY) and not self._wake.is_set():
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
                self._wake.clear()
            self._looking = False
            if self._given:
                # It came after the last look.
                self._wake.set()

    def _look(self) -> bool:
        """Let go of what is done; return whether there is more to come."""
        self._sort()
        for place, waiting in list(self._waiting.items()):
            try:
                for _ in range(self._come(place[0], waiting)):
                    self._let_go(waiting.popleft())
            except DriverError:
                # A broken context reports itself to every later call; there is nothing left to protect.
                waiting.clear()
            if not waiting:
                del self._waiting[place]
        return bool(self._waiting) and not self._ended

    def _come(self, ordinal: int, waiting: Sequence[_Kept]) -> int:
        """Return how many of the first events under a handle have come.

        Nothing is concluded about one from another: threads record events in another order than they hand them over,
        each has a stream of its own under the handle of the per-thread default stream, and a new stream may get the
        handle of one that was destroyed while work was queued on it.
        """
        if self._ordinal != ordinal:
            call("cuCtxSetCurrent", primary_context(ordinal))
            self._ordinal = ordinal
        return sum(1 for _ in itertools.takewhile(lambda one: _has_come(one[2]), waiting))

    def _sort(self) -> None:
        while self._given:
            what = self._given.popleft()
            self._waiting.setdefault(what[:2], collections.deque()).append(what)

    def _let_go(self, what: _Kept) -> None:
        ordinal, _, event, _ = what
        free = self.events[ordinal]
        if len(free) < MOST_EVENTS:
            free.append(event)
        else:
            driver().cuEventDestroy(event)


def _has_come(event: Any) -> bool:
    """Return whether an event is complete, or can no longer be queried."""
    (status,) = driver().cuEventQuery(event)
    return bool(status != driver().CUresult.CUDA_ERROR_NOT_READY)


@functools.cache
def _keeper() -> Keeper:
    """Return the only one."""
    return Keeper()
