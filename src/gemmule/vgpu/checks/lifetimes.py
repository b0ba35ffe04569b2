"""Shared memory of CTAs that have ended: others of the cluster, or TMA, may still use it."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.lanes import WARP, Lanes
from ..engine.observer import Access, AgentAccess
from ..ptx.module import Instruction
from ..types import Array
from .clocks import ClockCheck


class Lifetimes(ClockCheck):
    """Looks for uses of a CTA's shared memory that may come after the end of its last warp."""

    def batch_begins(self, batch: Batch) -> None:
        # For each CTA, of each agent of the cluster: the last use, and what the warps knew that have ended.
        width = self._clocks.known.shape[1]
        self._used = np.zeros((len(batch.ctas), width), np.int64)
        self._known = np.zeros((len(batch.ctas), width), np.int64)
        self._users: dict[tuple[int, int], tuple[Instruction, int]] = {}

    def access(self, access: Access) -> None:
        batch, lanes = access.batch, access.lanes
        if access.space != "shared" or batch.cluster_ctas == 1:
            return
        # The address is counted from the memory of the lane's own CTA.
        remote = access.address // batch.shared_stride
        if remote.any():
            elsewhere = remote != 0
            warps = lanes.index[elsewhere] // WARP
            target = lanes.pick(batch.cta_of_lane)[elsewhere] + remote[elsewhere]
            clocks = self._clocks
            self._note(
                access.instruction, lanes.index[elsewhere], target, clocks.columns.own[warps], clocks.epoch(warps)
            )

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del releases
        target = places * 8 // batch.shared_stride
        remote = target != lanes.pick(batch.cta_of_lane)
        if remote.any():
            warps = lanes.index[remote] // WARP
            # Arriving has moved the clock on already.
            clock = self._clocks.epoch(warps) - 1
            self._note(instruction, lanes.index[remote], target[remote], self._clocks.columns.own[warps], clock)

    def agent_access(self, access: AgentAccess) -> None:
        if access.barriers is not None:
            batch, clocks = access.batch, self._clocks
            target = access.barriers * 8 // batch.shared_stride
            column = clocks.columns.barrier(clocks.number_of(access.barriers))
            clock = clocks.barrier_clock(batch, access.barriers)
            self._note(access.instruction, access.lanes, target, column, clock)

    def _note(self, instruction: Instruction, index: Array, ctas: Array, column: Array, clock: Array) -> None:
        np.maximum.at(self._used, (ctas, column), clock)
        for place, lane in zip(zip(ctas.tolist(), column.tolist(), strict=True), index.tolist(), strict=True):
            self._users[place] = instruction, lane

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        del instruction
        warps = self._clocks.warps_in(batch, lanes)
        np.maximum.at(self._known, warps // self._clocks.columns.warps, self._clocks.known[warps])

    def batch_ends(self, batch: Batch) -> None:
        for cta, column in np.argwhere(self._used > self._known).tolist():
            instruction, lane = self._users[cta, column]
            where = batch.geometry.coordinates(batch.ctas[cta])
            self._collected.add(
                batch,
                "unfinished",
                f"uses shared memory of CTA {where}, whose warps may all have ended before: none of them waits for it",
                instruction,
                np.array([lane]),
            )
