"""The predicted times of float64's kernel on tensor cores, by their causes, and beside times that were measured."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from gemmule.core.gpu_rates import H100_RATES, H200_RATES
from gemmule.dispatch.former_names import current_record
from gemmule.kernels.float64 import correction as learned
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.correction import measured_share
from gemmule.kernels.float64.cost import FACTORS, power
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.kernels.float64.limits import RATES, key_of, layout_of, limits, tiles_of
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


def product(m, n, k, batch=()):
    return gemm_problem(m, n, k, "float64", "float64", "nn", batch=batch)


@pytest.mark.parametrize(
    "problem",
    [product(32, 500, 700), product(500, 700, 16400), product(140, 140, 140, (20,))],
    ids=str,
)
def test_what_is_far_from_what_was_measured_has_factors_of_configs_alone(problem):
    assert measured_share(problem) == 0
    of_limits = limits(problem, SPEC.configs, H200_RATES, RATES).times.tolist()
    factors = [FACTORS.get(key_of(one), 1.0) for one in SPEC.configs]
    expected = [a * b * power(problem, SPEC.configs) for a, b in zip(of_limits, factors, strict=True)]
    assert SPEC.costs(problem, SPEC.configs, H200_RATES) == expected


@pytest.mark.parametrize("count", [512, 1017])
def test_batches_of_matrices_of_a_few_tiles_run_in_the_fastest_that_was_measured(count):
    costs = SPEC.costs(product(128, 128, 128, (count,)), SPEC.configs, H200_RATES)
    best = min(zip(SPEC.configs, costs, strict=True), key=lambda pair: pair[1])[0]
    assert (best.tile_m, best.tile_n, best.stream_k) == (64, 128, 0)


@pytest.mark.parametrize(
    ("measured", "beyond"), [((8190, 500, 700), (8194, 500, 700)), ((500, 700, 8190), (500, 700, 8194))], ids=str
)
def test_predicted_times_have_no_jump_where_measurements_end(measured, beyond):
    assert measured_share(product(*measured)) == 1
    assert 0 < measured_share(product(*beyond)) < 1
    before, after = (SPEC.costs(product(*extents), SPEC.configs, H200_RATES) for extents in (measured, beyond))
    assert after == pytest.approx(before, rel=0.03)


@pytest.mark.parametrize("extents", [(65, 65, 65), (8191, 8191, 8191), (64, 8191, 65), (70, 66, 8192)], ids=str)
def test_the_correction_is_bounded(extents):
    problem = product(*extents)
    assert measured_share(problem) == 1
    of_limits = limits(problem, SPEC.configs, H200_RATES, RATES).times.tolist()
    factors = np.divide(SPEC.costs(problem, SPEC.configs, H200_RATES), of_limits) / power(problem, SPEC.configs)
    assert (factors > 2**-0.6 * 0.999).all()
    assert (factors < 2**0.6 * 1.001).all()


@pytest.mark.parametrize(("layout", "gpu"), [("nn", H100_RATES), ("tt", H200_RATES)])
def test_the_correction_is_the_mean_of_its_networks(layout, gpu):
    content = json.loads(Path(learned.__file__).with_name("correction.json").read_text())
    problem = gemm_problem(1000, 2008, 501, "float64", "float64", layout)
    found, tiles = limits(problem, SPEC.configs, gpu, RATES), tiles_of(SPEC.configs, RATES)
    features = {
        "config": tiles.features,
        "lies": learned.layout_features(tiles, layout_of(problem)),
        "numbers": learned.numbers(problem, tiles, found),
    }
    every = []
    for net in content["networks"]:
        first = sum(value.T @ np.array(net[name]) for name, value in features.items())
        first = np.maximum(first + net["chips"][content["chips"].index(gpu.learned)], 0)
        second = np.maximum(first @ np.array(net["hidden"]) + net["biases"], 0)
        every.append(second @ net["out"] + net["out_bias"])
    expected = np.exp2(np.clip(np.mean(every, axis=0), -0.6, 0.6))
    assert np.allclose(learned.correction(problem, SPEC.configs, found, gpu), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("record", "gpu"),
    [
        ("20261128T163624-nvidia-h200-945584dac5.jsonl", H200_RATES),
        ("20261128T164414-nvidia-h100-80gb-hbm3-945584dac5.jsonl", H100_RATES),
    ],
)
def test_predictions_beside_draws(record, gpu):
    errors = []
    for line in (RESULTS / record).read_text().splitlines():
        one = json.loads(line)
        if one.get("record") == "gemm" and one["kernel"] == SPEC.name:
            problem = gemm_problem(one["m"], one["n"], one["k"], "float64", "float64", one["layout"])
            errors.append(math.log(SPEC.cost(problem, Float64Config(**one["config"]), gpu) / one["median_us"]))
    assert len(errors) > 50
    assert abs(statistics.mean(errors)) < 0.03
    assert statistics.pstdev(errors) < 0.08
