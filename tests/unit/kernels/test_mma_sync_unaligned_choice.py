"""Predicted times of mma_sync_unaligned, its configs, and where it is expected to be faster."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from gemmule.core.arch import Arch
from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.select import choose
from gemmule.kernels.mma_sync.unaligned.config import UnalignedMmaConfig
from gemmule.kernels.mma_sync.unaligned.spec import SPEC, is_faster
from gemmule.lab.products import gemm_problem

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
HOPPER, AMPERE = Arch.parse("sm_90a"), Arch.parse("sm_80")


def product(m, n, k, layout="nn"):
    return gemm_problem(m, n, k, "bfloat16", "bfloat16", layout)


@pytest.mark.parametrize(
    ("shape", "layout", "tile", "cluster_k"),
    [
        # A short K, few tiles and a long K, and more tiles than SMs.
        ((771, 143, 71), "nt", 32, 1),
        ((87, 87, 7381), "nn", 32, 8),
        ((1447, 997, 65), "nt", 64, 1),
    ],
)
def test_tiles_and_clusters(shape, layout, tile, cluster_k):
    config, cost = SPEC.cheapest(product(*shape, layout), HOPPER, H200_RATES)
    assert (config.tile_m, config.cluster_k) == (tile, cluster_k)
    assert math.isfinite(cost)


def test_no_cluster_shares_a_short_k():
    costs = dict(zip(SPEC.configs, SPEC.costs(product(127, 127, 127), SPEC.configs, H200_RATES), strict=True))
    assert all(math.isinf(cost) for config, cost in costs.items() if config.cluster_k > 2)


def test_times_grow_with_the_product():
    def least(*shape):
        return SPEC.least_cost(product(*shape), H200_RATES)

    assert least(127, 127, 127) < least(127, 127, 511) < least(1023, 1023, 511) < least(2047, 2047, 2047)


def test_a_round_is_one_wait():
    # Matrices in L2, and in device memory; a round of four k-tiles, or two rounds.
    two, four = (next(x for x in SPEC.configs if (x.k_tiles, x.cluster_k) == (rounds, 1)) for rounds in (2, 4))
    for shape in ((33, 33, 511), (65, 65, 5119)):
        assert SPEC.cost(product(*shape), four, H200_RATES) < SPEC.cost(product(*shape), two, H200_RATES)
    short = product(33, 33, 127)
    assert SPEC.cost(short, two, H200_RATES) < SPEC.cost(short, four, H200_RATES)


def test_predicted_times_beside_measured_ones():
    """The kernel of the record waited for each k-tile after the first round: products of one round are compared."""
    record = RESULTS / "20261129T013040-nvidia-h200-a2edd0b501.jsonl"
    _, configs, *products = map(json.loads, record.read_text().splitlines())
    shares = []
    for one in products:
        problem = gemm_problem(*(one[x] for x in ("m", "n", "k", "dtype", "dtype", "layout")))
        for number, measured in one["times_us"].items():
            if configs["kernels"][int(number)] == SPEC.name:
                config = UnalignedMmaConfig(**configs["configs"][int(number)])
                if problem.k <= config.depth * config.k_tiles * config.cluster_k:
                    shares.append(SPEC.cost(problem, config, H200_RATES) / measured)
    assert len(shares) > 200
    assert statistics.median(shares) == pytest.approx(1, abs=0.05)
    assert 0.75 < min(shares) < max(shares) < 1.35


def test_where_it_is_expected_to_be_faster():
    assert is_faster(product(127, 127, 127), 5, H200_RATES)
    assert not is_faster(product(127, 127, 127), 1, H200_RATES)
    # Aligned, large, and of another type.
    assert not is_faster(product(128, 128, 128), math.inf, H200_RATES)
    assert not is_faster(product(4095, 4095, 127), math.inf, H200_RATES)
    assert not is_faster(gemm_problem(127, 127, 127, "int8", "int32", "nt"), math.inf, H200_RATES)


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        ((771, 143, 71), "nt", "mma_sync_unaligned"),
        ((117, 115, 7419), "tn", "mma_sync_unaligned"),
        ((1001, 745, 359), "nn", "hopper_gemm_repacked"),
        ((2047, 2047, 2047), "nn", "hopper_gemm_repacked"),
        ((128, 128, 128), "nn", "hopper_gemm"),
    ],
)
def test_choice(shape, layout, name):
    assert choose(product(*shape, layout), HOPPER, multiprocessors=132).spec.name == name


def test_clusters_need_hopper():
    split = next(one for one in SPEC.configs if one.cluster_k > 1)
    assert SPEC.why_not(product(127, 127, 1277), HOPPER, split) is None
    assert "sm_80 has no clusters" in SPEC.why_not(product(127, 127, 1277), AMPERE, split)
    assert SPEC.launch(product(127, 65, 1277), split).grid == (4 * split.cluster_k, 3, 1)
