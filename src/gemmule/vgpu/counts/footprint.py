"""The footprint of CTAs, every word once: the traffic beyond caches that all of them share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..engine.batch import Batch
from ..engine.observer import Access, Observer, TmaGlobalAccess

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
        # Words with the number of CTAs that read them, of each batch; and words with their CTA, of the one that runs.
        self._read: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._of_batch: list[NDArray[np.int64]] = []
        self._bounds: list[tuple[str, int, int]] = []

    def access(self, access: Access) -> None:
        if access.space != "global" or not access.lanes.count:
            return
        allocation = access.batch.memory.allocation_at(int(access.address[0]))
        if allocation is not None:
            self.operands.setdefault(access.instruction.index, set()).add(allocation.name)
        for part in access.uniform() if access.read else ():
            # A word and its reader in one number, so that each pair counts once.
            cta = part.batch.cta_of_lane[part.lanes.index]
            first = np.unique(part.address // WORD * len(part.batch.ctas) + cta)
            words = np.arange(max(1, part.size // WORD)) * len(part.batch.ctas)
            self._of_batch.append((first[:, None] + words).reshape(-1))

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        some = access.size > 0
        if not some.any():
            return
        batch, start, size = access.batch, access.start[some], access.size[some]
        allocation = batch.memory.allocation_at(int(start[0]))
        if allocation is not None:
            self.operands.setdefault(access.instruction.index, set()).add(allocation.name)
        if access.write and not access.atomic:
            return
        # A copy to several CTAs is read once, by the one that issued it.
        cta = np.broadcast_to(batch.cta_of_lane[access.lanes][:, None], some.shape)[some]
        for width in np.unique(size).tolist():
            same = size == width
            count = (start[same] + width - 1) // WORD - start[same] // WORD + 1
            words = start[same][:, None] // WORD + np.arange(int(count.max()))
            numbers = words * len(batch.ctas) + cta[same][:, None]
            self._of_batch.append(numbers[np.arange(words.shape[1]) < count[:, None]])

    def batch_ends(self, batch: Batch) -> None:
        self._bounds = [(item.name, item.start, item.end) for item in batch.memory.allocations]
        if self._of_batch:
            readers = np.unique(np.concatenate(self._of_batch)) // len(batch.ctas)
            self._read.append(np.unique(readers, return_counts=True))
            self._of_batch = []

    def shared_bytes(self) -> dict[int, int]:
        """Return how many bytes were read by how many CTAs: the bytes by the number of readers."""
        if not self._read:
            return {}
        words, counts = (np.concatenate(parts) for parts in zip(*self._read, strict=True))
        _, word = np.unique(words, return_inverse=True)
        readers, found = np.unique(np.bincount(word, counts), return_counts=True)
        return {int(number): WORD * int(count) for number, count in zip(readers, found, strict=True)}

    def read_bytes(self) -> dict[str, int]:
        """Return, for each operand, the bytes of the words that were read."""
        words = np.unique(np.concatenate([part for part, _ in self._read])) if self._read else np.empty(0, np.int64)
        counts = {
            name: WORD * int(np.searchsorted(words, -(-end // WORD)) - np.searchsorted(words, start // WORD))
            for name, start, end in self._bounds
        }
        return {name: count for name, count in counts.items() if count}
