"""Vector clocks: for each warp, which operations of the others happened before its next one.

The agents of a cluster are its warps and their asynchronous operations: cp.async, counted by the groups of a warp; bulk
copies into shared memory, by the phases of their mbarrier; bulk copies out of it, by the groups of a warp, once for
having read and once for being complete; wgmma, by the groups of its warpgroup. A warp's own clock ticks when it arrives
at a barrier. An access happened before another if the second's warp holds a clock of the first's agent at least
as large as the one at which the access was made. Barriers pass on the clocks of all warps that arrived; a wait for an
operation advances the clock of the waiting warp.

TMA and the tensor cores access shared memory through the async proxy: writes by ordinary instructions are visible there
after a proxy fence. Each warp has a second row of clocks for that.

The lanes of a warp count as one; `LaneRaces` checks those among each other.
"""

from __future__ import annotations

import numpy as np

from gemmule.core.errors import UnsupportedError

from ..dataflow.polling import is_strong
from ..engine.batch import Batch
from ..engine.isa.barrier import COUNT
from ..engine.isa.bulk_copy import BulkCopies
from ..engine.isa.mbarrier_phases import MBarriers
from ..engine.lanes import Lanes
from ..engine.observer import Observer
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .agent_columns import AgentColumns
from .collected import Check, Collected

#: Mbarriers of a CTA that are followed.
_MBARRIERS = 80
#: Clocks of each cluster for messages from others; one follows all that a warp takes one after another.
MOST_MESSAGES = 128


def is_asynchronous(kernel: Kernel) -> bool:
    """Say whether a kernel issues bulk copies, st.async or wgmma."""
    marks = {"cp": "bulk", "st": "async"}
    return any(
        instruction.name == "wgmma" or marks.get(instruction.name) in instruction.modifiers
        for instruction in kernel.instructions
    )


def has_messages(kernel: Kernel) -> bool:
    """Say whether a kernel's CTAs may synchronise through global memory."""
    return any(
        instruction.name in ("atom", "red") or is_strong(instruction)
        for instruction in kernel.instructions
        if "shared" not in {part.split("::")[0] for part in instruction.modifiers}
    )


class Clocks(Observer):
    """The vector clocks of a batch.

    Parameters
    ----------
    dependent : bool
        Whether the launch is dependent (PDL): its predecessor is an agent, too.

    Attributes
    ----------
    known : array of int, (warps of the batch, agents)
        Clocks that each warp holds.
    visible : array of int, (warps of the batch, agents)
        Clocks of the writes that are visible to TMA and the tensor cores for operations that the warp issues.
    groups, product_groups : array of int
        For each warp of the batch, how many groups of copies and of products it has committed.
    columns : AgentColumns
        The columns of the agents.
    """

    known: Array
    visible: Array
    groups: Array
    product_groups: Array

    def __init__(self, dependent: bool = False) -> None:
        self._dependent = dependent

    def begin(self, kernel: Kernel) -> None:
        self._asynchronous = is_asynchronous(kernel)
        self._has_barriers = any(instruction.name == "mbarrier" for instruction in kernel.instructions)
        self._messages = MOST_MESSAGES if has_messages(kernel) else 0

    def batch_begins(self, batch: Batch) -> None:
        self._clusters = len(batch.ctas) // batch.cluster_ctas
        self._followed = _MBARRIERS * batch.cluster_ctas if self._has_barriers else 0
        self.columns = columns = AgentColumns(
            batch, self._followed, asynchronous=self._asynchronous, dependent=self._dependent, messages=self._messages
        )
        total = len(columns.own)
        width = 1 << columns.bits
        self._levels = np.zeros((2 if self._asynchronous else 1, total, width), np.int32)
        self.known, self.visible = self._levels[0], self._levels[-1]
        self.groups = np.zeros(total, np.int64)
        self.product_groups = np.zeros(total, np.int64)
        self._all = np.arange(total)
        self.known[self._all, self.columns.own] = 1
        levels = len(self._levels)
        self._brought = np.zeros((levels, len(batch.ctas), COUNT, width), np.int32)
        self._to_cluster = np.zeros((levels, self._clusters, width), np.int32)
        self._from_cluster = np.zeros_like(self._to_cluster)
        if self._has_barriers:
            self._begin_mbarriers(batch, levels, width)

    def _begin_mbarriers(self, batch: Batch, levels: int, width: int) -> None:
        total = self._clusters * self._followed
        self._number = np.full(len(batch.shared) // 8, -1, np.int32)
        self._count = np.zeros(self._clusters, np.int64)
        self._to_barrier = np.zeros((levels, total, width), np.int32)
        self._from_barrier = np.zeros_like(self._to_barrier)
        # Clock of a barrier's phase 0, who initialised it and when, and whether a fence made that visible.
        self._base = np.zeros(total, np.int64)
        self.init_warp = np.zeros(total, np.int64)
        self.init_clock = np.zeros(total, np.int64)
        self.fenced = np.zeros(total, np.bool_)
        # Clocks of the warps' last fence.mbarrier_init, which a relaxed arrival at the cluster's barrier passes on, and
        # what each warp has of that. It covers none of their other writes.
        self._init_fence = np.zeros(len(self.columns.own), np.int64)
        self._inits_to_cluster = np.zeros((self._clusters, self.columns.generic), np.int64)
        self._inits_from_cluster = np.zeros_like(self._inits_to_cluster)
        self._inits_known = np.zeros((len(self.columns.own), self.columns.generic), np.int64)

    def number_of(self, places: Array) -> Array:
        """Return the numbers of mbarriers; -1 where there is none."""
        found: Array = self._number[places]
        return found

    def knows_initialised(self, warps: Array, numbers: Array) -> Array:
        """Say for warps of the batch whether the initialisation of its mbarrier happened before."""
        column, clock = self.columns.own[self.init_warp[numbers]], self.init_clock[numbers]
        found: Array = np.maximum(self.known[warps, column], self._inits_known[warps, column]) >= clock
        return found

    def barrier_clock(self, batch: Batch, places: Array) -> Array:
        """Return the clock of the copies that complete in the current phase of mbarriers."""
        found: Array = self._base[self._number[places]] + MBarriers.of(batch).phase[places] + 1
        return found

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
        return self.known[warps, self.columns.own[warps]]

    def tick(self, warps: Array) -> None:
        """Advance the own clocks of warps: their next operations come after what they passed on."""
        self.known[warps, self.columns.own[warps]] += 1

    def has_waited(self, warps: Array) -> Array:
        """Say for warps of a dependent launch whether a wait for the predecessor happened before."""
        found: Array = self.known[warps, self.columns.predecessor] > 0
        return found

    def grid_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        if self._dependent:
            warps = self.warps_in(batch, lanes)
            self._reach(warps, np.full(len(warps), self.columns.predecessor), np.ones(len(warps), np.int64))

    def _learn(self, warps: Array, level: int, what: Array) -> None:
        self._levels[level, warps] = np.maximum(self._levels[level, warps], what)

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        del instruction
        pairs = np.unique(np.stack([lanes.pick(batch.warp_of_lane), barrier]), axis=1) if not _same(barrier) else None
        if pairs is None:
            warps = self.warps_in(batch, lanes)
            numbers = np.broadcast_to(barrier[0], warps.shape)
        else:
            warps, numbers = pairs
        for brought, levels in zip(self._brought, self._levels, strict=True):
            np.maximum.at(brought, (warps // self.columns.warps, numbers), levels[warps])
        self.known[warps, self.columns.own[warps]] += 1

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        warps = self.warps_in(batch, lanes)
        first = np.searchsorted(lanes.pick(batch.warp_of_lane), warps)
        ctas, numbers = warps // self.columns.warps, barrier[first]
        for level, brought in enumerate(self._brought):
            self._learn(warps, level, brought[ctas, numbers])
        self._brought[:, ctas, numbers] = 0

    def cluster_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, releases: bool) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        if releases:
            for gathered, levels in zip(self._to_cluster, self._levels, strict=True):
                np.maximum.at(gathered, warps // self.columns.generic, levels[warps])
        elif self._has_barriers:
            self._inits_to_cluster[warps // self.columns.generic, self.columns.own[warps]] = self._init_fence[warps]
        self.known[warps, self.columns.own[warps]] += 1

    def cluster_completed(self, batch: Batch, clusters: Array) -> None:
        del batch
        self._from_cluster[:, clusters] = self._to_cluster[:, clusters]
        self._to_cluster[:, clusters] = 0
        if self._has_barriers:
            self._inits_from_cluster[clusters] = self._inits_to_cluster[clusters]

    def cluster_left(self, batch: Batch, instruction: Instruction, lanes: Lanes, acquires: bool) -> None:
        del instruction
        if acquires:
            warps = self.warps_in(batch, lanes)
            for level, gathered in enumerate(self._from_cluster):
                self._learn(warps, level, gathered[warps // self.columns.generic])
            if self._has_barriers:
                self._inits_known[warps] = self._inits_from_cluster[warps // self.columns.generic]

    def copies_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        self.groups[self.warps_in(batch, lanes)] += 1

    def copies_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        self._reach(warps, self.columns.copies(warps), self.groups[warps] - left)

    def copies_signalled(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del instruction
        warps, numbers = lanes.pick(batch.warp_of_lane), self._number[places]
        for gathered in self._to_barrier:
            np.maximum.at(gathered, (numbers, self.columns.copies(warps)), self.groups[warps] + 1)

    def _reach(self, warps: Array, column: Array, clock: Array) -> None:
        """Advance the clocks that warps hold of an agent."""
        for levels in self._levels:
            levels[warps, column] = np.maximum(levels[warps, column], clock)

    def bulk_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int, read_only: bool) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        made = np.zeros(len(self.columns.own), np.int64)
        np.maximum.at(made, lanes.pick(batch.warp_of_lane), BulkCopies.of(batch).committed[lanes.index])
        self._reach(warps, self.columns.read(warps), made[warps] - left)
        if not read_only:
            self._reach(warps, self.columns.done(warps), made[warps] - left)

    def wgmma_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        self.product_groups[self.warps_in(batch, lanes)] += 1

    def wgmma_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        self._reach(warps, self.columns.product(warps), self.product_groups[warps] - left)

    def proxy_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes, shared: bool) -> None:
        del instruction
        warps = self.warps_in(batch, lanes)
        if self._has_barriers:
            self.fenced |= np.isin(self.init_warp, warps) & (self.init_clock > 0)
            if not shared:
                self._init_fence[warps] = self.epoch(warps)
                # Barriers that the warp initialises later are not fenced.
                self.known[warps, self.columns.own[warps]] += 1
        if shared and self._asynchronous:
            part = slice(0, 2 * self.columns.generic)
            self.visible[warps, part] = self.known[warps, part]
            # Later writes of the warp are not fenced.
            self.known[warps, self.columns.own[warps]] += 1

    def mbarrier_initialised(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del instruction
        for place in places[self._number[places] < 0].tolist():
            cluster = MBarriers.of(batch).cta(place) // batch.cluster_ctas
            if self._count[cluster] == self._followed:
                raise UnsupportedError(f"the checks follow {_MBARRIERS} mbarriers of a CTA, and there are more")
            self._number[place] = cluster * self._followed + self._count[cluster]
            self._count[cluster] += 1
        numbers, warps = self._number[places], lanes.pick(batch.warp_of_lane)
        # The phases after a second initialisation count on from the first's.
        last = self._from_barrier[0, numbers, self.columns.barrier(numbers)]
        self._base[numbers] = np.maximum(last, self._base[numbers]) + (self.init_clock[numbers] > 0)
        self.init_warp[numbers], self.init_clock[numbers] = warps, self.epoch(warps)
        self.fenced[numbers] = False
        self._to_barrier[:, numbers] = 0

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del instruction
        warps, numbers = np.unique(np.stack([lanes.pick(batch.warp_of_lane), self._number[places]]), axis=1)
        if releases:
            for gathered, levels in zip(self._to_barrier, self._levels, strict=True):
                np.maximum.at(gathered, numbers, levels[warps])
        warps = np.unique(warps)
        self.known[warps, self.columns.own[warps]] += 1

    def mbarrier_completed(self, batch: Batch, places: Array) -> None:
        numbers = self._number[places]
        found = self._to_barrier[:, numbers]
        found[:, np.arange(len(numbers)), self.columns.barrier(numbers)] = (
            self._base[numbers] + MBarriers.of(batch).phase[places]
        )
        self._from_barrier[:, numbers] = np.maximum(self._from_barrier[:, numbers], found)
        self._to_barrier[:, numbers] = 0

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del instruction
        pairs = np.stack([lanes.pick(batch.warp_of_lane), self._number[places]])
        for warps, numbers in _once_each(np.unique(pairs, axis=1)):
            for level, gathered in enumerate(self._from_barrier):
                self._learn(warps, level, gathered[numbers])


class ClockCheck(Check):
    """A check that needs vector clocks.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    clocks : Clocks
        The warps' clocks.
    """

    def __init__(self, collected: Collected, clocks: Clocks) -> None:
        super().__init__(collected)
        self._clocks = clocks


def _once_each(pairs: Array) -> list[Array]:
    """Return pairs of warps and others in parts that hold each warp once."""
    parts = []
    while pairs.shape[1]:
        _, first = np.unique(pairs[0], return_index=True)
        parts.append(pairs[:, first])
        pairs = np.delete(pairs, first, axis=1)
    return parts


def _same(values: Array) -> bool:
    return bool((values == values[0]).all())
