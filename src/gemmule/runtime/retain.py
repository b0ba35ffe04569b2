"""Keeping arrays alive until the work that was queued on them is done."""

from __future__ import annotations

import collections
import threading
from typing import Any

from .device import current
from .driver import call, driver

_pending: dict[int, collections.deque[tuple[Any, object]]] = collections.defaultdict(collections.deque)
_lock = threading.Lock()


def retain(kept: object, ordinal: int, stream: int) -> None:
    """Keep an object alive until the work queued on the stream so far is done; nothing waits.

    It is for memory whose owner does not know of that stream and would reuse it at once. What is done is let go by the
    next call, which looks at each pending event once.

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
    with current(ordinal), _lock:
        pending = _pending[ordinal]
        for _ in range(len(pending)):
            event, owner = pending.popleft()
            (status,) = bindings.cuEventQuery(event)
            if status == bindings.CUresult.CUDA_ERROR_NOT_READY:
                pending.append((event, owner))
            else:
                call("cuEventDestroy", event)
        event = call("cuEventCreate", bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        call("cuEventRecord", event, stream)
        pending.append((event, kept))
