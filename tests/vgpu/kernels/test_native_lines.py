"""Rows and columns that the guard of ``precision="ozaki"`` lists: native beside an emulated product."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import FLOAT64

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

M, N, K = 101, 70, 130


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def normal(rng, k=K):
    return rng.standard_normal((M, k)), rng.standard_normal((k, N))


def with_row(values):
    def change(rng, a, b):
        del b
        a[37] = values(rng, a[37])

    return change


def at(place, value):
    def change(rng, a, b):
        del rng
        (a if place[0] == "a" else b)[place[1:]] = value

    return change


def both(*changes):
    def change(rng, a, b):
        for one in changes:
            one(rng, a, b)

    return change


def span(rng, row):
    return row * np.exp2(rng.integers(-150, 151, row.shape).astype(float))


def one_pair(rng, a, b):
    """A row and a column whose large elements meet zeros, in any tile."""
    i, j = int(rng.integers(M)), int(rng.integers(N))
    a[i], b[:, j] = 0, 0
    a[i, 7:9], b[7:10, j] = (2.0**-70, 1), (1, 0, 1)


def large_along_k(which, lines=(5, 68)):
    """One place along K where an operand is large, and some lines of the other one are zero."""

    def change(rng, a, b):
        del rng
        a, b = (a, b) if which == "a" else (b.T, a.T)
        a[:, 9] *= 2.0**60
        # Not so small that another number of moduli is due: only lines of zeros there are.
        a[:, 9] += np.copysign(2.0**60, a[:, 9])
        b[9] += np.copysign(1, b[9])
        b[9, list(lines)] = 0

    return change


#: Inputs, and where the native kernel computes.
INPUTS = {
    "NaN": (at(("a", 100, 3), np.nan), "1 row"),
    "infinity": (at(("b", 129, 69), -np.inf), "1 column"),
    "of both": (
        both(at(("a", 0, 0), np.inf), at(("a", 64, 3), np.nan), at(("b", 3, 0), np.nan)),
        "2 rows and 1 column",
    ),
    "where they meet": (both(at(("a", 9, 3), np.inf), at(("b", 3, 9), -np.inf)), "1 row and 1 column"),
    "a whole row": (with_row(lambda rng, row: row * np.nan), "1 row"),
    "denormals": (with_row(lambda rng, row: row * 2.0**-1060), "1 row"),
    "a span of 2^300": (with_row(span), None),
    "zeros beside": (both(with_row(lambda rng, row: 0 * row), at(("b", 5, 6), np.inf)), "1 column"),
    "one pair": (one_pair, "1 row"),
    "large along K of A": (large_along_k("a"), "2 columns"),
    "large along K of B": (large_along_k("b"), "2 rows"),
    "more columns of zeros along K of A than there is room": (large_along_k("a", (5, 33, 68)), "all"),
    "more rows than there is room": (lambda rng, a, b: a.__setitem__((slice(0, 100, 25), 1), np.nan), "all"),
    "more columns than there is room": (lambda rng, a, b: b.__setitem__((1, slice(0, 60, 20)), np.nan), "all"),
}
FEW = ("of both", "denormals", "one pair", "large along K of A", "more columns than there is room")


def assert_within(got, a, b, alpha=1.0, beta=0.0, c=0.0):
    """Every element within (K + 3) u of the sum of magnitudes, and what is not finite where a native product has it."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    with np.errstate(invalid="ignore", over="ignore"):
        exact = alpha * (wide[0] @ wide[1]) + beta * c
        size = np.abs(alpha) * np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(beta * c)
        plain = alpha * (a @ b) + beta * c
    fine = np.isfinite(size)
    bound = (a.shape[1] + 3) * (FLOAT64.unit_roundoff * size + np.finfo(np.float64).smallest_subnormal)
    assert np.all(np.abs(got - exact)[fine] <= bound[fine])
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(got), kind(plain))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in INPUTS]
)
def test_lines_that_cannot_be_emulated_are_native(name, rng):
    change, ran = INPUTS[name]
    a, b = normal(rng)
    change(rng, a, b)
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    (decision,) = plan.decision()
    if ran == "all":
        assert decision == "ieee"
    elif ran is not None:
        assert decision.split(", ieee in ")[1] == ran
    assert_within(plan.execute(), a, b)


def test_other_elements_are_those_without_the_lines(rng):
    """Lines that are listed poison neither the scales nor the sums of others: the same bits as with zeros instead."""
    a, b = normal(rng)
    # The same moduli for both.
    a[37], b[:, 11] = 0, 0
    without = gm.matmul(a, b, precision="ozaki", executor="vgpu")
    a[37] = span(rng, np.ones(K))
    a[37, 5], b[:, 11] = np.nan, np.inf
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    assert plan.decision() == ("ozaki-14, ieee in 1 row and 1 column",)
    rows, cols = (np.delete(np.arange(extent), line) for extent, line in ((M, 37), (N, 11)))
    np.testing.assert_array_equal(plan.execute()[np.ix_(rows, cols)], without[np.ix_(rows, cols)])


@pytest.mark.parametrize(
    "order", ["CCC", "FFF", *(pytest.param(one, marks=pytest.mark.slow) for one in ("FCC", "CFF"))]
)
def test_layouts_addends_and_a_result_that_is_its_addend(order, rng):
    """A long K of which a part is sampled; rows and columns that meet are written once, from the C before."""
    a, b = normal(rng, 600)
    c = rng.standard_normal((M, N))
    a[50], a[7, 316], b[3, 20], b[:, 41] = a[50] * 2.0**-1050, 2.0**90, np.nan, b[:, 41] * 2.0**-1060
    a, b, out = (np.asarray(x, order=kind) for x, kind in zip((a, b, c.copy()), order, strict=True))
    plan = gm.gemm.plan(a, b, out, out=out, alpha=0.75, beta=-1.5, precision="ozaki", executor="vgpu")
    assert plan.decision()[0].endswith("ieee in 2 rows and 2 columns")
    got = plan.execute()
    assert_within(got, a, b, 0.75, -1.5, c)


@pytest.mark.slow
def test_an_alpha_of_zero_reads_nothing(rng):
    a, b = normal(rng)
    c = rng.standard_normal((M, N))
    a[7, 7], b[3, 3] = np.nan, np.inf
    got = gm.gemm(a, b, c, alpha=0.0, beta=2.0, precision="ozaki", executor="vgpu")
    np.testing.assert_array_equal(got, 2 * c)


@pytest.mark.slow
def test_more_lines_than_a_tile_of_them(rng):
    """Several tiles of listed rows, the last one not whole, and CTAs that compute several tiles."""
    a, b = rng.standard_normal((1300, 140)), rng.standard_normal((140, 40))
    a[::35, 3] = np.inf
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    assert plan.decision() == ("ozaki-14, ieee in 38 rows",)
    assert_within(plan.execute(), a, b)
