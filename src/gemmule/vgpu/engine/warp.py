"""Lanes of a warp that a mask names: how they meet, and the shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import Pair

from .define import Build, Step, defines
from .lanes import Lanes
from .registers import POISON, Frame
from .types import Array

WARP = 32
LANE = np.arange(WARP)


class Warps:
    """Lanes seen as rows of their warps.

    Parameters
    ----------
    lanes : Lanes
        The lanes.

    Attributes
    ----------
    active : array of bool, (warps, 32)
        Which of each warp's lanes they are.
    """

    def __init__(self, lanes: Lanes) -> None:
        warp = lanes.index // WARP
        new = np.concatenate([[True], warp[1:] != warp[:-1]])
        self.numbers = warp[new]
        self._row = np.cumsum(new) - 1
        self._column = lanes.index % WARP
        self._whole = lanes.count == len(self.numbers) * WARP
        self.active = np.zeros((len(self.numbers), WARP), np.bool_)
        self.active[self._row, self._column] = True

    def spread(self, given: Any, fill: Any = 0) -> Array:
        """Return values of the lanes as (warps, 32); lanes that are not there hold `fill`."""
        values: Array = np.asarray(given)
        if values.ndim and self._whole:
            return np.reshape(values, (-1, WARP))
        spread: Array = np.full(self.active.shape, fill, values.dtype)
        spread[self._row, self._column] = values
        return spread

    def collect(self, matrix: Array) -> Array:
        """Return the values of the lanes from (warps, 32)."""
        found: Array = matrix.reshape(-1) if self._whole else matrix[self._row, self._column]
        return found


def warps_of(frame: Frame) -> Warps:
    """Return the frame's lanes as warps."""
    return rows_of(frame.lanes)


def rows_of(lanes: Lanes) -> Warps:
    """Return lanes as rows of their warps; the answer is kept while the lanes stay together."""
    if lanes.warps is None:
        lanes.warps = Warps(lanes)
    found: Warps = lanes.warps
    return found


def mask_bits(mask: Array) -> Array:
    """Return (…, 32) booleans from 32-bit masks."""
    bits: Array = (mask[..., None].astype(np.int64) >> LANE) & 1 != 0
    return bits


def meet(build: Build, mask_slot: int | None) -> None:
    """Let the instruction begin only when all lanes that the mask names and that still run are there."""

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        warps = warps_of(frame)
        alive = frame.batch.alive.reshape(-1, WARP)[warps.numbers]
        here = warps.active if taking_part is None else warps.active & warps.spread(taking_part, False)
        missing = alive & ~here
        if not missing.any():
            return None
        if mask_slot is None:
            ready: Array = np.broadcast_to(~missing.any(axis=1)[:, None], here.shape)
        else:
            masks = warps.spread(np.broadcast_to(np.asarray(frame[mask_slot]), (frame.lanes.count,)))
            ready = ~(mask_bits(masks) & missing[:, None, :]).any(axis=2)
        return warps.collect(ready)

    build.gate = gate


def members(build: Build, frame: Frame, mask_slot: int) -> Array:
    """Return, for each lane of the frame's warps, the lanes that its mask names and that are there.

    Returns
    -------
    array of bool, (warps, 32, 32)
        Entry [w, l, j]: lane j of warp w is one of those with which lane l acts.

    Raises
    ------
    FaultError
        If a lane is not in its own mask, or two lanes that one names have other masks.
    """
    warps, lanes = warps_of(frame), frame.lanes
    given = np.broadcast_to(np.asarray(frame[mask_slot]), (lanes.count,))
    masks = warps.spread(given)
    if (given == 0xFFFFFFFF).all():
        return np.broadcast_to(warps.active[:, None, :], (*masks.shape, WARP))
    named = mask_bits(masks)
    left_out = warps.active & ~named[:, LANE, LANE]
    if left_out.any():
        bad = warps.collect(left_out)
        raise frame.batch.fault(
            "barrier",
            f"a lane is not in its own mask {int(given[bad][0]):#010x}: it must name all lanes that run this",
            build.instruction,
            lanes,
            bad,
        )
    named = named & warps.active[:, None, :]
    differ = warps.active & (named & (masks[:, :, None] != masks[:, None, :])).any(axis=2)
    if differ.any():
        bad = warps.collect(differ)
        raise frame.batch.fault(
            "barrier",
            f"lanes that the mask {int(given[bad][0]):#010x} names come with another mask; they must give the same",
            build.instruction,
            lanes,
            bad,
        )
    return named


def met(build: Build, frame: Frame) -> None:
    """Tell the observers that lanes of warps met."""
    for observer in frame.batch.observers:
        observer.warp_met(frame.batch, build.instruction, frame.lanes)


def mask_operand(build: Build, position: int) -> int:
    """Return the slot of the operand that names the lanes, and let the instruction wait for them."""
    slot = build.source(build.operands[position], "u32")
    meet(build, slot)
    return slot


@defines("shfl")
def _shfl(build: Build) -> Step:
    """Read another lane's value; out of its segment, a lane keeps its own."""
    build.take("sync")
    mode = build.take("idx", "up", "down", "bfly")
    build.take("b32")
    build.done(5)
    target, value, by, clamp, _ = build.operands
    mask_slot = mask_operand(build, 4)
    source, lane, segment = build.source(value, "b32"), build.source(by, "u32"), build.source(clamp, "u32")
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    out = build.dest(targets[0], "b32")
    inside = build.dest(targets[1], "pred") if len(targets) == 2 else None

    def step(frame: Frame) -> None:
        met(build, frame)
        warps = warps_of(frame)
        there = members(build, frame, mask_slot)
        values = warps.spread(frame[source])
        b = warps.spread(np.asarray(frame[lane])).astype(np.int64) & 31
        c = warps.spread(np.asarray(frame[segment])).astype(np.int64)
        mask = (c >> 8) & 31
        limit = (LANE & mask) | ((c & 31) & ~mask)
        if mode == "idx":
            j = (LANE & mask) | (b & ~mask)
            good = j <= limit
        elif mode == "up":
            j = LANE - b
            good = j >= limit
        elif mode == "down":
            j = LANE + b
            good = j <= limit
        else:
            j = LANE ^ b
            good = j <= limit
        j = np.where(good, j, LANE)
        result = np.take_along_axis(values, j, 1)
        absent = warps.active & ~np.take_along_axis(there, j[:, :, None], 2)[:, :, 0]
        if absent.any():
            # Nothing is promised of such a value; using it is another matter than getting it.
            result = np.where(absent, values.dtype.type(POISON[4]), result)
            for observer in frame.batch.observers:
                index = frame.lanes.index[warps.collect(absent)]
                what = f"read{_place(build)} from a lane that does not take part"
                observer.undefined(frame.batch, build.instruction, index, what)
        frame[out][...] = warps.collect(result)
        if inside is not None:
            frame[inside][...] = warps.collect(good)

    return step


def _place(build: Build) -> str:
    source = build.instruction.source
    return f" at {source}" if source is not None else f" in PTX line {build.instruction.line}"


def whole_warps(build: Build) -> None:
    """Let an ``.aligned`` instruction begin only when all running lanes of the warp are there."""
    meet(build, None)
