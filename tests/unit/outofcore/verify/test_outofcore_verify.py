"""The check of a product: it passes correct ones and finds planted errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemmule.core.dtype import INT8_PRODUCTS, Precision
from gemmule.core.errors import MemoryLimitError
from gemmule.kernels.emulation.residues import norm_limit
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.verify.freivalds import ROWS, vectors_at_a_time
from support.outofcore.checked_products import check, factors, run

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


def test_wide_integers_to_a_float():
    a, b = factors("int64")
    assert check(a, b, run(a, b, np.dtype("f8"))).passed


def test_memory_is_asked_before_the_work():
    for given, remedy in (("1MiB", r"[\d.]+MiB"), ("1MB", r"[\d.]+MB"), ("1000000B", r"\d+")):
        with pytest.raises(MemoryLimitError, match=rf"give memory='{remedy}' or more$"):
            vectors_at_a_time((10**6, 300), (300, 10**6), parse_bytes(given))


def test_complex_scalars():
    a, b = factors("complex64")
    c = np.full((70, 80), 1 - 1j, "c8")
    options = {"alpha": 1j, "beta": 2 - 1j, "c": ArraySource(c)}
    out = run(a, b, **options)
    assert check(a, b, out, **options).passed
    assert not check(a, b, out, **{**options, "alpha": -1j}).passed


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
