"""Integer arithmetic in several words: sums, differences and multiply-adds that write or read a carry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmule.vgpu.types import INTEGERS, NUMPY, Array, is_signed, size_of

from ..definition import Build, Step, defines
from ..running_batch import Frame

WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
#: Types of sums and differences.
SHAPE_TYPES = (*INTEGERS, "b32", "b64")


def with_carry(build: Build, kind: str, *, subtract: bool, reads: bool, writes: bool) -> Step:
    """Return the step that adds or subtracts, with the carry or borrow of an instruction before, or for one after."""
    build.done(3)
    kind = f"u{8 * size_of(kind)}"
    target, first, second = build.operands
    a, b = build.source(first, kind), build.source(second, kind)
    carry = build.binder.carry()
    carry_in = build.source(carry, "pred") if reads else None
    carry_out = build.dest(carry, "pred") if writes else None
    out = build.dest(target, kind)
    dtype = NUMPY[kind]

    def step(frame: Frame) -> None:
        more = np.asarray(0, dtype) if carry_in is None else frame[carry_in].astype(dtype)
        total, lost = _sum(np.asarray(frame[a]), np.asarray(frame[b]), more, subtract)
        frame[out][...] = total
        if carry_out is not None:
            frame[carry_out][...] = lost

    return step


def _sum(x: Array, y: Array, more: Array, subtract: bool) -> tuple[Array, Array]:
    """Return ``x + y + more`` or ``x - y - more``, and whether a carry or borrow left the word."""
    if subtract:
        part = x - y
        return part - more, (x < y) | (part < more)
    part = x + y
    total = part + more
    return total, (part < x) | (total < part)


@defines("addc", "subc")
def _addc(build: Build) -> Step:
    """Add or subtract with the carry or borrow of the instruction before."""
    writes = build.flag("cc")
    subtract = build.instruction.name == "subc"
    return with_carry(build, build.type(*SHAPE_TYPES), subtract=subtract, reads=True, writes=writes)


@defines("madc")
def _madc(build: Build) -> Step:
    """Multiply, take the upper or lower half, and add with the carry of the instruction before."""
    part = build.take("lo", "hi")
    writes = build.flag("cc")
    return mad_with_carry(build, part, build.type("u32", "s32", "u64", "s64"), reads=True, writes=writes)


def multiply_high(kind: str) -> Callable[..., None]:
    """Return the upper half of a product."""
    if kind in WIDER:
        wide, bits = NUMPY[WIDER[kind]], 8 * size_of(kind)

        def narrow(a: Array, b: Array, out: Array) -> None:
            out[...] = np.multiply(a, b, dtype=wide) >> wide.type(bits)

        return narrow

    def double(a: Array, b: Array, out: Array) -> None:
        low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        x, y = (np.asarray(value).astype(np.uint64) for value in (a, b))
        x0, x1, y0, y1 = x & low32, x >> shift, y & low32, y >> shift
        middle = x1 * y0 + ((x0 * y0) >> shift)
        high = x1 * y1 + (middle >> shift) + ((x0 * y1 + (middle & low32)) >> shift)
        if is_signed(kind):
            high = high - np.where(np.asarray(a) < 0, y, np.uint64(0)) - np.where(np.asarray(b) < 0, x, np.uint64(0))
        out[...] = high.view(out.dtype)

    return double


def mad_with_carry(build: Build, part: str, kind: str, *, reads: bool, writes: bool) -> Step:
    """Return the step that adds half of a product, with or for a carry."""
    build.done(4)
    target, first, second, third = build.operands
    unsigned = f"u{8 * size_of(kind)}"
    a, b, c = build.source(first, kind), build.source(second, kind), build.source(third, unsigned)
    carry = build.binder.carry()
    carry_in = build.source(carry, "pred") if reads else None
    carry_out = build.dest(carry, "pred") if writes else None
    out = build.dest(target, unsigned)
    dtype, half = NUMPY[unsigned], np.multiply if part == "lo" else multiply_high(kind)

    def step(frame: Frame) -> None:
        product = np.empty(frame.lanes.count, NUMPY[kind])
        half(frame[a], frame[b], product)
        more = np.asarray(0, dtype) if carry_in is None else frame[carry_in].astype(dtype)
        total, lost = _sum(product.view(dtype), np.asarray(frame[c]), more, subtract=False)
        frame[out][...] = total
        if carry_out is not None:
            frame[carry_out][...] = lost

    return step
