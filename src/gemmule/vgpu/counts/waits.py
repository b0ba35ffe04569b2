"""Distances between requests to global memory and their first uses, which may hide the latency.

The first warp of a launch is followed, instruction by instruction, in the order of the PTX. A load is waited for where
its result is first used; copies of cp.async where their group is waited for. The distance is the number of
instructions in between, which are free to hide the latency. Loads of one round are in flight together: a round ends
at a barrier, where a loop begins again, and where it ends: a load after the loop waits anew.

The assembler moves instructions, never across a barrier or out of a loop: within a round a load may be issued earlier
than here, so a load after a wait of the same round, in an unrolled loop or after a branch, is in flight with it.
"""

from __future__ import annotations

from ..dataflow.control_flow import Block
from ..dataflow.effects import read, written
from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..engine.observer import Observer
from ..ptx.module import Immediate, Instruction, Kernel, Register
from .classes import class_of

_LOADS = ("load global", "load generic", "atomic global")


class Waits(Observer):
    """Follows the first warp of a launch.

    Attributes
    ----------
    rounds : list of int
        For each round in which it waits, the shortest distance, in instructions, between a request and its use.
    """

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self._trace: list[Block] = []

    def begin(self, kernel: Kernel) -> None:
        del kernel
        self.rounds, self._trace = [], []

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        if batch.ctas[0] == 0 and lanes.index[0] == 0:
            self._trace.append(block)

    def end(self) -> None:
        walk = _Walk()
        before, left_loop = -1, False
        for block in self._trace:
            if block.index <= before or left_loop:
                walk.end_round()
            before = block.index
            for instruction in block.instructions:
                walk.step(instruction)
            left_loop = min(block.successors, default=block.index + 1) <= block.index
        walk.end_round()
        self.rounds = walk.rounds


class _Walk:
    """The walk of a warp through its instructions."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self._position = 0
        self._shortest: int | None = None
        self._pending: dict[Register, int] = {}
        # Positions of the first copy of each group without a wait, and of the group that is still open.
        self._groups: list[int] = []
        self._open: int | None = None

    def step(self, instruction: Instruction) -> None:
        kind = class_of(instruction)
        for register in read(instruction):
            if (issued := self._pending.pop(register, None)) is not None:
                self._waits(issued)
        if kind == "barrier":
            self.end_round()
        elif kind == "async copy":
            self._copy(instruction)
        for register in written(instruction):
            self._pending.pop(register, None)
            if kind in _LOADS:
                self._pending[register] = self._position
        self._position += 1

    def _copy(self, instruction: Instruction) -> None:
        modifiers = instruction.modifiers
        if "commit_group" in modifiers:
            # An empty group counts too, for waits for all but the newest; no wait is for it.
            self._groups.append(self._position if self._open is None else self._open)
            self._open = None
        elif "wait_group" in modifiers:
            left = instruction.operands[0]
            assert isinstance(left, Immediate)
            self._awaited(left.value)
        elif "wait_all" in modifiers:
            self._awaited(0)
        elif self._open is None:
            self._open = self._position

    def _awaited(self, left: int) -> None:
        done = self._groups[: max(len(self._groups) - left, 0)]
        if done:
            self._waits(done[-1])
            self._groups = self._groups[len(done) :]

    def _waits(self, issued: int) -> None:
        distance = self._position - issued - 1
        self._shortest = distance if self._shortest is None else min(self._shortest, distance)

    def end_round(self) -> None:
        """End a round: later waits are for later requests."""
        if self._shortest is not None:
            self.rounds.append(self._shortest)
            self._shortest = None
