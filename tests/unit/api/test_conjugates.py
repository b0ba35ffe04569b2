"""Conjugated operands of `gemm`: NumPy's arrays, by flags, on the host and on the virtual GPU."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from support.oracle import assert_product


def draw(rng, shape, dtype):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("conj_b", [False, True])
@pytest.mark.parametrize("conj_a", [False, True])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_flags_conjugate_on_the_host(dtype, conj_a, conj_b, rng):
    a, b = draw(rng, (5, 7), dtype), draw(rng, (7, 3), dtype)
    for _ in range(3):
        got = gm.gemm(a, b, conj_a=conj_a, conj_b=conj_b, executor="cpu")
        assert_product(got, a.conj() if conj_a else a, b.conj() if conj_b else b)
        assert_product(gm.gemm(a, b, executor="cpu"), a, b)


def test_an_adjoint_by_transpose_and_flag(rng):
    a, b = draw(rng, (7, 5), "complex128"), draw(rng, (7, 3), "complex128")
    np.testing.assert_allclose(gm.gemm(a.T, b, conj_a=True), a.conj().T @ b)


def test_real_operands_are_their_own_conjugates(rng):
    a, b = rng.standard_normal((5, 7)), draw(rng, (7, 3), "complex128")
    np.testing.assert_allclose(gm.gemm(a, b, conj_a=True, conj_b=True), a @ b.conj())


def test_a_plan_sees_what_is_written_after_it(rng):
    a, b = draw(rng, (5, 7), "complex128"), draw(rng, (7, 3), "complex128")
    plan = gm.gemm.plan(a, b, conj_a=True, executor="cpu")
    a *= 1j
    np.testing.assert_allclose(plan.execute(), a.conj() @ b)


def test_the_virtual_gpu_reads_conjugates_as_they_lie(rng):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    a, b = draw(rng, (5, 7), "complex128"), draw(rng, (3, 7), "complex128")
    plan = gm.gemm.plan(a, b.T, conj_b=True, executor="vgpu")
    assert plan.problem.b.conj
    np.testing.assert_allclose(plan.execute(), a @ b.conj().T, rtol=1e-5)


@pytest.mark.parametrize("flag", ["conj_a", "conj_b"])
@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_a_flag_is_true_or_false(flag, value):
    for call in (gm.gemm, gm.gemm.plan):
        with pytest.raises(gm.ArgumentError, match=rf"^{flag}={value!r} is neither True nor False; give"):
            call(np.eye(3), np.eye(3), **{flag: value})
