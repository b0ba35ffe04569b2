"""Keeping arrays alive until the work that was queued on them is done."""

from __future__ import annotations

import functools
import queue
import threading
from typing import Any

from gemmule.core.errors import DriverError

from .device import current
from .driver import call, driver


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
    flags = bindings.CUevent_flags
    with current(ordinal):
        if call("cuStreamIsCapturing", stream) != bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            # Nothing runs yet: who replays the graph keeps its memory, as for all that is captured.
            return
        event = call("cuEventCreate", flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC)
        call("cuEventRecord", event, stream)
    _watched().put((ordinal, event, kept))


@functools.cache
def _watched() -> queue.SimpleQueue[tuple[int, Any, object]]:
    """Return the queue of a thread that waits for each event and then lets go of what belongs to it."""
    waiting: queue.SimpleQueue[tuple[int, Any, object]] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(waiting,), name="gemmule-retain", daemon=True).start()
    return waiting


def _watch(waiting: queue.SimpleQueue[tuple[int, Any, object]]) -> None:
    # By default a wait in one thread would break a stream capture that is under way in another.
    call("cuThreadExchangeStreamCaptureMode", driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    while True:
        ordinal, event, kept = waiting.get()
        try:
            with current(ordinal):
                call("cuEventSynchronize", event)
                call("cuEventDestroy", event)
        except DriverError:
            # A broken context reports itself to every later call; there is nothing left to protect.
            pass
        del event, kept
