"""Observers of a run, which checks and counts are. A run without an observer costs nothing for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from gemmule.vgpu.dataflow.control_flow import Block
from gemmule.vgpu.ptx.module import Instruction, Kernel
from gemmule.vgpu.types import Array

from .batch import Batch
from .lanes import Lanes

#: Bytes that TMA and wgmma move together.
_ROW = 16
#: Methods of observers by their former names, by which nothing calls them.
_FORMER = {
    "box_access": "tma_global_access",
    "passed_over": "predicated_off",
    "warp_met": "warp_synced",
    **{f"products_{what}": f"wgmma_{what}" for what in ("fenced", "issued", "committed", "awaited")},
}


@dataclasses.dataclass(frozen=True)
class Access:
    """One memory instruction of some lanes."""

    instruction: Instruction  #: The instruction.
    batch: Batch  #: The CTAs that the lanes belong to.
    lanes: Lanes  #: The lanes, in the order of `address`.
    space: str  #: ``global``, ``shared`` or ``local``.
    #: Array of int64. For each lane its first byte: within the arena for global memory, else within its CTA's or
    #: thread's own space.
    address: Array
    size: int  #: Bytes that each lane accesses, or the most that one of them does.
    #: read, write: Its direction; an atomic operation has both.
    read: bool = False
    write: bool = False
    #: Whether it is atomic, or a load or store of global memory that does not race with such: not a weak one.
    atomic: bool = False
    asynchronous: bool = False  #: Whether it is a copy that is issued now and takes place later.
    sizes: Array | None = None  #: Array of int64 or None. The bytes of each lane, where they are not the same.

    def uniform(self) -> Iterator[Access]:
        """Yield the access in parts whose lanes access the same number of bytes each."""
        if self.sizes is None:
            yield self
            return
        for size in np.unique(self.sizes).tolist():
            mask = self.sizes == size
            lanes, address = self.lanes.where(mask), self.address[mask]
            yield dataclasses.replace(self, lanes=lanes, address=address, size=size, sizes=None)


@dataclasses.dataclass(frozen=True)
class AgentAccess:
    """Accesses of TMA, or of the wgmma of a warpgroup, to shared memory from now on."""

    instruction: Instruction  #: The instruction that issued it.
    batch: Batch  #: The CTAs.
    #: ``load``, a copy into shared memory; ``async store``, one from registers; ``store``, one out of shared memory;
    #: ``wgmma``, its operands A and B.
    agent: str
    lanes: Array  #: Array of int. For each of them the lane that issued it, of a warpgroup its first.
    rows: Array  #: Array of int64, (n, rows). Rows of 16 bytes of the batch's shared memory.
    barriers: Array | None = None  #: Array of int or None. For each load the mbarrier at which it completes.
    size: int = 0  #: Bytes of each copy.
    #: (array of int, array of int) or None. For each store the bytes, from the first to the last, of each row of its
    #: box that are inside the tensor.
    valid_bytes: tuple[Array, Array] | None = None
    #: Array of int or None. For each asynchronous store of less than 16 bytes, its first byte within its row.
    start: Array | None = None

    def pieces(self, granule: int) -> Array:
        """Return the pieces of shared memory of that many bytes, 16 at most, that each of them covers: (n, pieces)."""
        per_row = _ROW // granule
        if self.start is not None:
            first: Array = self.rows * per_row + (self.start // granule)[:, None]
            return first + np.arange(self.size // granule)
        return (self.rows[:, :, None] * per_row + np.arange(per_row)).reshape(len(self.rows), -1)


@dataclasses.dataclass(frozen=True)
class TmaGlobalAccess:
    """Accesses of TMA copies to global memory from now on."""

    instruction: Instruction  #: The instruction that issued it.
    batch: Batch  #: The CTAs.
    lanes: Array  #: Array of int. For each copy the lane that issued it.
    start: Array  #: Array of int64, (copies, rows). First byte of each row within the arena.
    size: Array  #: Array of int64, (copies, rows). Bytes of it, 0 for rows outside of the tensor.
    #: write, atomic: What the copies do; a reduction is atomic.
    write: bool
    atomic: bool = False
    barriers: Array | None = None  #: Array of int or None. For each load the first mbarrier at which it completes.


class Observer:
    """Sees a run; methods do nothing unless overridden."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse methods by their former names."""
        super().__init_subclass__(**options)
        for name, current in _FORMER.items():
            if name in vars(cls):
                raise TypeError(f"{cls.__name__}.{name} is now {current}; rename the method")

    def begin(self, kernel: Kernel) -> None:
        """See a launch begin."""

    def batch_begins(self, batch: Batch) -> None:
        """See CTAs start that run together."""

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        """See lanes run the instructions of a block."""

    def predicated_off(self, batch: Batch, instruction: Instruction, lanes: Lanes, mask: Array) -> None:
        """See an instruction predicated off for lanes of a block: its guard holds only for those that `mask` names.

        Called before these run it; not called where the guard holds for all, or jumps.
        """

    def undefined(self, batch: Batch, instruction: Instruction, index: Array, what: str) -> None:
        """See an instruction's first destination get a value that is not defined, in the lanes of that number."""

    def access(self, access: Access) -> None:
        """See a memory access."""

    def overwritten(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, space: str, address: Array, lost: Array
    ) -> None:
        """See a store after which memory does not hold the values of the lanes that `lost` names."""

    def grid_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes wait until the predecessor grid has ended (``griddepcontrol.wait``)."""

    def dependents_launched(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes let dependent grids start."""

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        """See lanes arrive at a barrier; `barrier` has one number for each of them."""

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        """See lanes released that waited at a barrier; those that only arrived continued before."""

    def warp_synced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes of a warp synchronise, as by ``bar.warp.sync`` or a shuffle."""

    def copies_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See the copies that lanes issued become a group."""

    def copies_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        """See lanes wait until at most `left` of their groups are in flight."""

    def copies_signalled(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        """See lanes arrive at mbarriers with the completion of the copies that they issued."""

    def load_repeated(self, batch: Batch, instruction: Instruction, index: Array, place: int) -> None:
        """See lanes of a warp issue one and the same TMA load, which completes at that mbarrier."""

    def agent_access(self, access: AgentAccess) -> None:
        """See an access to shared memory issued to TMA or the tensor cores."""

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        """See an access to global memory issued to TMA."""

    def bulk_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See the bulk copies out of shared memory that lanes issued become a group."""

    def bulk_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int, read_only: bool) -> None:
        """See lanes wait until at most `left` of their groups of bulk copies are in flight, or have not yet read."""

    def proxy_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes, shared: bool) -> None:
        """See lanes make their writes, or only mbarriers, visible to TMA and wgmma."""

    def memory_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes order their earlier accesses to memory before their later ones."""

    def mbarrier_initialised(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        """See lanes initialise mbarriers."""

    def mbarrier_invalidated(self, batch: Batch, places: Array) -> None:
        """See mbarriers end: their memory may be used for something else."""

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        """See lanes arrive at mbarriers, each at its own; before the phase may complete."""

    def mbarrier_completed(self, batch: Batch, places: Array) -> None:
        """See phases of mbarriers complete."""

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        """See lanes released from a wait by a complete phase."""

    def cluster_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, releases: bool) -> None:
        """See lanes arrive at the barrier of their cluster."""

    def cluster_completed(self, batch: Batch, clusters: Array) -> None:
        """See the barriers of clusters, counted within the batch, complete."""

    def cluster_left(self, batch: Batch, instruction: Instruction, lanes: Lanes, acquires: bool) -> None:
        """See lanes released from the barrier of their cluster."""

    def wgmma_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes order their registers before the wgmma of their warpgroup (``wgmma.fence``)."""

    def wgmma_issued(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See warpgroups issue a wgmma."""

    def wgmma_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See the wgmma that warps issued become a group (``wgmma.commit_group``)."""

    def wgmma_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        """See lanes wait until at most `left` groups of wgmma are in flight (``wgmma.wait_group``)."""

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        """See lanes end."""

    def faulted(self, batch: Batch, instruction: Instruction | None) -> None:
        """See an instruction of the block under way end the run by a fault."""

    def batch_ends(self, batch: Batch) -> None:
        """See all threads of a batch ended."""

    def end(self) -> None:
        """See the launch end."""
