"""Whether arrays share memory: addresses are compared, nothing is read, so that device memory can be asked too."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tiles import Array

# Candidate solutions that NumPy tries before it gives up. Its stubs allow only its two named limits; any number is one.
_WORK: Any = 10_000


def share_memory(x: Array, y: Array) -> bool:
    """Whether an element of `x` and one of `y` overlap; yes where finding out would take too long."""
    try:
        return np.shares_memory(x, y, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Array) -> bool:
    """Whether two elements of `x` may overlap: yes unless every stride leads beyond all that smaller strides reach."""
    if x.size == 0:
        return False
    reach = x.itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False
