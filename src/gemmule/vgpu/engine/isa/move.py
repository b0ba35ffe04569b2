"""Moving and choosing values and addresses: mov, selp, slct, cvta, isspacep, mapa."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import TYPE_BYTES, Register, Special, Vector
from gemmule.vgpu.types import Array

from ..definition import Build, Step, call, defines, elementwise
from ..running_batch import Frame
from ..spaces import RANK_SHIFT, WINDOWS
from ..special import CLOCKS
from .floating import flushed

#: Larger than any rank in a cluster.
_NO_RANK = 200


def copy(source: Any, out: Array) -> None:
    """Write `source` into `out`."""
    out[...] = source


@defines("mov")
def _mov(build: Build) -> Step:
    """Copy a value, pack a vector into one register or unpack one."""
    kind = build.type()
    build.done(2)
    target, source = build.operands
    if isinstance(target, Vector):
        return _unpack(build, kind, target, source)
    if isinstance(source, Vector):
        return _pack(build, kind, target, source)
    if isinstance(source, Special) and source.name in CLOCKS:
        slot = build.dest(target, kind)
        high = source.name.endswith("_hi")

        def read_clock(frame: Frame) -> None:
            clock = frame.batch.clock
            frame[slot][...] = clock >> 32 if high else clock & 0xFFFFFFFF if TYPE_BYTES[kind] == 4 else clock

        return read_clock
    return call(copy, [build.source(source, kind)], build.dest(target, kind))


def _parts(build: Build, kind: str, items: tuple[Any, ...]) -> str:
    size = TYPE_BYTES[kind] // len(items)
    if size * len(items) != TYPE_BYTES[kind]:
        raise build.error(f"a .{kind} has no {len(items)} equal parts")
    return f"b{8 * size}"


def _unpack(build: Build, kind: str, target: Vector, source: Any) -> Step:
    part = _parts(build, kind, target.items)
    whole = build.source(source, kind)
    slots = [build.dest(item, part) for item in target.items]
    dtype = np.dtype(f"u{TYPE_BYTES[part]}")

    def step(frame: Frame) -> None:
        values = np.ascontiguousarray(frame[whole])
        parts = values.view(dtype).reshape(*values.shape, len(slots))
        # The source may be one of the targets.
        if len(slots) > 1:
            parts = parts.copy()
        for number, slot in enumerate(slots):
            frame[slot][...] = parts[..., number]

    return step


def _pack(build: Build, kind: str, target: Any, source: Vector) -> Step:
    part = _parts(build, kind, source.items)
    slots = [build.source(item, part) for item in source.items]
    whole = build.dest(target, kind)
    dtype = np.dtype(f"u{TYPE_BYTES[part]}")
    unsigned = np.dtype(f"u{TYPE_BYTES[kind]}")

    def step(frame: Frame) -> None:
        parts = np.empty((frame.lanes.count, len(slots)), dtype)
        for number, slot in enumerate(slots):
            parts[:, number] = frame[slot]
        frame[whole].view(unsigned)[...] = parts.view(unsigned)[:, 0]

    return step


@defines("selp")
def _selp(build: Build) -> Step:
    """Choose between two values by a predicate."""
    kind = build.type()
    build.done(4)
    target, first, second, condition = build.operands
    a, b = build.source(first, kind), build.source(second, kind)
    slot, negated = build.predicate(condition)
    out = build.dest(target, kind)
    if negated:
        a, b = b, a

    def step(frame: Frame) -> None:
        frame[out][...] = np.where(frame[slot], frame[a], frame[b])

    return step


@defines("slct")
def _slct(build: Build) -> Step:
    """Choose the first value where the third is not negative."""
    flush = build.flag("ftz")
    kind, by = build.type(), build.type("s32", "f32")
    if flush and by != "f32":
        raise build.error(".ftz is for a third operand of type .f32")

    def choose(a: Array, b: Array, c: Array, out: Array) -> None:
        # -0 is not negative.
        out[...] = np.where((flushed(c) if flush else c) >= 0, a, b)

    return elementwise(build, choose, kind, kind, kind, by)


@defines("cvta")
def _cvta(build: Build) -> Step:
    """Turn an address within a space into a generic one, or back."""
    back = build.flag("to")
    space = build.take(
        "global", "shared", "local", "param", "const", "shared::cta", "shared::cluster", default="global"
    )
    kind = build.type("u32", "u64", "s64", "b64")
    window = WINDOWS.get(space.split("::")[0], 0)
    if TYPE_BYTES[kind] == 4:
        window = 0
    offset = np.array(-window if back else window, np.int64).view(np.uint64).astype(f"u{TYPE_BYTES[kind]}")[()]

    def shift(a: Array, out: Array) -> None:
        np.add(a, offset, out=out, casting="unsafe")

    unsigned = f"u{8 * TYPE_BYTES[kind]}"
    build.done(2)
    source = build.operands[1]
    if isinstance(source, Register) and TYPE_BYTES[source.type] != TYPE_BYTES[kind]:
        raise build.error("source and destination must have the same width")
    return elementwise(build, shift, unsigned, unsigned)


@defines("isspacep")
def _isspacep(build: Build) -> Step:
    """Return whether a generic address is in a space."""
    space = build.take("global", "shared", "local", "param", "const", "shared::cta", "shared::cluster").split("::")[0]

    def inside(a: Array, out: Array) -> None:
        in_window = {name: (a >= start) & (a < start + (1 << 32)) for name, start in WINDOWS.items()}
        out[...] = in_window[space] if space in in_window else ~np.logical_or.reduce(list(in_window.values()))

    return elementwise(build, inside, "pred", "u64")


@defines("mapa")
def _mapa(build: Build) -> Step:
    """Give the address of the same place in another CTA's shared memory."""
    space = build.take("shared::cluster", default="generic")
    kind = build.type("u32", "u64")
    build.done(3)
    source, rank = build.source(build.operands[1], kind), build.source(build.operands[2], "u32")
    out = build.dest(build.operands[0], kind)
    start = WINDOWS["shared"] if space == "generic" else 0

    def step(frame: Frame) -> None:
        # Ranks that are not in the cluster are found when the address is used.
        ranks = np.minimum(np.broadcast_to(np.asarray(frame[rank]), (frame.lanes.count,)).astype(np.int64), _NO_RANK)
        address = np.asarray(frame[source]).astype(np.int64) - start
        within = address & ((1 << RANK_SHIFT) - 1)
        frame[out][...] = (start + within + ((ranks + 1) << RANK_SHIFT)).astype(frame[out].dtype)

    return step
