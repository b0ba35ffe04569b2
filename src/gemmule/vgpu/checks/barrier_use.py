"""Barriers used against their rules."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..dataflow.control_flow import flow_of
from ..engine.batch import Batch
from ..engine.isa.barrier import Barriers
from ..engine.lanes import Lanes
from ..engine.running_batch import RunningBatch
from ..ptx.module import Immediate, Instruction, Kernel
from ..report import ranges
from ..types import Array
from .collected import Check

_WARP = 32
_ENDS = frozenset({"ret", "exit"})


@dataclasses.dataclass(frozen=True)
class _Parted:
    """A part of a warp that has arrived at a barrier."""

    instruction: Instruction  #: The instruction.
    barrier: int  #: The barrier.
    index: Array  #: Lanes that arrived first.
    lacking: Array  #: Lanes that may still come.


class BarrierUse(Check):
    """Looks for diverged warps at an aligned barrier, and arrivals at a barrier at which no thread can wait.

    The lanes of a warp may come one after another, as they happen to run. Threads that have ended are not waited for,
    wherever they ended: that is no misuse.
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

    def batch_begins(self, batch: Batch) -> None:
        del batch
        self._parted: dict[int, _Parted] = {}

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        if instruction.name == "barrier" and "aligned" not in instruction.modifiers:
            return
        if not self._parted and lanes.count == np.count_nonzero(batch.alive):
            return
        here = np.zeros(batch.lane_count, np.bool_)
        here[lanes.index] = True
        missing = np.asarray((batch.alive & ~here).reshape(-1, _WARP).any(axis=1))
        warps = lanes.pick(batch.warp_of_lane)
        for warp in np.unique(warps[missing[warps] | np.isin(warps, list(self._parted))]).tolist():
            index, number = lanes.index[warps == warp], int(barrier[warps == warp][0])
            before = self._parted.pop(warp, None)
            if before is None:
                lacking = np.flatnonzero((batch.alive & ~here) & (batch.warp_of_lane == warp))
                parted = _Parted(instruction, number, index, lacking)
                if np.isin(lacking, self._beyond(batch, instruction)).any():
                    self._report(batch, parted, "have passed it by")
                else:
                    self._parted[warp] = parted
            elif before.instruction is not instruction or before.barrier != number:
                self._report(batch, before, f"arrive {instruction.place} instead")
            elif len(lacking := np.setdiff1d(before.lacking, index)):
                self._parted[warp] = dataclasses.replace(before, lacking=lacking)

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        if not self._parted:
            return
        places = set(zip(lanes.pick(batch.cta_of_lane).tolist(), barrier.tolist(), strict=True))
        for warp, parted in list(self._parted.items()):
            if (int(batch.cta_of_lane[parted.index[0]]), parted.barrier) in places:
                del self._parted[warp]
                self._report(batch, parted, "are elsewhere when it completes")

    def _beyond(self, batch: Batch, instruction: Instruction) -> Array:
        """Return the lanes that are about to run later code, other than to poll or end: they will not come."""
        assert isinstance(batch, RunningBatch)
        flow, scheduler = flow_of(batch.kernel), batch.scheduler
        own = flow.block_at[instruction.index]
        parts = [
            part.index
            for block, waiting in scheduler.ready.items()
            if block > own
            and block not in scheduler.polling
            and any(one.name not in _ENDS for one in flow.blocks[block].instructions)
            for part in waiting
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _report(self, batch: Batch, parted: _Parted, what: str) -> None:
        lacking = parted.lacking[batch.alive[parted.lacking]]
        if len(lacking):
            self._collected.add(
                batch,
                "barrier",
                f"only some lanes of the warp arrive at barrier {parted.barrier}; lanes "
                f"{ranges((lacking % _WARP).tolist())} {what}, but the instruction is for whole warps",
                parted.instruction,
                parted.index,
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
