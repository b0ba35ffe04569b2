"""Overlap of arrays, by addresses only, so that arrays may be in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tiles import Array

# Limit of NumPy's search. Its stubs allow only two named constants; any number is valid.
_WORK: Any = 10_000


def share_memory(x: Array, y: Array) -> bool:
    """Return whether an element of `x` overlaps one of `y`; True if the search would take too long."""
    try:
        return np.shares_memory(x, y, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Array) -> bool:
    """Return whether elements of `x` may overlap: True unless each stride exceeds the range of all smaller strides."""
    if x.size == 0:
        return False
    nbytes = x.itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride < nbytes:
            return True
        nbytes += stride * (extent - 1)
    return False
