"""Asynchronous copies without a wait."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.isa.bulk_copy import BulkCopies
from ..engine.lanes import Lanes
from ..engine.observer import Access, AgentAccess
from ..ptx.module import Instruction
from ..types import Array
from .clocks import ClockCheck


class UnfinishedCopies(ClockCheck):
    """Looks for warps that end while their copies may be in flight."""

    def batch_begins(self, batch: Batch) -> None:
        self._last_group = np.zeros(len(batch.ctas) * batch.geometry.warps, np.int64)
        self._issued: dict[int, Instruction] = {}
        self._last_store = np.zeros_like(self._last_group)
        self._stored: dict[int, Instruction] = {}

    def access(self, access: Access) -> None:
        if access.asynchronous and access.write:
            warps = self._clocks.warps_in(access.batch, access.lanes)
            self._last_group[warps] = self._clocks.groups[warps] + 1
            self._issued.update(dict.fromkeys(warps.tolist(), access.instruction))

    def copies_signalled(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del instruction, places
        # A wait at the mbarrier waits for them.
        self._last_group[self._clocks.warps_in(batch, lanes)] = 0

    def agent_access(self, access: AgentAccess) -> None:
        if access.agent == "store":
            warps = access.lanes // 32
            self._last_store[warps] = BulkCopies.of(access.batch).committed[access.lanes] + 1
            self._stored.update(dict.fromkeys(warps.tolist(), access.instruction))

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        del instruction
        warps = self._clocks.warps_in(batch, lanes)
        column = self._clocks.columns.copies(warps)
        open_warps = warps[self._clocks.known[warps, column] < self._last_group[warps]]
        if len(open_warps):
            warp = int(open_warps[0])
            own_lanes = lanes.index[lanes.pick(batch.warp_of_lane) == warp]
            self._collected.add(
                batch,
                "unfinished",
                "the warp ends without waiting for copies that it issued",
                self._issued[warp],
                own_lanes,
            )
        if self._stored:
            self._look_at_stores(batch, warps, lanes)

    def _look_at_stores(self, batch: Batch, warps: Array, lanes: Lanes) -> None:
        """Look for bulk copies that may still read the shared memory of a CTA that is gone."""
        storing = warps[self._last_store[warps] > 0]
        open_warps = storing[
            self._clocks.known[storing, self._clocks.columns.read(storing)] < self._last_store[storing]
        ]
        # The lane that issued it may have ended before.
        open_warps = open_warps[~batch.alive.reshape(-1, 32)[open_warps].any(axis=1)]
        if len(open_warps):
            warp = int(open_warps[0])
            self._collected.add(
                batch,
                "unfinished",
                "the warp ends without waiting until a bulk copy that it issued has read shared memory",
                self._stored[warp],
                lanes.index[lanes.pick(batch.warp_of_lane) == warp],
            )
