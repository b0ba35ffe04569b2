"""Instructions of a whole warp: lanes that a mask names meet, and exchange values."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import Pair

from .define import Build, Step, defines
from .lanes import Lanes
from .registers import Frame
from .types import NUMPY, Array

WARP = 32
_LANE = np.arange(WARP)


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


def _mask_bits(mask: Array) -> Array:
    """Return (…, 32) booleans from 32-bit masks."""
    bits: Array = (mask[..., None].astype(np.int64) >> _LANE) & 1 != 0
    return bits


def meet(build: Build, mask_slot: int | None) -> None:
    """Let the instruction begin only when all lanes that the mask names and that still run are there."""

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        warps = warps_of(frame)
        alive = frame.batch.alive.reshape(-1, WARP)[warps.numbers]
        here = warps.active if taking_part is None else warps.active & warps.spread(taking_part, False)
        if here.shape == alive.shape and (here == alive).all():
            return None
        if mask_slot is None:
            needed = alive
        else:
            masks = warps.spread(np.broadcast_to(np.asarray(frame[mask_slot]), (frame.lanes.count,)))
            union = np.bitwise_or.reduce(np.where(here, masks, 0), axis=1)
            needed = _mask_bits(union) & alive
        ready: Array = ~(needed & ~here).any(axis=1)
        return warps.collect(np.broadcast_to(ready[:, None], warps.active.shape))

    build.gate = gate


def _met(build: Build, frame: Frame) -> None:
    for observer in frame.batch.observers:
        observer.warp_met(frame.batch, build.instruction, frame.lanes)


def _mask_operand(build: Build, position: int) -> int:
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
    _mask_operand(build, 4)
    source, lane, segment = build.source(value, "b32"), build.source(by, "u32"), build.source(clamp, "u32")
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    out = build.dest(targets[0], "b32")
    inside = build.dest(targets[1], "pred") if len(targets) == 2 else None

    def step(frame: Frame) -> None:
        _met(build, frame)
        warps = warps_of(frame)
        values = warps.spread(frame[source])
        b = warps.spread(np.asarray(frame[lane])).astype(np.int64) & 31
        c = warps.spread(np.asarray(frame[segment])).astype(np.int64)
        mask = (c >> 8) & 31
        limit = (_LANE & mask) | ((c & 31) & ~mask)
        if mode == "idx":
            j = (_LANE & mask) | (b & ~mask)
            good = j <= limit
        elif mode == "up":
            j = _LANE - b
            good = j >= limit
        elif mode == "down":
            j = _LANE + b
            good = j <= limit
        else:
            j = _LANE ^ b
            good = j <= limit
        j = np.where(good, j, _LANE)
        frame[out][...] = warps.collect(np.take_along_axis(values, j, 1))
        if inside is not None:
            frame[inside][...] = warps.collect(good)

    return step


@defines("vote")
def _vote(build: Build) -> Step:
    """Ask all lanes: all, any, uniform, or the ballot."""
    build.take("sync")
    mode = build.take("all", "any", "uni", "ballot")
    build.take("pred", "b32")
    build.done(3)
    _mask_operand(build, 2)
    slot, negated = build.predicate(build.operands[1])
    out = build.dest(build.operands[0], "b32" if mode == "ballot" else "pred")

    def step(frame: Frame) -> None:
        _met(build, frame)
        warps = warps_of(frame)
        value = np.broadcast_to(np.asarray(frame[slot]), (frame.lanes.count,))
        votes = warps.spread(~value if negated else value, False)
        yes = votes & warps.active
        no = ~votes & warps.active
        if mode == "ballot":
            ballot = (yes.astype(np.uint64) << _LANE.astype(np.uint64)).sum(axis=1)
            result = np.broadcast_to(ballot.astype(np.uint32)[:, None], yes.shape)
        else:
            some, all_of_them = np.asarray(yes.any(axis=1)), np.asarray(~no.any(axis=1))
            answer = {"all": all_of_them, "any": some, "uni": all_of_them | ~some}[mode]
            result = np.broadcast_to(answer[:, None], yes.shape)
        frame[out][...] = warps.collect(result)

    return step


@defines("match")
def _match(build: Build) -> Step:
    """Find the lanes that hold the same value."""
    mode = build.take("any", "all")
    build.take("sync")
    kind = build.type("b32", "b64")
    build.done(3)
    _mask_operand(build, 2)
    source = build.source(build.operands[1], kind)
    target = build.operands[0]
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    out = build.dest(targets[0], "b32")
    all_same = build.dest(targets[1], "pred") if len(targets) == 2 else None

    def step(frame: Frame) -> None:
        _met(build, frame)
        warps = warps_of(frame)
        values = warps.spread(frame[source])
        same = (values[:, :, None] == values[:, None, :]) & warps.active[:, None, :]
        masks = (same.astype(np.uint64) << _LANE.astype(np.uint64)).sum(axis=2).astype(np.uint32)
        if mode == "all":
            complete: Array = (same == warps.active[:, None, :]).all(axis=2)
            masks = np.where(complete, masks, np.uint32(0))
            if all_same is not None:
                frame[all_same][...] = warps.collect(complete)
        frame[out][...] = warps.collect(masks)

    return step


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@defines("redux")
def _redux(build: Build) -> Step:
    """Combine the values of all lanes."""
    build.take("sync")
    name = build.take(*_REDUCTIONS)
    kind = build.type("u32", "s32", "b32")
    build.done(3)
    _mask_operand(build, 2)
    source, out = build.source(build.operands[1], kind), build.dest(build.operands[0], kind)
    limits = np.iinfo(NUMPY[kind])
    neutral = {"min": limits.max, "max": limits.min, "and": limits.max if limits.min == 0 else -1}.get(name, 0)

    def step(frame: Frame) -> None:
        _met(build, frame)
        warps = warps_of(frame)
        values = np.where(warps.active, warps.spread(frame[source]), NUMPY[kind].type(neutral))
        total = _REDUCTIONS[name].reduce(values, axis=1, dtype=values.dtype)
        frame[out][...] = warps.collect(np.broadcast_to(total[:, None], values.shape))

    return step


@defines("elect")
def _elect(build: Build) -> Step:
    """Choose one lane of the warp: the first."""
    build.take("sync")
    build.done(2)
    _mask_operand(build, 1)
    target = build.operands[0]
    if not isinstance(target, Pair):
        raise build.error("two destinations, d|p, are expected")
    out, chosen = build.dest(target.first, "b32"), build.dest(target.second, "pred")

    def step(frame: Frame) -> None:
        _met(build, frame)
        warps = warps_of(frame)
        first = warps.active.argmax(axis=1)
        frame[out][...] = warps.collect(np.broadcast_to(first[:, None], warps.active.shape))
        frame[chosen][...] = warps.collect(first[:, None] == _LANE)

    return step


@defines("activemask")
def _activemask(build: Build) -> Step:
    """Give the lanes that run this together."""
    build.take("b32")
    build.done(1)
    out = build.dest(build.operands[0], "b32")

    def step(frame: Frame) -> None:
        warps = warps_of(frame)
        mask = (warps.active.astype(np.uint64) << _LANE.astype(np.uint64)).sum(axis=1).astype(np.uint32)
        frame[out][...] = warps.collect(np.broadcast_to(mask[:, None], warps.active.shape))

    return step


def whole_warps(build: Build) -> None:
    """Let an ``.aligned`` instruction begin only when all running lanes of the warp are there."""
    meet(build, None)
