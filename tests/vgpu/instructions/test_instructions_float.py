"""Floating-point instructions: bit for bit what IEEE 754 says, for numbers of all kinds."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gemmule.vgpu.ptx.errors import PtxError
from support.ptx.rounding import NARROW, rounded
from support.ptx.snippets import assert_same_bits, bits_of, each, floats

DTYPES = {"f32": np.float32, "f64": np.float64}
BITS = {"f32": "b32", "f64": "b64", "f16": "b16", "bf16": "b16"}


def finite_cases(rng, dtype, number):
    sources = [floats(rng, dtype, 512) for _ in range(number)]
    return [np.where(np.isfinite(x), x, dtype(1.25)) for x in sources]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(("name", "operation"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_rounding_to_nearest(rng, name, operation, kind):
    a, b = floats(rng, DTYPES[kind]), floats(rng, DTYPES[kind])
    out = np.zeros_like(a)
    each(f"{name}.rn.{kind} $out, $a, $b;", (BITS[kind], out), (BITS[kind], a), (BITS[kind], b))
    with np.errstate(all="ignore"):
        assert_same_bits(out, operation(a, b))
    if kind == "f32":
        assert (bits_of(out)[np.isnan(out)] == 0x7FFFFFFF).all()


@pytest.mark.parametrize(("element", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("name", ["add", "sub", "fma"])
def test_narrower_operands_are_converted_first(rng, name, element, dtype):
    a, b = (rng.standard_normal(512).astype(dtype) for _ in range(2))
    c, out = rng.standard_normal(512).astype(np.float32), np.zeros(512, np.float32)
    x, y = a.astype(np.float32), b.astype(np.float32)
    wide = [("b16", one.view(np.uint16)) for one in ((a, b) if name == "fma" else (a,))]
    operands = "$a, $b, $c" if name == "fma" else "$a, $b"
    each(f"{name}.rn.f32.{element} $out, {operands};", ("b32", out), *wide, ("b32", c))
    # The product of two such is exact in float64, and its sum is rounded once more at most.
    expected = {"add": x + c, "sub": x - c, "fma": (x.astype(np.float64) * y + c).astype(np.float32)}[name]
    np.testing.assert_array_max_ulp(out, expected, 0 if name != "fma" else 1)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in DTYPES for name in ("add", "sub", "mul")] + [("f32", "fma")]
)
def test_other_roundings(rng, name, kind, mode):
    dtype = DTYPES[kind]
    a, b, c = finite_cases(rng, dtype, 3)
    if kind == "f64":
        # Dekker's product is exact while nothing underflows.
        a, b = (np.where((np.abs(x) < 1e-100) | (np.abs(x) > 1e100), dtype(0.3), x) for x in (a, b))
    out = np.zeros_like(a)
    sources = [(BITS[kind], x) for x in ((a, b, c) if name == "fma" else (a, b))]
    operands = "$a, $b, $c" if name == "fma" else "$a, $b"
    each(f"{name}.{mode}.{kind} $out, {operands};", (BITS[kind], out), *sources)
    exact = {
        "add": lambda x, y, z: x + y,
        "sub": lambda x, y, z: x - y,
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
    }[name]
    values = [exact(*map(Fraction, map(float, lane))) for lane in zip(a, b, c, strict=True)]
    expected = np.array([rounded(value, np.dtype(dtype), mode) for value in values])
    # The sign of an exact zero is tested elsewhere.
    zero = np.array([value == 0 for value in values])
    assert_same_bits(out[~zero], expected[~zero])
    assert (out[zero] == 0).all()


def test_zeros_of_opposite_numbers():
    a = np.array([1.0, -1.0, 0.0, -0.0] * 8, np.float32)
    b = -a
    for mode, negative in (("rn", False), ("rz", False), ("rp", False), ("rm", True)):
        out = np.full_like(a, 7)
        each(f"add.{mode}.f32 $out, $a, $b;", ("b32", out), ("b32", a), ("b32", b))
        assert (out == 0).all()
        # Zeros of opposite signs are opposite numbers too.
        assert (np.signbit(out) == negative).all()


@pytest.mark.parametrize("kind", DTYPES)
def test_fma_rounds_once(rng, kind):
    dtype = DTYPES[kind]
    a, b, c = finite_cases(rng, dtype, 3)
    with np.errstate(all="ignore"):
        # Near cancellation, and near the middle between two numbers.
        near = (-(a.astype(np.float64) * b)).astype(dtype)
    half = rng.random(512) < 0.5
    c = np.where(half & np.isfinite(near), near, c).astype(dtype)
    out = np.zeros_like(a)
    each(f"fma.rn.{kind} $out, $a, $b, $c;", *((BITS[kind], x) for x in (out, a, b, c)))
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    zero = np.array([value == 0 for value in exact])
    expected = np.array([rounded(value, np.dtype(dtype)) for value in exact])
    assert_same_bits(out[~zero], expected[~zero])
    assert (out[zero] == 0).all()


def test_fma_of_special_numbers():
    inf, nan = np.inf, np.nan
    rows = [
        (inf, 0.0, 1.0, nan), (inf, 1.0, -inf, nan), (inf, 1.0, 1.0, inf), (1e38, 1e38, -inf, -inf),
        (nan, 1.0, 1.0, nan), (1.0, 1.0, nan, nan), (0.0, -1.0, -0.0, -0.0), (0.0, -1.0, 0.0, 0.0),
    ] * 4  # fmt: skip
    for kind, dtype in DTYPES.items():
        a, b, c, expected = (np.array(column, dtype) for column in zip(*rows, strict=True))
        out = np.zeros_like(a)
        each(f"fma.rn.{kind} $out, $a, $b, $c;", *((BITS[kind], x) for x in (out, a, b, c)))
        assert_same_bits(out, expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("kind", NARROW)
def test_narrow_arithmetic(rng, kind, name):
    dtype = NARROW[kind]
    sources = [
        rng.integers(0, 2**16, 512, np.uint16).view(dtype)
        if rng.random() < 0.5
        else rng.standard_normal(512).astype(dtype)
        for _ in range(3)
    ][: 3 if name == "fma" else 2]
    sources = [np.where(np.isfinite(x.astype(np.float32)), x, dtype.type(1.5)).astype(dtype) for x in sources]
    out = np.zeros(512, np.uint16)
    operands = ", ".join(f"${letter}" for letter in "abc"[: len(sources)])
    each(f"{name}.rn.{kind} $out, {operands};", ("b16", out), *(("b16", x.view(np.uint16)) for x in sources))
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "fma": lambda x, y, z: x * y + z,
    }[name]
    values = [exact(*(Fraction(float(x)) for x in lane)) for lane in zip(*sources, strict=True)]
    expected = np.array([rounded(value, dtype) for value in values], dtype)
    zero = np.array([value == 0 for value in values])
    np.testing.assert_array_equal(out[~zero], expected.view(np.uint16)[~zero])
    assert (out[zero] & 0x7FFF == 0).all()


@pytest.mark.parametrize("kind", NARROW)
def test_pairs_are_two_numbers(rng, kind):
    dtype = NARROW[kind]
    a, b, c = (rng.standard_normal(512).astype(dtype) for _ in range(3))
    alone = np.zeros(512, np.uint16)
    each(f"fma.rn.{kind} $out, $a, $b, $c;", ("b16", alone), *(("b16", x.view(np.uint16)) for x in (a, b, c)))
    together = np.zeros(256, np.uint32)
    each(f"fma.rn.{kind}x2 $out, $a, $b, $c;", ("b32", together), *(("b32", x.view(np.uint32)) for x in (a, b, c)))
    np.testing.assert_array_equal(together.view(np.uint16), alone)


@pytest.mark.parametrize("kind", DTYPES)
def test_division_and_roots(rng, kind):
    dtype = DTYPES[kind]
    a, b = floats(rng, dtype), floats(rng, dtype)
    out = np.zeros_like(a)
    with np.errstate(all="ignore"):
        each(f"div.rn.{kind} $out, $a, $b;", *((BITS[kind], x) for x in (out, a, b)))
        assert_same_bits(out, a / b)
        each(f"sqrt.rn.{kind} $out, $a;", (BITS[kind], out), (BITS[kind], a))
        assert_same_bits(out, np.sqrt(a))
        each(f"rcp.rn.{kind} $out, $a;", (BITS[kind], out), (BITS[kind], a))
        assert_same_bits(out, dtype(1) / a)


@pytest.mark.parametrize(
    ("name", "function", "error"),
    [
        ("ex2", np.exp2, 2**-22), ("lg2", np.log2, 2**-20), ("rsqrt", lambda x: 1 / np.sqrt(x), 2**-22),
        ("sin", np.sin, 2**-20), ("cos", np.cos, 2**-20), ("tanh", np.tanh, 2**-10), ("rcp", lambda x: 1 / x, 2**-22),
    ],
)  # fmt: skip
@pytest.mark.differs_on_hardware("within an error, not to the bit")
def test_approximate_functions(rng, name, function, error):
    a = rng.uniform(0.01, 3, 1024).astype(np.float32)
    out = np.zeros_like(a)
    each(f"{name}.approx.f32 $out, $a;", ("b32", out), ("b32", a))
    np.testing.assert_allclose(out, function(a.astype(np.float64)), rtol=error, atol=error)


@pytest.mark.parametrize("kind", DTYPES)
def test_smaller_and_larger(rng, kind):
    a, b = floats(rng, DTYPES[kind]), floats(rng, DTYPES[kind])
    for name, larger in (("min", False), ("max", True)):
        out = np.zeros_like(a)
        each(f"{name}.{kind} $out, $a, $b;", *((BITS[kind], x) for x in (out, a, b)))
        expected = np.array([_extreme(x, y, larger) for x, y in zip(a, b, strict=True)], a.dtype)
        assert_same_bits(out, expected)
    if kind == "f64":
        return  # it has no such modifier
    out = np.zeros_like(a)
    each(f"max.NaN.{kind} $out, $a, $b;", *((BITS[kind], x) for x in (out, a, b)))
    assert (np.isnan(out) == (np.isnan(a) | np.isnan(b))).all()


def _extreme(x, y, larger):
    if np.isnan(x) or np.isnan(y):
        return y if np.isnan(x) else x
    if x == y:
        return x if np.signbit(x) != larger else y
    return max(x, y) if larger else min(x, y)


@pytest.mark.which_nan_is_open("kind")
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"])
def test_signs(rng, kind):
    size = {"f32": 4, "f64": 8}.get(kind, 2)
    a = rng.integers(0, 2 ** (8 * size) - 1, 512, f"u{size}")
    out = np.zeros_like(a)
    top = np.array(1 << (8 * size - 1), a.dtype)
    # Two to a register.
    whole = (lambda x: x.view(np.uint32)) if kind.endswith("x2") else (lambda x: x)
    bits = BITS.get(kind, "b32")
    for name, expected in (("neg", a ^ top), ("abs", a & ~top)):
        each(f"{name}.{kind} $out, $a;", (bits, whole(out)), (bits, whole(a)))
        np.testing.assert_array_equal(out, expected)
    if size > 2:
        b = rng.permutation(a)
        each(f"copysign.{kind} $out, $a, $b;", *((BITS[kind], x) for x in (out, a, b)))
        np.testing.assert_array_equal(out, (b & ~top) | (a & top))


def test_flushing_subnormals(rng):
    a, b = floats(rng, np.float32), floats(rng, np.float32)
    out = np.zeros_like(a)
    each("mul.ftz.f32 $out, $a, $b;", *(("b32", x) for x in (out, a, b)))
    tiny = np.finfo(np.float32).tiny

    def flush(x):
        return np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)

    with np.errstate(all="ignore"):
        assert_same_bits(out, flush(flush(a) * flush(b)))


def test_saturation(rng):
    a, b = floats(rng, np.float32), floats(rng, np.float32)
    out = np.zeros_like(a)
    each("add.sat.f32 $out, $a, $b;", *(("b32", x) for x in (out, a, b)))
    with np.errstate(all="ignore"):
        total = a + b
    np.testing.assert_array_equal(out, np.where(np.isnan(total), 0, np.clip(total, 0, 1)))
    assert not np.signbit(out).any()


def test_relu():
    a = np.array([1.0, -1.0, 2.0, -0.5] * 8, np.float16)
    one, zero = np.ones(32, np.float16), np.zeros(32, np.float16)
    out = np.zeros(32, np.uint16)
    each("fma.rn.relu.f16 $out, $a, $b, $c;", ("b16", out), *(("b16", x.view(np.uint16)) for x in (a, one, zero)))
    np.testing.assert_array_equal(out.view(np.float16), np.maximum(a, 0))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("what", ["finite", "infinite", "number", "notanumber", "normal", "subnormal"])
def test_testp(rng, what, kind):
    a = floats(rng, DTYPES[kind])
    out = np.zeros(1024, np.uint32)
    each(f"testp.{what}.{kind} %p1, $a;\nselp.b32 $out, 1, 0, %p1;", ("b32", out), (BITS[kind], a))
    small = (np.abs(a) < np.finfo(a.dtype).tiny) & (a != 0)
    expected = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & ~small,  # zeros too, PTX says
        "subnormal": small,
    }[what]
    np.testing.assert_array_equal(out != 0, expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma.rn"])
def test_narrow_saturation_and_flushing(rng, name):
    """Each half of a pair is clipped and flushed by itself."""
    sources = [floats(rng, np.float16, 2048) for _ in range(3 if name == "fma.rn" else 2)]
    operation = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma.rn": lambda a, b, c: a * b + c}[name]
    names = ", ".join(f"${letter}" for letter in "abc"[: len(sources)])

    def flush(x):
        return np.where(np.abs(x) < 2.0**-14, np.copysign(0.0, x), x)

    for modifier in ("sat", "ftz", "ftz.sat"):
        values = [x.astype(np.float64) for x in sources]
        values = [flush(x) for x in values] if "ftz" in modifier else values
        exact = operation(*values).astype(np.float16).astype(np.float64)
        expected = flush(exact) if "ftz" in modifier else exact
        if "sat" in modifier:
            expected = np.where(np.isnan(expected), 0, np.clip(expected, 0, 1)) + 0.0
        for kind in ("f16", "f16x2"):
            out = np.zeros(2048, np.float16)
            bits = "b16" if kind == "f16" else "b32"
            view = np.uint16 if kind == "f16" else np.uint32
            each(f"{name}.{modifier}.{kind} $out, {names};", *((bits, x.view(view)) for x in (out, *sources)))
            assert_same_bits(out, expected)


@pytest.mark.parametrize("name", ["min", "max", "abs", "neg"])
def test_narrow_flushing_of_choices_and_signs(rng, name):
    sources = [floats(rng, np.float16, 2048) for _ in range(2 if name in ("min", "max") else 1)]
    sources = [np.where(np.isnan(x), np.float16(1), x) for x in sources]
    flushed = [np.where(np.abs(x) < 2.0**-14, np.copysign(np.float16(0), x), x) for x in sources]
    operation = {"min": np.fmin, "max": np.fmax, "abs": np.abs, "neg": np.negative}[name]
    names = ", ".join(f"${letter}" for letter in "ab"[: len(sources)])
    out = np.zeros(2048, np.float16)
    each(f"{name}.ftz.f16x2 $out, {names};", *(("b32", x.view(np.uint32)) for x in (out, *sources)))
    np.testing.assert_array_equal(out, operation(*flushed))


@pytest.mark.parametrize(
    "instruction",
    [
        "add.ftz.bf16 $out, $a, $a;",
        "add.rz.f16 $out, $a, $a;",
        "mul.sat.bf16 $out, $a, $a;",
        "min.ftz.bf16 $out, $a, $a;",
        "neg.ftz.bf16 $out, $a;",
    ],
)
def test_modifiers_that_a_type_does_not_have(instruction):
    with pytest.raises(PtxError, match="is not modelled for"):
        each(instruction, *(("b16", np.zeros(32, np.uint16)),) * 2)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_products_of_very_large_and_very_small_numbers(rng, mode):
    scales = np.array([(1000, -20), (-520, -500), (-530, -540), (900, 120), (-1040, 3), (1000, 100)])
    powers = scales[rng.integers(0, len(scales), 512)]
    a, b = (np.ldexp(rng.choice([-1, 1], 512) * (1 + rng.random(512)), power) for power in powers.T)
    out = np.zeros(512)
    each(f"mul.{mode}.f64 $out, $a, $b;", *(("b64", x) for x in (out, a, b)))
    exact = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(out, [rounded(value, np.dtype(np.float64), mode) for value in exact])


@pytest.mark.parametrize(("mode", "expected"), [("rz", 1), ("rm", 1), ("rp", np.inf)])
def test_a_directed_sum_that_overflows(mode, expected):
    a, out = np.full(32, np.finfo(np.float64).max), np.zeros(32)
    each(f"add.{mode}.f64 $out, $a, $a;", ("b64", out), ("b64", a))
    assert (out == (a[0] if expected == 1 else expected)).all()
    infinite = np.full(32, np.inf)
    each(f"add.{mode}.f64 $out, $a, $b;", *(("b64", x) for x in (out, infinite, a)))
    assert (out == np.inf).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_pairs_of_float32_are_two_operations(rng, name):
    """As compute capability 10.0 and newer has them."""
    sources = [floats(rng, np.float32) for _ in range(3 if name == "fma" else 2)]
    names = "$a, $b, $c" if name == "fma" else "$a, $b"
    single, together = np.zeros_like(sources[0]), np.zeros_like(sources[0])
    each(f"{name}.rn.f32 $out, {names};", ("b32", single), *(("b32", x) for x in sources))
    pairs = [("b64", x.view(np.uint64)) for x in (together, *sources)]
    each(f"{name}.rn.f32x2 $out, {names};", *pairs)
    assert_same_bits(together, single)
