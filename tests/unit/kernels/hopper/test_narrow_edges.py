"""Predictions of narrow tiles at the right edge, which the scheduler hands out last."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.gpu_rates import H200_RATES
from gemmule.kernels.hopper.cost import edges
from gemmule.kernels.hopper.cost.rates import OperandLayout, Operation, TileRates
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.scale_stages import narrow_columns

PLAIN = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, cluster_m=1)
CONFIGS = (PLAIN, dataclasses.replace(PLAIN, tile_n=144, stages=4), dataclasses.replace(PLAIN, swap_ab=1))


def busiest(rows, cols, config):
    """Return the tiles that the busiest cluster computes, narrow ones by their share, as the scheduler divides them."""
    if config.swap_ab:
        rows, cols = cols, rows
    tiles_m, tiles_n = -(-rows // config.tile_m), -(-cols // config.tile_n)
    narrow = cols - (tiles_n - 1) * config.tile_n <= narrow_columns((1, 1), config)
    costs = np.ones(tiles_m * tiles_n)
    if narrow:
        costs[-tiles_m:] = edges._NARROW
    clusters = config.max_active_clusters
    loads = np.zeros(clusters)
    for first in range(0, costs.size, clusters):
        wave = costs[first : first + clusters]
        if wave.size == clusters:
            loads += wave
        else:
            loads[::-1][: wave.size] += wave
    return loads.max(), -(-costs.size // clusters)


@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        (4096, 4096),
        (4096, 14336),
        (8192, 4096),
        (8192, 8192),
        (5120, 5120),
        (4096, 4032),
        (2048, 7200),
        (4160, 8480),
        (130, 64),
    ],
)
def test_the_busiest_cluster_is_predicted(rows, cols):
    """Of clusters with a tile more than others, those with narrow ones."""
    layout = OperandLayout(0, False)
    operation = Operation(rows, cols, 1, layout, layout, 32, 1.0, 0, 2, 2, 1 << 20, 1 << 20, float8=True)
    rates = TileRates(CONFIGS, H200_RATES)
    counts = [busiest(rows, cols, config) for config in CONFIGS]
    assert edges.edge_share(operation, rates, (1, 1)) == pytest.approx([found / waves for found, waves in counts])
    assert (edges.edge_share(operation, rates, (1, 128)) == 1).all()


def test_only_squares_of_128_with_a_scale_for_each_column_may_be_narrow():
    assert narrow_columns((1, 1), PLAIN) == 64
    assert narrow_columns((1, 128), PLAIN) == narrow_columns((128, 1), PLAIN) == 0
    others = {"tile_n": 144, "stages": 4}, {"cluster_m": 2}, {"pingpong": 1}, {"tile_m": 64, "pingpong": 1}
    assert [narrow_columns((1, 1), dataclasses.replace(PLAIN, **fields)) for fields in others] == [0, 0, 0, 0]
