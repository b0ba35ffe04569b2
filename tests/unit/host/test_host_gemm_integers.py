"""gemm on the host of integers and bool: exact modulo the range of the output."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError
from gemmule.host.gemm import gemm
from gemmule.host.rounding import write
from support.gemm_arrays import (
    INTEGERS,
    draw,
    exact,
    poisoned,
    wrapped,
)


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype"),
    [*itertools.product(INTEGERS, repeat=2), (np.dtype(bool), np.dtype("i1")), (np.dtype("u8"), np.dtype(bool))],
    ids=str,
)
def test_integers_are_exact_modulo_the_output(rng, a_dtype, b_dtype):
    for out_dtype in INTEGERS:
        a, b, c = draw(rng, (4, 300), a_dtype), draw(rng, (300, 3), b_dtype), draw(rng, (4, 3), out_dtype)
        out = poisoned((4, 3), out_dtype)
        gemm(a, b, out, alpha=-3, beta=5.0, c=c)
        wanted = wrapped(-3 * (exact(a) @ exact(b)) + 5 * exact(c), out_dtype)
        np.testing.assert_array_equal(out, wanted, err_msg=str(out_dtype))


@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if dtype.itemsize >= 4], ids=str)
def test_wide_integers_are_exact_in_products_of_one_block(rng, dtype):
    """Their products have more bits than a float."""
    a, b = draw(rng, (64, 32), dtype), draw(rng, (32, 64), dtype)
    out = poisoned((64, 64), dtype)
    gemm(a, b, out)
    np.testing.assert_array_equal(out, wrapped(exact(a) @ exact(b), dtype))


@pytest.mark.parametrize(
    "dtypes", [("i1", "i1"), ("u1", "i1"), ("i1", "u1"), ("u1", "u1"), ("i2", "i2"), ("u2", "u2"), ("u2", "i4")]
)
@pytest.mark.parametrize("out_dtype", ["i1", "i4", "u4", "i8"])
@pytest.mark.parametrize("k", [1, 5000])
def test_extreme_integers(dtypes, out_dtype, k):
    # Odd sums: a float that has run out of bits can only hold even ones.
    ends = [(np.iinfo(d).min or np.iinfo(d).max, np.iinfo(d).max) for d in dtypes]
    a = np.full((3, k), ends[0][0], dtypes[0])
    b = np.full((k, 2), ends[1][0], dtypes[1])
    a[1], b[:, 1] = ends[0][1], ends[1][1]
    a[2], b[-1] = 1, 1
    expected = wrapped(exact(a) @ exact(b), np.dtype(out_dtype))
    out = poisoned((3, 2), np.dtype(out_dtype))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("k", [1023, 1024, 1025, 3000])
def test_int8_around_the_exact_run(rng, k):
    a, b = np.full((5, k), -128, np.int8), np.full((k, 4), -128, np.int8)
    a[:, 0], b[0] = 127, -127
    out = poisoned((5, 4), np.dtype(np.int32))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, (k - 1) * 16384 - 127 * 127)


def test_int8_sum_wraps_like_hardware():
    k = 2**17 + 1
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)
    out32, out64 = poisoned((1, 1), np.dtype("i4")), poisoned((1, 1), np.dtype("i8"))
    gemm(a, b, out32)
    gemm(a, b, out64)
    assert out32[0, 0] == k * 16384 - 2**32
    assert out64[0, 0] == k * 16384


def test_integers_into_floats_round_once(rng):
    a, b = np.array([[2049, 1]], np.int16), np.array([[8193], [0]], np.int16)
    out16, out32 = poisoned((1, 1), np.dtype("e")), poisoned((1, 1), np.dtype("f"))
    gemm(a, b, out16, alpha=2.0**-12)
    gemm(a, b, out32)
    assert out16[0, 0] == np.float16(2049 * 8193 / 4096)
    assert out32[0, 0] == np.float32(2049 * 8193)
    signed, unsigned = np.array([[-1]], np.int64), np.array([[2**63]], np.uint64)
    out = poisoned((1, 1), np.dtype("d"))
    gemm(signed, unsigned, out)
    assert out[0, 0] == -(2.0**63)
    gemm(unsigned, np.ones((1, 1), np.uint64), out, alpha=-1)
    assert out[0, 0] == -(2.0**63)


def test_bool_is_or_of_and(rng):
    a, b, c = (draw(rng, shape, np.dtype(bool)) for shape in ((6, 9), (9, 7), (6, 7)))
    expected = (a[:, :, None] & b[None]).any(axis=1)
    out, numbers = poisoned((6, 7), np.dtype(bool)), poisoned((6, 7), np.dtype("i4"))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, expected)
    gemm(a, b, out, beta=1, c=c)
    np.testing.assert_array_equal(out, expected | c)
    gemm(a, b, numbers, alpha=3)
    np.testing.assert_array_equal(numbers, 3 * expected)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1 + 0j, np.float32(1.5)])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_integer_output_wants_integral_scalars(value, name):
    x, out = np.ones((2, 2), np.int8), np.zeros((2, 2), np.int32)
    with pytest.raises(ArgumentError, match=name):
        gemm(x, x, out, **{name: value}, c=out)
    gemm(x, x, out, **{name: np.float32(3)}, c=out)


WIDE = ["int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("out", ["int8", *WIDE])
@pytest.mark.parametrize("second", ["int8", "uint16", *WIDE])
@pytest.mark.parametrize("first", WIDE)
def test_wide_integers_are_exact_modulo_their_range(first, second, out, rng):
    """They are multiplied in limbs of 16 bits, through BLAS."""
    limits = [np.iinfo(name) for name in (first, second)]
    a, b = (
        rng.integers(x.min, x.max, shape, x.dtype, endpoint=True)
        for x, shape in zip(limits, ((7, 33), (33, 5)), strict=True)
    )
    a[0], b[:, 0] = limits[0].min, limits[1].max
    got = np.full((7, 5), 77, out)
    gemm(a, b, got, alpha=3)
    span = 2 ** (8 * got.itemsize)
    expected = 3 * (a.astype(object) @ b.astype(object))
    assert [int(x) % span for x in got.ravel()] == [int(x) % span for x in expected.ravel()]


def test_wide_integers_do_not_wrap_on_their_way_to_a_float():
    a = np.full((2, 4), 2**31 - 1, np.int32)
    got = np.full((2, 2), np.nan)
    gemm(a, a.T, got)
    np.testing.assert_allclose(got, 4 * float(2**31 - 1) ** 2, rtol=1e-15)


def test_long_sums_of_narrow_integers_are_rounded_once():
    total = np.array([[2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52, 12345]])
    out = np.zeros((1, 4), ml_dtypes.bfloat16)
    write(out, total, 1, 0, None, np.dtype(np.float64))
    assert [int(x) for x in out[0]] == [2**60 + 2**53, -(2**60) - 2**53, 2**60, 12352]
