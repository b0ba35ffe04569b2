"""The check of a product beyond the range of its types: infinities, NaN, and sums that overflow on their way."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.dtype import Precision
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.tiles.result_rules import output_dtype
from gemmule.outofcore.verify.freivalds import ROWS
from support.outofcore.checked_products import check, factors, run


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_overflow_is_no_failure_but_a_wrong_element_beside_it_is(name):
    a, b = (x * np.array(100).astype(x.dtype) for x in factors(name))
    out = run(a, b)
    extreme = ~(np.abs(out.astype("f4")) < float(ml_dtypes.finfo(out.dtype).max))
    assert extreme.any()
    verdict = check(a, b, out)
    assert verdict.passed
    assert verdict.rows_compared > 0
    row, col = np.argwhere(extreme)[0]
    bad = out.copy()
    bad[row, col] = -bad[row, col]
    assert not check(a, b, bad).passed
    bad = out.copy()
    bad[row, col] = 0
    assert not check(a, b, bad).passed


def test_values_that_are_not_finite():
    a, b = factors("float32")
    a[3, 4] = np.inf
    b[5, 6] = np.nan
    out = run(a, b)
    good = check(a, b, out)
    assert good.passed
    assert good.not_finite == np.count_nonzero(~np.isfinite(out)) > 0
    bad = out.copy()
    bad[9, 10] = np.nan
    assert not check(a, b, bad).passed
    bad = out.copy()
    bad[9, 6] = 1
    assert not check(a, b, bad).passed


@pytest.mark.parametrize(("name", "precision"), [("float64", Precision.OZAKI_15), ("float32", Precision.BF16X6)])
def test_infinities_that_become_nan_pass(name, precision):
    a, b = factors(name)
    a[3, 4] = np.inf
    out = run(a, b)
    out[3] = np.nan
    assert not check(a, b, out).passed
    assert check(a, b, out, precision=precision).passed
    out[4, 5] = np.nan
    assert not check(a, b, out, precision=precision).passed


def test_a_sum_that_overflows_on_its_way_passes():
    a, b = np.full((3, 4), 1e30, "f4"), np.full((4, 5), 1e30, "f4")
    assert check(a, b, run(a, b)).passed


def test_a_sum_that_overflows_although_its_value_is_small_passes():
    a = np.full((3, 2), 1e30, "f4")
    b = np.full((2, 5), 1e30, "f4") * np.array([[1], [-1]], "f4")
    out = run(a, b)
    assert not np.isfinite(out).any()
    assert check(a, b, out).passed


@pytest.mark.parametrize("scale", [1e-170, 1e160])
def test_norms_neither_vanish_nor_overflow(scale):
    a, b = factors("float64")
    b = b * scale
    out = run(a, b)
    good = check(a, b, out)
    assert good.passed
    assert good.rows_compared == ROWS
    out[3, 4] *= 2
    assert not check(a, b, out).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(np.inf, -np.inf), (np.inf, np.nan), (np.inf, -3e38), (np.nan, np.inf), (np.nan, 3e38), (np.nan, 1.0)],
)
def test_values_beyond_the_range_follow_the_rules(right, wrong):
    a, b = factors("float32")
    a[5] = 0
    a[5, 7] = 1
    b[7, 9] = right
    out = run(a, b)
    assert check(a, b, out).passed
    out[5, 9] = wrong
    assert not check(a, b, out).passed


def test_8_bit_results_saturate_and_nothing_else():
    a, b = factors("float8_e4m3fn")
    a[5] = 448
    b[:, 9] = 448
    out = run(a, b)
    assert check(a, b, out).passed
    for wrong in (-448, np.nan):
        bad = out.copy()
        bad[5, 9] = wrong
        assert not check(a, b, bad).passed


def test_sums_that_cancel_may_round_to_either_infinity_of_a_narrow_type():
    """The bound of float32 sums is beyond float16's range, and so is what is left of sums that cancel."""
    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal(shape).astype("f4") * np.float32(1e6) for shape in ((40, 400), (400, 30)))
    a[:, 1::2], b[1::2] = -a[:, ::2], b[::2]
    out = run(a, b, np.dtype("f2"))
    assert not np.isfinite(out).all()
    exact = a.astype("f8") @ b.astype("f8")
    assert np.abs(exact).max() < 1
    verdict = check(a, b, out)
    assert verdict.passed
    assert check(a, b, -out).passed  # Either sign is within the bound.
    bad = out.copy()
    bad[7, 8] = np.nan
    assert not check(a, b, bad).passed
    small = run(a / np.float32(1e6), b / np.float32(1e6), np.dtype("f2"))
    small[7, 8] = np.inf
    assert not check(a / np.float32(1e6), b / np.float32(1e6), small).passed


def overflowing_complex():
    rng = np.random.default_rng(12)
    a, b = ((rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype("c8") for s in ((20, 30), (30, 10)))
    a[3] *= np.float32(1e20)
    b[:, 4] *= np.float32(1e20)
    return a, b


def test_complex_products_that_overflow_are_kept_and_told():
    a, b = overflowing_complex()
    out = run(a, b)
    assert not np.isfinite(out[3, 4])
    verdict = check(a, b, out)
    assert verdict.passed
    for wrong in (out[3, 5] * 2, np.complex64(complex(math.nan, 0)), np.complex64(complex(math.inf, 0))):
        bad = out.copy()
        bad[3, 5] = wrong
        assert not check(a, b, bad).passed
    bad = out.copy()
    bad[5, 4] *= 2
    assert not check(a, b, bad).passed
    bad = out.copy()
    bad[3, 4] = 1 + 1j
    assert not check(a, b, bad).passed


def test_complex_sums_that_cancel_after_an_overflow_are_unproved():
    a = np.full((3, 2), 1e30 + 1e30j, "c8")
    b = np.full((2, 5), 1e30 + 0j, "c8") * np.array([[1], [-1]], "c8")
    out = run(a, b)
    out[0] = complex(math.nan, math.inf)
    verdict = check(a, b, out)
    assert verdict.passed
    assert verdict.unproved >= 5
    assert verdict.first_unproved == (0, 0)
    assert "row 0, column 0" in verdict.caveat


def test_complex_factors_that_are_not_finite():
    a, b = factors("complex64")
    a[3, 4] = complex(math.inf, 0)
    out = run(a, b)
    verdict = check(a, b, out)
    assert verdict.passed
    assert verdict.unproved == 80
    out[3, 7] = 1
    assert not check(a, b, out).passed


@pytest.mark.parametrize("found", [np.inf, -np.inf, np.nan, 0.0])
def test_what_overflows_in_the_check_itself_is_unproved(found):
    """Of float64 there is no wider type: the order of the sum decides whether it overflows."""
    a = np.array([[1.5e308, 1.5e308, -1.5e308, -1.5e308], [1, 2, 3, 4]])
    b = np.ones((4, 3))
    out = run(a, b)
    out[0] = found
    verdict = check(a, b, out)
    assert verdict.passed
    assert verdict.unproved == 3
    out[1, 1] += 1
    assert not check(a, b, out).passed


def test_a_vector_that_overflows_in_the_check_condemns_no_row():
    a, b = np.full((6, 1), 0.25), np.full((1, 400), 1.7e308)
    out = a @ b
    for seed in range(5):
        verdict = check(a, b, out, seed=seed)
        assert verdict.passed
        assert verdict.unproved == 0
    out[3, 5] *= 0.5
    assert not check(a, b, out).passed


def test_an_addend_that_overflows_with_the_product_is_unproved():
    a, b = np.full((3, 2), 1e20, "f4"), np.full((2, 5), 1e18, "f4")
    c = np.full((3, 5), -2e38, "f4")
    options = {"alpha": 100.0, "beta": 100.0, "c": ArraySource(c)}
    out = run(a, b, **options)
    assert not np.isfinite(out).any()
    assert check(a, b, out, **options).passed


def test_infinite_factors_beside_sums_that_overflow_are_unproved():
    a, b = np.full((2, 3), -3e38, "f4"), np.full((3, 4), 3e38, "f4")
    a[0, 0] = np.inf
    out = np.full((2, 4), -np.inf, "f4")
    out[0] = np.nan
    verdict = check(a, b, out)
    assert verdict.passed
    assert verdict.unproved == 4
    out[0] = 1.0
    assert not check(a, b, out).passed


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.BF16X6])
def test_factors_that_round_to_infinity_are_unproved(precision):
    a, b = factors("float32")
    a[3, 4] = np.finfo("f4").max
    out = run(a, b)
    out[3] = np.nan
    assert not check(a, b, out).passed
    verdict = check(a, b, out, precision=precision)
    assert verdict.passed
    assert verdict.unproved == 80
    out[4, 4] = np.nan
    assert not check(a, b, out, precision=precision).passed


@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_integers_into_narrow_floats_may_overflow(out_dtype):
    a, b = factors("int16")
    dtype = output_dtype(out_dtype)
    out = run(a, b, dtype)
    assert check(a, b, out).passed
    bad = out.copy()
    bad[5, 6] = np.array(0).astype(dtype)
    assert not check(a, b, bad).passed


def test_sums_that_cancel_and_round_to_infinity_are_right(rng):
    """Terms of 1e12 cancel to 0; what float32 loses of them is more than float16 holds."""
    a = (rng.choice([-1.0, 1.0], (20, 63)) * 1e6).astype(np.float32)
    b = (rng.uniform(1e6, 1e7, (63, 30))).astype(np.float32)
    a = np.concatenate([a, -a], axis=1)
    b = np.concatenate([b, b], axis=0)
    out = np.zeros((20, 30), np.float16)
    # Both signs of infinity are what a sum in some order may leave.
    out[3, 4], out[3, 5] = np.inf, -np.inf
    assert check(a, b, out).passed
    small = check(a / 1e6, b / 1e6, out)
    assert not small.passed
    assert small.proved_wrong


def test_complex_products_that_overflow_on_their_way_are_right(rng):
    a = (rng.standard_normal((9, 6)) + 1j).astype(np.complex64) * np.float32(1e25)
    b = np.ones((6, 5), np.complex64) * np.float32(1e25)
    b[3:] *= -1
    a[:, 3:] = a[:, :3]
    with np.errstate(all="ignore"):
        out = a @ b
    assert not np.isfinite(out).all()
    assert check(a, b, out).passed
    wrong = np.zeros((9, 5), np.complex64)
    wrong[2, 2] = 1e20
    assert not check((a / 1e25).astype(np.complex64), (b / 1e25).astype(np.complex64), wrong).passed
