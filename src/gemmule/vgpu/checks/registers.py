"""Uninitialised values: registers read before they are written, and loads from unwritten shared memory.

The compiler's code writes nearly every register before it reads it, on every path: that is found once, from the flow
of control. Only the registers of which it cannot be said are followed while threads run.
"""

from __future__ import annotations

import collections
from collections.abc import Set

import numpy as np

from ..dataflow.control_flow import Block
from ..dataflow.effects import registers_in
from ..dataflow.uses import COPIES, uses_of
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..ptx.module import Instruction, Kernel, Negated, Pair, Register
from ..types import Array
from .collected import Check


class UninitialisedRegisters(Check):
    """Looks for the use of uninitialised values: in registers, or loaded from shared memory.

    Loading such a value, or copying it, is no use of it yet: kernels read ahead beyond the last k-tile.
    """

    def begin(self, kernel: Kernel) -> None:
        self._uses, self._code = uses_of(kernel), kernel.instructions
        self._followed: set[Register] = set()
        # Of each block the instructions that touch a register that is followed.
        self._touching: dict[int, list[Instruction]] = {}
        self._follow(self._uses.unwritten)

    def _follow(self, registers: Set[Register]) -> None:
        """Follow more registers: list the instructions that touch them."""
        more: dict[int, set[int]] = collections.defaultdict(set)
        for register in registers - self._followed:
            for block, instruction in self._uses.touching.get(register, ()):
                more[block].add(instruction.index)
        self._followed |= registers
        for block, numbers in more.items():
            numbers.update(instruction.index for instruction in self._touching.get(block, ()))
            self._touching[block] = [self._code[number] for number in sorted(numbers)]

    def batch_begins(self, batch: Batch) -> None:
        self._under_way: tuple[Block, Lanes, int] | None = None
        self._unwritten = {register: np.ones(batch.lane_count, np.bool_) for register in self._uses.unwritten}
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
        self.wrote_undefined(
            batch, instruction, registers_in(target.first if isinstance(target, Pair) else target), index, what
        )

    def wrote_undefined(
        self, batch: Batch, instruction: Instruction, targets: tuple[Register, ...], index: Array, what: str
    ) -> None:
        """See an instruction write uninitialised values into registers of those lanes."""
        # What it writes was written, but for these.
        self._advance(batch, instruction.index + 1)
        self._follow({*targets} | self._copies_of({*targets}))
        for register in targets:
            self._bad(batch, register)[index] = True
            self._origin[register] = what

    def _finish(self, batch: Batch) -> None:
        """Process the rest of the block."""
        if self._under_way is not None:
            self._advance(batch, self._under_way[0].instructions[-1].index + 1)
            self._under_way = None

    def _advance(self, batch: Batch, end: int, mask: Array | None = None) -> None:
        """Process the instructions of the current block up to that number; a mask is its last one's."""
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
        found, waiting = set(registers), list(registers)
        while waiting:
            more = self._uses.copies.get(waiting.pop(), set()) - found
            found |= more
            waiting += more
        return found - registers

    def _bad(self, batch: Batch, register: Register) -> Array:
        found = self._unwritten.get(register)
        if found is None:
            found = self._unwritten[register] = np.zeros(batch.lane_count, np.bool_)
        return found

    def _step(self, batch: Batch, instruction: Instruction, index: Array, mask: Array | None) -> None:
        """Process one instruction: its reads and writes in the lanes for which its guard holds."""
        copies = instruction.name in COPIES
        operands, written = self._uses.operands[instruction.index], self._uses.writes[instruction.index]
        guard = instruction.guard
        if guard is not None:
            # All lanes read the guard.
            register = guard.register if isinstance(guard, Negated) else guard
            self._use(batch, instruction, register, index)
        index = index if mask is None else index[mask]
        bad = np.zeros(len(index), np.bool_)
        for register in operands:
            if register not in self._followed:
                continue
            if not copies:
                self._use(batch, instruction, register, index)
                continue
            here = self._bad(batch, register)[index]
            bad |= here
            if here.any():
                self._origin.update((target, self._origin[register]) for target in written if register in self._origin)
        for register in written:
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
