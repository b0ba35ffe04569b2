"""Predicted times of mma_sync_gemm in TF32."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.core.dtype import Precision
from gemmule.core.gpu_rates import H100_RATES, H200_RATES
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.config_lists import CONFIGS, FOR_UNALIGNED_TF32
from gemmule.kernels.mma_sync.cost import is_faster, predicted_us, tf32_us
from gemmule.kernels.mma_sync.launch_geometry import splits
from gemmule.kernels.mma_sync.spec import SPEC
from gemmule.lab.products import gemm_problem

SMALL = MmaSyncConfig(tile_m=64, tile_n=64, stages=4)
LARGE = MmaSyncConfig(warps_n=4, stages=4)


def tf32(m, n, k, layout="tn"):
    return dataclasses.replace(gemm_problem(m, n, k, "float32", "float32", layout), precision=Precision.TF32)


def us(problem, config, gpu=H200_RATES):
    return float(tf32_us(problem, (config,), gpu)[0])


def test_times_of_many_configs_are_those_of_each():
    problem = tf32(300, 500, 4000)
    assert tf32_us(problem, CONFIGS, H200_RATES).tolist() == [us(problem, one) for one in CONFIGS]


@pytest.mark.parametrize("grown", [(300, 500, 8000), (600, 5000, 4000), (3000, 5000, 4000)], ids=str)
def test_larger_products_take_longer(grown):
    for config in (one for one in CONFIGS if one not in FOR_UNALIGNED_TF32):
        assert us(tf32(*grown), config) > us(tf32(300, 500, 4000), config)


def test_copies_of_single_elements_take_longer():
    assert us(tf32(301, 501, 4001), SMALL) > 1.05 * us(tf32(304, 504, 4004), SMALL)


def test_configs_for_lines_that_begin_anywhere_are_offered_to_no_others():
    for config in FOR_UNALIGNED_TF32:
        assert us(tf32(304, 504, 4004), config) == math.inf
        assert us(tf32(301, 501, 4001), config) < math.inf


def test_clusters_of_five_do_not_all_fit():
    # 20 of them run at once with a CTA an SM, of 24 some share SMs.
    five = dataclasses.replace(SMALL, cluster_k=5)
    assert us(tf32(769, 109, 4113), five) > 1.2 * us(tf32(577, 109, 4113), five)
    assert us(tf32(705, 109, 4113), dataclasses.replace(SMALL, cluster_k=4)) < us(tf32(705, 109, 4113), five)


def test_a_cluster_shares_a_long_k_and_no_short_one():
    split = dataclasses.replace(SMALL, cluster_k=4)
    assert us(tf32(64, 64, 8192), split) < us(tf32(64, 64, 8192), SMALL) / 2
    assert us(tf32(64, 64, 96), split) == math.inf


def test_large_tiles_are_for_large_products():
    assert us(tf32(64, 64, 4096), SMALL) < us(tf32(64, 64, 4096), LARGE)
    assert us(tf32(4096, 4096, 4096), LARGE) < us(tf32(4096, 4096, 4096), SMALL)


def test_memory_limits_what_moves_many_bytes():
    problem = tf32(4, 20000, 4)
    assert us(problem, SMALL, H100_RATES) > us(problem, SMALL, H200_RATES)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "shape", [(81, 321, 1385), (100, 7752, 7428), (4096, 8192, 8192), (8192, 8192, 64), (333, 4097, 515)], ids=str
)
def test_it_is_faster_than_what_takes_longer(shape, layout):
    problem = tf32(*shape, layout)
    best = predicted_us(problem, H100_RATES)
    assert is_faster(problem, 1.001 * best, H100_RATES)
    assert not is_faster(problem, best, H100_RATES)
    assert not is_faster(problem, best, H100_RATES, split=True)
    assert is_faster(problem, math.inf, H100_RATES, split=True)


def test_clusters_that_do_not_fit_lose_to_a_workspace():
    # 16 clusters of eight do not run at once, 64 of two do.
    eight = dataclasses.replace(LARGE, cluster_k=8)
    shared = dataclasses.replace(LARGE, cluster_k=2, split_k=1)
    fifteen, sixteen = tf32(1793, 69, 4289), tf32(1921, 69, 4289)
    assert 1.2 * us(fifteen, eight) < us(sixteen, eight)
    assert us(sixteen, shared) < us(sixteen, eight)


def test_clusters_share_a_tile_in_the_waves_that_take_the_fewest_k_tiles():
    pair = dataclasses.replace(LARGE, cluster_k=2, split_k=1)
    # As many as run at once; of more tiles than run at once two in three waves; and not beyond four k-tiles each.
    assert [splits(pair, tiles, 200) for tiles in (1, 16, 33, 70)] == [25, 4, 2, 2]
    assert splits(pair, 1, 9) == 1
    problem = tf32(1921, 69, 4289)
    assert SPEC.launch(problem, pair).grid == (32, 4, 1)
