"""Values that nobody wrote: registers read before they are written, and what is loaded from untouched shared memory.

The compiler's code writes nearly every register before it reads it, on every path: that is found once, from the flow
of control. Only the registers of which it cannot be said are followed while threads run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..observe import Observer
from ..ptx.effects import operands_read, read, registers_in, written
from ..ptx.flow import Block, flow_of
from ..ptx.module import Instruction, Kernel, Negated, Pair, Register
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
        self._under_way: tuple[Block, Lanes, int] | None = None
        self._unwritten = {register: np.ones(batch.lane_count, np.bool_) for register in self._from_start}
        self._origin: dict[Register, str] = {}

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        self._finish(batch)
        if block.instructions:
            self._under_way = (block, lanes, block.instructions[0].index)

    def batch_ends(self, batch: Batch) -> None:
        self._finish(batch)

    def passed_over(self, batch: Batch, instruction: Instruction, lanes: Lanes, mask: Array) -> None:
        del lanes
        self._advance(batch, instruction.index)
        self._advance(batch, instruction.index + 1, mask)

    def undefined(self, batch: Batch, instruction: Instruction, index: Array, what: str) -> None:
        target = instruction.operands[0]
        self.brought(
            batch, instruction, registers_in(target.first if isinstance(target, Pair) else target), index, what
        )

    def brought(
        self, batch: Batch, instruction: Instruction, targets: tuple[Register, ...], index: Array, what: str
    ) -> None:
        """See an instruction bring values that nobody wrote into registers of those lanes."""
        # What it writes was written, but for these.
        self._advance(batch, instruction.index + 1)
        self._follow({*targets} | self._copies_of({*targets}))
        for register in targets:
            self._bad(batch, register)[index] = True
            self._origin[register] = what

    def _finish(self, batch: Batch) -> None:
        """Take the rest of the block into account."""
        if self._under_way is not None:
            self._advance(batch, self._under_way[0].instructions[-1].index + 1)
            self._under_way = None

    def _advance(self, batch: Batch, end: int, mask: Array | None = None) -> None:
        """Take the instructions of the block under way into account, up to that number; a mask is its last one's."""
        assert self._under_way is not None
        block, lanes, begin = self._under_way
        if end <= begin:
            return
        self._under_way = (block, lanes, end)
        for instruction in self._touching.get(block.index, ()):
            if begin <= instruction.index < end:
                self._step(batch, instruction, lanes.index, mask)

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

    def _step(self, batch: Batch, instruction: Instruction, index: Array, mask: Array | None) -> None:
        """Take one instruction into account: what it uses, and what it writes, in the lanes that its guard lets."""
        copies = instruction.name in _COPIES
        guard = instruction.guard
        if guard is not None:
            # All lanes ask the guard.
            register = guard.register if isinstance(guard, Negated) else guard
            self._use(batch, instruction, register, index)
        index = index if mask is None else index[mask]
        bad = np.zeros(len(index), np.bool_)
        for register in operands_read(instruction):
            if register not in self._followed:
                continue
            if not copies:
                self._use(batch, instruction, register, index)
                continue
            here = self._bad(batch, register)[index]
            bad |= here
            if here.any():
                self._origin.update(
                    (target, self._origin[register]) for target in written(instruction) if register in self._origin
                )
        for register in written(instruction):
            if register in self._followed:
                known = self._bad(batch, register)
                known[index] = bad if copies else False

    def _use(self, batch: Batch, instruction: Instruction, register: Register, index: Array) -> None:
        """See lanes use a register."""
        if register in self._followed:
            here = self._bad(batch, register)[index]
            if here.any():
                what = self._origin.get(register, "which was not written")
                self._collected.add(batch, "uninitialised", f"uses {register}, {what}", instruction, index[here])
