"""Split-K on the virtual GPU, all checks on: parts of K through a workspace, and in clusters that share loads too."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import FOR_LONG_K
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.epilogues import finish
from support.vgpu.hopper_products import check_product
from support.vgpu.kernel_products import multiply
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two warpgroups of a tile, and one; clusters that share loads; each with as many CTAs as parts of K need.
COOPERATIVE = HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=1, ctas=12, split_k=1)
PINGPONG = dataclasses.replace(COOPERATIVE, tile_m=64, pingpong=1)
MULTICAST = dataclasses.replace(PINGPONG, tile_n=64, cluster_m=2, cluster_n=2, ctas=12)
SWAPPED = dataclasses.replace(PINGPONG, tile_n=104, cluster_n=2, swap_ab=1, ctas=24)
CONFIGS = {"cooperative": COOPERATIVE, "ping-pong": PINGPONG, "multicast": MULTICAST, "swap_ab": SWAPPED}
#: A cluster's K split by CTAs that share loads with others.
CLUSTERS = {
    "2x1x2": HopperGemmConfig(tile_m=64, tile_n=64, stages=6, pingpong=1, cluster_m=2, cluster_k=2),
    "1x2x3, swap_ab": HopperGemmConfig(64, 48, 6, 1, 1, 2, 3, swap_ab=1),
    "2x2x2, cooperative": HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=2, cluster_n=2, cluster_k=2),
}
#: One tile of 17 k-tiles; some tiles, whose K is divided by two and three; more tiles than clusters, so that none is.
SHAPES = [(48, 24, 1032), (104, 72, 520), (264, 200, 200)]
SLOW = [pytest.mark.slow]


@pytest.mark.combinations(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", [*CONFIGS.values(), *CLUSTERS.values()], ids=[*CONFIGS, *CLUSTERS])
def test_ragged_shapes(config, shape, rng):
    check_product(config, shape, rng)


@pytest.mark.slow
@pytest.mark.parametrize("config", FOR_LONG_K, ids=str)
def test_registered_configs(config, rng):
    check_product(config, (200, 136, 1224), rng)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("config", [MULTICAST, CLUSTERS["1x2x3, swap_ab"]], ids=["split_k", "cluster_k"])
def test_every_layout(config, layout, rng):
    m, n, k = 104, 72, 520
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    a, b = (np.ascontiguousarray(x.T).T if lies == "t" else x for x, lies in zip((a, b), layout, strict=True))
    assert_product(multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), config=config), a, b)


@pytest.mark.parametrize("config", [PINGPONG, CLUSTERS["2x1x2"]], ids=["split_k", "cluster_k"])
def test_a_batch_with_c(config, rng):
    check_product(config, (72, 40, 264), rng, FLOAT16, FLOAT16, batch=(3,), adds=True)


def test_an_epilogue_of_clusters(monkeypatch, rng):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(CLUSTERS["2x1x2"],)),))
    case = next(case for case in CASES.values() if "c" in case.arrays and "bias" in case.arrays)
    finish(case, rng, shape=(72, 24, 520))
