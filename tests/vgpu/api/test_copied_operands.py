"""Mixed types, strided operands and gated forms of any type by the public functions on the virtual GPU, checks on.

Random products of the same are drawn by `test_random_products`; here are the edges.
"""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.kernel_kinds import laid_out
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

MIXED = (
    ("float32", "bfloat16", "float32"),
    ("bfloat16", "float16", "float32"),
    ("int8", "float16", "float16"),
    ("float64", "float32", "float64"),
    ("int32", "int8", "int32"),
    ("complex64", "float32", "complex64"),
    ("int8", "complex128", "complex128"),
    ("complex64", "complex64", "complex128"),
)


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def matrix(rng, name, shape, way="r"):
    return laid_out(rng, random_matrix(rng, dtype_named(name), shape), way, 1)


@pytest.mark.combinations(1)
@pytest.mark.parametrize(
    "types",
    # Copies of the slow one's types are seen by real times complex matrices.
    [pytest.param(one, marks=[pytest.mark.slow] if one[0] == "int8" and "complex" in one[1] else []) for one in MIXED],
    ids="-".join,
)
@pytest.mark.parametrize(
    ("batch_a", "batch_b", "shape"),
    [((), (), (33, 17, 0)), ((3,), (3,), (9, 33, 21)), ((3,), (), (33, 9, 20)), ((), (2,), (5, 37, 8))],
    ids=str,
)
def test_mixed_types_at_the_edges(types, batch_a, batch_b, shape, rng):
    (first, second, out), (m, n, k) = types, shape
    a, b = matrix(rng, first, (*batch_a, m, k), "c"), matrix(rng, second, (*batch_b, k, n), "s")
    found = poisoned(dtype_named(out), (*(batch_a or batch_b), m, n))
    plan = gm.gemm.plan(a, b, alpha=3, out=found, executor="vgpu", chip="h200")
    plan.execute()
    if k:
        assert_product(found, a, b, alpha=3)
    else:
        np.testing.assert_array_equal(found, np.zeros_like(found))


@pytest.mark.combinations(1)
@pytest.mark.parametrize("name", ["float32", "float64", "int32", "complex64", "complex128"])
@pytest.mark.parametrize("ways", ["sr", "cs", "ss"])
def test_strided_operands_are_copied(name, ways, rng):
    a, b = matrix(rng, name, (2, 70, 37), ways[0]), matrix(rng, name, (2, 37, 45), ways[1])
    found = poisoned(dtype_named(name), (2, 70, 45))
    kernel = "complex_gemm_upcast" if "complex" in name else "hopper_gemm_upcast"
    plan = gm.matmul.plan(a, b, out=found, executor="vgpu", kernel=kernel)
    plan.execute()
    assert_product(found, a, b)


@pytest.mark.parametrize(
    ("conj_a", "conj_b"), [(True, False), (False, True), pytest.param(True, True, marks=pytest.mark.slow)]
)
def test_conjugates_of_copies_are_theirs(conj_a, conj_b, rng):
    a, b = matrix(rng, "complex64", (33, 20), "s"), matrix(rng, "complex128", (20, 9))
    plan = gm.gemm.plan(a, b, conj_a=conj_a, conj_b=conj_b, executor="vgpu", kernel="complex_gemm_upcast")
    assert_product(plan.execute(), a.conj() if conj_a else a, b.conj() if conj_b else b)


@pytest.mark.parametrize(
    ("name", "adjoint"),
    [
        *(("float32", False), ("float64", False), ("complex128", True)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("int32", False), ("complex64", True), ("complex64", False))
        ),
    ],
)
def test_a_strided_matrix_times_its_own_transpose(name, adjoint, rng):
    a = matrix(rng, name, (40, 21), "s")
    options = {"conj_b": True} if adjoint else {}
    kernel = "complex_gemm_upcast" if "complex" in name else "hopper_gemm_upcast"
    plan = gm.gemm.plan(a, a.T, **options, executor="vgpu", kernel=kernel)
    assert_product(plan.execute(), a, a.T.conj() if options else a.T)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize(
    ("batch", "shape", "way"), [((), (33, 41, 0), "r"), ((2,), (20, 33, 19), "c"), ((2, 2), (9, 33, 12), "s")], ids=str
)
def test_gated_forms_without_a_kernel_of_their_own(name, batch, shape, way, rng):
    m, n, k = shape
    a, gate, up = (matrix(rng, name, (*batch, *one)) for one in ((m, k), (k, n), (k, n)))
    c, bias = matrix(rng, name, (*batch, m, n), way), matrix(rng, name, (2 * n,))
    out = poisoned(dtype_named(name), (*batch, m, n))
    plan = gm.gemm.plan(
        a, gate, c, gated=up, bias=bias, alpha=0.5, out=out, executor="vgpu", chip="h200",
        epilogue=lambda first, second, c: gm.epilogue.silu(first) * second + 2 * c,
    )  # fmt: skip
    # Of products of nothing one launch does.
    assert not k or "gated" in plan.rewrite or "workspace" in plan.rewrite
    plan.execute()
    wide = [x.astype(np.longdouble) for x in (a, gate, up, c, bias)]
    first = 0.5 * (wide[0] @ wide[1]) + wide[4][:n]
    second = 0.5 * (wide[0] @ wide[2]) + wide[4][n:]
    exact = first / (1 + np.exp(-first)) * second + 2 * wide[3]
    sizes = [np.abs(wide[0]) @ np.abs(wide[number]) + 3 for number in (1, 2)]
    size = sizes[0] * sizes[1] + 2 * np.abs(wide[3])
    unit = dtype_named(name).unit_roundoff
    assert (np.abs(out - exact) <= 8 * (k + 6) * unit * (size + np.abs(exact))).all()
