"""The predicted times of float64's kernel on tensor cores, by their causes, and beside times that were measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.former_names import current_record
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def config(**fields):
    return next(x for x in SPEC.configs if all(getattr(x, name) == value for name, value in fields.items()))


def us(m, n, k, taken):
    return SPEC.cost(gemm_problem(m, n, k, "float64", "float64", "nn"), taken, H200_RATES)


def test_every_round_of_ctas_begins_with_a_wait():
    taken = config(tile_m=64, tile_n=64, cluster_k=1)
    together = 132 * taken.resident
    one, two = (us(64, 64 * tiles, 16, taken) for tiles in (together, together + 1))
    assert two > one + 0.6


def test_parts_of_k_share_slices_where_there_are_few_tiles():
    split, whole = config(tile_m=16, cluster_k=4), config(tile_m=16, cluster_k=2)
    assert us(64, 64, 8192, split) < 0.8 * us(64, 64, 8192, whole)


def test_memory_limits_wide_results_of_a_short_k():
    # 2 GB of results at less than the 4.8 TB a second of the chip.
    assert us(16384, 16384, 16, SPEC.default) > 16384**2 * 8 / 4.8e6


def test_all_at_once_as_one_by_one():
    problem = gemm_problem(500, 700, 900, "float64", "float64", "tt")
    one_by_one = [SPEC.cost(problem, one, H200_RATES) for one in SPEC.configs]
    assert SPEC.costs(problem, SPEC.configs, H200_RATES) == pytest.approx(one_by_one, rel=1e-5)


@pytest.mark.parametrize(
    "record",
    [
        "20261122T113015-nvidia-h200-38de70c612.jsonl",
        "20261122T133327-nvidia-h200-5b4ca114ea.jsonl",
        # Not among those that the constants are fitted to.
        "20261122T141408-nvidia-h200-c9aa662e10.jsonl",
    ],
)
def test_choices_beside_measured_times_of_all_configs(record):
    shares, told = [], []
    for line in (RESULTS / record).read_text().splitlines():
        one = current_record(json.loads(line))
        if one.get("kernel") != SPEC.name:
            continue
        problem = gemm_problem(one["m"], one["n"], one["k"], "float64", "float64", one["layout"])
        looked = {Float64Config(**x["config"]): x["median_us"] for x in one["looked"]}
        # Configs that were registered later were not measured.
        configs = [config for config in SPEC.configs if config in looked]
        predicted = SPEC.costs(problem, configs, H200_RATES)
        chosen = min(range(len(configs)), key=predicted.__getitem__)
        taken = looked[configs[chosen]]
        shares.append(min(looked.values()) / taken)
        told.append(predicted[chosen] / taken)
    assert len(shares) > 3
    assert min(shares) > 0.88
    assert statistics.geometric_mean(shares) > 0.95
    assert statistics.median(told) == pytest.approx(1, abs=0.15)
