"""Lanes of one warp that store different values to one place with the same instruction: any of them may stay."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.lanes import Lanes
from ..ptx.module import Instruction
from ..types import Array
from .collected import Check


class StoreConflicts(Check):
    """Looks for stores of which another lane of the warp overwrote the value at once."""

    def overwritten(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, space: str, address: Array, lost: Array
    ) -> None:
        first = int(lost.argmax())
        same = (address == address[first]) & (lanes.index // 32 == lanes.index[first] // 32)
        if np.count_nonzero(same) < 2:
            # The other lane is of another warp, which the race checks see.
            return
        memory, at = batch.memory, int(address[first])
        where = memory.describe(at) if space == "global" else _place(batch, space, at)
        self._collected.add(
            batch,
            "race",
            f"several lanes store different values at {where} with one instruction, and any of them may stay",
            instruction,
            lanes.index[same],
            space=space,
            address=memory.offset(at) if space == "global" else at % batch.shared_stride,
        )


def _place(batch: Batch, space: str, address: int) -> str:
    if space == "shared":
        return batch.shared_place(address % batch.shared_stride)
    return f"{address % batch.shared_stride:#x} of {space} memory"
