"""Loads of local memory that the thread never wrote, such as elements of an array of registers with a dynamic index."""

from __future__ import annotations

import numpy as np

from ..dataflow.effects import registers_in
from ..engine.batch import Batch
from ..engine.observer import Access
from ..ptx.module import Vector
from ..types import Array
from .collected import Check, Collected
from .registers import UninitialisedRegisters


class UnwrittenLocalMemory(Check):
    """Follows the values of such loads: they may never be used.

    Parameters
    ----------
    collected : Collected
        Takes the findings.
    registers : UninitialisedRegisters
        Follows uninitialised values.
    """

    def __init__(self, collected: Collected, registers: UninitialisedRegisters) -> None:
        super().__init__(collected)
        self._registers = registers

    def batch_begins(self, batch: Batch) -> None:
        self._written = np.zeros(len(batch.local), np.bool_)

    def access(self, access: Access) -> None:
        if access.space != "local":
            return
        batch, instruction = access.batch, access.instruction
        place = (access.address + access.lanes.pick(batch.local_base))[:, None] + np.arange(access.size)
        if access.read and not self._written[place].all():
            target = instruction.operands[0]
            items = target.items if isinstance(target, Vector) else (target,)
            size = access.size // len(items)
            written: Array = self._written[place]
            unwritten = np.asarray((~written).reshape(-1, len(items), size).any(axis=2))
            for number, item in enumerate(items):
                lanes = unwritten[:, number]
                if lanes.any():
                    start = int(access.address[lanes][0]) + number * size
                    where = f"{size} bytes at {start} of its local memory, which the thread did not write"
                    what = f"loaded {instruction.place} from {where}"
                    self._registers.wrote_undefined(
                        batch, instruction, registers_in(item), access.lanes.index[lanes], what
                    )
        if access.write:
            self._written[place] = True
