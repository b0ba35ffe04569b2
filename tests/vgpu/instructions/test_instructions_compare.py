"""Comparisons, choices and moves."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from support.ptx.snippets import assert_same_bits, bits_of, each, floats, integers

ORDERED = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
TYPES = {"u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}
FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def bits(array):
    return f"b{8 * array.itemsize}"


def compare(name, kind, a, b, extra=""):
    out = np.zeros(len(a), np.uint32)
    each(
        f"setp.{name}.{kind} %p1, $a, $b;\n{extra}selp.b32 $out, 1, 0, %p1;",
        ("b32", out),
        *((bits(x), bits_of(x)) for x in (a, b)),
    )
    return out != 0


def pairs(rng, make, dtype):
    a, b = make(rng, dtype), make(rng, dtype)
    same = rng.random(len(a)) < 0.3
    return a, np.where(same, a, b).astype(dtype)


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("kind", TYPES)
def test_integers(rng, kind, name):
    a, b = pairs(rng, integers, TYPES[kind])
    np.testing.assert_array_equal(compare(name, kind, a, b), ORDERED[name](a, b))


@pytest.mark.parametrize(("name", "same_as"), [("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")])
def test_unsigned_names(rng, name, same_as):
    a, b = pairs(rng, integers, np.uint32)
    np.testing.assert_array_equal(compare(name, "u32", a, b), ORDERED[same_as](a, b))


@pytest.mark.parametrize("name", [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"])
@pytest.mark.parametrize("kind", FLOATS)
def test_floats(rng, kind, name):
    a, b = pairs(rng, floats, FLOATS[kind])
    nan = np.isnan(a) | np.isnan(b)
    expected = {"num": ~nan, "nan": nan}.get(name)
    if expected is None:
        ordered = ORDERED[name.removesuffix("u") if name not in ORDERED else name](a, b) & ~nan
        expected = ordered | nan if name not in ORDERED else ordered
    np.testing.assert_array_equal(compare(name, kind, a, b), expected)


@pytest.mark.parametrize(("name", "combine"), [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)])
def test_combination_with_a_predicate(rng, name, combine):
    a, b = (rng.integers(0, 4, 512).astype(np.uint32) for _ in range(2))
    out = np.zeros(512, np.uint32)
    text = f"""setp.eq.u32 %p3, $a, 1;
    setp.lt.{name}.u32 %p1|%p2, $a, $b, !%p3;
    selp.b32 %r30, 1, 0, %p1;
    selp.b32 %r31, 2, 0, %p2;
    or.b32 $out, %r30, %r31;"""
    each(text, ("b32", out), ("b32", a), ("b32", b))
    other = a != 1
    np.testing.assert_array_equal(out, combine(a < b, other) + 2 * combine(a >= b, other))


def test_logic_of_predicates(rng):
    a, b = (rng.integers(0, 2, 512).astype(np.uint32) for _ in range(2))
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        out = np.zeros(512, np.uint32)
        text = f"""setp.ne.u32 %p1, $a, 0;
        setp.ne.u32 %p2, $b, 0;
        {name}.pred %p3, %p1, %p2;
        not.pred %p4, %p3;
        selp.u32 $out, 5, 9, %p4;"""
        each(text, ("b32", out), ("b32", a), ("b32", b))
        np.testing.assert_array_equal(out, np.where(function(a, b), 9, 5))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_selp(rng, width):
    dtype = np.dtype(f"u{width // 8}")
    a, b = integers(rng, dtype), integers(rng, dtype)
    c = rng.integers(0, 2, 1024).astype(np.uint32)
    out = np.zeros(1024, dtype)
    text = f"setp.ne.u32 %p1, $c, 0;\nselp.b{width} $out, $a, $b, %p1;"
    each(text, (bits(a), out), (bits(a), a), (bits(a), b), ("b32", c))
    assert_same_bits(out, np.where(c != 0, a, b))


def test_slct(rng):
    a, b = integers(rng, np.uint32), integers(rng, np.uint32)
    c = integers(rng, np.int32)
    out = np.zeros(1024, np.uint32)
    each("slct.u32.s32 $out, $a, $b, $c;", ("b32", out), ("b32", a), ("b32", b), ("b32", c))
    assert_same_bits(out, np.where(c >= 0, a, b))


def test_set(rng):
    a, b = integers(rng, np.int32), integers(rng, np.int32)
    out = np.zeros(1024, np.uint32)
    each("set.lt.u32.s32 $out, $a, $b;", ("b32", out), ("b32", a), ("b32", b))
    assert_same_bits(out, np.where(a < b, 0xFFFFFFFF, 0))
    out = np.zeros(1024, np.float32)
    each("set.lt.f32.s32 $out, $a, $b;", ("b32", out), ("b32", a), ("b32", b))
    assert_same_bits(out, np.where(a < b, 1.0, 0.0))


def test_vectors_of_registers(rng):
    a, b = integers(rng, np.uint32), integers(rng, np.uint32)
    out = np.zeros(1024, np.uint64)
    each("mov.b64 $out, {$a, $b};", ("b64", out), ("b32", a), ("b32", b))
    assert_same_bits(out, a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    low = np.zeros(1024, np.uint32)
    each("mov.b64 {%r30, _}, $a;\nmov.b32 $out, %r30;", ("b32", low), ("b64", out))
    assert_same_bits(low, a)
    halves = np.zeros(1024, np.uint16)
    each("mov.b32 {_, %h30}, $a;\nmov.b16 $out, %h30;", ("b16", halves), ("b32", a))
    assert_same_bits(halves, a >> 16)


def test_a_vector_may_hold_its_own_source(rng):
    a = integers(rng, np.uint64)
    out = np.zeros(1024, np.uint64)
    each("mov.b64 {%r1, %r2}, $a;\nmov.b64 $out, {%r2, %r1};", ("b64", out), ("b64", a))
    assert_same_bits(out, a >> np.uint64(32) | a << np.uint64(32))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mov.b32 $out, 0f3F800000;", 0x3F800000),
        ("mov.f32 $out, 0fBF800000;", 0xBF800000),
        ("mov.f32 $out, 1.5;", 0x3FC00000),
        ("mov.u32 $out, 0x1fU;", 31),
        ("mov.u32 $out, 0b101;", 5),
        ("mov.u32 $out, 017;", 15),
        ("mov.s32 $out, -1;", 0xFFFFFFFF),
    ],
)
def test_constants(text, value):
    out = np.zeros(32, np.uint32)
    each(text, ("b32", out))
    assert (out == value).all()


def test_guards_leave_other_lanes_as_they_are(rng):
    a = rng.integers(0, 4, 512).astype(np.uint32)
    out = np.zeros(512, np.uint32)
    text = """mov.u32 $out, 7;
    setp.eq.u32 %p1, $a, 1;
    setp.eq.u32 %p2, $a, 2;
    @%p1 add.u32 $out, $out, 1;
    @!%p2 add.u32 $out, $out, 10;"""
    each(text, ("b32", out), ("b32", a))
    np.testing.assert_array_equal(out, 7 + (a == 1) + 10 * (a != 2))


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_comparisons_flush_subnormals(rng, kind):
    a, b = pairs(rng, floats, FLOATS[kind])
    flushed = [np.where(np.abs(x) < np.finfo(x.dtype).tiny, x.dtype.type(0), x) for x in (a, b)]
    expected = flushed[0] < flushed[1]
    np.testing.assert_array_equal(compare("lt.ftz", kind, a, b), expected)
    out = np.zeros(len(a), np.uint32)
    each(f"set.lt.ftz.u32.{kind} $out, $a, $b;", ("b32", out), *((bits(x), bits_of(x)) for x in (a, b)))
    np.testing.assert_array_equal(out, np.where(expected, 0xFFFFFFFF, 0))


def test_slct_flushes_what_it_asks():
    by = np.array([-1e-40, 1e-40, -1.0, 1.0, -0.0, 0.0, np.nan, -1e-30] * 4, np.float32)
    out = np.zeros(32, np.uint32)
    each("slct.ftz.u32.f32 $out, 1, 2, $a;", ("b32", out), ("b32", by))
    np.testing.assert_array_equal(out[:8], [1, 1, 2, 1, 1, 1, 2, 2])
    each("slct.u32.f32 $out, 1, 2, $a;", ("b32", out), ("b32", by))
    np.testing.assert_array_equal(out[:8], [2, 1, 2, 1, 1, 1, 2, 2])


def test_set_compares_bf16_as_numbers(rng):
    a, b = (integers(rng, np.uint16) for _ in range(2))
    x, y = ((v.astype(np.uint32) << 16).view(np.float32) for v in (a, b))
    out = np.zeros(1024, np.uint32)
    each("set.lt.u32.bf16 $out, $a, $b;", ("b32", out), ("b16", a), ("b16", b))
    np.testing.assert_array_equal(out, np.where(x < y, 0xFFFFFFFF, 0))
