"""Which lanes run next.

Lanes stand at the beginning of blocks. Those at the lowest block run, all of them at once, whatever warp they belong
to: threads that parted meet again where their ways join, since that point comes later in the code. In the random
schedule that holds for each warp, and which warps run is left to chance. Lanes that are kept from running for long by
others in a loop get their turn. Lanes that look again and again for what others may have written (polling) run when
nobody else can; where all that are left only poll, none of them will ever find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmule.vgpu.report import DeadlockError, Finding

from .lanes import Lanes, merged
from .types import Array

if TYPE_CHECKING:
    from .batch import Batch

#: Blocks that others may run while lanes wait for their turn.
_PATIENCE = 4096
#: Rounds of polling in which nobody does anything else.
_POLLS = 1 << 12
#: In the random schedule, the chance that a copy under way takes place after a block.
_CHANCE = 0.05


class Scheduler:
    """Lanes that can run, and lanes parked before an instruction that cannot begin yet.

    Parameters
    ----------
    batch : Batch
        The lanes' CTAs.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._ready: dict[int, list[Lanes]] = {}
        self._since: dict[int, int] = {}
        self._parked: dict[int, Lanes] = {}
        self._turn = 0
        # Which lanes, at which block, were told that what they wait for is not there, and after how many phases.
        self._told: dict[int, Array] = {}
        self._told_at = 0
        self._random = batch.setting.schedule == "random"
        self._polling = batch.program.polling
        # Rounds since the last time that lanes did anything but poll, or a copy took place.
        self._polls = 0

    def go(self, block: int, lanes: Lanes) -> None:
        """Let lanes go on at a block."""
        waiting = self._ready.get(block)
        if waiting is None:
            self._ready[block] = [lanes]
            self._since[block] = self._turn
        else:
            waiting.append(lanes)

    def park(self, block: int, lanes: Lanes) -> None:
        """Keep lanes before a block until others arrive there, or `wake` is called."""
        if block in self._parked:
            lanes = merged([self._parked[block], lanes])
        self._parked[block] = lanes

    def wake(self) -> None:
        """Let all parked lanes look again whether they can go on."""
        parked, self._parked = self._parked, {}
        for block, lanes in parked.items():
            self.go(block, lanes)

    def run(self, lanes: Lanes) -> None:
        """Run lanes from the first block on, until every one has ended.

        Raises
        ------
        DeadlockError
            If lanes are left that wait for what cannot come.
        """
        batch = self._batch
        blocks = batch.program.blocks
        observers = batch.observers
        self.go(0, lanes)
        while True:
            while self._ready and self._polls <= _POLLS:
                if self._polling:
                    self._count_polls()
                block, now = self._some_warps() if self._random else self._lowest()
                if block in self._parked:
                    now = merged([now, self._parked.pop(block)])
                bound = blocks[block]
                self._turn += 1
                batch.clock += len(bound.block.instructions)
                admitted = bound.admit(batch, now)
                if admitted is None:
                    continue
                for observer in observers:
                    observer.executed(batch, bound.block, admitted)
                bound.run(batch, admitted)
                if self._random and batch.random.random() < _CHANCE:
                    self._fire()
            if self._ready or (not self._fire() and not self._give_up()):
                break
        if batch.alive.any():
            raise self._deadlock()

    def _fire(self) -> bool:
        """Complete something that is under way and that an mbarrier is told of; False where there is nothing."""
        return self._batch.bulk.fire() or self._batch.copies.fire()

    def _give_up(self) -> bool:
        """Answer waits for mbarriers with no, where nothing else can go on; False if all have been told so before."""
        batch = self._batch
        barriers = batch.mbarriers
        if self._told_at != barriers.completed:
            self._told, self._told_at = {}, barriers.completed
        fresh = False
        for block, lanes in self._parked.items():
            if batch.program.blocks[block].block.instructions[0].name != "mbarrier":
                continue
            told = self._told.setdefault(block, np.zeros(batch.lane_count, np.bool_))
            index = lanes.index[~told[lanes.index]]
            told[index] = True
            barriers.given_up[index] = True
            fresh |= bool(len(index))
        if fresh:
            self.wake()
        return fresh

    def _count_polls(self) -> None:
        """Where all that can run poll, let go on what they may wait for; count the rounds in which nothing does."""
        if not self._polling.issuperset(self._ready) or self._fire() or self._give_up():
            self._polls = 0
        else:
            self._polls += 1

    def _lowest(self) -> tuple[int, Lanes]:
        """Take the lanes at the lowest block; or those that have waited for very long, or longest where all poll."""
        if self._polling.issuperset(self._ready):
            oldest = min(self._since, key=self._since.__getitem__)
            return oldest, self._take(oldest)
        block = min((self._ready.keys() - self._polling if self._polling else ()) or self._ready)
        if len(self._ready) > 1:
            oldest = min(self._since, key=self._since.__getitem__)
            if self._turn - self._since[oldest] > _PATIENCE:
                block = oldest
        return block, self._take(block)

    def _some_warps(self) -> tuple[int, Lanes]:
        """Take the lanes of some warps, at random, at the lowest block that any of these warps stands at."""
        batch = self._batch
        random = batch.random
        lowest = np.full(batch.lane_count // 32, np.iinfo(np.int64).max)
        standing = {block: merged(parts) for block, parts in self._ready.items()}
        for block, lanes in standing.items():
            np.minimum.at(lowest, lanes.pick(batch.warp_of_lane), block)
        present = np.unique(lowest[lowest < np.iinfo(np.int64).max])
        oldest = min(self._since, key=self._since.__getitem__)
        late = self._turn - self._since[oldest] > _PATIENCE
        block = oldest if late else int(random.choice(present))
        taken = (late | (lowest == block)) & (random.random(len(lowest)) < random.choice([0.25, 1.0]))
        lanes = self._take(block)
        mask = taken[lanes.pick(batch.warp_of_lane)]
        if not mask.any():
            mask = lowest[lanes.pick(batch.warp_of_lane)] == block if not late else ~mask
        if not mask.all():
            self.go(block, lanes.where(~mask))
        return block, lanes.where(mask)

    def _take(self, block: int) -> Lanes:
        del self._since[block]
        return merged(self._ready.pop(block))

    def _deadlock(self) -> DeadlockError:
        """Say who waits for what."""
        batch = self._batch
        findings: list[Finding] = [*batch.barriers.who_waits(), *batch.warp_barriers.who_waits()]
        for block, lanes in self._parked.items():
            instruction = batch.program.blocks[block].block.instructions[0]
            for warp in np.unique(batch.warp_of_lane[lanes.index]):
                index = lanes.index[batch.warp_of_lane[lanes.index] == warp]
                missing = np.flatnonzero(batch.alive & (batch.warp_of_lane == warp))
                missing = np.setdiff1d(missing, index) % 32
                waits_for = batch.program.blocks[block].waits_for
                if waits_for is not None:
                    message = waits_for(batch, Lanes(index))
                elif len(missing):
                    message = f"waits for lanes {missing.tolist()} of its warp"
                else:
                    message = "waits for lanes of its warp that have ended"
                findings.append(batch.finding("deadlock", message, instruction, index))
        for block, parts in self._ready.items():
            index = merged(parts).index
            for warp in np.unique(batch.warp_of_lane[index]):
                message = "looks again and again for what nobody writes who still runs"
                instruction = batch.program.blocks[block].block.instructions[0]
                findings.append(
                    batch.finding("deadlock", message, instruction, index[batch.warp_of_lane[index] == warp])
                )
        return DeadlockError(findings)
