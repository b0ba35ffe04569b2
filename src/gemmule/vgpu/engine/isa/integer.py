"""Integer arithmetic: two's complement, modulo 2**bits unless an instruction saturates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.types import INTEGERS, NUMPY, SIGNED, Array, size_of

from ..definition import Build, Step, defines, elementwise
from .carry import SHAPE_TYPES, WIDER, mad_with_carry, multiply_high, with_carry


def _saturated(operation: Callable[[Array, Array], Array]) -> Callable[..., None]:
    """Return the s32 operation that saturates."""

    def apply(a: Array, b: Array, out: Array) -> None:
        wide = operation(np.asarray(a, np.int64), np.asarray(b, np.int64))
        out[...] = np.clip(wide, -(2**31), 2**31 - 1)

    return apply


@defines("add.integer")
def _add(build: Build) -> Step:
    """Add; ``.cc`` writes the carry, ``.sat`` saturates."""
    return _add_or_subtract(build, np.add)


@defines("sub.integer")
def _sub(build: Build) -> Step:
    """Subtract; ``.cc`` writes the borrow, ``.sat`` saturates."""
    return _add_or_subtract(build, np.subtract)


def _add_or_subtract(build: Build, operation: Any) -> Step:
    saturate, carry = build.flag("sat"), build.flag("cc")
    kind = build.type(*SHAPE_TYPES)
    if carry:
        if saturate:
            raise build.error("a saturating sum has no carry")
        return with_carry(build, kind, subtract=operation is np.subtract, reads=False, writes=True)
    return elementwise(build, _saturated(operation) if saturate else operation, kind, kind, kind)


@defines("mul.integer")
def _mul(build: Build) -> Step:
    """Multiply: the lower half, the upper half, or all of the product."""
    part = build.take("lo", "hi", "wide")
    kind = build.type(*INTEGERS)
    if part == "lo":
        return elementwise(build, np.multiply, kind, kind, kind)
    if part == "hi":
        return elementwise(build, multiply_high(kind), kind, kind, kind)
    wide = NUMPY[WIDER[kind]]

    def multiply_wide(a: Array, b: Array, out: Array) -> None:
        np.multiply(a, b, out=out, dtype=wide)

    return elementwise(build, multiply_wide, WIDER[kind], kind, kind)


@defines("mad.integer")
def _mad(build: Build) -> Step:
    """Multiply and add."""
    part = build.take("lo", "hi", "wide")
    saturate, carry = build.flag("sat"), build.flag("cc")
    kind = build.type(*INTEGERS)
    if saturate:
        raise build.error("saturating multiply-add is not modelled")
    if carry:
        if part == "wide" or size_of(kind) == 2:
            raise build.error("a multiply-add with a carry is .lo or .hi, of 32 or 64 bits")
        return mad_with_carry(build, part, kind, reads=False, writes=True)
    if part == "wide":
        wide = NUMPY[WIDER[kind]]

        def wide_mad(a: Array, b: Array, c: Array, out: Array) -> None:
            np.add(np.multiply(a, b, dtype=wide), c, out=out)

        return elementwise(build, wide_mad, WIDER[kind], kind, kind, WIDER[kind])
    if part == "hi":
        high = multiply_high(kind)

        def high_mad(a: Array, b: Array, c: Array, out: Array) -> None:
            product = np.empty_like(out)
            high(a, b, product)
            np.add(product, c, out=out)

        return elementwise(build, high_mad, kind, kind, kind, kind)

    def mad(a: Array, b: Array, c: Array, out: Array) -> None:
        np.add(np.multiply(a, b), c, out=out)

    return elementwise(build, mad, kind, kind, kind, kind)


@defines("mul24", "mad24")
def _mul24(build: Build) -> Step:
    """Multiply the lower 24 bits, the lower half of the product, and add."""
    build.take("lo")
    kind = build.type("u32", "s32")

    def low24(a: Any) -> Array:
        value = np.asarray(a) << NUMPY[kind].type(8)
        found: Array = value >> NUMPY[kind].type(8)
        return found

    def multiply(a: Array, b: Array, out: Array) -> None:
        np.multiply(low24(a), low24(b), out=out)

    def multiply_add(a: Array, b: Array, c: Array, out: Array) -> None:
        np.add(low24(a) * low24(b), c, out=out)

    if build.instruction.name == "mad24":
        return elementwise(build, multiply_add, kind, kind, kind, kind)
    return elementwise(build, multiply, kind, kind, kind)


def _divide(a: Array, b: Array, out: Array) -> None:
    """Divide towards zero; by zero, all bits are set."""
    quotient = np.floor_divide(a, b)
    if out.dtype.kind == "i":
        inexact = (quotient * b != a) & ((np.asarray(a) < 0) != (np.asarray(b) < 0))
        quotient = quotient + inexact.astype(out.dtype)
    out[...] = np.where(np.asarray(b) == 0, out.dtype.type(0) - out.dtype.type(1), quotient)


def _remainder(a: Array, b: Array, out: Array) -> None:
    """Return the remainder with the dividend's sign; by zero, all bits are set."""
    quotient = np.empty_like(out)
    _divide(a, b, quotient)
    out[...] = np.where(np.asarray(b) == 0, quotient, a - quotient * b)


@defines("div.integer")
def _div(build: Build) -> Step:
    """Divide towards zero."""
    kind = build.type(*INTEGERS)
    return elementwise(build, _divide, kind, kind, kind)


@defines("rem")
def _rem(build: Build) -> Step:
    """Give the remainder of the division towards zero."""
    kind = build.type(*INTEGERS)
    return elementwise(build, _remainder, kind, kind, kind)


@defines("abs.integer")
def _abs(build: Build) -> Step:
    """Give the absolute value."""
    kind = build.type(*SIGNED)
    return elementwise(build, np.absolute, kind, kind)


@defines("neg.integer")
def _neg(build: Build) -> Step:
    """Negate."""
    kind = build.type(*SIGNED)
    return elementwise(build, np.negative, kind, kind)


@defines("min.integer", "max.integer")
def _extremes(build: Build) -> Step:
    """Give the smaller or the larger; ``.relu`` makes negative ones zero."""
    relu = build.flag("relu")
    kind = build.type(*INTEGERS)
    choose = np.minimum if build.instruction.name == "min" else np.maximum

    def apply(a: Array, b: Array, out: Array) -> None:
        choose(a, b, out=out)
        if relu:
            np.maximum(out, out.dtype.type(0), out=out)

    return elementwise(build, apply, kind, kind, kind)


@defines("sad")
def _sad(build: Build) -> Step:
    """Add the absolute difference."""
    kind = build.type(*INTEGERS)

    def difference(a: Array, b: Array, c: Array, out: Array) -> None:
        np.add(np.maximum(a, b) - np.minimum(a, b), c, out=out)

    return elementwise(build, difference, kind, kind, kind, kind)


@defines("dp4a", "dp2a")
def _dp4a(build: Build) -> Step:
    """Add the dot product of packed bytes, or of two 16-bit values with two bytes."""
    two = build.instruction.name == "dp2a"
    high = build.take("lo", "hi") == "hi" if two else False
    first, second = build.type("u32", "s32"), build.type("u32", "s32")
    total = "s32" if "s32" in (first, second) else "u32"

    def fields(value: Any, bits: int, signed: bool, count: int) -> list[Array]:
        word = np.asarray(value).astype(np.int64) & 0xFFFFFFFF
        found = []
        for number in range(count):
            field = (word >> (bits * number)) & ((1 << bits) - 1)
            found.append(field - ((field >> (bits - 1)) << bits) if signed else field)
        return found

    def dot(a: Array, b: Array, c: Array, out: Array) -> None:
        x = fields(a, 16 if two else 8, first == "s32", 2 if two else 4)
        y = fields(b, 8, second == "s32", 4)
        if two:
            y = y[2:] if high else y[:2]
        value = np.asarray(c).astype(np.int64)
        for p, q in zip(x, y, strict=True):
            value = value + p * q
        out[...] = value.astype(out.dtype)

    return elementwise(build, dot, total, first, second, total)
