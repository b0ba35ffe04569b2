"""Plain 16-bit results whose kernels have more stages than their configs name, on the virtual GPU with all checks.

Where a CTA has one tile, its k-tiles also fill stages in the memory of epilogue tiles.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm import all_stages
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import FOR_FLOAT8
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem
from gemmule.vgpu import Options
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Ping-pong and cooperative, multicast of either or both operands, side by side, three consumers, split-K.
KINDS = (
    HopperGemmConfig(tile_m=64, tile_n=72, stages=11, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=2, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=256, tile_n=104, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=144, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=64, stages=5, cluster_m=1, cluster_n=2, consumers=3),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=2, split_k=1),
)
OTHERS = [
    config
    for config in SPEC.configs
    if config not in FOR_FLOAT8 and config.cluster_k == 1 and (config.filled() != config or config.spare_stages)
]
#: SMs: one tile for each CTA, and several.
ALL, FEW = 132, 8


@pytest.fixture(autouse=True)
def small_layers(monkeypatch):
    """Let small products be layers."""
    for name in ("_LAYER_COLUMNS", "_LAYER_K_TILES"):
        monkeypatch.setattr(all_stages, name, 1)
    monkeypatch.setattr(all_stages, "_FEW_STAGES", 16)


def check(config, k, rng):
    # Neither tiles nor slices divide these.
    kind, (m, n) = dtype_named("bfloat16"), (200, 520)
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    problem = gemm_problem(m, n, k, "bfloat16", "bfloat16", "nt")
    assert all_stages.ALL_STAGES in dict(SPEC.signature(problem, config))
    d = poisoned(kind, (m, n))
    views = {"a": a, "b": np.ascontiguousarray(b.T).T, "d": d}
    run_kernel(problem, Choice(SPEC, config), views, Options(checks=True))
    assert_product(d, a, b)


@pytest.mark.parametrize("ctas", [ALL, FEW])
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_each_kind_with_one_tile_for_each_cta_and_with_several(config, ctas, rng):
    config = dataclasses.replace(config, ctas=ctas)
    check(config, 64 * (config.filled().stages + 3) + 8, rng)


def test_fewer_k_tiles_than_stages(rng):
    check(KINDS[0], 8, rng)


@pytest.mark.slow
@pytest.mark.parametrize("ctas", [ALL, FEW])
@pytest.mark.parametrize("config", OTHERS, ids=str)
def test_each_registered_config(config, ctas, rng):
    config = dataclasses.replace(config, ctas=ctas)
    check(config, 64 * config.filled().stages + 200, rng)
