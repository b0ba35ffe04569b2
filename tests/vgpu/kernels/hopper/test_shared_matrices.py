"""Batches of which one operand is a single matrix, on the virtual GPU, all checks on: loaded, packed, transposed."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Kernel, type, precision and layouts: loaded by TMA, packed, and copied along K.
CASES = [
    ("hopper_gemm", "bfloat16", None, "rr", 0),
    ("hopper_gemm", "float16", None, "cr", 0),
    ("hopper_gemm_unaligned", "bfloat16", None, "rc", 0),
    ("hopper_gemm_repacked", "bfloat16", None, "rr", 1),
    ("hopper_gemm_repacked", "bfloat16", None, "cc", 1),
    ("hopper_gemm_repacked", "int8", None, "rc", 1),
    ("hopper_gemm_k_major", "int8", None, "cr", 0),
    ("hopper_gemm_k_major", "float32", "tf32", "cr", 0),
    ("hopper_gemm_upcast", "float8_e4m3fn", None, "rc", 1),
]


def arranged(x, way):
    """The same array with its matrices' rows contiguous, or their columns."""
    return x if way == "r" else np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("shared", ["a", "b", "ab"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_single_matrix(case, shared, monkeypatch, rng):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    kernel, name, precision, ways, odd = case
    dtype, out = dtype_named(name), dtype_named({"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(name, name))
    m, n, k = 72 + odd, 88 + (odd or kernel == "hopper_gemm_unaligned"), 144 - odd
    a, b = (
        random_matrix(rng, dtype, shape if side in shared else (3, *shape))
        for side, shape in (("a", (m, k)), ("b", (k, n)))
    )
    if precision == "tf32":
        a, b = (x.astype(np.float16).astype(np.float32) for x in (a, b))
    arrays = [np.broadcast_to(arranged(x, way), (3, *x.shape[-2:])) for x, way in zip((a, b), ways, strict=True)]
    got = poisoned(out, (3, m, n))
    gm.matmul.plan(*arrays, out=got, precision=precision, executor="vgpu", kernel=kernel, chip="h200").execute()
    assert_product(got, *arrays)
