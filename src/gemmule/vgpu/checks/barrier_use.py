"""Barriers used against their rules."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.isa.barrier import Barriers
from ..engine.lanes import Lanes
from ..ptx.module import Immediate, Instruction, Kernel
from ..types import Array
from .collected import Check

_WARP = 32


class BarrierUse(Check):
    """Looks for diverged warps at an aligned barrier, and arrivals at a barrier at which no thread can wait.

    Threads that have ended are not waited for, wherever they ended: that is no misuse.
    """

    def begin(self, kernel: Kernel) -> None:
        # Barriers at which some instruction waits for a number of threads; None where it may be any.
        waits = [
            instruction.operands[0]
            for instruction in kernel.instructions
            if instruction.name in ("bar", "barrier")
            and "sync" in instruction.modifiers
            and "warp" not in instruction.modifiers
            and len(instruction.operands) == 2
        ]
        # A reduction has its destination first, and its predicate last.
        waits += [
            instruction.operands[1]
            for instruction in kernel.instructions
            if instruction.name in ("bar", "barrier")
            and "red" in instruction.modifiers
            and len(instruction.operands) == 4
        ]
        self._waited = {operand.value if isinstance(operand, Immediate) else None for operand in waits}

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        modifiers = instruction.modifiers
        if instruction.name == "barrier" and "aligned" not in modifiers:
            return
        if lanes.count == np.count_nonzero(batch.alive):
            return
        here = np.zeros(batch.lane_count, np.bool_)
        here[lanes.index] = True
        missing = np.asarray((batch.alive & ~here).reshape(-1, _WARP).any(axis=1))
        parted = missing[lanes.pick(batch.warp_of_lane)]
        if parted.any():
            index = lanes.index[parted]
            lacking = np.flatnonzero((batch.alive & ~here) & (batch.warp_of_lane == batch.warp_of_lane[index[0]]))
            self._collected.add(
                batch,
                "barrier",
                f"only some lanes of the warp arrive at barrier {int(barrier[parted][0])}; lanes "
                f"{(lacking % _WARP).tolist()} are elsewhere, but the instruction is for whole warps",
                instruction,
                index,
            )

    def batch_ends(self, batch: Batch) -> None:
        left = np.argwhere(Barriers.of(batch).arrived > 0)
        # In ping-pong the last arrival has no waiter: that is no error.
        left = left[[self._waited.isdisjoint({int(barrier), None}) for barrier in left[:, 1]]]
        if len(left):
            cta, barrier = (int(value) for value in left[0])
            count = int(Barriers.of(batch).arrived[cta, barrier])
            self._collected.add(
                batch,
                "barrier",
                f"{count} threads arrived at barrier {barrier}, which never completed",
                Barriers.of(batch).last_use(barrier),
                np.array([cta * batch.cta_lanes]),
            )
