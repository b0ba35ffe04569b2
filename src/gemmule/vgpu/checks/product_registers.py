"""Registers of wgmma: used while it is in flight, or without a fence before it."""

from __future__ import annotations

import numpy as np

from ..dataflow.control_flow import Block, flow_of
from ..dataflow.effects import operands_read, registers_in, written
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..ptx.module import Instruction, Kernel, Register, Vector
from .collected import Check


def _of_product(instruction: Instruction) -> tuple[frozenset[Register], frozenset[Register]]:
    """Return the registers of D, and those of A where it is in registers."""
    d, a = instruction.operands[:2]
    return frozenset(registers_in(d)), frozenset(registers_in(a) if isinstance(a, Vector) else ())


class ProductRegisters(Check):
    """Looks for misuse of the registers of wgmma.

    D must not be touched, and A not be written, before the wait for their group; and a fence must come between any use
    of them and the next product.
    """

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        products = [x for x in kernel.instructions if x.name == "wgmma" and "mma_async" in x.modifiers]
        self._sets: list[frozenset[Register]] = []
        # For each product the numbers of its sets of registers: D's, and A's.
        self._of: dict[int, tuple[int, ...]] = {}
        touched: dict[Register, set[int]] = {}
        changed: dict[Register, set[int]] = {}
        for product in products:
            numbers = []
            for registers, where in zip(_of_product(product), ((touched, changed), (changed,)), strict=True):
                if not registers:
                    continue
                if registers not in self._sets:
                    self._sets.append(registers)
                number = self._sets.index(registers)
                numbers.append(number)
                for register in registers:
                    for table in where:
                        table.setdefault(register, set()).add(number)
            self._of[product.index] = tuple(numbers)
        # For each block the instructions that use such registers, and which sets.
        self._uses: dict[int, list[tuple[Instruction, Register, tuple[int, ...]]]] = {}
        for block in flow_of(kernel).blocks if products else ():
            for instruction in block.instructions:
                if instruction.name != "wgmma":
                    self._note(block, instruction, touched, changed)

    def _note(
        self, block: Block, instruction: Instruction, touched: dict[Register, set[int]],
        changed: dict[Register, set[int]],
    ) -> None:  # fmt: skip
        for registers, table in ((operands_read(instruction), touched), (written(instruction), changed)):
            for register in registers:
                if register in table:
                    use = (instruction, register, tuple(sorted(table[register])))
                    self._uses.setdefault(block.index, []).append(use)

    def batch_begins(self, batch: Batch) -> None:
        warps = batch.lane_count // 32
        # Used since the warp's last fence, and so by more than copies; the group that last had it; whether there was a
        # fence since the last wait; groups committed and awaited.
        self._used = np.ones((warps, len(self._sets)), np.bool_)
        self._computed = np.ones_like(self._used)
        self._fenced = np.zeros(warps, np.bool_)
        self._group = np.zeros((warps, len(self._sets)), np.int64)
        self._committed = np.zeros(warps, np.int64)
        self._awaited = np.zeros(warps, np.int64)

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        uses = self._uses.get(block.index)
        if uses is None:
            return
        warp = lanes.pick(batch.warp_of_lane)
        for instruction, register, numbers in uses:
            for number in numbers:
                open_lanes = self._group[warp, number] > self._awaited[warp]
                if open_lanes.any():
                    self._collected.add(
                        batch,
                        "race",
                        f"uses {register} before wgmma.wait_group completes the wgmma in flight that holds it",
                        instruction,
                        lanes.index[open_lanes],
                    )
                self._used[warp, number] = True
                if instruction.name != "mov":
                    self._computed[warp, number] = True

    def wgmma_fenced(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        warps = lanes.pick(batch.warp_of_lane)
        self._used[warps], self._computed[warps], self._fenced[warps] = False, False, True

    def wgmma_issued(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        warp = lanes.pick(batch.warp_of_lane)
        for number in self._of[instruction.index]:
            unfenced = self._used[warp, number]
            if unfenced.any():
                # The compiler decides which uses of registers are behind a fence, and copies them where it likes.
                missing = self._computed[warp, number] & ~self._fenced[warp]
                report = self._collected.add if missing.any() else self._collected.note
                report(
                    batch,
                    "race",
                    "no wgmma.fence orders other uses of its registers before this wgmma",
                    instruction,
                    lanes.index[unfenced],
                )
            self._group[warp, number] = self._committed[warp] + 1

    def wgmma_committed(self, batch: Batch, instruction: Instruction, lanes: Lanes) -> None:
        del instruction
        self._committed[np.unique(lanes.pick(batch.warp_of_lane))] += 1

    def wgmma_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        del instruction
        warps = np.unique(lanes.pick(batch.warp_of_lane))
        self._awaited[warps] = np.maximum(self._awaited[warps], self._committed[warps] - left)
        self._fenced[warps] = False

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        warp = lanes.pick(batch.warp_of_lane)
        open_lanes = (self._group[warp] > self._awaited[warp, None]).any(axis=1)
        if open_lanes.any():
            self._collected.add(
                batch,
                "unfinished",
                "the warp ends without waiting for wgmma that it issued",
                instruction,
                lanes.index[np.asarray(open_lanes)],
            )
