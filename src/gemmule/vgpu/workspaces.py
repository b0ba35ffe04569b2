"""Memory that a launch needs beyond its operands: on the virtual GPU poisoned, or zeros where the recipe wants them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.launch import Launch

#: A NaN of every type of 16 bits or more, and -1.
POISON = 0xFF


def workspaces_of(launch: Launch) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the workspaces of a launch by name, as it finds them."""
    return {one.name: np.full(one.nbytes, 0 if one.zeroed else POISON, np.uint8) for one in launch.workspaces}
