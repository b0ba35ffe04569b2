"""Named barriers of a CTA (bar, barrier): threads arrive, some of them wait, and a full count releases all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from gemmule.vgpu.ptx.module import TYPE_BYTES, Instruction, Operand, Register
from gemmule.vgpu.report import Finding, ranges
from gemmule.vgpu.types import Array

from ..definition import Build, Step, defines
from ..lanes import Lanes
from ..running_batch import Frame, RunningBatch, Unit
from .cluster_barrier import cluster_barrier
from .warp_barrier import warp_barrier

#: Barriers of a CTA.
COUNT = 16


@dataclasses.dataclass(frozen=True)
class Vote:
    """The operands of a reduction at a barrier, and where its result goes."""

    operation: str  #: ``popc``, ``and`` or ``or``.
    values: Array  #: Array of bool. The predicate of each lane.
    #: width, row: The result's width in bytes and its row of the register file.
    width: int
    row: int

    def where(self, mask: Array) -> Vote:
        """Return the votes of some lanes."""
        return dataclasses.replace(self, values=self.values[mask])


class Barriers(Unit):
    """The named barriers of every CTA of a batch.

    Attributes
    ----------
    arrived : array of int, (CTAs, 16)
        Threads that arrived at each barrier since it last completed; where it is for a number of threads, a warp counts
        as 32, however many of its threads there are.
    """

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        ctas = len(batch.ctas)
        self.arrived = np.zeros((ctas, COUNT), np.int64)
        # Threads that complete each barrier, 0 for all of the CTA.
        self._expected = np.zeros((ctas, COUNT), np.int64)
        # For each lane the barrier that it waits at, -1 for none, and the block where it continues.
        self._waits_at = np.full(batch.lane_count, -1, np.int64)
        self._goes_to = np.zeros(batch.lane_count, np.int64)
        self._came_by = np.zeros(batch.lane_count, np.int64)
        # Warps of its CTA that arrived at each barrier since it last completed.
        self._came = np.zeros((ctas, COUNT, batch.geometry.warps), np.bool_)
        self._instructions: dict[int, Instruction] = {}
        self._waiting = 0
        # The lanes of reductions that voted for each barrier, and those whose predicate held; and by the number of the
        # instruction where its result goes.
        self._votes = np.zeros((2, ctas, COUNT), np.int64)
        self._results: dict[int, Vote] = {}

    def arrive(
        self,
        instruction: Instruction,
        lanes: Lanes,
        barrier: Array,
        count: int | None,
        goes_to: int,
        *,
        wait: bool,
        vote: Vote | None = None,
    ) -> None:
        """Let lanes arrive at a barrier.

        Parameters
        ----------
        instruction : Instruction
            The barrier instruction.
        lanes : Lanes
            The lanes that arrive.
        barrier : array of int
            The barrier of each of them.
        count : int or None
            Threads that complete the barrier; None for all of the CTA.
        goes_to : int
            Block where they continue.
        wait : bool
            Whether they wait for the barrier to complete.
        vote : Vote, optional
            Their predicates in a reduction.
        """
        batch = self._batch
        if not ((barrier >= 0) & (barrier < COUNT)).all():
            bad = (barrier < 0) | (barrier >= COUNT)
            raise batch.fault("barrier", f"barrier {int(barrier[bad][0])} is none of 0 to 15", instruction, lanes, bad)
        self._came_by[lanes.index] = instruction.index
        if count is None:
            weight = np.ones(lanes.count, np.int64)
            self._admit(instruction, lanes, barrier, None, goes_to, weight, wait=wait, vote=vote)
            return
        weight = self._weights(lanes)
        turn = self._turns(lanes, barrier, count, weight)
        for number in range(int(turn.max()) + 1):
            mask = turn == number
            part = None if vote is None else vote.where(mask)
            self._admit(
                instruction, lanes.where(mask), barrier[mask], count, goes_to, weight[mask], wait=wait, vote=part
            )

    def _weights(self, lanes: Lanes) -> Array:
        """Return for how many threads each lane counts: a warp is 32, its last running lane counts for the others."""
        alive = self._batch.alive.reshape(-1, 32)
        missing, last = 32 - np.count_nonzero(alive, axis=1), 31 - alive[:, ::-1].argmax(axis=1)
        warp = lanes.pick(self._batch.warp_of_lane)
        weight: Array = 1 + np.where(lanes.index % 32 == last[warp], missing[warp], 0)
        return weight

    def _turns(self, lanes: Lanes, barrier: Array, count: int, weight: Array) -> Array:
        """Return which completion of its barrier each lane is part of: 0 for the next, 1 for the one after it."""
        place = lanes.pick(self._batch.cta_of_lane) * COUNT + barrier
        order = np.argsort(place, kind="stable")
        ordered, sums = place[order], np.cumsum(weight[order])
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        before_group = (sums - weight[order])[first][np.cumsum(first) - 1]
        earlier = sums - weight[order] - before_group + self.arrived.reshape(-1)[ordered]
        turn = np.empty(lanes.count, np.int64)
        turn[order] = earlier // count
        return turn

    def _admit(
        self,
        instruction: Instruction,
        lanes: Lanes,
        barrier: Array,
        count: int | None,
        goes_to: int,
        weight: Array,
        *,
        wait: bool,
        vote: Vote | None,
    ) -> None:
        """Let lanes arrive that complete a barrier at most once."""
        batch = self._batch
        for observer in batch.observers:
            observer.barrier_arrived(batch, instruction, lanes, barrier)
        if wait and vote is None and count is None and self._all_at_once(lanes, barrier):
            for observer in batch.observers:
                observer.barrier_released(batch, lanes, barrier)
            batch.scheduler.enqueue(goes_to, lanes)
            return
        if wait:
            self._waits_at[lanes.index] = barrier
            self._goes_to[lanes.index] = goes_to
            self._waiting += lanes.count
        else:
            batch.scheduler.enqueue(goes_to, lanes)
        cta = lanes.pick(batch.cta_of_lane)
        self._expect(instruction, lanes, cta, barrier, count or 0)
        np.add.at(self.arrived, (cta, barrier), weight)
        if vote is not None:
            self._results[instruction.index] = vote
            np.add.at(self._votes[0], (cta, barrier), 1)
            np.add.at(self._votes[1], (cta, barrier), vote.values)
        self._came[cta, barrier, lanes.pick(batch.warp_of_lane) % batch.geometry.warps] = True
        self._release()

    def _all_at_once(self, lanes: Lanes, barrier: Array) -> bool:
        """Say whether all running threads arrive at once, so that no state is needed."""
        return (
            self._waiting == 0
            and lanes.count == np.count_nonzero(self._batch.alive)
            and bool((barrier == barrier[0]).all())
            and not self.arrived.any()
        )

    def _expect(self, instruction: Instruction, lanes: Lanes, cta: Array, barrier: Array, expected: int) -> None:
        """Record how many threads complete a barrier: all arrivals must give the same count."""
        begun = self.arrived[cta, barrier] > 0
        other = self._expected[cta, barrier]
        wrong = begun & (other != expected)
        if wrong.any():
            raise self._batch.fault(
                "barrier",
                f"barrier {int(barrier[wrong][0])} is used for {_threads(expected)} here, while others arrived at it "
                f"for {_threads(int(other[wrong][0]))}",
                instruction,
                lanes,
                wrong,
            )
        self._expected[cta, barrier] = expected
        for number in np.unique(barrier).tolist():
            self._instructions[number] = instruction

    def _release(self) -> None:
        """Release the threads of complete barriers."""
        batch = self._batch
        running = np.count_nonzero(batch.alive.reshape(len(batch.ctas), -1), axis=1)
        needed = np.where(self._expected > 0, self._expected, running[:, None])
        complete = (self.arrived > 0) & (self.arrived >= needed)
        if not complete.any():
            return
        self.arrived[complete] = 0
        self._came[complete] = False
        waiting = np.flatnonzero(self._waits_at >= 0)
        waiting = waiting[complete[batch.cta_of_lane[waiting], self._waits_at[waiting]]]
        barrier = self._waits_at[waiting]
        if self._results:
            self._give_results(waiting, barrier)
            self._votes[:, complete] = 0
        self._waits_at[waiting] = -1
        self._waiting -= len(waiting)
        if not len(waiting):
            return
        released = Lanes(waiting)
        for observer in batch.observers:
            observer.barrier_released(batch, released, barrier)
        blocks = self._goes_to[waiting]
        for block in np.unique(blocks).tolist():
            batch.scheduler.enqueue(block, released.where(blocks == block))

    def _give_results(self, index: Array, barrier: Array) -> None:
        """Write the results of reductions into the registers of the lanes that waited for them."""
        batch = self._batch
        voted, held = self._votes[:, batch.cta_of_lane[index], barrier]
        for number, vote in self._results.items():
            here = self._came_by[index] == number
            found = {"popc": held, "and": held == voted, "or": held > 0}[vote.operation]
            batch.register_file.rows[vote.width][vote.row][index[here]] = found[here]

    def lanes_ended(self) -> None:
        if self._waiting:
            self._release()

    def last_use(self, barrier: int) -> Instruction:
        """Return the instruction that last arrived at a barrier."""
        return self._instructions[barrier]

    def deadlocks(self) -> Iterator[Finding]:
        batch = self._batch
        lanes = np.flatnonzero(self._waits_at >= 0)
        for warp in np.unique(batch.warp_of_lane[lanes]).tolist():
            index = lanes[batch.warp_of_lane[lanes] == warp]
            barrier = int(self._waits_at[index[0]])
            where = (int(batch.cta_of_lane[index[0]]), barrier)
            own = slice(where[0] * batch.cta_lanes, (where[0] + 1) * batch.cta_lanes)
            expected = int(self._expected[where]) or int(np.count_nonzero(batch.alive[own]))
            message = f"waits at barrier {barrier}, where {int(self.arrived[where])} of {expected} threads arrived"
            runs = batch.alive[own].reshape(-1, 32).any(axis=1)
            absent = np.flatnonzero(runs & ~self._came[where]).tolist()
            missing = ", ".join([*map(str, absent), *self._missing_lanes(own, barrier)])
            message += f"; missing of the running warps: {missing or 'none, there are no more'}"
            for place in np.unique(self._came_by[index]).tolist():
                here = index[self._came_by[index] == place]
                yield batch.finding("deadlock", message, batch.kernel.instructions[place], here)

    def _missing_lanes(self, own: slice, barrier: int) -> list[str]:
        """Return the lanes of a CTA's warps that have not arrived, where others of their warp wait."""
        there = (self._waits_at[own] == barrier).reshape(-1, 32)
        missing = self._batch.alive[own].reshape(-1, 32) & ~there & there.any(axis=1, keepdims=True)
        return [
            f"lanes {ranges(np.flatnonzero(missing[warp]).tolist())} of warp {warp}"
            for warp in np.flatnonzero(missing.any(axis=1)).tolist()
        ]


def _threads(expected: int) -> str:
    return f"{expected} threads" if expected else "all threads"


@defines("bar", "barrier")
def _bar(build: Build) -> Step:
    """Arrive at a named barrier of the CTA, and wait unless it is ``.arrive``; or meet the warp's other lanes."""
    if build.flag("cluster"):
        return cluster_barrier(build)
    build.flag("cta")
    if build.flag("warp"):
        return warp_barrier(build)
    action = build.take("sync", "arrive", "red")
    # `bar` is `barrier.aligned`: the same instruction in all lanes of a warp.
    build.flag("aligned")
    operands = list(build.operands)
    reduction = _reduction(build, operands) if action == "red" else None
    if reduction is None:
        build.done(*((2,) if action == "arrive" else (1, 2)))
    barrier = build.source(operands[0], "u32")
    count = build.source(operands[1], "u32") if len(operands) == 2 else None
    build.sends = True
    instruction, following = build.instruction, build.next_block

    def arrive(frame: Frame) -> None:
        lanes = frame.lanes
        number = np.broadcast_to(np.asarray(frame[barrier]), (lanes.count,)).astype(np.int64)
        expected = None
        if count is not None:
            counts = np.broadcast_to(np.asarray(frame[count]), (lanes.count,))
            expected = int(counts[0])
            wrong = (counts != expected) | (counts % 32 != 0) | (counts == 0)
            if wrong.any():
                raise frame.batch.fault(
                    "barrier",
                    f"the barrier's thread count {int(counts[wrong][0])} must be a multiple of 32 and the same for all",
                    instruction,
                    lanes,
                    wrong,
                )
        vote = None
        if reduction is not None:
            made, slot, negated = reduction
            values = np.broadcast_to(np.asarray(frame[slot]), (lanes.count,)) ^ negated
            vote = dataclasses.replace(made, values=values)
        Barriers.of(frame.batch).arrive(
            instruction, lanes, number, expected, following, wait=action != "arrive", vote=vote
        )

    return arrive


def _reduction(build: Build, operands: list[Operand]) -> tuple[Vote, int, bool]:
    """Take a reduction's destination and predicate out of the operands; return the former, and the latter's slot."""
    operation = build.take("popc", "and", "or")
    kind = "u32" if operation == "popc" else build.type("pred")
    if operation == "popc":
        build.type("u32")
    build.done(3, 4)
    target, voted = operands.pop(0), operands.pop()
    if not isinstance(target, Register) or TYPE_BYTES[target.type] != TYPE_BYTES[kind]:
        raise build.error(f"the destination must be a .{kind} register")
    slot, negated = build.predicate(voted)
    # Written when the barrier completes, not when this step is over.
    width, row = build.binder.row(target)
    return Vote(operation, np.empty(0, np.bool_), width, row), slot, negated
