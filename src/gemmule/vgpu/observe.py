"""What checks and counts see of a run. Nothing is told to nobody: a run without an observer pays for none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .ptx.module import Instruction, Kernel

if TYPE_CHECKING:
    from .engine.batch import Batch
    from .engine.lanes import Lanes
    from .ptx.flow import Block

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True)
class Access:
    """One memory instruction of some lanes.

    Attributes
    ----------
    instruction : Instruction
        The instruction.
    batch : Batch
        The CTAs that the lanes belong to.
    lanes : Lanes
        The lanes, in the order of `address`.
    space : str
        ``global``, ``shared`` or ``local``.
    address : array of int64
        For each lane its first byte: within the arena for global memory, else within its CTA's or thread's own space.
    size : int
        Bytes that each lane accesses, or the most that one of them does.
    sizes : array of int64 or None
        The bytes of each lane, where they are not the same.
    read, write : bool
        What it does; an atomic operation does both.
    atomic : bool
        Whether it is atomic.
    asynchronous : bool
        Whether it is a copy that is issued now and takes place later.
    """

    instruction: Instruction
    batch: Batch
    lanes: Lanes
    space: str
    address: Array
    size: int
    read: bool = False
    write: bool = False
    atomic: bool = False
    asynchronous: bool = False
    sizes: Array | None = None

    def uniform(self) -> Iterator[Access]:
        """Yield the access in parts whose lanes access the same number of bytes each."""
        if self.sizes is None:
            yield self
            return
        for size in np.unique(self.sizes).tolist():
            mask = self.sizes == size
            lanes, address = self.lanes.where(mask), self.address[mask]
            yield dataclasses.replace(self, lanes=lanes, address=address, size=size, sizes=None)


class Observer:
    """Sees a run; every method does nothing unless a subclass says otherwise."""

    def begin(self, kernel: Kernel) -> None:
        """See a launch begin."""

    def batch_begins(self, batch: Batch) -> None:
        """See CTAs start that run together."""

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        """See lanes run the instructions of a block."""

    def passed_over(self, batch: Batch, instruction: Instruction, lanes: Lanes, mask: Array) -> None:
        """See lanes of a block come to an instruction whose guard holds only for those that `mask` names.

        Told before these run it; where the guard holds for all, or jumps, nothing is told.
        """

    def undefined(self, batch: Batch, instruction: Instruction, index: Array, what: str) -> None:
        """See an instruction's first destination get a value that is not defined, in the lanes of that number."""

    def access(self, access: Access) -> None:
        """See a memory access."""

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        """See lanes arrive at a barrier; `barrier` has one number for each of them."""

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        """See lanes go on that waited at a barrier; those that only arrived went on before."""

    def warp_met(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See lanes of a warp meet, as in ``bar.warp.sync`` or a shuffle."""

    def copies_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        """See the copies that lanes issued become a group."""

    def copies_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        """See lanes wait until at most `left` of their groups are under way."""

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        """See lanes end."""

    def batch_ends(self, batch: Batch) -> None:
        """See all threads of a batch ended."""

    def end(self) -> None:
        """See the launch end."""
