"""mma.sync: fragments against index tables, numbers against exact fractions, in both modes and for every type."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, ShapeError, UnsupportedError
from gemmule.vgpu.mma import MmaForm, mma_sync
from gemmule.vgpu.mma.double import fused_multiply_add
from support.ptx.mma_reference import (
    BITS,
    CASES,
    FLOAT_CASES,
    FLOATS,
    assert_elements,
    bits_of,
    exact,
    hopper,
    ids,
    random_values,
    run,
    unsigned,
)

HALVES = MmaForm((16, 8, 16), "f16", "f16", "f32", "f32")


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES, ids=ids(CASES))
def test_fragments(rng, shape, a_type, b_type, d_type, mode):
    """Small integers, whose products all types and modes add exactly, at every place of the matrices."""
    m, n, k = shape
    # Up to 3 is exact even in e5m2; sums stay below the 2048 of f16.
    low = 0 if "u8" in (a_type, b_type) else -3
    a = rng.integers(low, 4, (3, m, k))
    b = rng.integers(low, 4, (3, k, n))
    c = rng.integers(-100, 100, (3, m, n))
    got = run(shape, a_type, b_type, d_type, bits_of(a, a_type), bits_of(b, b_type), bits_of(c, d_type), mode=mode)
    np.testing.assert_array_equal(got, bits_of(a @ b + c, d_type))


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES, ids=ids(CASES))
def test_register_counts(shape, a_type, b_type, d_type):
    m, n, k = shape
    width = 64 if d_type == "f64" else 32
    sizes = (m * k * BITS[a_type], k * n * BITS[b_type], m * n * BITS[d_type], m * n * BITS[d_type])
    assert MmaForm(shape, a_type, b_type, d_type, d_type).registers == tuple(size // 32 // width for size in sizes)


# Sums of widely different terms are not exact in float64.
@pytest.mark.parametrize(
    ("mode", "spread"), [("exact", 3), ("exact", 12), ("hopper", 3), ("hopper", 12), ("hopper", 400)]
)
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_random_numbers(rng, shape, a_type, b_type, d_type, mode, spread):
    m, n, k = shape
    a, b = random_values(rng, a_type, (1, m, k), spread), random_values(rng, b_type, (1, k, n), spread)
    c = random_values(rng, d_type, (1, m, n), 2 * spread)
    reference = {"exact": exact, "hopper": hopper}[mode]
    got = run(shape, a_type, b_type, d_type, a, b, c, mode=mode)
    assert_elements(rng, got, reference, (a_type, b_type, d_type), a, b, c)


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_hopper_on_any_bits(rng, shape, a_type, b_type, d_type):
    """Random bits: subnormal numbers, zeros, infinities and NaN among them, rare enough that most sums are finite."""
    m, n, k = shape

    def any_bits(kind, shape):
        exponent_bits, fraction_bits = FLOATS[kind]
        drop = 13 if kind == "tf32" else 0
        bits = rng.integers(0, 2 ** BITS[kind], shape)
        full = (1 << exponent_bits) - 1 << fraction_bits + drop
        mostly_finite = (bits & full == full) & (rng.random(shape) > 0.02)
        bits = np.where(mostly_finite, bits & ~(full & -full), bits)
        tiny = rng.random(shape) < 0.3
        bits = np.where(tiny, bits & ~full, bits)
        return np.where(rng.random(shape) < 0.1, 0, bits).astype(unsigned(BITS[kind]))

    a, b, c = any_bits(a_type, (2, m, k)), any_bits(b_type, (2, k, n)), any_bits(d_type, (2, m, n))
    got = run(shape, a_type, b_type, d_type, a, b, c, mode="hopper")
    assert_elements(rng, got, hopper, (a_type, b_type, d_type), a, b, c)


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_cancellation(rng, shape, a_type, b_type, d_type, mode):
    """[A, -A] [B; B] + C with the halves interleaved: what is left is C, cut to what the products' exponents leave."""
    m, n, k = shape
    a, b = random_values(rng, a_type, (1, m, k), 6), random_values(rng, b_type, (1, k, n), 6)
    a[..., 1::2] = a[..., ::2] ^ (1 << BITS[a_type] - 1)
    b[:, 1::2] = b[:, ::2]
    c = random_values(rng, d_type, (1, m, n), 20)
    reference = {"exact": exact, "hopper": hopper}[mode]
    got = run(shape, a_type, b_type, d_type, a, b, c, mode=mode)
    assert_elements(rng, got, reference, (a_type, b_type, d_type), a, b, c)
    if mode == "exact":
        np.testing.assert_array_equal(got, c)


def test_tf32_ignores_the_low_bits(rng):
    a = random_values(rng, "tf32", (1, 16, 8), 4)
    b, c = random_values(rng, "tf32", (1, 8, 8), 4), random_values(rng, "f32", (1, 16, 8), 4)
    clean = run((16, 8, 8), "tf32", "tf32", "f32", a, b, c)
    noise = rng.integers(0, 1 << 13, a.shape, dtype=np.uint32)
    np.testing.assert_array_equal(run((16, 8, 8), "tf32", "tf32", "f32", a | noise, b, c), clean)


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize("a_type", ["s8", "u8"])
@pytest.mark.parametrize("b_type", ["s8", "u8"])
def test_integers(rng, a_type, b_type, mode):
    shape = (16, 8, 32)
    a = rng.integers(-128, 128, (2, 16, 32)) if a_type == "s8" else rng.integers(0, 256, (2, 16, 32))
    b = rng.integers(-128, 128, (2, 32, 8)) if b_type == "s8" else rng.integers(0, 256, (2, 32, 8))
    a[0, 0], b[0, :, 0] = (-128 if a_type == "s8" else 255), (-128 if b_type == "s8" else 255)
    c = rng.choice([-(2**31), 2**31 - 1, 0, 17], (2, 16, 8))
    bits = (bits_of(a, a_type), bits_of(b, b_type), bits_of(c, "s32"))
    total = a @ b + c
    assert (total > 2**31 - 1).any() or (total < -(2**31)).any()
    wrapped = run(shape, a_type, b_type, "s32", *bits, mode=mode)
    np.testing.assert_array_equal(wrapped, bits_of(total, "s32"))
    clamped = run(shape, a_type, b_type, "s32", *bits, mode=mode, satfinite=True)
    np.testing.assert_array_equal(clamped, bits_of(np.clip(total, -(2**31), 2**31 - 1), "s32"))


def fma_by_fractions(a, b, c):
    if not all(map(math.isfinite, (a, b, c))):
        return c if math.isfinite(a) and math.isfinite(b) else a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        # Only zeros, or terms that cancel: float arithmetic knows the sign.
        return a * b + c if a * b == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def test_fused_multiply_add(rng):
    """Random numbers of all exponents; near-ties; terms that nearly cancel; overflow, underflow, zeros, infinities."""

    def wide(count):
        return rng.standard_normal(count) * 2.0 ** rng.integers(-500, 500, count)

    a, b = wide(3000), wide(3000)
    c = wide(3000)
    near = rng.standard_normal(3000) * (1 + np.arange(3000) % 2 * 2.0**-52)
    tiny, huge = wide(1000) * 2.0**-560, np.abs(wide(1000)) * 2.0**500
    factor = 5139.0
    other = (2**57 + 1) // 5139
    assert 5139 * other == 2**57 + 1
    odd = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 2.0**-1074, -(2.0**-1074), 2.0**1023, -(2.0**1023)])
    every = np.array(list(itertools.product(odd, repeat=3))).T
    triples = [
        (a, b, c),
        (a, b, -(a * b)),
        (near, near[::-1], -near * near[::-1] * (1 + 2.0**-52)),
        # Ties, but for the last bit of the product.
        (
            1 + rng.integers(0, 2**26, 3000) * 2.0**-52,
            np.full(3000, 1 + 2.0**-52),
            np.ldexp(1.0, rng.integers(48, 58, 3000)),
        ),
        # 1 + 2**-53 + 2**-110: the small parts make a tie if they are rounded to nearest first.
        (np.array([factor, -factor]), np.array([other, other]) * 2.0**-110, np.array([1.0, -1.0])),
        (tiny, wide(1000), wide(1000) * 2.0**-500),
        (tiny, np.sqrt(np.abs(tiny)), tiny),
        (huge, wide(1000), -huge),
        tuple(every),
    ]
    for x, y, z in triples:
        with np.errstate(all="ignore"):
            expected = np.array([fma_by_fractions(*map(float, xyz)) for xyz in zip(x, y, z, strict=True)])
        got = fused_multiply_add(x, y, z)
        np.testing.assert_array_equal(got, expected)
        here = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[here]), np.signbit(expected[here]))


@pytest.mark.parametrize("shape", [(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)])
def test_f64_adds_in_the_order_of_k(rng, shape):
    m, n, k = shape
    a, b, c = rng.standard_normal((2, m, k)), rng.standard_normal((2, k, n)), rng.standard_normal((2, m, n))
    expected = c.copy()
    for warp, row, column in np.ndindex(c.shape):
        total = float(c[warp, row, column])
        for x, y in zip(a[warp, row], b[warp, :, column], strict=True):
            total = fma_by_fractions(float(x), float(y), total)
        expected[warp, row, column] = total
    got = run(shape, "f64", "f64", "f64", *(bits_of(x, "f64") for x in (a, b, c)))
    np.testing.assert_array_equal(got.view(np.float64), expected)


@pytest.mark.parametrize("warps", [0, 1, 95, 97, 300])
def test_any_number_of_warps_and_any_strides(rng, warps):
    """Each warp alone gives the same; registers may come as the engine has them, one array a register."""
    a = rng.standard_normal((8, warps, 32)).astype(np.float16).view(np.uint16).astype(np.uint32)
    a = (a[:4] | a[4:] << 16).transpose(1, 2, 0)
    b = a[::-1, ::-1, 1:3]
    c = rng.standard_normal((4, warps, 32)).astype(np.float32).view(np.uint32).transpose(1, 2, 0)
    for mode in ("exact", "hopper"):
        d = mma_sync(HALVES, a, b, c, mode=mode)
        assert d.shape == (warps, 32, 4)
        for warp in range(0, warps, 41):
            part = (x[warp : warp + 1].copy() for x in (a, b, c))
            alone = mma_sync(HALVES, *part, mode=mode)
            np.testing.assert_array_equal(alone[0], d[warp])


@pytest.mark.parametrize(
    ("shape", "a_type", "b_type", "c_type", "d_type"),
    [
        ((8, 8, 4), "f16", "f16", "f32", "f32"),
        ((16, 8, 16), "f16", "bf16", "f32", "f32"),
        ((16, 8, 16), "bf16", "bf16", "f16", "f16"),
        ((16, 8, 16), "f16", "f16", "f16", "f32"),
        ((16, 8, 32), "f16", "f16", "f32", "f32"),
        ((16, 8, 64), "s4", "s4", "s32", "s32"),
        ((16, 16, 16), "f16", "f16", "f32", "f32"),
    ],
)
def test_unknown_instructions_are_refused(shape, a_type, b_type, c_type, d_type):
    with pytest.raises(UnsupportedError, match="is not modelled"):
        MmaForm(shape, a_type, b_type, c_type, d_type)


def test_wrong_registers_are_refused():
    a, b, c = (np.zeros((1, 32, count), np.uint32) for count in (4, 2, 4))
    with pytest.raises(ShapeError, match="b has the shape"):
        mma_sync(HALVES, a, a, c)
    with pytest.raises(ArgumentError, match="mode='fast'"):
        mma_sync(HALVES, a, b, c, mode="fast")
