"""What CTAs read of each operand, every word once: what must come from beyond the caches if they share it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..observe import Access, Observer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine.batch import Batch

#: Bytes of a word.
WORD = 4


class Footprint(Observer):
    """Collects the words of global memory that a launch reads, and which instruction accesses which operand.

    Attributes
    ----------
    operands : dict of int to set of str
        Operands that each instruction, by its number, accesses.
    """

    def __init__(self) -> None:
        self.operands: dict[int, set[str]] = {}
        self._read: list[NDArray[np.int64]] = []
        self._of_batch: list[NDArray[np.int64]] = []
        self._bounds: list[tuple[str, int, int]] = []

    def access(self, access: Access) -> None:
        if access.space != "global" or not access.lanes.count:
            return
        allocation = access.batch.memory.allocation_at(int(access.address[0]))
        if allocation is not None:
            self.operands.setdefault(access.instruction.index, set()).add(allocation.name)
        for part in access.uniform() if access.read else ():
            first = np.unique(part.address // WORD)
            words = max(1, part.size // WORD)
            self._of_batch.append((first[:, None] + np.arange(words)).reshape(-1) if words > 1 else first)

    def batch_ends(self, batch: Batch) -> None:
        self._bounds = [(item.name, item.start, item.end) for item in batch.memory.allocations]
        if self._of_batch:
            self._read.append(np.unique(np.concatenate(self._of_batch)))
            self._of_batch = []

    def read_bytes(self) -> dict[str, int]:
        """Return, for each operand, the bytes of the words that were read."""
        words = np.unique(np.concatenate(self._read)) if self._read else np.empty(0, np.int64)
        counts = {
            name: WORD * int(np.searchsorted(words, -(-end // WORD)) - np.searchsorted(words, start // WORD))
            for name, start, end in self._bounds
        }
        return {name: count for name, count in counts.items() if count}
