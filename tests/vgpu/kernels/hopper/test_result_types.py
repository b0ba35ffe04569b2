"""Results of `hopper_gemm` of another type than the operands, on the virtual GPU, all checks on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, multiply, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SHARED = HopperGemmConfig(tile_m=128, tile_n=96, stages=4, cluster_m=1)
COLUMNS = HopperGemmConfig(tile_m=64, tile_n=64, stages=4, pingpong=1, cluster_m=1, cluster_k=2, swap_ab=1)
OWN = HopperGemmConfig(tile_m=64, tile_n=64, stages=4, pingpong=1, cluster_m=2)


@pytest.mark.combinations(2, once=["dtype", "out"])
@pytest.mark.parametrize("config", [SHARED, COLUMNS], ids=str)
@pytest.mark.parametrize(("dtype", "out"), [(FLOAT16, BFLOAT16), (BFLOAT16, FLOAT16)], ids=str)
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "c"])
def test_the_other_type_of_16_bits(config, dtype, out, adds, rng):
    m, n, k = 200, 144, 200
    a, b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
    c, factors = (random_matrix(rng, out, (m, n)), (0.75, -1.5)) if adds else (None, (1, 0))
    d = multiply(SPEC, a, laid_out(b, "col"), poisoned(out, (m, n)), c, *factors, config=config)
    assert_product(d, a, b, c, *factors)


@pytest.mark.combinations(2, once=["layouts"])
@pytest.mark.parametrize(
    ("config", "layouts"),
    [(SHARED, ("row", "col")), (COLUMNS, ("row", "col")), (OWN, ("row", "col")), (OWN, ("col", "col"))],
    ids=str,
)
@pytest.mark.parametrize("out", [BFLOAT16, FLOAT16, FLOAT8_E4M3], ids=str)
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "c"])
def test_tf32(config, layouts, out, adds, rng):
    if out == FLOAT8_E4M3 and config.swap_ab:
        pytest.skip("results of 8 bits are written in rows")
    m, n, k = 200, 144, 100
    # Integers that TF32 holds.
    a, b = (rng.integers(-8, 9, shape).astype(FLOAT32.numpy()) for shape in ((m, k), (k, n)))
    c, factors = (random_matrix(rng, out, (m, n)), (0.75, -1.5)) if adds else (None, (0.25, 0))
    a, b = (laid_out(x, layout) for x, layout in zip((a, b), layouts, strict=True))
    d = poisoned(out, (m, n))
    problem = dataclasses.replace(problem_of(a, b, d, c, *factors), precision=Precision.TF32)
    run_product(Choice(SPEC, config), problem, a, b, d, c)
    assert_product(d, np.ascontiguousarray(a), np.ascontiguousarray(b), c, *factors)
