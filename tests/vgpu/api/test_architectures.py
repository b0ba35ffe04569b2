"""Kernels for every GPU that is supported, compiled and run on the virtual GPU; the choice for its chip."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem
from support.oracle import assert_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Architecture, and the type whose product the quick tests run, if any: for sm_86 and sm_89 what is compiled is that of
#: sm_80.
GPUS = [
    ("sm_80", "bfloat16"), ("sm_86", None), ("sm_89", None), ("sm_90a", "bfloat16"),
    ("sm_100a", "float32"), ("sm_120a", "float32"),
]  # fmt: skip
PRODUCTS = [
    pytest.param(arch, dtype, marks=() if dtype == quick else pytest.mark.slow)
    for arch, quick in GPUS
    for dtype in ("bfloat16", "float32")
]


@pytest.mark.parametrize(("arch", "dtype"), PRODUCTS)
def test_products_run(rng, monkeypatch, arch, dtype):
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", arch)
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    kind = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}[dtype]
    a, b = (rng.standard_normal(shape).astype(kind) for shape in ((72, 40), (40, 56)))
    out = np.full((72, 56), np.nan, kind)
    assert gm.matmul.plan(a, b, executor="vgpu").device == f"virtual GPU ({arch})"
    assert_product(gm.matmul(a, b, out=out, executor="vgpu"), a, b)


@pytest.mark.parametrize(("arch", "_"), GPUS)
@pytest.mark.parametrize("edge", [96, 1000, 4096])
def test_large_products_go_to_kernels_of_the_chip(arch, _, edge):
    """Tensor cores for 16 bits, by wgmma on Hopper alone; double precision by mma.f64; the reference for nothing."""
    hopper = arch == "sm_90a"
    expected = {
        ("bfloat16", "bfloat16"): "hopper_gemm" if hopper else "mma_sync_gemm",
        ("int8", "int32"): "hopper_gemm" if hopper else "mma_sync_gemm",
        ("float32", "float32"): "simt_gemm",
        ("float64", "float64"): "float64_gemm",
    }
    for (dtype, out), kernel in expected.items():
        if edge == 1000 and dtype == "int8":
            continue  # rows of 1000 bytes are no multiple of 16
        problem = gemm_problem(edge, edge, edge, dtype, out, "nt")
        choice = choose(problem, Arch.parse(arch), multiprocessors=108, tuned=False)
        shared = choice.spec.launch(problem, choice.config).shared_bytes
        assert shared <= Arch.parse(arch).shared_bytes_per_block
        chosen = choice.spec.name
        transposed = chosen == "simt_gemm_mn_major" and kernel == "simt_gemm" and edge >= 1000
        small = edge == 96 and chosen in ("simt_batched", "mma_sync_gemm", "mma_sync_small")
        assert chosen == kernel or transposed or small
