"""int8 results of `hopper_gemm`, exact modulo 256, on the virtual GPU, all checks on."""

from __future__ import annotations

import pytest

from gemmule.core.dtype import INT8
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, multiply

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Epilogue tiles of 64, 48 and 16 columns, cooperative and ping-pong, alone and in clusters, with K split by both.
QUICK = [
    HopperGemmConfig(tile_m=128, tile_n=128, stages=4, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=4, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=16, stages=4, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=4, pingpong=1, cluster_m=1, cluster_k=4),
    HopperGemmConfig(tile_m=128, tile_n=176, stages=3, cluster_m=1, split_k=1),
]
ALL = [
    pytest.param(one, marks=pytest.mark.slow)
    for one in SPEC.configs
    if one not in QUICK
    and not (one.swap_ab or one.side_by_side)
    and one.tile_n % 16 == 0
    and one.tile_n // one.cluster_k % 16 == 0
]


@pytest.mark.combinations(1)
@pytest.mark.parametrize("config", [*QUICK, *ALL], ids=str)
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "c"])
def test_every_config(config, adds, rng):
    # Neither rows, columns nor K are multiples of a tile.
    m, n, k = config.tile_m + 71, config.tile_n + 16, 128 * config.cluster_k + 48
    a, b = random_matrix(rng, INT8, (m, k)), random_matrix(rng, INT8, (k, n))
    c, factors = (random_matrix(rng, INT8, (m, n)), (3, -2)) if adds else (None, (-5, 0))
    d = multiply(SPEC, a, laid_out(b, "col"), poisoned(INT8, (m, n)), c, *factors, config=config)
    assert_product(d, a, b, c, *factors)


@pytest.mark.parametrize("k", [16, 128])
def test_a_batch_of_column_major_results_with_c(k, rng):
    a, c = random_matrix(rng, INT8, (3, 80, k)), random_matrix(rng, INT8, (3, 72, 80)).swapaxes(1, 2)
    b = random_matrix(rng, INT8, (3, 72, k)).swapaxes(1, 2)
    d = multiply(SPEC, a, b, poisoned(INT8, (3, 72, 80)).swapaxes(1, 2), c, 1, 1, config=QUICK[1])
    assert_product(d, a, b, c, 1, 1)


@pytest.mark.parametrize(
    ("spec", "layouts"), [(K_MAJOR, ("row", "row")), (REPACKED, ("padded", "col"))], ids=["k", "r"]
)
def test_operands_that_are_copied_first(spec, layouts, rng):
    a, b, c = (random_matrix(rng, INT8, shape) for shape in ((77, 144), (144, 80), (77, 80)))
    operands = (laid_out(x, layout) for x, layout in zip((a, b), layouts, strict=True))
    assert_product(multiply(spec, *operands, poisoned(INT8, c.shape), c, 2, -1), a, b, c, 2, -1)
