"""Conversions, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gemmule.vgpu.ptx.errors import PtxError
from support.ptx.integers import TYPES, wrapped
from support.ptx.rounding import NARROW, rounded
from support.ptx.snippets import assert_same_bits, each, floats, integers

INTEGERS = TYPES | {"u8": np.uint8, "s8": np.int8}
FLOATS = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64), **NARROW}
FLOAT8 = {"e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2)}


def bits(dtype):
    return f"b{8 * np.dtype(dtype).itemsize}"


def plain(array):
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_between_integers(rng, source, target):
    a = integers(rng, INTEGERS[source])
    out = np.zeros(1024, INTEGERS[target])
    each(f"cvt.{target}.{source} $out, $a;", (bits(out.dtype), out), (bits(a.dtype), a))
    assert_same_bits(out, wrapped(a.tolist(), out.dtype))
    info, given = np.iinfo(out.dtype), np.iinfo(a.dtype)
    if given.min >= info.min and given.max <= info.max:
        return  # nothing can be clamped, and PTX does not allow the modifier
    each(f"cvt.sat.{target}.{source} $out, $a;", (bits(out.dtype), out), (bits(a.dtype), a))
    assert_same_bits(out, np.array([min(max(int(x), info.min), info.max) for x in a], out.dtype))


def test_a_wide_register_is_extended(rng):
    a = integers(rng, np.int8)
    out = np.zeros(1024, np.int32)
    each("cvt.s32.s8 $out, $a;", ("b32", out), ("b8", a))
    assert_same_bits(out, a.astype(np.int32))
    wide = integers(rng, np.int32)
    each("cvt.s32.s8 $out, $a;", ("b32", out), ("b32", wide))
    assert_same_bits(out, wide.astype(np.int8).astype(np.int32))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer(rng, source, target, mode):
    if source == "bf16" and target in ("u8", "s8"):
        pytest.skip("PTX has no such conversion")
    a = (
        rng.integers(0, 2**16, 1024, np.uint16).view(FLOATS[source])
        if source in NARROW
        else floats(rng, FLOATS[source])
    )
    out = np.zeros(1024, INTEGERS[target])
    each(f"cvt.{mode}.{target}.{source} $out, $a;", (bits(out.dtype), out), (bits(a.dtype), plain(a)))
    info = np.iinfo(out.dtype)
    whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](a.astype(np.float64))
    nan = 1 << info.bits - 1 if info.bits == 64 or source == "f64" else 0
    expected = [
        nan
        if np.isnan(x)
        else (info.max if x > 0 else info.min)
        if np.isinf(x)
        else min(max(int(x), info.min), info.max)
        for x in whole
    ]
    assert_same_bits(out, wrapped(expected, out.dtype))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f32", "f64", "f16"])
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float(rng, source, target, mode):
    a = integers(rng, INTEGERS[source])
    dtype = FLOATS[target]
    out = np.zeros(1024, dtype)
    each(f"cvt.{mode}.{target}.{source} $out, $a;", (bits(dtype), plain(out)), (bits(a.dtype), a))
    assert_same_bits(out, np.array([rounded(Fraction(int(x)), dtype, mode) for x in a], dtype))


@pytest.mark.which_nan_is_open("target")
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "target"), [("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16")])
def test_narrowing(rng, source, target, mode):
    a = floats(rng, FLOATS[source])
    dtype = FLOATS[target]
    out = np.zeros(1024, np.dtype(f"u{dtype.itemsize}"))
    each(f"cvt.{mode}.{target}.{source} $out, $a;", (bits(dtype), out), (bits(a.dtype), a))
    check_rounded(a, out, dtype, mode)


def check_rounded(a, out, dtype, mode):
    finite = np.isfinite(a)
    expected = np.array([rounded(Fraction(float(x)), dtype, mode) for x in a[finite]], dtype)
    zero = a[finite] == 0
    np.testing.assert_array_equal(plain(expected)[~zero], out[finite][~zero])
    got = out.view(dtype).astype(np.float64)
    assert (np.signbit(got[finite]) == np.signbit(a[finite])).all()
    assert (np.isnan(got) == np.isnan(a)).all()
    infinite = np.isinf(a)
    np.testing.assert_array_equal(got[infinite], a[infinite].astype(np.float64))


@pytest.mark.which_nan_is_open("target")
@pytest.mark.parametrize(("source", "target"), [("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("f32", "f64")])
def test_widening_is_exact(rng, source, target):
    a = (
        rng.integers(0, 2**16, 1024, np.uint16).view(FLOATS[source])
        if source in NARROW
        else floats(rng, FLOATS[source])
    )
    out = np.zeros(1024, FLOATS[target])
    each(f"cvt.{target}.{source} $out, $a;", (bits(out.dtype), out), (bits(a.dtype), plain(a)))
    assert_same_bits(out, a.astype(np.float64).astype(out.dtype))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_whole_numbers(rng, kind, mode):
    a = floats(rng, FLOATS[kind])
    out = np.zeros_like(a)
    each(f"cvt.{mode}.{kind}.{kind} $out, $a;", (bits(a.dtype), out), (bits(a.dtype), a))
    assert_same_bits(out, {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](a))


@pytest.mark.which_nan_is_open(kind="f32")
@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(rng, mode):
    a = floats(rng, np.float32)
    out = np.zeros(1024, np.float32)
    each(f"cvt.{mode}.tf32.f32 $out, $a;", ("b32", out), ("b32", a))
    finite = np.isfinite(a) & (np.abs(a) < 3e38)
    unit = 2.0 ** (np.maximum(np.frexp(a[finite].astype(np.float64))[1] - 1, -126) - 10)
    scaled = a[finite].astype(np.float64) / unit
    expected = {
        "rn": np.rint(scaled),
        "rz": np.trunc(scaled),
        "rna": np.copysign(np.floor(np.abs(scaled) + 0.5), scaled),
    }[mode]
    np.testing.assert_array_equal(out[finite], (expected * unit).astype(np.float32))
    assert (out.view(np.uint32)[finite] & 0x1FFF == 0).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packing_pairs(rng, kind):
    high, low = floats(rng, np.float32), floats(rng, np.float32)
    out = np.zeros(1024, np.uint32)
    each(f"cvt.rn.{kind}x2.f32 $out, $a, $b;", ("b32", out), ("b32", high), ("b32", low))
    halves = out.view(np.uint16).reshape(-1, 2)
    check_rounded(low, np.ascontiguousarray(halves[:, 0]), NARROW[kind], "rn")
    check_rounded(high, np.ascontiguousarray(halves[:, 1]), NARROW[kind], "rn")


@pytest.mark.parametrize("kind", FLOAT8)
def test_8_bit_floats(rng, kind):
    high, low = (floats(rng, np.float32) for _ in range(2))
    high = (rng.standard_normal(1024) * 2.0 ** rng.integers(-12, 12, 1024)).astype(np.float32)
    out = np.zeros(1024, np.uint16)
    each(f"cvt.rn.satfinite.{kind}x2.f32 $out, $a, $b;", ("b16", out), ("b32", high), ("b32", low))
    pairs = out.view(np.uint8).reshape(-1, 2)
    dtype = FLOAT8[kind]
    largest = float(ml_dtypes.finfo(dtype).max)
    for source, got in ((high, pairs[:, 1]), (low, pairs[:, 0])):
        nan = np.isnan(source)
        assert (got[nan] == 0x7F).all()
        clipped = np.clip(source[~nan].astype(np.float64), -largest, largest)
        expected = np.array([rounded(Fraction(float(x)), dtype) for x in clipped], dtype).astype(np.float64)
        expected = np.clip(expected, -largest, largest)
        np.testing.assert_array_equal(got[~nan].copy().view(dtype).astype(np.float64), expected)
    back = np.zeros(1024, np.uint32)
    each(f"cvt.rn.f16x2.{kind}x2 $out, $a;", ("b32", back), ("b16", out))
    np.testing.assert_array_equal(back.view(np.float16), out.view(np.uint8).view(dtype).astype(np.float16))


def test_saturation_to_the_largest_finite_number(rng):
    a = np.concatenate([floats(rng, np.float32, 1016), np.float32([5, 70000, -70000, 65504, 3.4e38, -3.4e38, 0, 1])])
    a = np.where(np.isnan(a), np.float32(2), a)
    for kind, dtype in NARROW.items():
        largest = float(ml_dtypes.finfo(dtype).max)
        out = np.zeros(1024, np.uint16)
        each(f"cvt.rn.satfinite.{kind}.f32 $out, $a;", ("b16", out), ("b32", a))
        with np.errstate(all="ignore"):
            expected = np.clip(a.astype(dtype).astype(np.float64), -largest, largest)
        np.testing.assert_array_equal(out.view(dtype).astype(np.float64), expected)


def test_saturation_and_flushing_of_float32():
    a = np.array([1.5, -2.0, 0.25, np.nan, 1e-40, -1e-40, np.inf, -0.0] * 4, np.float32)
    out = np.zeros(32, np.float32)
    each("cvt.sat.f32.f32 $out, $a;", ("b32", out), ("b32", a))
    assert_same_bits(out[:8], np.array([1, 0, 0.25, 0, 1e-40, 0, 1, 0], np.float32))
    each("cvt.ftz.sat.f32.f32 $out, $a;", ("b32", out), ("b32", a))
    assert_same_bits(out[:8], np.array([1, 0, 0.25, 0, 0, 0, 1, 0], np.float32))


def test_results_are_flushed_too():
    a = np.array([1e-40, -1e-40, 1.0, 2.0**-126] * 8)
    out = np.zeros(32, np.float32)
    each("cvt.rn.ftz.f32.f64 $out, $a;", ("b32", out), ("b64", a))
    assert_same_bits(out[:4], np.array([0, -0.0, 1, 2.0**-126], np.float32))


@pytest.mark.parametrize(
    "instruction",
    ["cvt.rn.satfinite.f32.f64 $out, $a;", "cvt.rn.relu.f32.f64 $out, $a;", "cvt.rn.sat.f16x2.f32 $out, $r, $r;"],
)
def test_modifiers_that_a_conversion_does_not_have(instruction):
    with pytest.raises(PtxError, match="not modelled for conversions"):
        each(instruction.replace("$r", "%r5"), ("b32", np.zeros(32, np.uint32)), ("b64", np.zeros(32)))
