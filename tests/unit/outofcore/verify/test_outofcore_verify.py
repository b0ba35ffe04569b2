"""The check of a product: it passes correct ones and finds planted errors."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.dtype import INT8_PRODUCTS, Precision
from gemmule.core.errors import MemoryLimitError
from gemmule.host.tiles import HostTileExecutor
from gemmule.kernels.emulation.residues import norm_limit
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.result_rules import output_dtype, result_dtype
from gemmule.outofcore.verify.freivalds import ROWS, vectors_at_a_time
from support.outofcore.tile_products import multiply, verify

MEMORY = 16 << 20


def run(a, b, out_dtype=None, **scalars):
    out = np.empty((a.shape[0], b.shape[1]), result_dtype(a.dtype, b.dtype, out_dtype))
    multiply(ArraySource(a), ArraySource(b), ArraySink(out), HostTileExecutor(), memory=MEMORY, **scalars)
    return out


def check(a, b, out, **options):
    return verify(ArraySource(a), ArraySource(b), ArraySource(out), memory=options.pop("memory", MEMORY), **options)


def factors(name, shape=(70, 90, 80)):
    m, k, n = shape
    rng = np.random.default_rng(0)
    dtype = output_dtype(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return tuple(rng.integers(info.min, info.max, s, dtype, endpoint=True) for s in ((m, k), (k, n)))
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if dtype.kind == "c":
        return (a + 1j).astype(dtype), (b - 2j).astype(dtype)
    return a.astype(dtype), b.astype(dtype)


FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]
INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_correct_products_pass_and_planted_errors_do_not(name):
    a, b = factors(name)
    out = run(a, b)
    good = check(a, b, out)
    assert good.passed
    assert good.max_error_over_bound <= 1
    bad = out.copy()
    if name in INTEGERS:
        bad[13, 17] ^= 1
    else:
        wide = np.complex128 if out.dtype.kind == "c" else np.float64
        spoiled = bad[13, 17].astype(wide) + 1.01 * good.finds_errors_above
        bad[13, 17] = spoiled
        assert abs(bad[13, 17].astype(wide) - out[13, 17].astype(wide)) > 0
    torn = out.copy()
    torn[13] = 0
    assert not check(a, b, torn).passed
    verdict = check(a, b, bad)
    if name not in ("float8_e4m3fn", "float8_e5m2"):  # Their bound may exceed what they can hold.
        assert not verdict.passed
        assert verdict.max_error_over_bound > 1 or name in INTEGERS


@pytest.fixture(scope="module")
def long_sums():
    a, b = factors("float32", (100, 4000, 500))
    out = run(a, b)
    good = check(a, b, out)
    assert good.passed
    assert good.element_bound < good.finds_errors_above / 100
    return a, b, out


@pytest.mark.parametrize("damage", ["element", "tile", "column", "last k"])
def test_damage_below_the_bound_of_a_row_stands_out(long_sums, damage):
    """Long sums have a bound far above their errors: what hides below it is found where rows are compared."""
    a, b, out = long_sums
    out = out.copy()
    if damage == "last k":
        out -= np.outer(a[:, -1].astype("f4"), b[-1].astype("f4"))
        out -= np.outer(a[:, -2].astype("f4"), b[-2].astype("f4"))
    else:
        place = {"element": (7, 9), "tile": (slice(8, 16), slice(32, 40)), "column": (slice(None), 3), "row": 17}[
            damage
        ]
        out[place] = 0
    assert not check(a, b, out).passed


def test_the_smallest_found_error_is_small():
    a, b = factors("float32")
    assert check(a, b, run(a, b)).finds_errors_above < 0.1


def test_alpha_beta_c_and_out_dtype():
    a, b = factors("float32")
    c = np.random.default_rng(3).standard_normal((70, 80)).astype("f4")
    out = run(a, b, np.dtype("f2"), alpha=0.5, beta=-2.0, c=ArraySource(c))
    assert check(a, b, out, alpha=0.5, beta=-2.0, c=ArraySource(c)).passed
    assert not check(a, b, out, alpha=0.5, beta=2.0, c=ArraySource(c)).passed
    assert not check(a, b, out, alpha=0.6, beta=-2.0, c=ArraySource(c)).passed


def test_integers_with_scalars_wrap():
    a, b = factors("int8")
    c = np.full((70, 80), 2**31 - 1, "i4")
    out = run(a, b, alpha=-7, beta=5, c=ArraySource(c))
    assert check(a, b, out, alpha=-7, beta=5, c=ArraySource(c)).passed
    out[0, 0] ^= 2**30
    assert not check(a, b, out, alpha=-7, beta=5, c=ArraySource(c)).passed


def test_two_errors_of_half_the_range_do_not_hide_each_other():
    a, b = factors("int8")
    out = run(a, b)
    out[5, 6] ^= -(2**31)
    out[5, 7] ^= -(2**31)
    assert not check(a, b, out).passed


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


def as_integers(x, count, axis):
    """Return units and integers that the Ozaki scheme makes of float64, by rows (axis 1) or columns."""
    mantissa, exponent = norm_limit(count)
    norms = np.hypot.reduce(x, axis=axis, keepdims=True)
    units = np.exp2(-np.floor(np.log2(math.sqrt(math.ldexp(mantissa, exponent)) / norms)))
    return units, np.vectorize(int, otypes=[object])(np.rint(x / units))


@pytest.mark.parametrize("precision", [Precision.OZAKI_14, Precision.OZAKI_15, Precision.OZAKI_16])
def test_products_of_int8_pass_where_numbers_are_small_beside_others_of_their_row(precision):
    rng = np.random.default_rng(3)
    scales = np.exp2(rng.integers(-40, 41, 90))
    a, b = rng.standard_normal((70, 90)) * scales, rng.standard_normal((90, 80)) / scales[:, None]
    (unit_a, whole_a), (unit_b, whole_b) = (
        as_integers(x, INT8_PRODUCTS[precision], axis) for x, axis in ((a, 1), (b, 0))
    )
    out = (whole_a @ whole_b).astype(np.float64) * unit_a * unit_b
    assert not check(a, b, out).passed
    verdict = check(a, b, out, precision=precision)
    assert verdict.passed
    bad = out.copy()
    bad[13, 17] += 1.01 * verdict.finds_errors_above
    assert not check(a, b, bad, precision=precision).passed
    # Numbers of like size have the bound of float64.
    c, d = factors("float64")
    like = [check(c, d, run(c, d), precision=one).finds_errors_above for one in (Precision.IEEE, precision)]
    assert like[1] < 2 * like[0]


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


def test_the_seed_repeats_the_check():
    a, b = factors("float32")
    out = run(a, b)
    first = check(a, b, out)
    assert check(a, b, out, seed=first.seed) == first
    assert check(a, b, out).seed != first.seed


def test_constant_matrices_pass():
    a, b = np.full((40, 5000), 0.1, "f4"), np.full((5000, 30), 0.1, "f4")
    assert check(a, b, run(a, b)).passed


@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (1, 1, 1), (300, 1, 2)])
def test_thin_shapes(shape):
    a, b = factors("float32", shape)
    assert check(a, b, run(a, b)).passed


def test_little_memory_takes_the_vectors_in_turns_or_is_refused():
    a, b = factors("float32", (3000, 10, 20))
    out = run(a, b)
    assert check(a, b, out, memory=600_000).passed
    with pytest.raises(MemoryLimitError, match="verifying"):
        check(a, b, out, memory=100_000)


@pytest.mark.slow
def test_very_long_sums_have_a_bound_too():
    k = 2**23
    a = np.random.default_rng(0).standard_normal((2, k), dtype=np.float32)
    out = run(a, a.T)
    good = check(a, a.T, out, memory=1 << 30)
    assert good.passed
    assert 0 < good.finds_errors_above < 1e9
    assert not check(a, a.T, np.full_like(out, 12345678), memory=1 << 30).passed


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


def test_wide_integers_to_a_float():
    a, b = factors("int64")
    assert check(a, b, run(a, b, np.dtype("f8"))).passed


def test_memory_is_asked_before_the_work():
    with pytest.raises(MemoryLimitError, match=r"give memory='.*' or more"):
        vectors_at_a_time((10**6, 300), (300, 10**6), 1 << 20)


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


def test_complex_scalars():
    a, b = factors("complex64")
    c = np.full((70, 80), 1 - 1j, "c8")
    options = {"alpha": 1j, "beta": 2 - 1j, "c": ArraySource(c)}
    out = run(a, b, **options)
    assert check(a, b, out, **options).passed
    assert not check(a, b, out, **{**options, "alpha": -1j}).passed


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


def test_what_only_a_probable_bound_speaks_against_is_not_proved_wrong():
    k = 1 << 23
    a, b = np.full((1, k), 0.5, np.float32), np.full((k, 1), 0.5, np.float32)
    out = np.full((1, 1), k / 4 * 1.01, np.float32)
    verdict = check(a, b, out, memory=512 << 20, vectors=4)
    assert not verdict.passed
    assert not verdict.proved_wrong
    assert "the result is kept" in verdict.failure("C.npy", "--seed 1")
    proved = check(a[:, :100], b[:100], out)
    assert proved.proved_wrong
    assert "not kept" in proved.failure("C.npy", "--seed 1")


def test_a_row_that_is_right_element_by_element_is_right(monkeypatch, rng):
    """Random vectors may exceed their bound by chance."""
    a, b = factors("float64")
    out = run(a, b)
    monkeypatch.setattr(
        "gemmule.outofcore.verify.freivalds.apply", lambda source, *_: rng.uniform(1e8, 1e9, (source.shape[0], 16))
    )
    found = check(a, b, out)
    # More rows deviate than are compared: the others are neither right nor proved wrong.
    assert not found.passed
    assert not found.proved_wrong
    assert found.rows_compared == ROWS
