"""Vector clocks: what each warp knows of what the others have done.

The agents of a CTA are its warps and, for each warp, the asynchronous copies that it issued. A warp's own clock ticks
when it arrives at a barrier; the copies' clock is the number of groups that the warp has committed. An access is known
to have happened before another if the second's warp knows a clock of the first's agent at least as large as the one at
which the access was made. Barriers pass on what all that arrived knew; waiting for copies tells the waiting warp.

The lanes of a warp count as one: what they do to each other without meeting is not looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.barriers import COUNT
from ..observe import Observer
from ..ptx.module import Instruction

if TYPE_CHECKING:
    from ..engine.batch import Batch
    from ..engine.lanes import Lanes

Array = np.ndarray[Any, np.dtype[Any]]


class Clocks(Observer):
    """The vector clocks of a batch.

    Attributes
    ----------
    known : array of int, (warps of the batch, agents)
        What each warp knows: of warp w of its CTA in column w, of that warp's copies in column `warps` + w.
    groups : array of int
        For each warp of the batch, how many groups of copies it has committed.
    warps : int
        Warps of a CTA.
    column_bits : int
        Bits that hold a column's number.
    """

    known: Array
    groups: Array

    def batch_begins(self, batch: Batch) -> None:
        self.warps = batch.geometry.warps
        total = len(batch.ctas) * self.warps
        self.column_bits = max((2 * self.warps - 1).bit_length(), 1)
        self.known = np.zeros((total, 1 << self.column_bits), np.int32)
        self.groups = np.zeros(total, np.int64)
        self._own = np.arange(total) % self.warps
        self._all = np.arange(total)
        self.known[self._all, self._own] = 1
        self._brought = np.zeros((len(batch.ctas), COUNT, 1 << self.column_bits), np.int32)

    def warps_in(self, batch: Batch, lanes: Lanes) -> Array:
        """Return the warps that lanes belong to, each once."""
        if lanes.count == batch.lane_count:
            return self._all
        warp = lanes.pick(batch.warp_of_lane)
        first: Array = np.concatenate([[True], warp[1:] != warp[:-1]])
        found: Array = warp[first]
        return found

    def epoch(self, warps: Array) -> Array:
        """Return the own clock of warps of the batch."""
        return self.known[warps, self._own[warps]]

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        del instruction
        pairs = np.unique(np.stack([lanes.pick(batch.warp_of_lane), barrier]), axis=1) if not _same(barrier) else None
        if pairs is None:
            warps = self.warps_in(batch, lanes)
            numbers = np.broadcast_to(barrier[0], warps.shape)
        else:
            warps, numbers = pairs
        np.maximum.at(self._brought, (warps // self.warps, numbers), self.known[warps])
        self.known[warps, self._own[warps]] += 1

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        warps = self.warps_in(batch, lanes)
        first = np.searchsorted(lanes.pick(batch.warp_of_lane), warps)
        ctas, numbers = warps // self.warps, barrier[first]
        self.known[warps] = np.maximum(self.known[warps], self._brought[ctas, numbers])
        self._brought[ctas, numbers] = 0

    def copies_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        self.groups[self.warps_in(batch, lanes)] += 1

    def copies_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        column = self.warps + self._own[warps]
        self.known[warps, column] = np.maximum(self.known[warps, column], self.groups[warps] - left)


def _same(values: Array) -> bool:
    return bool((values == values[0]).all())
