"""Loads of shared memory that may still be in flight at an arrival.

An arrival at an mbarrier waits for no load that the warp has issued. The producer may then issue the next TMA load,
whose writes overtake the load. So a load counts as a read once more where its value is needed: by wgmma, a store, a
shuffle or a branch. Arithmetic is not enough, since the compiler may move it after the arrival. Barriers of the CTA and
fences wait for loads. A dead value needs no load to complete.
"""

from __future__ import annotations

import numpy as np

from ..dataflow.control_flow import Block
from ..dataflow.pending_loads import PendingLoads, pending_loads
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..engine.observer import Access, Observer
from ..ptx.module import Kernel
from ..types import Array
from .clocks import is_asynchronous
from .shared_races import SharedRaces


class LateReads(Observer):
    """Lets loads of shared memory count as reads again where their values are needed.

    Parameters
    ----------
    shared : SharedRaces
        Looks for races in shared memory.
    """

    def __init__(self, shared: SharedRaces) -> None:
        self._shared = shared

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        synchronised = is_asynchronous(kernel) and any(
            instruction.name == "mbarrier" for instruction in kernel.instructions
        )
        self._held = pending_loads(kernel) if synchronised else PendingLoads(frozenset(), {}, {})

    def batch_begins(self, batch: Batch) -> None:
        loads = self._held.loads
        # For each load the lanes that may still wait for it, where they read, how much, and what was there.
        self._waiting = {load: np.zeros(batch.lane_count, np.bool_) for load in loads}
        self._address = {load: np.zeros(batch.lane_count, np.int64) for load in loads}
        self._size = dict.fromkeys(loads, 0)
        self._marks: dict[int, Array] = {}
        self._open: set[int] = set()

    def access(self, access: Access) -> None:
        number = access.instruction.index
        if number not in self._held.loads or access.space != "shared":
            return
        index = access.lanes.index
        marks = self._shared.marks(access)
        if number not in self._marks:
            self._marks[number] = np.zeros((access.batch.lane_count, marks.shape[1]), np.int32)
        self._open.add(number)
        self._waiting[number][index] = True
        self._address[number][index] = access.address
        self._size[number] = access.size
        self._marks[number][index] = marks

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        if not self._open:
            return
        for load in sorted(self._open.intersection(self._held.needed.get(block.index, ()))):
            index = self._end(load, lanes)
            if len(index):
                one = self._kernel.instructions[load]
                where = self._address[load][index]
                access = Access(one, batch, Lanes(index), "shared", where, self._size[load], read=True)
                self._shared.needed(access, self._marks[load][index])
        for load in self._open.intersection(self._held.dead.get(block.index, ())):
            self._end(load, lanes)

    def _end(self, load: int, lanes: Lanes) -> Array:
        """Return those of the lanes that waited for a load, and let them wait no more."""
        waiting = self._waiting[load]
        index: Array = lanes.index[waiting[lanes.index]]
        waiting[index] = False
        if len(index) and not waiting.any():
            self._open.discard(load)
        return index
