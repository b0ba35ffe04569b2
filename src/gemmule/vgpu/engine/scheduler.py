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
from .lanes import WARP, Lanes, merged

#: Blocks that others may run while lanes wait for their turn.
_PATIENCE = 4096
#: In the random schedule, the chance that only some of the warps at a block run, and that of each of them.
_SPLITS, _SHARE = 0.25, 0.25


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
        self._random = batch.launch_state.schedule == "random"
        if self._random:
            # Warps that run together: the same of each cluster, in two halves of the clusters.
            warps = batch.geometry.warps * batch.cluster_ctas
            half = batch.random.integers(2, size=len(batch.ctas) // batch.cluster_ctas)
            self._group = (half[:, None] * warps + np.arange(warps)).reshape(-1)
            self._groups = 2 * warps

    @property
    def only_polls(self) -> bool:
        """Whether all lanes that can run are in polling loops."""
        return self.polling.issuperset(self.ready)

    def enqueue(self, block: int, lanes: Lanes) -> None:
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
            self.enqueue(block, lanes)

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
        """Take the lanes of some warps, at random, at a block; not of warps that have lanes at a lower one."""
        random = self._batch.random
        blocks = sorted(self.ready)
        oldest = min(self._since, key=self._since.__getitem__)
        late = self._turn - self._since[oldest] > _PATIENCE
        block = oldest if late else blocks[int(random.integers(len(blocks)))]
        able = np.ones(len(self._group), np.bool_)
        since = dict(self._since)
        for lower in [] if late else set(blocks[: blocks.index(block)]) - self.polling:
            for part in self.ready[lower]:
                able[part.index // WARP if part.whole is None else part.whole] = False
        lanes, others = self._take(block).split(able)
        if lanes is None:
            assert others is not None
            self.enqueue(block, others)
            block = blocks[0]
            lanes, others = self._take(block), None
        if random.random() < _SPLITS:
            taken, left = lanes.split((random.random(self._groups) < _SHARE)[self._group])
            if taken is not None:
                lanes = taken
                others = left if others is None else others if left is None else merged([others, left])
        if others is not None:
            self.enqueue(block, others)
        # Those that stay have waited since before.
        for left_at in self._since.keys() & since.keys():
            self._since[left_at] = since[left_at]
        return block, lanes

    def _take(self, block: int) -> Lanes:
        del self._since[block]
        return merged(self.ready.pop(block))
