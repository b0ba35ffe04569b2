"""Instructions on bits against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from support.ptx.integers import check, wrapped
from support.ptx.snippets import assert_same_bits, each, integers

KINDS = {16: "u16", 32: "u32", 64: "u64"}


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize(
    ("name", "function"), [("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)]
)
def test_logic(rng, name, function, width):
    check(rng, f"{name}.b{width} $out, $a, $b;", function, KINDS[width])


@pytest.mark.parametrize("width", [16, 32, 64])
def test_not(rng, width):
    check(rng, f"not.b{width} $out, $a;", lambda a: ~a, KINDS[width], KINDS[width])
    check(rng, f"cnot.b{width} $out, $a;", lambda a: int(a == 0), KINDS[width], KINDS[width])


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts(rng, width):
    kind = KINDS[width]
    signed = kind.replace("u", "s")

    def right(a, b):
        return a >> min(b, width)

    check(rng, f"shl.b{width} $out, $a, $b;", lambda a, b: a << b if b < width else 0, kind, kind, "u32")
    check(rng, f"shr.u{width} $out, $a, $b;", right, kind, kind, "u32")
    check(rng, f"shr.s{width} $out, $a, $b;", right, signed, signed, "u32")
    check(rng, f"shl.b{width} $out, $a, 5;", lambda a: a << 5, kind, kind)
    check(rng, f"shr.s{width} $out, $a, 5;", lambda a: a >> 5, signed, signed)


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@pytest.mark.parametrize("way", ["l", "r"])
def test_funnel_shift(rng, way, mode):
    def funnel(low, high, amount):
        n = amount & 31 if mode == "wrap" else min(amount, 32)
        word = high << 32 | low
        return (word << n) >> 32 if way == "l" else word >> n

    check(rng, f"shf.{way}.{mode}.b32 $out, $a, $b, $c;", funnel, "u32", "u32", "u32", "u32")


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xE8, 0x2C, 0x00, 0xFF])
def test_lop3(rng, table):
    def lop(a, b, c):
        return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))

    check(rng, f"lop3.b32 $out, $a, $b, $c, {table:#x};", lop, "u32", "u32", "u32", "u32")


@pytest.mark.parametrize("width", [32, 64])
def test_counting(rng, width):
    kind = KINDS[width]
    check(rng, f"popc.b{width} $out, $a;", lambda a: a.bit_count(), "u32", kind)
    check(rng, f"clz.b{width} $out, $a;", lambda a: width - a.bit_length(), "u32", kind)
    check(rng, f"bfind.u{width} $out, $a;", lambda a: a.bit_length() - 1, "u32", kind)
    check(rng, f"bfind.shiftamt.u{width} $out, $a;", lambda a: width - a.bit_length() if a else -1, "u32", kind)
    signed = kind.replace("u", "s")
    check(rng, f"bfind.s{width} $out, $a;", lambda a: (a if a >= 0 else ~a).bit_length() - 1, "u32", signed)
    check(rng, f"brev.b{width} $out, $a;", lambda a: int(f"{a:0{width}b}"[::-1], 2), kind, kind)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_extracting_fields(rng, kind):
    width = int(kind[1:])

    def extract(a, start, length):
        start, length = start & 255, length & 255
        if length == 0:
            return 0
        a &= (1 << width) - 1
        sign = a >> min(start + length - 1, width - 1) & 1 if kind[0] == "s" else 0
        return sum((a >> (start + i) & 1 if i < length and start + i < width else sign) << i for i in range(width))

    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width // 8}")
    a = integers(rng, dtype)
    start, length = (rng.integers(0, 70, 1024).astype(np.uint32) for _ in range(2))
    out = np.zeros(1024, dtype)
    each(f"bfe.{kind} $out, $a, $b, $c;", (f"b{width}", out), (f"b{width}", a), ("b32", start), ("b32", length))
    assert_same_bits(
        out, wrapped([extract(int(x), int(s), int(n)) for x, s, n in zip(a, start, length, strict=True)], dtype)
    )


@pytest.mark.parametrize("width", [32, 64])
def test_inserting_fields(rng, width):
    def insert(a, b, start, length):
        for i in range(min(length & 255, width)):
            at = (start & 255) + i
            if at < width:
                b = b & ~(1 << at) | (a >> i & 1) << at
        return b

    dtype = np.dtype(f"u{width // 8}")
    a, b = integers(rng, dtype), integers(rng, dtype)
    start, length = (rng.integers(0, 70, 1024).astype(np.uint32) for _ in range(2))
    out = np.zeros(1024, dtype)
    kind = f"b{width}"
    each(f"bfi.{kind} $out, $a, $b, $c, $d;", (kind, out), (kind, a), (kind, b), ("b32", start), ("b32", length))
    assert_same_bits(
        out, wrapped([insert(*map(int, values)) for values in zip(a, b, start, length, strict=True)], dtype)
    )


def prmt(a, b, c, mode):
    both = b << 32 | a
    low = c & 3
    digits = {
        "": [(c >> (4 * i)) & 15 for i in range(4)],
        "f4e": [low + i for i in range(4)],
        "b4e": [(low - i) % 8 for i in range(4)],
        "rc8": [low] * 4,
        "ecl": [max(low, i) for i in range(4)],
        "ecr": [min(low, i) for i in range(4)],
        "rc16": [(low & 1) * 2 + i % 2 for i in range(4)],
    }[mode]
    word = 0
    for i, digit in enumerate(digits):
        byte = both >> (8 * (digit & 7)) & 255
        if mode == "" and digit & 8:
            byte = 255 if byte & 128 else 0
        word |= byte << (8 * i)
    return word


@pytest.mark.parametrize("mode", ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
def test_permutations_of_bytes(rng, mode):
    name = f"prmt.b32.{mode}" if mode else "prmt.b32"
    check(rng, f"{name} $out, $a, $b, $c;", lambda a, b, c: prmt(a, b, c, mode), "u32", "u32", "u32", "u32")
