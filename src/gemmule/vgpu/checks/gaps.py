"""Stores between the elements of a strided operand: memory of the same buffer that is not the operand's."""

from __future__ import annotations

import numpy as np

from ..arrays import DeviceArrays
from ..engine.batch import Batch
from ..engine.observer import Access, Observer
from ..memory import Allocation
from ..types import Array
from .collected import Collected


class Gaps(Observer):
    """Looks for stores to bytes between the first and the last element of an operand that belong to none.

    Loads there do no harm, and wide ones are common.

    Parameters
    ----------
    collected : Collected
        Receives the findings.
    device : DeviceArrays
        The operands.
    """

    def __init__(self, collected: Collected, device: DeviceArrays) -> None:
        self._collected = collected
        self._device = device
        self._gaps: dict[int, Array] | None = None

    def batch_begins(self, batch: Batch) -> None:
        if self._gaps is None:
            found = ((item.start, self._device.gaps(item)) for item in batch.memory.allocations)
            self._gaps = {start: gaps for start, gaps in found if gaps is not None}

    def access(self, access: Access) -> None:
        if access.space != "global" or not access.write or not self._gaps:
            return
        for allocation in access.batch.memory.allocations:
            gaps = self._gaps.get(allocation.start)
            if gaps is not None:
                self._look(access, allocation, gaps)

    def _look(self, access: Access, allocation: Allocation, gaps: Array) -> None:
        inside = np.flatnonzero((access.address >= allocation.start) & (access.address < allocation.end))
        byte = (access.address[inside] - allocation.start)[:, None] + np.arange(access.size)
        bad = inside[gaps[byte].any(axis=1)]
        if not len(bad):
            return
        address = int(access.address[bad[0]])
        memory = access.batch.memory
        self._collected.add(
            access.batch,
            "out of bounds",
            f"writes {access.size} bytes at {memory.describe(address)}, between elements of a strided operand",
            access.instruction,
            access.lanes.index[bad],
            space="global",
            address=memory.offset(address),
        )
