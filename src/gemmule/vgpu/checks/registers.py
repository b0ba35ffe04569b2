"""Values that nobody wrote: registers read before they are written, and what is loaded from untouched shared memory.

The compiler's code writes nearly every register before it reads it, on every path: that is found once, from the flow
of control. Only the registers of which it cannot be said are followed while threads run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..observe import Observer
from ..ptx.effects import read, written
from ..ptx.flow import Block, flow_of
from ..ptx.module import Instruction, Kernel, Register
from .collected import Collected

if TYPE_CHECKING:
    from ..engine.batch import Batch
    from ..engine.lanes import Lanes

Array = np.ndarray[Any, np.dtype[Any]]

#: Copying what was not written is no use of it yet.
_COPIES = ("mov",)


def suspects(kernel: Kernel) -> set[Register]:
    """Return the registers that some path reads before it writes them."""
    blocks = flow_of(kernel).blocks
    everything = set(kernel.registers)
    # Registers surely written before each block: what all ways there have in common.
    before: list[set[Register]] = [set() if block.index == 0 else set(everything) for block in blocks]
    waiting = [0]
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        seen.add(number)
        after = before[number] | _surely_written(blocks[number])
        for following in blocks[number].successors:
            common = before[following] & after
            if common != before[following] or following not in seen:
                before[following] = common
                waiting.append(following)
    found: set[Register] = set()
    for block in blocks:
        if block.index not in seen:
            continue
        known = set(before[block.index])
        for instruction in block.instructions:
            found.update(register for register in read(instruction) if register not in known)
            if instruction.guard is None:
                known.update(written(instruction))
    return found


def _surely_written(block: Block) -> set[Register]:
    return {
        register for instruction in block.instructions if instruction.guard is None for register in written(instruction)
    }


class UninitialisedRegisters(Observer):
    """Looks for the use of values that nobody wrote: in registers, or loaded from shared memory.

    Loading such a value, or copying it, is no use of it yet: kernels read ahead beyond the last slice.

    Parameters
    ----------
    collected : Collected
        Takes the findings.
    """

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def begin(self, kernel: Kernel) -> None:
        flow = flow_of(kernel)
        self._blocks = flow.blocks
        self._block_of = {instruction.index: block.index for block in flow.blocks for instruction in block.instructions}
        self._from_start = suspects(kernel)
        self._followed: set[Register] = set()
        self._touching: dict[int, list[Instruction]] = {}
        self._follow(self._from_start)

    def _follow(self, registers: set[Register]) -> None:
        """Follow more registers: note which instructions touch them."""
        if registers <= self._followed:
            return
        self._followed |= registers
        self._touching = {}
        for block in self._blocks:
            touching = [
                instruction
                for instruction in block.instructions
                if not self._followed.isdisjoint((*read(instruction), *written(instruction)))
            ]
            if touching:
                self._touching[block.index] = touching

    def batch_begins(self, batch: Batch) -> None:
        self._unwritten = {register: np.ones(batch.lane_count, np.bool_) for register in self._from_start}
        self._origin: dict[Register, str] = {}

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        for instruction in self._touching.get(block.index, ()):
            self._step(batch, instruction, lanes.index)

    def loaded_unwritten(self, batch: Batch, instruction: Instruction, index: Array, what: str) -> None:
        """See a load bring values that nobody wrote into registers of those lanes."""
        targets = set(written(instruction))
        self._follow(targets | self._copies_of(targets))
        for register in targets:
            self._bad(batch, register)[index] = True
            self._origin[register] = what
        # The rest of the block counted as done before the load was seen.
        for later in self._touching.get(self._block_of[instruction.index], ()):
            if later.index > instruction.index:
                self._step(batch, later, index)

    def _copies_of(self, registers: set[Register]) -> set[Register]:
        """Return the registers into which a chain of copies may carry those."""
        found = set(registers)
        while True:
            more = {
                register
                for block in self._blocks
                for instruction in block.instructions
                if instruction.name in _COPIES and not found.isdisjoint(read(instruction))
                for register in written(instruction)
            }
            if more <= found:
                return found - registers
            found |= more

    def _bad(self, batch: Batch, register: Register) -> Array:
        found = self._unwritten.get(register)
        if found is None:
            found = self._unwritten[register] = np.zeros(batch.lane_count, np.bool_)
        return found

    def _step(self, batch: Batch, instruction: Instruction, index: Array) -> None:
        """Take one instruction into account: what it uses, and what it writes."""
        copies = instruction.name in _COPIES
        bad = np.zeros(len(index), np.bool_)
        for register in read(instruction):
            if register not in self._followed:
                continue
            here = self._bad(batch, register)[index]
            bad |= here
            if here.any() and copies:
                self._origin.update(
                    (target, self._origin[register]) for target in written(instruction) if register in self._origin
                )
            elif here.any():
                what = self._origin.get(register, "which was not written")
                self._collected.add(batch, "uninitialised", f"uses {register}, {what}", instruction, index[here])
        for register in written(instruction):
            if register in self._followed:
                known = self._bad(batch, register)
                known[index] = bad if copies else False
