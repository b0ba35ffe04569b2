"""An LRU cache of slices: a fixed number of slots in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Slots:
    """A fixed number of slots for slices. The plan counts with it what the reader later does with it."""

    def __init__(self, count: int) -> None:
        self._held: OrderedDict[Hashable, int] = OrderedDict()
        self._count = count

    def claim(self, key: Hashable) -> tuple[int, bool]:
        """Return the slot for the slice `key`, and whether the slice is in it already."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key], True
        slot = len(self._held) if len(self._held) < self._count else self._held.popitem(last=False)[1]
        self._held[key] = slot
        return slot, False
