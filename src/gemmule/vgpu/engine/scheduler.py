"""Scheduling: which lanes run next.

Lanes stand at the beginning of blocks. Those at the lowest block run, all of them at once, whatever warp they belong
to: diverged threads reconverge where their paths join, since that point comes later in the code. In the random
schedule that holds for each warp, and the warps that run are chosen at random. Lanes that others in a loop keep from
running for long get their turn. Lanes in a polling loop, which loads the same words until others have written them, run
when no others can.
"""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.dataflow.polling import polling_blocks

from .batch import Batch
from .lanes import Lanes, merged

#: Blocks that others may run while lanes wait for their turn.
_PATIENCE = 4096


class Scheduler:
    """Lanes that can run, and lanes parked before an instruction that cannot begin yet.

    Parameters
    ----------
    batch : Batch
        The lanes' CTAs.

    Attributes
    ----------
    ready : dict of int to list of Lanes
        Lanes that can run, by block.
    parked : dict of int to Lanes
        Those that cannot, by block.
    polling : frozenset of int
        Blocks of polling loops.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.ready: dict[int, list[Lanes]] = {}
        self.parked: dict[int, Lanes] = {}
        self.polling = polling_blocks(batch.kernel)
        self._since: dict[int, int] = {}
        self._turn = 0
        self._random = batch.setting.schedule == "random"

    @property
    def only_polls(self) -> bool:
        """Whether all lanes that can run are in polling loops."""
        return self.polling.issuperset(self.ready)

    def go(self, block: int, lanes: Lanes) -> None:
        """Make lanes ready at a block."""
        waiting = self.ready.get(block)
        if waiting is None:
            self.ready[block] = [lanes]
            self._since[block] = self._turn
        else:
            waiting.append(lanes)

    def park(self, block: int, lanes: Lanes) -> None:
        """Hold lanes before a block until others arrive there, or `wake` is called."""
        if block in self.parked:
            lanes = merged([self.parked[block], lanes])
        self.parked[block] = lanes

    def wake(self) -> None:
        """Make all parked lanes ready, to test again whether they can begin."""
        parked, self.parked = self.parked, {}
        for block, lanes in parked.items():
            self.go(block, lanes)

    def next(self) -> tuple[int, Lanes]:
        """Take the lanes that run next, with those parked at the same block."""
        block, lanes = self._some_warps() if self._random else self._lowest()
        if block in self.parked:
            lanes = merged([lanes, self.parked.pop(block)])
        self._turn += 1
        return block, lanes

    def _lowest(self) -> tuple[int, Lanes]:
        """Take the lanes at the lowest block; or those that have waited for very long, or longest where all poll."""
        if self.only_polls:
            oldest = min(self._since, key=self._since.__getitem__)
            return oldest, self._take(oldest)
        block = min((self.ready.keys() - self.polling if self.polling else ()) or self.ready)
        if len(self.ready) > 1:
            oldest = min(self._since, key=self._since.__getitem__)
            if self._turn - self._since[oldest] > _PATIENCE:
                block = oldest
        return block, self._take(block)

    def _some_warps(self) -> tuple[int, Lanes]:
        """Take the lanes of some warps, at random, at the lowest block that any of these warps stands at."""
        batch = self._batch
        random = batch.random
        lowest = np.full(batch.lane_count // 32, np.iinfo(np.int64).max)
        standing = {block: merged(parts) for block, parts in self.ready.items()}
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
        return merged(self.ready.pop(block))
