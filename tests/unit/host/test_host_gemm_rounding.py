"""gemm on the host of several types: what sums are made in, and how they are rounded."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.host.gemm import gemm
from support.gemm_arrays import (
    BFLOAT16,
    E4M3,
    E5M2,
    assert_close,
    draw,
    poisoned,
)


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype", "out_dtype"),
    [
        ("e", "f", "f"), ("e", "f", "e"), (BFLOAT16, "e", "f"), (E4M3, E5M2, "f"), (E4M3, E5M2, BFLOAT16),
        ("i1", "f", "f"), ("i1", E4M3, "e"), (bool, "f", "f"),
        ("e", "F", "F"), ("f", "f", "d"), ("f", "f", "F"), ("e", "e", "f"),
    ],
)  # fmt: skip
def test_mixed_dtypes_are_summed_in_float32(rng, a_dtype, b_dtype, out_dtype):
    a, b = draw(rng, (9, 50), np.dtype(a_dtype)), draw(rng, (50, 8), np.dtype(b_dtype))
    out = poisoned((9, 8), np.dtype(out_dtype))
    gemm(a, b, out)
    assert_close(out, a, b, sum_roundoff=2.0**-24)


@pytest.mark.parametrize(("a_dtype", "b_dtype"), [("e", "d"), ("i4", "f"), ("i8", BFLOAT16), ("f", "D"), ("d", "F")])
def test_mixed_dtypes_are_summed_in_float64(rng, a_dtype, b_dtype):
    a, b = rng.integers(-99, 99, (9, 50)).astype(a_dtype), draw(rng, (50, 8), np.dtype(b_dtype))
    out = poisoned((9, 8), np.dtype("D" if b_dtype in ("D", "F") else "d"))
    gemm(a, b, out)
    assert_close(out, a, b, sum_roundoff=2.0**-53)


def test_low_precision_sums_in_float32_not_in_its_own_type():
    # 1 + 2048 * 2**-11 in float16 would stay 1.
    a, b = np.full((1, 2049), 2.0**-11, np.float16), np.ones((2049, 1), np.float16)
    a[0, 0] = 1
    out = poisoned((1, 1), np.dtype("e"))
    gemm(a, b, out)
    assert out[0, 0] == 2.0


def test_complex_scalars(rng):
    a, b, c = draw(rng, (5, 6), np.dtype("f")), draw(rng, (6, 4), np.dtype("f")), draw(rng, (5, 4), np.dtype("F"))
    out = poisoned((5, 4), np.dtype("F"))
    gemm(a, b, out, alpha=1j, beta=2 - 1j, c=c)
    assert_close(out, a, b, 1j, 2 - 1j, c, sum_roundoff=2.0**-24)


@pytest.mark.parametrize("one", [1.0, 1 + 0j])
@pytest.mark.parametrize("dtype", ["F", "D"])
def test_real_scalars_leave_infinities_in_their_part(dtype, one):
    a, b = np.array([[3, 0]], dtype), np.array([[1, 2], [np.nan, 1]], dtype)
    c, out = np.array([[complex(1, np.inf), complex(-np.inf, 1)]], dtype), poisoned((1, 2), np.dtype(dtype))
    gemm(a[:, :0], b[:0], out, beta=2 * one, c=c)
    np.testing.assert_array_equal(out.view(dtype.lower()), [[2, np.inf, -np.inf, 2]])
    gemm(a[:, :1], b[:1], out, alpha=2 * one, beta=-1 * one, c=c[:, ::-1])
    np.testing.assert_array_equal(out.view(dtype.lower()), [[np.inf, -1, 11, -np.inf]])


def test_c_of_a_wider_type_is_not_narrowed(rng):
    out = poisoned((1, 1), np.dtype("d"))
    gemm(np.ones((1, 1), "f"), np.ones((1, 1), "f"), out, beta=1, c=np.array([[2.0**-40]]))
    assert out[0, 0] == 1 + 2.0**-40


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448.0), (E5M2, 57344.0)], ids=str)
@pytest.mark.parametrize("source", ["f", "d", E4M3], ids=str)
def test_float8_saturates(dtype, largest, source):
    source = np.dtype(source)
    a = np.array([[1, 448, -448, 0]], source).T
    big = np.array([[448.0]], source)
    out = poisoned((4, 1), dtype)
    gemm(a, big, out, alpha=1e4)
    np.testing.assert_array_equal(out.astype("f").ravel(), [largest, largest, -largest, 0])
    infinite = np.array([[np.inf, -np.inf, np.nan]], "f")
    out = poisoned((1, 3), dtype)
    gemm(np.ones((1, 1), "f"), infinite, out)
    np.testing.assert_array_equal(out.astype("f").ravel(), [largest, -largest, np.nan])


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
@pytest.mark.parametrize("shape", [(10, 1), (1, 10), (1, 1)])
def test_a_single_zero_times_infinity_is_nan(dtype, shape):
    infinite, zero = np.full(shape, np.inf, dtype), np.zeros((1, 1), dtype)
    a, b = (infinite, zero) if shape[1] == 1 else (zero, infinite)
    out = poisoned(shape, np.dtype(dtype))
    gemm(a, b, out)
    assert np.isnan(out).all()
    assert np.isnan(gm.matmul(a, b)).all()


@pytest.mark.parametrize("dtype", ["e", BFLOAT16, "f"], ids=str)
def test_other_floats_overflow_to_infinity_without_a_warning(dtype):
    dtype = np.dtype(dtype)
    big = np.full((1, 1), float(ml_dtypes.finfo(dtype).max), dtype)
    out = poisoned((1, 1), dtype)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        gemm(big, -big, out)
        assert out[0, 0] == -np.inf
        gemm(big, big, out, beta=1, c=np.full((1, 1), -np.inf, dtype))
        gemm(np.full((1, 1), np.inf, dtype), np.zeros((1, 1), dtype), out)
        assert np.isnan(out[0, 0])


@pytest.mark.parametrize(("dtype", "bits"), [("e", 11), (BFLOAT16, 8), (E4M3, 4), (E5M2, 3)], ids=str)
@pytest.mark.parametrize("source", ["d", "g"])
def test_wide_sums_are_rounded_once(dtype, bits, source):
    # A hair beyond a tie: by way of float32 it would fall on the tie, and then to even.
    tie = 1 + 2.0**-bits
    values = np.array([[tie, tie + 2.0**-45, tie - 2.0**-45, -tie - 2.0**-45, 1 + 3 * 2.0**-bits - 2.0**-45]], source)
    out = poisoned((1, 5), np.dtype(dtype))
    gemm(np.ones((1, 1), source), values, out)
    step = 2.0 ** (1 - bits)
    np.testing.assert_array_equal(out.astype("d").ravel(), [1, 1 + step, 1, -1 - step, 1 + step])


def test_float64_out_of_float32_holds_sums_in_float32():
    # 2**24 + 1 is no float32.
    a, b = np.array([[2.0**24, 1.0]], np.float32), np.ones((2, 1), np.float32)
    narrow = gm.matmul(a, b, out_dtype=np.float64, executor="cpu")
    assert (narrow.dtype, narrow[0, 0]) == (np.float64, 2.0**24)
    assert gm.matmul(a, b.astype(np.float64), executor="cpu")[0, 0] == 2.0**24 + 1
    out = np.empty((1, 1))
    gm.outofcore.matmul(a, b, out, executor="cpu")
    assert out[0, 0] == 2.0**24
    gm.outofcore.matmul(a, b, out, compute_dtype=np.float64, executor="cpu")
    assert out[0, 0] == 2.0**24 + 1
