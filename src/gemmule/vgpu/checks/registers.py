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
from ..dataflow.uses import COMPUTES, uses_of
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..ptx.module import Instruction, Kernel, Negated, Pair, Register
from ..types import Array
from .collected import Check


class UninitialisedRegisters(Check):
    """Looks for the use of uninitialised values: in registers, or loaded from shared memory.

    Loading such a value, copying it or computing with it is no use of it yet: kernels read ahead beyond the last
    k-tile, and lanes that are masked compute along. It is one where it decides a branch or an address, or where memory,
    another lane or a matrix product gets it. What a selection chooses of two values counts as unwritten if both are.
    """

    def begin(self, kernel: Kernel) -> None:
        self._uses, self._code = uses_of(kernel), kernel.instructions
        self._followed: set[Register] = set()
        # Instructions of each block that access a tracked register.
        self._touching: dict[int, list[Instruction]] = {}
        self._follow(self._uses.unwritten | self._results_of({*self._uses.unwritten}))

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
        # Those of which a lane may be unwritten.
        self._live = set(self._unwritten)

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        self._finish(batch)
        if block.instructions:
            self._under_way = (block, lanes, block.instructions[0].index)

    def batch_ends(self, batch: Batch) -> None:
        self._finish(batch)

    def faulted(self, batch: Batch, instruction: Instruction | None) -> None:
        # An uninitialised address is the cause of the fault.
        if instruction is not None and self._under_way is not None:
            self._advance(batch, instruction.index + 1)

    def predicated_off(self, batch: Batch, instruction: Instruction, lanes: Lanes, mask: Array) -> None:
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
        # Its results are defined, except these.
        self._advance(batch, instruction.index + 1)
        self._follow({*targets} | self._results_of({*targets}))
        for register in targets:
            self._bad(batch, register)[index] = True
            self._live.add(register)
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

    def _results_of(self, registers: set[Register]) -> set[Register]:
        """Return the registers whose values may be computed from those."""
        found, waiting = set(registers), list(registers)
        while waiting:
            more = self._uses.results.get(waiting.pop(), set()) - found
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
        computes = instruction.name in COMPUTES
        operands, written = self._uses.operands[instruction.index], self._uses.writes[instruction.index]
        if self._live.isdisjoint(self._uses.reads[instruction.index]) and self._live.isdisjoint(written):
            return
        guard = instruction.guard
        if guard is not None:
            # All lanes read the guard.
            register = guard.register if isinstance(guard, Negated) else guard
            self._use(batch, instruction, register, index)
        index = index if mask is None else index[mask]
        unwritten = []
        for register in operands:
            here = self._bad(batch, register)[index] if register in self._live else None
            if here is None or not here.any():
                continue
            unwritten.append((register, here))
            if computes:
                origin = self._origin.get(register, "which was not written")
                if instruction.name != "mov" and not origin.startswith("computed"):
                    origin = f"computed in {_where(instruction)} from {register}, {origin}"
                self._origin.update((target, origin) for target in written)
            else:
                self._use(batch, instruction, register, index)
        bad = _combined(instruction, unwritten, len(index))
        for register in written:
            if register in self._followed:
                known = self._bad(batch, register)
                known[index] = bad if computes else False
                if known.any():
                    self._live.add(register)
                else:
                    self._live.discard(register)

    def _use(self, batch: Batch, instruction: Instruction, register: Register, index: Array) -> None:
        """See lanes use a register."""
        if register in self._followed:
            here = self._bad(batch, register)[index]
            if here.any():
                what = self._origin.get(register, "which was not written")
                self._collected.add(batch, "uninitialised", f"uses {register}, {what}", instruction, index[here])


def _combined(instruction: Instruction, unwritten: list[tuple[Register, Array]], lanes: int) -> Array:
    """Return the lanes in which an instruction's result is unwritten, from those in which its operands are."""
    bad = np.zeros(lanes, np.bool_)
    for _, here in unwritten:
        bad |= here
    if instruction.name not in ("selp", "slct") or not bad.any():
        return bad
    known = dict(unwritten)
    none = np.zeros(lanes, np.bool_)
    first, second, chooser = (
        known.get(operand, none) if isinstance(operand, Register) else none for operand in instruction.operands[1:4]
    )
    found: Array = (first & second) | chooser
    return found


def _where(instruction: Instruction) -> str:
    """Return a place in the source, or else in the PTX text."""
    source = instruction.source
    return f"PTX line {instruction.line}" if source is None else f"line {source.line}"
