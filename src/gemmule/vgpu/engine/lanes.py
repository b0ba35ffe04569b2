"""Sets of lanes: which threads of a batch of CTAs run an instruction together."""

from __future__ import annotations

from typing import Any

import numpy as np

from .types import Array

Index = np.ndarray[Any, np.dtype[np.intp]]


class Lanes:
    """Some lanes of a batch, in ascending order.

    Parameters
    ----------
    index : array of int
        Their numbers.

    Attributes
    ----------
    count : int
        How many they are.
    run : slice or None
        Their range, where they are neighbours.
    """

    __slots__ = ("_cache", "count", "index", "run", "warps")

    def __init__(self, index: Index) -> None:
        self.index = index
        self.count = len(index)
        first, last = (int(index[0]), int(index[-1])) if self.count else (0, -1)
        self.run = slice(first, last + 1) if last - first + 1 == self.count else None
        self._cache: dict[int, Array] = {}
        # The lanes as rows of warps, once an instruction asks for that.
        self.warps: Any = None

    def where(self, mask: Array) -> Lanes:
        """Return those for which `mask`, one entry for each of them, is true."""
        return Lanes(self.index[mask])

    def pick(self, values: Array) -> Array:
        """Return, of an array with one row for each lane of the batch, the rows of these lanes.

        The answer is kept for as long as the lanes stay together; it must not be written to.
        """
        found = self._cache.get(id(values))
        if found is None:
            found = self._cache[id(values)] = values[self.run if self.run is not None else self.index]
        return found

    def __len__(self) -> int:
        return self.count


def merged(parts: list[Lanes]) -> Lanes:
    """Return the union of disjoint sets."""
    if len(parts) == 1:
        return parts[0]
    index = np.concatenate([part.index for part in parts])
    index.sort()
    return Lanes(index)
