"""Loads of shared memory that may still be under way when a barrier is told.

An arrival at an mbarrier waits for no load that the warp has issued. Who was told may ask the copy engine for what
comes next, whose writes then overtake the load. So a load counts as a read once more where its value is needed for
good: by a product, a store, a shuffle or a branch. Arithmetic is not enough, since the compiler may move it behind the
arrival. Barriers of the CTA and fences wait for loads.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.lanes import Lanes
from ..observe import Access, Observer
from ..ptx.flow import Block, flow_of
from ..ptx.module import Instruction, Kernel, Register
from ..ptx.uses import Uses, uses_of
from .clocks import is_asynchronous

if TYPE_CHECKING:
    from ..engine.batch import Batch

Array = np.ndarray[Any, np.dtype[Any]]

#: What needs its operands, and cannot be moved behind an arrival.
_NEEDS = frozenset(
    {"wgmma", "mma", "st", "red", "atom", "stmatrix", "cp", "ld", "ldu", "ldmatrix", "movmatrix", "shfl", "vote",
     "match", "redux", "mbarrier", "bra", "brx"}
)  # fmt: skip
#: What no load is under way behind.
_ENDS = frozenset({"bar", "barrier", "fence", "membar"})


class LateReads(Observer):
    """Lets loads of shared memory count as reads again where their values are needed.

    Parameters
    ----------
    shared : Observer
        Looks for races in shared memory.
    """

    def __init__(self, shared: Observer) -> None:
        self._shared = shared

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # For each block that needs values, or ends loads, the loads.
        self._needed: dict[int, tuple[int, ...]] = {}
        self._loads: frozenset[int] = frozenset()
        if is_asynchronous(kernel) and any(instruction.name == "mbarrier" for instruction in kernel.instructions):
            self._find(kernel)

    def _find(self, kernel: Kernel) -> None:
        uses = uses_of(kernel)
        blocks = flow_of(kernel).blocks
        block_of = {one.index: block for block in blocks for one in block.instructions}
        needed: dict[int, list[int]] = collections.defaultdict(list)
        for load in kernel.instructions:
            if not _is_load(load):
                continue
            needs = _needing(uses, uses.writes[load.index])
            block = block_of[load.index]
            ends = [one.index for one in block.instructions if _ends(one)]
            if any(one > load.index and block_of[one] is block for one in (*needs, *ends)):
                continue
            for number in dict.fromkeys(block_of[need].index for need in needs):
                needed[number].append(load.index)
        self._loads = frozenset(load for loads in needed.values() for load in loads)
        self._needed = {number: tuple(loads) for number, loads in needed.items()}
        for block in blocks if self._loads else ():
            if any(map(_ends, block.instructions)):
                self._needed[block.index] = tuple(self._loads)

    def batch_begins(self, batch: Batch) -> None:
        # For each load the lanes that may still wait for it, where they read, and how much.
        self._waiting = {load: np.zeros(batch.lane_count, np.bool_) for load in self._loads}
        self._address = {load: np.zeros(batch.lane_count, np.int64) for load in self._loads}
        self._size = dict.fromkeys(self._loads, 0)
        self._open: set[int] = set()

    def access(self, access: Access) -> None:
        number = access.instruction.index
        if number in self._loads and access.space == "shared":
            index = access.lanes.index
            self._open.add(number)
            self._waiting[number][index] = True
            self._address[number][index] = access.address
            self._size[number] = access.size

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        for load in sorted(self._open.intersection(self._needed.get(block.index, ()))):
            waiting = self._waiting[load]
            index = lanes.index[waiting[lanes.index]]
            if len(index):
                waiting[index] = False
                if not waiting.any():
                    self._open.discard(load)
                self._shared.access(
                    Access(
                        self._kernel.instructions[load], batch, Lanes(index), "shared", self._address[load][index],
                        self._size[load], read=True, late=True,
                    )
                )  # fmt: skip


def _is_load(instruction: Instruction) -> bool:
    return instruction.name in ("ld", "ldu") and "shared" in {part.split("::")[0] for part in instruction.modifiers}


def _ends(instruction: Instruction) -> bool:
    return instruction.name in _ENDS and "warp" not in instruction.modifiers


def _needing(uses: Uses, loaded: tuple[Register, ...]) -> list[int]:
    """Return the instructions that need what was loaded, or what arithmetic makes of it."""
    known, waiting, found = set(loaded), list(loaded), set()
    while waiting:
        for _, instruction in uses.touching[waiting.pop()]:
            number = instruction.index
            if not known.intersection(uses.reads[number]):
                continue
            if instruction.name in _NEEDS:
                found.add(number)
                continue
            fresh = [register for register in uses.writes[number] if register not in known]
            known.update(fresh)
            waiting.extend(fresh)
    return sorted(found)
