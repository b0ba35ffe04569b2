"""Columns of the vector clocks, one for each agent of a cluster; marks of accesses, and the names of agents."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..types import Array

#: Bit of a mark: the access is atomic.
ATOMIC = np.int32(1 << 30)


class AgentColumns:
    """The columns of a batch's clocks.

    Parameters
    ----------
    batch : Batch
        The CTAs.
    followed : int
        Mbarriers of a cluster that are followed.
    asynchronous : bool
        Whether the kernel has bulk copies, st.async or wgmma.
    dependent : bool
        Whether the predecessor grid is an agent.
    messages : int
        Clocks for messages from other clusters.

    Attributes
    ----------
    own : array of int
        For each warp of the batch, its column.
    warps : int
        Warps of a CTA.
    generic : int
        Warps of a cluster: so many columns are theirs, as many those of their copies, and so on.
    bits : int
        Bits that hold a column's number.
    predecessor : int
        In a dependent launch, the column of the predecessor grid.
    messages : int
        The first of the columns for messages of other clusters that a warp has acquired.
    """

    def __init__(self, batch: Batch, followed: int, *, asynchronous: bool, dependent: bool, messages: int) -> None:
        self.warps = batch.geometry.warps
        self.generic = self.warps * batch.cluster_ctas
        self.own: Array = np.arange(len(batch.ctas) * self.warps) % self.generic
        self._followed = followed
        # Warps, copies; then bulk copies that have read, and are complete; warpgroups; mbarriers.
        ends = np.cumsum([2 * self.generic, self.generic, self.generic, self.generic]).tolist()
        self._read_columns, self._done_columns, self._product_columns, self._barrier_columns = ends
        self.predecessor = ends[3] + followed if followed or asynchronous else 2 * self.generic
        self.messages = self.predecessor + dependent
        self.bits = max((self.messages + messages - 1).bit_length(), 1)

    def copies(self, warps: Array) -> Array:
        """Return the column of the copies of warps of the batch."""
        found: Array = self.generic + self.own[warps]
        return found

    def read(self, warps: Array) -> Array:
        """Return the column of what the bulk copies of warps have read."""
        found: Array = self._read_columns + self.own[warps]
        return found

    def done(self, warps: Array) -> Array:
        """Return the column of the bulk copies of warps that are complete."""
        found: Array = self._done_columns + self.own[warps]
        return found

    def product(self, warps: Array) -> Array:
        """Return the column of the products of the warpgroups that warps belong to."""
        own = self.own[warps]
        found: Array = self._product_columns + own - own % self.warps % 4
        return found

    def barrier(self, numbers: Array) -> Array:
        """Return the column of the copies that complete at mbarriers of those numbers."""
        found: Array = self._barrier_columns + numbers % self._followed
        return found

    def is_told(self, columns: Array) -> Array:
        """Say which columns are of copies and stores that complete at mbarriers."""
        found: Array = (columns >= self._barrier_columns) & (columns < self.messages)
        return found

    def who(self, column: int) -> str:
        """Name an agent by its column."""
        bulk = "a bulk copy of warp {}"
        kinds = ("warp {}", "a copy of warp {}", bulk, bulk, "a product of warp {}")
        kind, place = divmod(column, self.generic)
        if kind >= len(kinds) or column >= self._barrier_columns:
            return "a bulk copy or asynchronous store"
        cta, warp = divmod(place, self.warps)
        name = kinds[kind].format(warp)
        return f"{name} of CTA {cta} of the cluster" if self.generic > self.warps else name

    def unordered(self, column: int) -> str:
        """Say that nothing orders an access after an earlier one of an agent, and what would."""
        kind = column // self.generic
        if column >= self._barrier_columns and self._followed:
            what = "a wait for the mbarrier at which it completes"
        elif kind == 0:
            what = "a barrier between them (sync_threads, bar.sync)"
            if self.generic > self.warps:
                what += ", of different CTAs one of the cluster (cluster_arrive and cluster_wait),"
        elif kind == 1:
            what = (
                "a wait for the copy (cp_async_wait_group), and a barrier behind it if threads of other warps use it,"
            )
        elif kind in (2, 3):
            what = "a wait for the copy (cp_async_bulk_wait_group), and a barrier behind it for other warps,"
        else:
            what = "a wait for the products (wgmma.wait_group), and a barrier behind it for other warps,"
        return f"nothing orders the two; {what} would"

    def mark(self, column: Array, clock: Array) -> Array:
        """Return marks, by which shadows hold accesses: agents by their columns, and their clocks."""
        found: Array = ((clock << self.bits) | column).astype(np.int32)
        return found

    def parts(self, marks: Array) -> tuple[Array, Array]:
        """Return the columns and clocks of marks."""
        clean = marks & ~ATOMIC
        return clean & ((1 << self.bits) - 1), clean >> self.bits
