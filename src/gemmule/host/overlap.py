"""Whether two arrays share memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.executor import Array

# NumPy's stubs allow only its two named limits; any number is one.
_WORK: Any = 10_000


def share_memory(x: Array, y: Array) -> bool:
    """Whether an element of `x` and one of `y` overlap; yes where finding out would take too long."""
    try:
        return np.shares_memory(x, y, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True
