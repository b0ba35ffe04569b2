"""Number of times that each element of a result was computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .journal_file import Rectangle


def coverage_flaw(shape: tuple[int, int], found: Sequence[Rectangle], written: Sequence[Rectangle]) -> str | None:
    """Say what of a result is missing, or was computed twice; None where each element was computed once.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns of the result.
    found : sequence of tuple
        Pieces of earlier runs; these may overlap each other.
    written : sequence of tuple
        Pieces written since, each write counted.
    """
    if not math.prod(shape):
        return None
    pieces = np.array([*found, *written, (0, 0, *shape)], np.int64)
    pieces[:, 2:] += pieces[:, :2]
    # Between neighbouring edges all elements are covered as often as each other.
    rows, cols = np.unique(pieces[:, [0, 2]]), np.unique(pieces[:, [1, 3]])
    top, bottom = (np.searchsorted(rows, pieces[:, place]) for place in (0, 2))
    left, right = (np.searchsorted(cols, pieces[:, place]) for place in (1, 3))
    counts = []
    for part in (slice(len(found)), slice(len(found), -1)):
        count = np.zeros((len(rows), len(cols)), np.int32)
        for i, j, change in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(count, (i[part], j[part]), change)
        counts.append(count.cumsum(0).cumsum(1)[:-1, :-1])
    times = np.minimum(counts[0], 1) + counts[1]
    if (wrong := np.argwhere(times != 1)).size:
        i, j = wrong[0]
        what = "was not computed" if times[i, j] == 0 else f"was computed {times[i, j]} times"
        return f"what begins at row {rows[i]}, column {cols[j]} {what}"
    return None
