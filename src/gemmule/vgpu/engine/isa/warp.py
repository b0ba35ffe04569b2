"""Lanes of a warp that a mask names: how they converge; shfl, vote, match, redux, elect and activemask."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import Pair
from gemmule.vgpu.types import NUMPY, Array

from ..definition import Build, Step, defines
from ..lanes import LANE, WARP, mask_bits, rows_of
from ..registers import POISON
from ..running_batch import Frame


def meet(build: Build, mask_slot: int | None) -> None:
    """Let the instruction begin only when all lanes that the mask names and that still run are there."""

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        warps = rows_of(frame.lanes)
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
    warps, lanes = rows_of(frame.lanes), frame.lanes
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
        observer.warp_synced(frame.batch, build.instruction, frame.lanes)


def mask_operand(build: Build, position: int) -> int:
    """Return the slot of the operand that names the lanes, and let the instruction wait for them."""
    slot = build.source(build.operands[position], "u32")
    meet(build, slot)
    return slot


@defines("shfl")
def _shfl(build: Build) -> Step:
    """Read another lane's value; outside its segment, a lane reads its own."""
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
        warps = rows_of(frame.lanes)
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
                what = f"read {build.instruction.place} from a lane that does not take part"
                observer.undefined(frame.batch, build.instruction, index, what)
        frame[out][...] = warps.collect(result)
        if inside is not None:
            frame[inside][...] = warps.collect(good)

    return step


def whole_warps(build: Build) -> None:
    """Let an ``.aligned`` instruction begin only when all running lanes of the warp are there."""
    meet(build, None)


def _packed(bits: Array) -> Array:
    """Return 32-bit masks from (…, 32) booleans."""
    mask: Array = (bits.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=-1).astype(np.uint32)
    return mask


@defines("vote")
def _vote(build: Build) -> Step:
    """Ask all lanes: all, any, uniform, or the ballot."""
    build.take("sync")
    mode = build.take("all", "any", "uni", "ballot")
    build.take("pred", "b32")
    build.done(3)
    mask_slot = mask_operand(build, 2)
    slot, negated = build.predicate(build.operands[1])
    out = build.dest(build.operands[0], "b32" if mode == "ballot" else "pred")

    def step(frame: Frame) -> None:
        met(build, frame)
        warps = rows_of(frame.lanes)
        value = np.broadcast_to(np.asarray(frame[slot]), (frame.lanes.count,))
        votes = warps.spread(~value if negated else value, False)
        asked = members(build, frame, mask_slot)
        yes = asked & votes[:, None, :]
        if mode == "ballot":
            result = _packed(yes)
        else:
            some, all_of_them = np.asarray(yes.any(axis=2)), np.asarray((yes == asked).all(axis=2))
            result = {"all": all_of_them, "any": some, "uni": all_of_them | ~some}[mode]
        frame[out][...] = warps.collect(result)

    return step


@defines("match")
def _match(build: Build) -> Step:
    """Find the lanes that hold the same value."""
    mode = build.take("any", "all")
    build.take("sync")
    kind = build.type("b32", "b64")
    build.done(3)
    mask_slot = mask_operand(build, 2)
    source = build.source(build.operands[1], kind)
    target = build.operands[0]
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    out = build.dest(targets[0], "b32")
    all_same = build.dest(targets[1], "pred") if len(targets) == 2 else None

    def step(frame: Frame) -> None:
        met(build, frame)
        warps = rows_of(frame.lanes)
        values = warps.spread(frame[source])
        asked = members(build, frame, mask_slot)
        same = (values[:, :, None] == values[:, None, :]) & asked
        masks = _packed(same)
        if mode == "all":
            complete: Array = (same == asked).all(axis=2)
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
    mask_slot = mask_operand(build, 2)
    source, out = build.source(build.operands[1], kind), build.dest(build.operands[0], kind)
    limits = np.iinfo(NUMPY[kind])
    neutral = {"min": limits.max, "max": limits.min, "and": limits.max if limits.min == 0 else -1}.get(name, 0)

    def step(frame: Frame) -> None:
        met(build, frame)
        warps = rows_of(frame.lanes)
        asked = members(build, frame, mask_slot)
        values = np.where(asked, warps.spread(frame[source])[:, None, :], NUMPY[kind].type(neutral))
        frame[out][...] = warps.collect(_REDUCTIONS[name].reduce(values, axis=2, dtype=values.dtype))

    return step


@defines("elect")
def _elect(build: Build) -> Step:
    """Choose one lane of the warp: the first."""
    build.take("sync")
    build.done(2)
    mask_slot = mask_operand(build, 1)
    target = build.operands[0]
    if not isinstance(target, Pair):
        raise build.error("two destinations, d|p, are expected")
    out, chosen = build.dest(target.first, "b32"), build.dest(target.second, "pred")

    def step(frame: Frame) -> None:
        met(build, frame)
        warps = rows_of(frame.lanes)
        first = members(build, frame, mask_slot).argmax(axis=2)
        frame[out][...] = warps.collect(first)
        frame[chosen][...] = warps.collect(first == LANE)

    return step


@defines("activemask")
def _activemask(build: Build) -> Step:
    """Give the lanes that run this together."""
    build.take("b32")
    build.done(1)
    out = build.dest(build.operands[0], "b32")

    def step(frame: Frame) -> None:
        warps = rows_of(frame.lanes)
        mask = _packed(warps.active)
        frame[out][...] = warps.collect(np.broadcast_to(mask[:, None], warps.active.shape))

    return step


def check_whole(build: Build, frame: Frame) -> None:
    """Refuse a warp of which some lanes are missing: the instruction is ``.aligned``."""
    warps = rows_of(frame.lanes)
    if not warps.active.all():
        partial = np.asarray(~warps.active.all(axis=1))
        raise frame.batch.fault(
            "barrier",
            "the instruction needs all 32 lanes of its warp",
            build.instruction,
            frame.lanes,
            warps.collect(np.broadcast_to(partial[:, None], warps.active.shape)),
        )
