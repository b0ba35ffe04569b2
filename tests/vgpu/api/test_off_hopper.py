"""Products that are converted or copied first on the virtual GPU as GPUs other than Hopper, all checks on."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.core.dtype import dtype_named
from support.kernel_kinds import laid_out, whole_numbers
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

TYPES = (
    ("float32", "bfloat16", "float32"),
    ("int8", "float16", "float16"),
    ("float16", "bfloat16", "float32"),
    ("float8_e4m3fn", "float8_e5m2", "bfloat16"),
    ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
    ("float64", "float32", "float64"),
    ("int8", "int8", "int32"),
    ("complex64", "complex128", "complex128"),
)


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def is_copied(types, ways):
    """Return whether the kernel has an operand to copy: one of another type than the common one, or strided."""
    return types[0] != types[1] or "float8" in types[0] or "s" in ways


def run(rng, types, extents, ways):
    """Hold a product by the converting kernel against a higher precision."""
    (m, n, k), dtypes = extents, [dtype_named(name) for name in types]
    shapes = (m, k), (k, n)
    a, b = (laid_out(rng, random_matrix(rng, *one), way, 1) for *one, way in zip(dtypes, shapes, ways, strict=False))
    found = poisoned(dtypes[2], (m, n))
    # Without elements a matrix has no strides.
    copied = is_copied(types, ways if k else "")
    name = "complex_gemm_upcast" if types[2].startswith("complex") else "gemm_upcast"
    plan = gm.gemm.plan(a, b, alpha=2, out=found, kernel=f"{name}[0]" if copied else None, executor="vgpu")
    plan.execute()
    if k:
        assert_product(found, a, b, alpha=2)
    else:
        np.testing.assert_array_equal(found.astype(np.complex128), 0)


#: Types whose kernels without K are compiled fastest: one that is widened, one that is not, 8-bit floats.
OF_NOTHING = TYPES[1:4]


@pytest.mark.parametrize(
    ("types", "extents"),
    [
        *((types, (37, 45, 85)) for types in TYPES),
        *(pytest.param(types, (33, 17, 0), marks=[] if types in OF_NOTHING else pytest.mark.slow) for types in TYPES),
    ],
    ids=str,
)
def test_products_that_are_converted_on_sm_89(monkeypatch, types, extents, rng):
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", "sm_89")
    run(rng, types, extents, "ss")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("ways", ["ss", "rc", "cr"])
def test_products_of_every_architecture(monkeypatch, arch, types, ways, rng):
    if "float8" in types[0] and not Arch.parse(arch).has_float8:
        pytest.skip("8-bit floats are refused")
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", arch)
    run(rng, types, (37, 45, 85), ways)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("types", [("int8", "int8", "int32"), ("int32", "int32", "int8")], ids="-".join)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_strided_results_of_integers(monkeypatch, types, adds, arch, rng):
    """The accumulators go into a workspace first, C before them."""
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", arch)
    m, n, k = 300, 260, 150
    a, b = random_matrix(rng, dtype_named(types[0]), (m, k)), random_matrix(rng, dtype_named(types[1]), (k, n))
    found = poisoned(dtype_named(types[2]), (2 * m, 2 * n))[::-2, ::2]
    c = whole_numbers(rng, types[2], (m, n)) if adds else None
    plan = gm.gemm.plan(a, b, c, alpha=3, beta=-2 if adds else None, out=found, executor="vgpu")
    plan.execute()
    assert plan.kernel != "gemm_reference"
    assert_product(found, a, b, c, 3, -2 if adds else 0)
