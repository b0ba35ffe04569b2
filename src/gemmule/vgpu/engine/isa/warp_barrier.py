"""Barriers of a warp: lanes that a mask names wait for each other, each where it is (``bar.warp.sync``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemmule.vgpu.ptx.module import Instruction
from gemmule.vgpu.report import Finding, ranges
from gemmule.vgpu.types import Array

from ..definition import Build, Step
from ..lanes import WARP, Lanes, mask_bits
from ..running_batch import Frame, RunningBatch, Unit


class WarpBarriers(Unit):
    """Lanes of a batch that wait for others of their warp: those with the same mask belong together."""

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        # For each lane the mask that it waits with, 0 for none, the block where it continues, and the instruction.
        self._mask = np.zeros(batch.lane_count, np.uint32)
        self._goes_to = np.zeros(batch.lane_count, np.int64)
        self._instruction = np.zeros(batch.lane_count, np.int64)

    def arrive(self, instruction: Instruction, lanes: Lanes, masks: Array, goes_to: int) -> None:
        """Let lanes wait for those that their masks name and that still run."""
        batch = self._batch
        left_out = (masks >> (lanes.index % WARP).astype(np.uint32)) & 1 == 0
        if left_out.any():
            raise batch.fault(
                "barrier",
                f"a lane is not in its own mask {int(masks[left_out][0]):#010x}: it must name all lanes that wait",
                instruction,
                lanes,
                left_out,
            )
        self._mask[lanes.index] = masks
        self._goes_to[lanes.index] = goes_to
        self._instruction[lanes.index] = instruction.index
        self._release(np.unique(lanes.pick(batch.warp_of_lane)))

    def lanes_ended(self) -> None:
        if self._mask.any():
            self._release(np.unique(np.flatnonzero(self._mask) // WARP))

    def _release(self, warps: Array) -> None:
        batch = self._batch
        masks = self._mask.reshape(-1, WARP)[warps]
        lacks = mask_bits(masks) & batch.alive.reshape(-1, WARP)[warps][:, None, :]
        lacks &= masks[:, :, None] != masks[:, None, :]
        row, column = np.nonzero((masks != 0) & ~lacks.any(axis=2))
        free = warps[row] * WARP + column
        if not len(free):
            return
        self._mask[free] = 0
        code = batch.kernel.instructions
        for place in np.unique(self._instruction[free]).tolist():
            lanes = Lanes(free[self._instruction[free] == place])
            for observer in batch.observers:
                observer.warp_synced(batch, code[place], lanes)
            batch.scheduler.enqueue(int(self._goes_to[lanes.index[0]]), lanes)

    def deadlocks(self) -> Iterator[Finding]:
        batch = self._batch
        waiting = np.flatnonzero(self._mask)
        groups = np.stack([waiting // WARP, self._mask[waiting], self._instruction[waiting]], axis=1)
        for warp, mask, place in np.unique(groups, axis=0).tolist():
            index = waiting[(groups == (warp, mask, place)).all(axis=1)]
            own = slice(warp * WARP, (warp + 1) * WARP)
            missing = np.flatnonzero(mask_bits(np.array(mask)) & batch.alive[own] & (self._mask[own] != mask))
            message = f"waits for lanes {ranges(missing.tolist())} of its warp with the mask {mask:#010x}"
            yield batch.finding("deadlock", message, batch.kernel.instructions[place], index)


def warp_barrier(build: Build) -> Step:
    """Wait for the lanes that a mask names, wherever in the code they wait for the same."""
    build.take("sync")
    build.done(1)
    slot = build.source(build.operands[0], "u32")
    build.sends = True
    instruction, following = build.instruction, build.next_block

    def arrive(frame: Frame) -> None:
        masks = np.broadcast_to(np.asarray(frame[slot]), (frame.lanes.count,))
        WarpBarriers.of(frame.batch).arrive(instruction, frame.lanes, masks, following)

    return arrive
