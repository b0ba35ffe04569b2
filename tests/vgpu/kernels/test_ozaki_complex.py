"""Complex types with ``precision="ozaki"`` on the virtual GPU, all checks on: the native bound, and what ran."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.kernels.emulation import ozaki_chain
from support.ozaki_blocks import small_blocks

__all__ = ["small_blocks"]

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

M, N, K = 19, 23, 70


#: What ordinary products of a type are computed with.
EMULATED = {"complex64": "ozaki-7", "complex128": "ozaki-14"}


def normal(rng, *shape, dtype="complex128"):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def share_of_bound(got, a, b, addend=0):
    """The largest error of a part over the bound of a real sum of 2 K products."""
    wide = [x.astype(np.clongdouble) for x in (a, b)]
    exact = wide[0] @ wide[1] + addend
    (ar, ai), (br, bi) = ((np.abs(x.real), np.abs(x.imag)) for x in wide)
    unit, terms, worst = dtype_named(got.dtype.name).unit_roundoff, 2 * a.shape[1] + 6, 0.0
    for part, size in (("real", ar @ br + ai @ bi), ("imag", ar @ bi + ai @ br)):
        error = np.abs(getattr(got, part) - getattr(exact, part))
        worst = max(worst, float(np.max(error / (unit * terms * (size + np.abs(getattr(exact, part)))))))
    return worst


def product(a, b, c=None, **options):
    plan = gm.gemm.plan(a, b, c, precision="ozaki", executor="vgpu", **options)
    return plan.execute(), plan.decision()


@pytest.mark.parametrize("dtype", EMULATED)
def test_ordinary_numbers_are_emulated_and_others_are_not(dtype, rng):
    a, b = normal(rng, M, K, dtype=dtype), normal(rng, K, N, dtype=dtype)
    got, ran = product(a, b, conj_b=True)
    assert ran == (EMULATED[dtype],)
    assert share_of_bound(got, a, b.conj()) <= 1
    span = {"complex64": (-124, -30), "complex128": (-100, 100)}[dtype]
    a *= np.exp2(rng.integers(*span, a.shape)).astype(a.real.dtype)
    b *= np.exp2(rng.integers(0, 100 if dtype == "complex128" else 40, b.shape)).astype(b.real.dtype)
    got, ran = product(a, b, conj_b=True)
    assert ran == ("ieee",)
    assert share_of_bound(got, a, b.conj()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EMULATED)
@pytest.mark.parametrize("conj", ["", "a", "ab"])
def test_layouts_conjugates_and_addends(conj, dtype, rng):
    a, b, c = (normal(rng, *shape, dtype=dtype) for shape in ((K, M), (N, K), (M, N)))
    a, b = a.T, b.T
    marks = {f"conj_{name}": True for name in conj}
    got, ran = product(a, b, c, alpha=-0.5, beta=2.0, **marks)
    assert ran == (EMULATED[dtype],)
    first, second = (x.conj() if name in conj else x for name, x in (("a", a), ("b", b)))
    assert share_of_bound(got, -0.5 * first, second, 2.0 * c) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "dtype"), [("row-major", "complex128"), ("column-major", "complex64")])
def test_blocks_of_columns_and_parts_of_a_long_k(layout, dtype, monkeypatch, small_blocks, rng):
    """Three blocks, the last one ragged, each of two parts of K that are added as residues."""
    monkeypatch.setattr(ozaki_chain, "MOST_K", 128)
    a, b = normal(rng, 6, 200, dtype=dtype), normal(rng, 200, 1100, dtype=dtype)
    if layout == "column-major":
        got, ran = product(b.T, a.T, out=np.full((6, 1100), np.nan, dtype).T, conj_b=True)
        got, a = got.T, a.conj()
    else:
        got, ran = product(a, b)
    assert ran == (EMULATED[dtype],)
    assert share_of_bound(got, a, b) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EMULATED)
@pytest.mark.parametrize("power", [-4, -40, None])
def test_small_imaginary_parts_keep_their_digits(power, dtype, rng):
    """Three products in floating point would lose them; where the guard cannot prove the bound, nothing is emulated."""
    share = 0.0 if power is None else 2.0**power
    a, b = ((x.real + 1j * share * x.imag).astype(dtype) for x in (normal(rng, M, K), normal(rng, K, N)))
    got, ran = product(a, b)
    assert (ran == ("ieee",)) == (power != -4)
    assert share_of_bound(got, a, b) <= 1


@pytest.mark.parametrize("dtype", EMULATED)
def test_integers_are_exact_though_they_cancel(dtype, rng):
    a, b = (rng.integers(-99, 100, shape) + 1j * rng.integers(-99, 100, shape) for shape in ((M, K), (K, N)))
    # The native kernel is compiled for each conjugate: this is the one of ordinary numbers.
    got, ran = product(a.astype(dtype), b.astype(dtype), conj_b=True)
    assert ran == (EMULATED[dtype],)
    np.testing.assert_array_equal(got, a @ b.conj())


@pytest.mark.slow
def test_batches_are_decided_for_one_by_one(rng):
    a, b = normal(rng, 2, M, K), normal(rng, K, N)
    a[1, 2, 3] = complex(0, np.inf)
    got, ran = product(np.ascontiguousarray(a.mT).mT, b)
    assert ran == ("ozaki-14", "ieee")
    assert share_of_bound(got[0], a[0], b) <= 1
    with np.errstate(invalid="ignore"):
        expected = np.isfinite(a[1].real @ b.real - a[1].imag @ b.imag)
    np.testing.assert_array_equal(np.isfinite(got[1].real), expected)


def test_complex64_results_are_emulated_in_a_workspace(rng):
    a, b = normal(rng, M, K), normal(rng, K, N)
    plan = gm.gemm.plan(
        a, b, precision="ozaki", out_dtype="complex64", executor="vgpu", kernel="ozaki_complex", conj_b=True
    )
    assert "computed from accumulators in a workspace" in plan.rewrite
    got = plan.execute()
    assert plan.decision() == (EMULATED["complex128"],)
    expected = gm.gemm(a, b, executor="cpu", conj_b=True)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2.0**-23 * np.abs(expected).max())
    assert share_of_bound(got, a, b.conj()) <= 1


def test_what_runs_natively(rng):
    """Complex scalars, and sums of nothing."""
    a, b = normal(rng, M, K), normal(rng, K, N)
    plan = gm.gemm.plan(a, b, alpha=1j, precision="ozaki", executor="vgpu")
    assert "complex128_gemm" in str(plan)
    empty = gm.matmul.plan(a[:, :0], b[:0], precision="ozaki", executor="vgpu")
    np.testing.assert_array_equal(empty.execute(), np.zeros((M, N)))
    assert empty.decision() == ("ieee",)
