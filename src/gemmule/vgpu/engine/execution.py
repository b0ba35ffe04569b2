"""Execution: the blocks of a program on a machine, until all threads have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from gemmule.vgpu.dataflow.control_flow import Block
from gemmule.vgpu.report import DeadlockError, FaultError, Finding, ranges

from .definition import Gate, Step, WaitText
from .lanes import Lanes, merged
from .registers import RegisterUse
from .running_batch import RunningBatch

#: Rounds of polling during which no other lanes run.
_POLLS = 1 << 12
#: In the random schedule, the chance that an operation in flight completes after a block.
_CHANCE = 0.05


@dataclasses.dataclass(frozen=True)
class BoundBlock:
    """A block whose instructions have become steps."""

    block: Block  #: The instructions.
    steps: tuple[Step, ...]  #: Executable steps.
    uses: RegisterUse  #: Registers that they need.
    gate: Gate | None  #: Returns which lanes can begin, where the instruction may have to wait for others.
    waits_for: WaitText | None  #: Says what lanes wait for that the gate holds back.
    next: int | None  #: Next block of the lanes; None where the last step branches.

    def admit(self, batch: RunningBatch, lanes: Lanes) -> Lanes | None:
        """Return the lanes that can begin, and park the others."""
        if self.gate is None:
            return lanes
        ready = self.gate(batch.frame(lanes, self.uses), None)
        if ready is None or ready.all():
            return lanes
        batch.scheduler.park(self.block.index, lanes.where(~ready))
        return lanes.where(ready) if ready.any() else None

    def run(self, batch: RunningBatch, lanes: Lanes) -> None:
        """Run the instructions for those lanes, and send them on."""
        frame = batch.frame(lanes, self.uses)
        for step in self.steps:
            step(frame)
        frame.store(self.uses)
        if self.next is not None:
            batch.scheduler.enqueue(self.next, lanes)


def execute(batch: RunningBatch, blocks: Sequence[BoundBlock]) -> None:
    """Run all threads from the first block to their end.

    Raises
    ------
    DeadlockError
        If lanes are left that wait for an event that cannot happen.
    """
    for observer in batch.observers:
        observer.batch_begins(batch)
    scheduler, random = batch.scheduler, batch.launch_state.schedule == "random"
    scheduler.enqueue(0, Lanes(np.flatnonzero(batch.alive)))
    # Rounds since lanes last did anything but poll, or an operation in flight completed.
    polls = 0
    while True:
        while scheduler.ready and polls <= _POLLS:
            if scheduler.polling:
                polls = 0 if not scheduler.only_polls or batch.unblock() else polls + 1
            block, lanes = scheduler.next()
            bound = blocks[block]
            batch.clock += len(bound.block.instructions)
            admitted = bound.admit(batch, lanes)
            if admitted is None:
                continue
            for observer in batch.observers:
                observer.executed(batch, bound.block, admitted)
            try:
                bound.run(batch, admitted)
            except FaultError as error:
                for observer in batch.observers:
                    observer.faulted(batch, error.findings[0].instruction)
                raise
            if random and batch.random.random() < _CHANCE:
                batch.complete_one()
        if scheduler.ready or not batch.unblock():
            break
    if batch.alive.any():
        raise DeadlockError(list(_deadlocks(batch, blocks)))
    batch.finish()
    for observer in batch.observers:
        observer.batch_ends(batch)


def _deadlocks(batch: RunningBatch, blocks: Sequence[BoundBlock]) -> Iterator[Finding]:
    """Yield a finding for each warp that waits."""
    for unit in batch.units.values():
        yield from unit.deadlocks()
    for block, lanes in batch.scheduler.parked.items():
        for warp in np.unique(batch.warp_of_lane[lanes.index]):
            index = lanes.index[batch.warp_of_lane[lanes.index] == warp]
            missing = np.setdiff1d(np.flatnonzero(batch.alive & (batch.warp_of_lane == warp)), index) % 32
            waits_for = blocks[block].waits_for
            if waits_for is not None:
                message = waits_for(batch, Lanes(index))
            elif len(missing):
                message = f"waits for lanes {ranges(missing.tolist())} of its warp"
            else:
                message = "waits for lanes of its warp that have ended"
            yield batch.finding("deadlock", message, blocks[block].block.instructions[0], index)
    for block, parts in batch.scheduler.ready.items():
        index = merged(parts).index
        for warp in np.unique(batch.warp_of_lane[index]):
            message = "polls for a word that no running thread writes, or a lock that none releases"
            instruction = blocks[block].block.instructions[0]
            yield batch.finding("deadlock", message, instruction, index[batch.warp_of_lane[index] == warp])
