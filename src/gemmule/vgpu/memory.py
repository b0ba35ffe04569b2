"""Global memory: the arrays of a launch in one arena, each aligned as the caller's, with red zones between them."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

import numpy as np

from .types import Array

#: Address of the arena. Nothing else has addresses near it.
GLOBAL_BASE = 1 << 36
#: Bytes around every array that belong to none: more than most rows of a matrix have.
RED_ZONE = 1 << 20
#: The arena's arrays start at multiples of this, plus the misalignment that the caller gives.
ALIGNMENT = 1024
#: Content of unwritten memory: NaN in every floating-point type.
POISON = 0xFF


@dataclasses.dataclass(frozen=True)
class Allocation:
    """An array in the arena: bytes from `start` to `end`."""

    name: str
    start: int
    end: int


class GlobalMemory:
    """The arena, filled array by array and then sealed.

    Attributes
    ----------
    data : array of uint8
        The bytes.
    allocations : list of Allocation
        Their arrays, in ascending order.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._starts: list[int] = []
        self._end = RED_ZONE
        self.data: Array = np.empty(0, np.uint8)
        self._words: dict[int, Array] = {}

    def reserve(self, name: str, size: int, misalignment: int = 0) -> Allocation:
        """Reserve `size` bytes, `misalignment` bytes after a multiple of 1024."""
        start = -(-self._end // ALIGNMENT) * ALIGNMENT + misalignment % ALIGNMENT
        return self.place(name, start, start + size)

    def place(self, name: str, start: int, end: int) -> Allocation:
        """Place an array at a given position, after the others."""
        allocation = Allocation(name, start, end)
        self.allocations.append(allocation)
        self._starts.append(start)
        self._end = end + RED_ZONE
        return allocation

    def seal(self, buffer: Any = None) -> None:
        """Make the arena; no array can be reserved after that.

        Parameters
        ----------
        buffer : buffer, optional
            Memory to use, of at least `size` bytes.
        """
        if buffer is None:
            # NumPy promises alignment to 16 bytes only.
            space = np.empty(self.size + 128, np.uint8)
            skip = -space.ctypes.data % 128
            self.data = space[skip : skip + self.size]
            self.data.fill(POISON)
        else:
            self.data = np.frombuffer(buffer, np.uint8, self.size)
        self._words = {size: self.data.view(f"u{size}") for size in (1, 2, 4, 8)}

    @property
    def size(self) -> int:
        """Bytes of the arena."""
        return -(-self._end // ALIGNMENT) * ALIGNMENT

    def words(self, size: int) -> Array:
        """Return the arena as unsigned integers of `size` bytes."""
        return self._words[size]

    def allocation_at(self, position: int) -> Allocation | None:
        """Return the array that the byte at `position` of the arena belongs to."""
        number = bisect.bisect_right(self._starts, position) - 1
        if number < 0 or position >= self.allocations[number].end:
            return None
        return self.allocations[number]

    def outside(self, positions: Array, size: int | Array) -> Array:
        """Return a mask of the accesses of `size` bytes, or of as many each, that are not inside one array."""
        if not self.allocations:
            return np.ones(len(positions), np.bool_)
        number = np.searchsorted(np.array(self._starts), positions, "right") - 1
        ends = np.array([allocation.end for allocation in self.allocations])
        found: Array = (number < 0) | (positions + size > ends[number])
        return found

    def _nearest(self, position: int) -> Allocation | None:
        """Return the array that a byte of the arena is in, or else the nearest."""

        def distance(allocation: Allocation) -> int:
            return max(allocation.start - position, position - allocation.end + 1, 0)

        return min(self.allocations, key=distance, default=None)

    def offset(self, position: int) -> int:
        """Return the offset of a byte of the arena from the first byte of the nearest array."""
        nearest = self._nearest(position)
        return GLOBAL_BASE + position if nearest is None else position - nearest.start

    def describe(self, position: int) -> str:
        """Describe a byte of the arena by the nearest array."""
        nearest = self._nearest(position)
        if nearest is None:
            return f"address {GLOBAL_BASE + position:#x}; the launch has no arrays"
        offset = position - nearest.start
        size = nearest.end - nearest.start
        if 0 <= offset < size:
            return f"byte {offset} of operand {nearest.name} ({size} bytes)"
        if offset < 0:
            return f"{-offset} bytes before operand {nearest.name} ({size} bytes)"
        return f"byte {offset} of operand {nearest.name}, which has {size}"
