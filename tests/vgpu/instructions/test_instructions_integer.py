"""Integer instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from support.ptx.integers import TYPES, bits, check, wrapped
from support.ptx.snippets import assert_same_bits, each, integers

WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def divide(a, b, kind):
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
    ],
)
def test_two_operands(rng, name, function, kind):
    check(rng, f"{name}.{kind} $out, $a, $b;", function, kind)


@pytest.mark.parametrize("kind", TYPES)
def test_division(rng, kind):
    check(rng, f"div.{kind} $out, $a, $b;", lambda a, b: divide(a, b, kind), kind)
    check(rng, f"rem.{kind} $out, $a, $b;", lambda a, b: -1 if b == 0 else a - divide(a, b, kind) * b, kind)


@pytest.mark.parametrize("kind", TYPES)
def test_multiplication(rng, kind):
    width = int(kind[1:])
    check(rng, f"mul.hi.{kind} $out, $a, $b;", lambda a, b: (a * b) >> width, kind)
    check(rng, f"mad.lo.{kind} $out, $a, $b, $c;", lambda a, b, c: a * b + c, kind, kind, kind, kind)
    check(rng, f"mad.hi.{kind} $out, $a, $b, $c;", lambda a, b, c: ((a * b) >> width) + c, kind, kind, kind, kind)
    check(rng, f"sad.{kind} $out, $a, $b, $c;", lambda a, b, c: abs(a - b) + c, kind, kind, kind, kind)
    if kind in WIDE:
        wide = WIDE[kind]
        check(rng, f"mul.wide.{kind} $out, $a, $b;", lambda a, b: a * b, kind, kind, kind, out_kind=wide)
        check(
            rng, f"mad.wide.{kind} $out, $a, $b, $c;", lambda a, b, c: a * b + c, kind, kind, kind, wide, out_kind=wide
        )


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_24_bits(rng, kind):
    def low(a):
        a &= 0xFFFFFF
        return a - (1 << 24) if kind == "s32" and a >> 23 else a

    check(rng, f"mul24.lo.{kind} $out, $a, $b;", lambda a, b: low(a) * low(b), kind)
    check(rng, f"mad24.lo.{kind} $out, $a, $b, $c;", lambda a, b, c: low(a) * low(b) + c, kind, kind, kind, kind)


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_signs(rng, kind):
    check(rng, f"neg.{kind} $out, $a;", lambda a: -a, kind, kind)
    check(rng, f"abs.{kind} $out, $a;", abs, kind, kind)


def test_saturation(rng):
    def clip(value):
        return min(max(value, -(2**31)), 2**31 - 1)

    check(rng, "add.sat.s32 $out, $a, $b;", lambda a, b: clip(a + b), "s32")
    check(rng, "sub.sat.s32 $out, $a, $b;", lambda a, b: clip(a - b), "s32")


@pytest.mark.parametrize(("name", "sign"), [("add", 1), ("sub", -1)])
def test_carries_make_wide_sums(rng, name, sign):
    a, b = integers(rng, np.uint64), integers(rng, np.uint64)
    out = np.zeros(1024, np.uint64)
    text = f"""mov.b64 {{%r1, %r2}}, $a;
    mov.b64 {{%r3, %r4}}, $b;
    {name}.cc.u32 %r5, %r1, %r3;
    {name}c.u32 %r6, %r2, %r4;
    mov.b64 $out, {{%r5, %r6}};"""
    each(text, ("b64", out), ("b64", a), ("b64", b))
    assert_same_bits(out, a + b if sign > 0 else a - b)


def test_products_of_several_words(rng):
    """Partial products of two numbers of two words, added up in four words, each with the carry of the one below."""
    a, b, c = (integers(rng, np.uint64) for _ in range(3))
    low, high = np.zeros(1024, np.uint64), np.zeros(1024, np.uint64)
    for part, out in (("%r9, %r10", low), ("%r11, %r12", high)):
        text = f"""mov.b64 {{%r1, %r2}}, $a;
    mov.b64 {{%r3, %r4}}, $b;
    mov.b64 {{%r5, %r6}}, $c;
    mad.lo.cc.u32 %r9, %r1, %r3, %r5;
    madc.hi.cc.u32 %r10, %r1, %r3, %r6;
    madc.hi.cc.u32 %r11, %r2, %r4, 0;
    addc.u32 %r12, 0, 0;
    mad.lo.cc.u32 %r10, %r1, %r4, %r10;
    madc.hi.cc.u32 %r11, %r1, %r4, %r11;
    addc.u32 %r12, %r12, 0;
    mad.lo.cc.u32 %r10, %r2, %r3, %r10;
    madc.hi.cc.u32 %r11, %r2, %r3, %r11;
    addc.u32 %r12, %r12, 0;
    mov.b64 $out, {{{part}}};"""
        each(text, ("b64", out), ("b64", a), ("b64", b), ("b64", c))

    def words(x, y, z):
        x0, x1, y0, y1 = x % 2**32, x >> 32, y % 2**32, y >> 32
        return x0 * y0 + (x0 * y1 + x1 * y0) * 2**32 + (x1 * y1 >> 32) * 2**64 + z

    exact = [words(int(x), int(y), int(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert_same_bits(low, wrapped(exact, np.dtype(np.uint64)))
    assert_same_bits(high, wrapped([value >> 64 for value in exact], np.dtype(np.uint64)))


@pytest.mark.parametrize("kind", ["s32", "u64", "s64"])
def test_carries_of_products(rng, kind):
    width = int(kind[1:])
    text = f"mad.lo.cc.{kind} %d9, $a, $b, $c;\naddc.u32 $out, 0, 0;"
    text = text.replace("%d9", "%r9") if width == 32 else text
    a, b, c = (integers(rng, TYPES[kind]) for _ in range(3))
    out = np.zeros(1024, np.uint32)
    each(text, ("b32", out), *((bits(kind), x) for x in (a, b, c)))
    mask = 2**width - 1
    expected = [((int(x) * int(y) & mask) + (int(z) & mask)) >> width for x, y, z in zip(a, b, c, strict=True)]
    assert_same_bits(out, np.array(expected, np.uint32))


def bytes_of(word, signed):
    fields = [(word >> (8 * i)) & 255 for i in range(4)]
    return [f - 256 if signed and f > 127 else f for f in fields]


@pytest.mark.parametrize("second", ["u32", "s32"])
@pytest.mark.parametrize("first", ["u32", "s32"])
def test_dot_products_of_bytes(rng, first, second):
    total = "s32" if "s32" in (first, second) else "u32"

    def dot(a, b, c):
        return sum(x * y for x, y in zip(bytes_of(a, first == "s32"), bytes_of(b, second == "s32"), strict=True)) + c

    check(rng, f"dp4a.{first}.{second} $out, $a, $b, $c;", dot, total, first, second, total)

    def halves(word):
        fields = [word & 0xFFFF, word >> 16 & 0xFFFF]
        return [f - 2**16 if first == "s32" and f >= 2**15 else f for f in fields]

    for part, start in (("lo", 0), ("hi", 2)):

        def dot_of_two(a, b, c, start=start):
            chosen = bytes_of(b, second == "s32")[start : start + 2]
            return sum(x * y for x, y in zip(halves(a), chosen, strict=True)) + c

        check(rng, f"dp2a.{part}.{first}.{second} $out, $a, $b, $c;", dot_of_two, total, first, second, total)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_immediates(rng, kind):
    check(rng, f"add.{kind} $out, $a, -3;", lambda a: a - 3, kind, kind)
    check(rng, f"mul.lo.{kind} $out, $a, 0x11;", lambda a: a * 17, kind, kind)
