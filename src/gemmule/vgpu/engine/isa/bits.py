"""Bits: logic, shifts, fields, permutations of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.types import BITS, INTEGERS, NUMPY, Array, is_signed, size_of

from ..definition import Build, Step, defines, elementwise


def _logic(operation: Any) -> Callable[[Build], Step]:
    def definition(build: Build) -> Step:
        kind = build.type(*BITS)
        return elementwise(build, operation, kind, kind, kind)

    return definition


defines("and")(_logic(np.bitwise_and))
defines("or")(_logic(np.bitwise_or))
defines("xor")(_logic(np.bitwise_xor))


@defines("not")
def _not(build: Build) -> Step:
    """Invert all bits."""
    kind = build.type(*BITS)
    return elementwise(build, np.invert, kind, kind)


@defines("cnot")
def _cnot(build: Build) -> Step:
    """Give 1 for zero, else 0."""
    kind = build.type(*BITS)

    def invert(a: Array, out: Array) -> None:
        out[...] = a == 0

    return elementwise(build, invert, kind, kind)


def _shift(operation: Any, kind: str) -> Callable[..., None]:
    """Return a shift by 32-bit amounts, of which those beyond the width count as the width."""
    dtype, bits = NUMPY[kind], 8 * size_of(kind)

    def shift(a: Array, b: Array, out: Array) -> None:
        amount = np.asarray(b)
        if amount.ndim == 0 and amount < bits:
            operation(a, dtype.type(amount), out=out)
            return
        if is_signed(kind):
            operation(a, np.minimum(amount, bits - 1).astype(dtype), out=out)
            return
        out[...] = np.where(amount < bits, operation(a, np.minimum(amount, bits - 1).astype(dtype)), dtype.type(0))

    return shift


@defines("shl")
def _shl(build: Build) -> Step:
    """Shift to the left."""
    kind = f"u{8 * size_of(build.type('b16', 'b32', 'b64'))}"
    return elementwise(build, _shift(np.left_shift, kind), kind, kind, "u32")


@defines("shr")
def _shr(build: Build) -> Step:
    """Shift to the right: signed types are extended by their sign."""
    kind = build.type(*INTEGERS, "b16", "b32", "b64")
    if kind.startswith("b"):
        kind = f"u{kind[1:]}"
    return elementwise(build, _shift(np.right_shift, kind), kind, kind, "u32")


@defines("shf")
def _shf(build: Build) -> Step:
    """Shift two words as one of 64 bits: the upper word of a shift to the left, the lower of one to the right."""
    left = build.take("l", "r") == "l"
    wrap = build.take("wrap", "clamp") == "wrap"
    build.type("b32")

    def funnel(low: Array, high: Array, amount: Array, out: Array) -> None:
        word = (np.asarray(high).astype(np.uint64) << np.uint64(32)) | np.asarray(low)
        amount = np.asarray(amount).astype(np.uint64)
        count = amount & np.uint64(31) if wrap else np.minimum(amount, np.uint64(32))
        shifted = (word << count) >> np.uint64(32) if left else word >> count
        out[...] = shifted.astype(np.uint32)

    return elementwise(build, funnel, "b32", "b32", "b32", "u32")


@defines("lop3")
def _lop3(build: Build) -> Step:
    """Apply any function of three bits, given by its table, to every bit."""
    build.type("b32")
    build.done(5)
    target, *sources, table = build.operands
    entries = build.integer(table)
    from ..definition import call

    def apply(a: Array, b: Array, c: Array, out: Array) -> None:
        result = np.zeros(out.shape, np.uint32)
        for entry in range(8):
            if entries >> entry & 1:
                term = a if entry & 4 else ~a
                term = term & (b if entry & 2 else ~b)
                result |= term & (c if entry & 1 else ~c)
        out[...] = result

    return call(apply, [build.source(source, "b32") for source in sources], build.dest(target, "b32"))


@defines("popc")
def _popc(build: Build) -> Step:
    """Count the bits that are 1."""
    kind = build.type("b32", "b64")

    def count(a: Array, out: Array) -> None:
        out[...] = np.bitwise_count(a)

    return elementwise(build, count, "u32", kind)


def _highest(a: Any) -> Array:
    """Return the position of the highest 1, -1 for zero."""
    value = np.asarray(a).astype(np.uint64)
    position = np.full(value.shape, -1, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        upper = value >> np.uint64(step)
        move = upper != 0
        value = np.where(move, upper, value)
        position = position + np.where(move, step, 0)
    found: Array = position + (value != 0)
    return found


@defines("clz")
def _clz(build: Build) -> Step:
    """Count the zeros above the highest 1."""
    kind = build.type("b32", "b64")
    bits = 8 * size_of(kind)

    def count(a: Array, out: Array) -> None:
        out[...] = bits - 1 - _highest(a)

    return elementwise(build, count, "u32", kind)


@defines("bfind")
def _bfind(build: Build) -> Step:
    """Find the highest bit that differs from the sign, all ones where there is none."""
    from_top = build.flag("shiftamt")
    kind = build.type("u32", "s32", "u64", "s64")
    bits = 8 * size_of(kind)
    unsigned = np.dtype(f"u{size_of(kind)}")

    def find(a: Array, out: Array) -> None:
        value = np.asarray(a)
        if is_signed(kind):
            value = np.where(value < 0, ~value, value)
        position = _highest(value.view(unsigned))
        found = bits - 1 - position if from_top else position
        out[...] = np.where(position < 0, 0xFFFFFFFF, found).astype(np.uint32)

    return elementwise(build, find, "u32", kind)


@defines("brev")
def _brev(build: Build) -> Step:
    """Reverse the order of the bits."""
    kind = f"u{8 * size_of(build.type('b32', 'b64'))}"
    bits = 8 * size_of(kind)

    def reverse(a: Array, out: Array) -> None:
        value = np.asarray(a).astype(np.uint64)
        result = np.zeros_like(value)
        for bit in range(bits):
            result |= ((value >> np.uint64(bit)) & np.uint64(1)) << np.uint64(bits - 1 - bit)
        out[...] = result.astype(out.dtype)

    return elementwise(build, reverse, kind, kind)


@defines("bfe")
def _bfe(build: Build) -> Step:
    """Extract a field of bits; a signed one is extended."""
    kind = build.type("u32", "s32", "u64", "s64")
    bits = 8 * size_of(kind)
    signed = is_signed(kind)

    def extract(a: Array, start: Array, length: Array, out: Array) -> None:
        value = np.broadcast_to(np.asarray(a), out.shape)
        position = (np.asarray(start) & 0xFF).astype(np.int64)
        count = (np.asarray(length) & 0xFF).astype(np.int64)
        result = np.zeros(out.shape, np.uint64)
        sign_at = np.minimum(position + count - 1, bits - 1)
        wide = value.astype(np.uint64)
        sign = (wide >> np.maximum(sign_at, 0).astype(np.uint64)) & np.uint64(1)
        sign = np.where((count > 0) & signed, sign, np.uint64(0))
        for bit in range(bits):
            at = position + bit
            inside = (bit < count) & (at < bits)
            here = np.where(inside, (wide >> np.minimum(at, bits - 1).astype(np.uint64)) & np.uint64(1), sign)
            result |= here << np.uint64(bit)
        out[...] = result.astype(f"u{size_of(kind)}").view(out.dtype)

    return elementwise(build, extract, kind, kind, "u32", "u32")


@defines("bfi")
def _bfi(build: Build) -> Step:
    """Insert a field of bits."""
    kind = f"u{8 * size_of(build.type('b32', 'b64'))}"
    bits = 8 * size_of(kind)

    def insert(a: Array, b: Array, start: Array, length: Array, out: Array) -> None:
        position = (np.asarray(start) & 0xFF).astype(np.uint64)
        count = np.minimum(np.asarray(length) & 0xFF, 64).astype(np.uint64)
        ones = np.uint64(2**64 - 1)
        field = np.where(count < 64, (np.uint64(1) << np.minimum(count, np.uint64(63))) - np.uint64(1), ones)
        shift = np.minimum(position, np.uint64(63))
        mask = np.where(position < bits, field << shift, np.uint64(0))
        moved = np.asarray(a).astype(np.uint64) << shift
        out[...] = ((np.asarray(b).astype(np.uint64) & ~mask) | (moved & mask)).astype(out.dtype)

    return elementwise(build, insert, kind, kind, kind, "u32", "u32")


_PRMT_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@defines("prmt")
def _prmt(build: Build) -> Step:
    """Choose four of eight bytes by the digits of a selector; bit 3 of a digit spreads the byte's sign instead."""
    build.type("b32")
    mode = build.take(*_PRMT_MODES, default="")

    def selectors(c: Array) -> list[Array]:
        low = c & 3
        if mode == "":
            return [(c >> (4 * number)) & 15 for number in range(4)]
        return {
            "f4e": [low + number for number in range(4)],
            "b4e": [(low - number) & 7 for number in range(4)],
            "rc8": [low for _ in range(4)],
            "ecl": [np.maximum(low, number) for number in range(4)],
            "ecr": [np.minimum(low, number) for number in range(4)],
            "rc16": [(low & 1) * 2 + number % 2 for number in range(4)],
        }[mode]

    def permute(a: Array, b: Array, c: Array, out: Array) -> None:
        both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | np.asarray(a)
        result: Any = np.uint64(0)
        for number, selector in enumerate(selectors(np.asarray(c).astype(np.int64))):
            byte = (both >> ((selector & 7) * 8).astype(np.uint64)) & np.uint64(255)
            if mode == "":
                spread = np.where(byte >> np.uint64(7) != 0, np.uint64(255), np.uint64(0))
                byte = np.where(selector & 8, spread, byte)
            result = result | (byte << np.uint64(8 * number))
        out[...] = result.astype(np.uint32)

    return elementwise(build, permute, "b32", "b32", "b32", "b32")
