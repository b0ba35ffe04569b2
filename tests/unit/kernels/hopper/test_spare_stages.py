"""Stages beyond those that a config of hopper_gemm names: as many as shared memory holds."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.tile_config import MAX_SHARED_BYTES
from gemmule.lab.products import gemm_problem

NARROW = HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, swap_ab=1)
WIDE = HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=1)
SPLIT = HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, cluster_k=3, swap_ab=1)
MANY = HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=1)
LAYER = 200, 4096, 2048


def has_all(m, n, k, *, config=WIDE, dtype="bfloat16", out="bfloat16", layout="nt"):
    problem = gemm_problem(m, n, k, dtype, out, layout)
    return dict(SPEC.signature(problem, config)).get("all_stages") == "yes"


@pytest.mark.parametrize("config", [config for config in SPEC.configs if config.cluster_k == 1], ids=str)
def test_stages_take_no_shared_memory_of_epilogue_tiles(config):
    filled = config.filled()
    assert filled.stages >= config.stages
    assert filled == dataclasses.replace(config, stages=filled.stages)
    assert filled.epi_tile_n(2) == config.epi_tile_n(2)
    assert filled.shared_bytes_of(2) <= MAX_SHARED_BYTES
    assert filled.ring_bytes(filled.spare_stages) <= MAX_SHARED_BYTES


def test_stages_are_as_many_as_fit():
    assert [NARROW.filled().stages, NARROW.filled().spare_stages] == [10, 1]
    assert [WIDE.filled().stages, WIDE.filled().spare_stages] == [4, 1]


def test_plain_layers_have_all_stages():
    assert has_all(*LAYER)
    assert has_all(*LAYER, dtype="float16", out="float16")
    assert has_all(4096, 8, 2048)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((200, 4096, 1984), {}),
        ((200, 2040, 2048), {}),
        (LAYER, {"layout": "nn"}),
        (LAYER, {"out": "float32"}),
        (LAYER, {"config": SPLIT}),
        (LAYER, {"config": MANY}),
    ],
    ids=str,
)
def test_other_products_have_the_stages_of_the_config(size, options):
    assert not has_all(*size, **options)


def test_a_launch_has_shared_memory_for_all_stages():
    for k, spare in ((2048, 1), (512, 0)):
        launch = SPEC.launch(gemm_problem(200, 4096, k, "bfloat16", "bfloat16", "nt"), WIDE)
        assert WIDE.ring_bytes(spare) <= launch.shared_bytes <= MAX_SHARED_BYTES
