"""The CPUs that this process may use."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return how many CPUs this process may use: ``taskset`` and CPU sets of containers leave it fewer.

    They are those of the main thread, whatever the caller's thread is bound to. Quotas of CPU time are not considered.
    """
    return len(os.sched_getaffinity(os.getpid())) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
