"""Races between a dependent launch (PDL) and the grids before it, which may still run when it starts.

``griddepcontrol.wait`` orders all that the predecessor did before what its warp does next, and the barriers of the CTA
pass that on: the predecessor is an agent of the vector clocks. A grid that lets its dependents start before it has
waited itself leaves its own predecessors running, too.
"""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..engine.observer import Access, TmaGlobalAccess
from ..memory import GlobalMemory
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .clocks import ClockCheck, Clocks
from .collected import Collected


class Predecessors:
    """Bytes of global memory that grids before a launch read and wrote.

    Parameters
    ----------
    memory : GlobalMemory
        The arrays.

    Attributes
    ----------
    read, written : array of bool, (2, bytes)
        The bytes: those of all accesses, and of those that are not atomic.
    """

    def __init__(self, memory: GlobalMemory) -> None:
        self.read = np.zeros((2, memory.size), np.bool_)
        self.written = np.zeros((2, memory.size), np.bool_)


class GridOrder(ClockCheck):
    """Looks for accesses that come before ``griddepcontrol.wait`` and meet those of a predecessor.

    Atomic ones, relaxed loads too, may meet each other.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    clocks : Clocks
        The warps' clocks.
    before : Predecessors
        Accesses of the grids before, to which those of this launch are added.
    dependent : bool
        Whether the launch is dependent.
    """

    def __init__(self, collected: Collected, clocks: Clocks, before: Predecessors, dependent: bool) -> None:
        super().__init__(collected, clocks)
        self._before = before
        self._dependent = dependent

    def begin(self, kernel: Kernel) -> None:
        self._read, self._written = np.zeros_like(self._before.read), np.zeros_like(self._before.written)
        names = [part for one in kernel.instructions if one.name == "griddepcontrol" for part in one.modifiers]
        # Whether grids before may run until this one has ended, or longer.
        self._leaves = self._dependent and "wait" not in names

    def dependents_launched(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        if self._dependent and not self._clocks.has_waited(self._clocks.warps_in(batch, lanes)).all():
            self._leaves = True

    def access(self, access: Access) -> None:
        if access.space == "global":
            for part in access.uniform():
                self._look(part, part.lanes.index, part.address[:, None] + np.arange(part.size), part.read, part.write)

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        for row in range(access.start.shape[1]):
            for size in np.unique(access.size[:, row]).tolist():
                some = access.size[:, row] == size
                places = access.start[some, row][:, None] + np.arange(size)
                self._look(access, access.lanes[some], places, not access.write, access.write)

    def _look(self, access: Access | TmaGlobalAccess, index: Array, places: Array, read: bool, write: bool) -> None:
        atomic = isinstance(access, Access) and access.atomic
        for kept, happens in ((self._read, read), (self._written, write)):
            if happens:
                kept[: 1 if atomic else 2, places] = True
        early = self._dependent and ~self._clocks.has_waited(index // 32)
        if not np.any(early):
            return
        read_before, written_before = (before[int(atomic)] for before in (self._before.read, self._before.written))
        for meets, did, touched in ((True, "writes", written_before), (write, "reads", read_before)):
            found = touched[places].any(axis=1) & early if meets else np.zeros(1, np.bool_)
            if found.any():
                memory, first = access.batch.memory, places[found.argmax()]
                address = int(first[touched[first].argmax()])
                does = "writes" if write else "reads"
                self._collected.add(
                    access.batch,
                    "race",
                    f"{does} {memory.describe(address)}, which a predecessor grid {did}; griddepcontrol.wait before it "
                    "would order the two",
                    access.instruction,
                    index[found],
                    space="global",
                    address=memory.offset(address),
                )
                return

    def end(self) -> None:
        before = self._before
        if self._leaves:
            self._read |= before.read
            self._written |= before.written
        before.read, before.written = self._read, self._written
