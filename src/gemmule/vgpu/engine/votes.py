"""Questions to all lanes that a mask names: vote, match, redux, elect; and which lanes run: activemask."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import Pair

from .define import Build, Step, defines
from .registers import Frame
from .types import NUMPY, Array
from .warp import LANE, mask_operand, members, met, warps_of


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
        warps = warps_of(frame)
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
        warps = warps_of(frame)
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
        warps = warps_of(frame)
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
        warps = warps_of(frame)
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
        warps = warps_of(frame)
        mask = _packed(warps.active)
        frame[out][...] = warps.collect(np.broadcast_to(mask[:, None], warps.active.shape))

    return step
