"""The predicted times of Hopper's production kernel, by their causes, and beside times that were measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from gemmule.core.dtype import Precision
from gemmule.core.gpu_rates import H100_RATES, H200_RATES
from gemmule.kernels.hopper.cost import correction as learned
from gemmule.kernels.hopper.cost.correction import correction
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.times import leading_count, limits, rates_of, times_us
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import (
    FOR_H200,
    FOR_MN_MAJOR_A,
    FOR_SHARED_ROWS,
    FOR_THREE_CONSUMERS,
)
from gemmule.kernels.hopper.gemm.cost import costs
from gemmule.kernels.hopper.gemm.layer_configs import FOR_LAYERS
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.gemm.width_configs import FOR_WIDTHS
from gemmule.lab.products import gemm_problem


def config(**fields):
    return HopperGemmConfig(**{"stages": 4, "pingpong": 1, "cluster_m": 1} | fields)


SMALL = config(tile_m=64, tile_n=64, stages=8)


def us(m, n, k, taken=SMALL, layout="nt", dtype="bfloat16", gpu=H200_RATES):
    return costs(gemm_problem(m, n, k, dtype, dtype, layout), (taken,), gpu)[0]


def test_a_tile_more_than_there_are_pairs_of_multiprocessors_costs_all_of_them():
    # Pitches that are not multiples of 128 bytes, so that what comes from the L2 cache is the limit.
    times = [us(64, 64 * tiles, 4104) for tiles in (65, 66, 67, 68)]
    assert times[1] < 1.01 * times[0]
    assert times[2] > 1.15 * times[1]
    assert times[3] < 1.01 * times[2]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_lines_take_longer_the_less_aligned_they_are(layout):
    # K, and M and N, by a multiple of 64 elements, of 16, and of 8, and no more slices.
    times = [us(4096 - less, 4096 - less, 4096 - less, layout=layout) for less in (0, 16, 8)]
    assert times[0] < 0.93 * times[1] < 0.93 * times[2]


def test_parts_of_k_share_slices_and_pay_for_their_sums():
    # As few tiles as leave multiprocessors idle gain; where there are many, sums only cost.
    split = config(tile_m=64, tile_n=64, stages=8, cluster_k=4)
    assert us(256, 256, 8192, split) < 0.5 * us(256, 256, 8192)
    assert us(4096, 4096, 1024, split) > us(4096, 4096, 1024)


def test_slices_of_parts_take_longer_in_pairs():
    split = config(tile_m=64, tile_n=64, stages=8, cluster_k=2)
    # 3 waves of 108 slices; or 5 of 54, which took as long: 53.2 and 53.8 us on an H200 (record 20261122T082050).
    assert us(600, 1808, 6912, split) > 0.9 * us(600, 1808, 6912)


@pytest.mark.parametrize("shape", [(65536, 65536, 8192), (1000, 65536, 8192), (16320, 16480, 15488)], ids=str)
def test_splits_of_k_are_for_products_of_one_wave(shape):
    times = costs(gemm_problem(*shape, "bfloat16", "bfloat16", "nt"), SPEC.configs, H200_RATES)
    finite = [one for one, time in zip(SPEC.configs, times, strict=True) if np.isfinite(time)]
    assert finite
    assert not any(one.split_k for one in finite)
    few = costs(gemm_problem(512, 512, 8192, "bfloat16", "bfloat16", "nt"), SPEC.configs, H200_RATES)
    assert any(one.split_k and np.isfinite(time) for one, time in zip(SPEC.configs, few, strict=True))


def test_wide_results_of_a_short_k_are_limited_by_memory():
    wide = config(tile_m=128, tile_n=192)
    # 4.8 TB a second is what the memory can: 512 MB of results.
    assert us(16384, 16384, 32, wide) > 100


def test_rows_beyond_a_result_are_not_written():
    assert us(16, 64, 64) < us(64, 64, 64)


def test_a_narrow_swizzle_takes_longer_and_no_more_where_lines_begin_anywhere():
    whole, narrow = config(tile_m=128, tile_n=128), config(tile_m=128, tile_n=144)
    # Across K, rows of 288 bytes are brought in pieces of 32.
    ratios = []
    for k in (4096, 4104):
        of_narrow, of_whole = us(k, k, 4096, narrow, "tn"), us(k, k, 4096, whole, "tn")
        ratios.append(of_narrow / of_whole)
    assert 1.1 < ratios[1] < 1.1 * ratios[0]


@pytest.mark.parametrize(
    ("layout", "shape", "gpu", "offered"),
    [
        ("tt", (2000, 2008, 2000), H200_RATES, True),
        ("nn", (2000, 2008, 2000), H200_RATES, True),
        ("tt", (2000, 2008, 2000), H100_RATES, False),
        ("tt", (2000, 2008, 900), H200_RATES, False),
        ("nt", (2000, 2048, 2048), H200_RATES, False),
    ],
)
def test_further_configs_are_offered_to_an_h200s_products_that_are_no_layers(layout, shape, gpu, offered):
    # Times of configs that split K are infinite in several waves.
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", layout)
    some = [one for one in FOR_H200 if not one.split_k and one.side_by_side and one.swap_ab == (layout == "nn")]
    every = (*SPEC.configs[:40], *some)
    assert some
    assert np.isfinite(costs(problem, every, gpu)[40:]).all() == offered


@pytest.mark.parametrize(
    ("layout", "swap_ab", "gpu", "offered"),
    [
        ("nn", 1, H200_RATES, True),
        ("tt", 0, H200_RATES, True),
        # The kernel's B is MN-major.
        ("nn", 0, H200_RATES, False),
        ("tn", 1, H200_RATES, False),
        ("nn", 1, H100_RATES, False),
    ],
)
def test_widths_of_k_major_operands_are_offered_to_an_h200s_products_with_an_mn_major_a(layout, swap_ab, gpu, offered):
    problem = gemm_problem(2000, 2008, 2000, "bfloat16", "bfloat16", layout)
    widths = (*FOR_SHARED_ROWS, *FOR_LAYERS, *FOR_MN_MAJOR_A)
    some = [one for one in widths if one.swap_ab == swap_ab and not one.split_k]
    every = (*SPEC.configs[:40], *some)
    assert some
    assert (np.isfinite(costs(problem, every, gpu)[40:]) == offered).all()


@pytest.mark.parametrize(
    ("layout", "shape", "gpu", "offered"),
    [
        ("nn", (2000, 2008, 2000), H200_RATES, {(swap_ab, True) for swap_ab in (0, 1)} | {(1, False)}),
        ("tt", (2000, 2008, 2000), H200_RATES, {(swap_ab, True) for swap_ab in (0, 1)} | {(0, False)}),
        ("tn", (2000, 2008, 2000), H200_RATES, {(swap_ab, True) for swap_ab in (0, 1)}),
        ("nt", (2000, 2048, 2048), H200_RATES, set()),
        ("nt", (2000, 2008, 900), H200_RATES, set()),
        ("nt", (2000, 2008, 2000), H100_RATES, set()),
    ],
)
def test_widths_are_offered_where_rows_of_b_in_shared_memory_have_64_bytes(layout, shape, gpu, offered):
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", layout)
    some = [one for one in FOR_WIDTHS if not one.split_k]
    times = costs(problem, (*SPEC.configs[:40], *some), gpu)[40:]
    found = {(one.swap_ab, one.mma_n % 32 == 0) for one, time in zip(some, times, strict=True) if np.isfinite(time)}
    assert found == offered


@pytest.mark.parametrize(
    ("layout", "gpu", "offered"),
    [("tn", H200_RATES, {192}), ("tn", H100_RATES, set()), ("tt", H200_RATES, {160, 176, 192, 208})],
)
def test_warpgroups_side_by_side_by_an_mn_major_b_have_rows_of_64_bytes(layout, gpu, offered):
    problem = gemm_problem(2000, 2008, 2000, "bfloat16", "bfloat16", layout)
    some = [one for one in FOR_H200 if one.side_by_side and not one.swap_ab]
    times = costs(problem, (*SPEC.configs[:40], *some), gpu)[40:]
    assert {one.tile_n for one, time in zip(some, times, strict=True) if np.isfinite(time)} == offered


@pytest.mark.parametrize(
    ("layout", "shape", "gpu", "offered"),
    [
        ("nt", (300, 6144, 24576), H200_RATES, "all"),
        ("tt", (2000, 2008, 2000), H200_RATES, "all"),
        # Of an MN-major B rows of 64 bytes and more.
        ("nn", (2000, 2008, 2000), H200_RATES, "whole"),
        ("tt", (2000, 2008, 900), H200_RATES, "none"),
        ("nt", (300, 6144, 24576), H100_RATES, "none"),
    ],
)
def test_three_consumers_are_offered_to_an_h200s_layers_and_other_products_of_a_long_k(layout, shape, gpu, offered):
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", layout)
    some = [one for one in FOR_THREE_CONSUMERS if not one.split_k and not one.swap_ab]
    times = costs(problem, (*SPEC.configs[:40], *some), gpu)[40:]
    wanted = [offered == "all" or (offered == "whole" and one.tile_n % 32 == 0) for one in some]
    assert any(wanted) == (offered != "none")
    assert np.isfinite(times).tolist() == wanted


def test_a_chip_with_less_bandwidth_takes_longer_where_memory_is_the_limit():
    wide = config(tile_m=128, tile_n=192)
    fast = us(16384, 16384, 64, wide)
    assert us(16384, 16384, 64, wide, gpu=H100_RATES) > 1.15 * fast


@pytest.mark.parametrize(
    ("rate", "shape", "taken", "share"),
    [
        ("multiply", (8192, 8192, 8192), config(tile_m=128, tile_n=192), 0.6),
        ("load", (4104, 4104, 4104), SMALL, 0.3),
        ("launch", (64, 64, 64), SMALL, 0.2),
    ],
)
def test_a_rate_counts_where_it_is_the_limit(rate, shape, taken, share):
    # Of twice the factor, at least that share of twice the time.
    slower = dataclasses.replace(H200_RATES, **{rate: 2.0})
    assert us(*shape, taken, gpu=slower) > (1 + share) * us(*shape, taken)


def test_the_correction_is_bounded_far_from_what_was_measured():
    for shape in ((1, 1, 1), (2**20, 64, 64), (64, 2**20, 2**14), (2**17, 2**17, 2**17)):
        operation = operation_of(gemm_problem(*shape, "bfloat16", "bfloat16", "nn"))
        rates = rates_of(SPEC.configs)
        total, quantities = limits(operation, rates)
        factor = correction(rates, operation, quantities, rates.places)
        assert ((factor > 0.57) & (factor < 1.75)).all()
        assert (total > 0).all()


@pytest.mark.parametrize(
    ("layout", "gpu", "shape", "name"),
    [
        ("nn", H100_RATES, (1000, 2008, 500), "network"),
        ("tt", H200_RATES, (1000, 2008, 500), "network"),
        ("nn", H200_RATES, (4096, 4096, 4096), "large"),
        # Layers are those of an H200 by K-major operands, of whole lines of 128 bytes and 2048 columns and more.
        ("nt", H200_RATES, (1000, 2048, 2048), "layers"),
        ("nt", H100_RATES, (1000, 2048, 2048), "network"),
        # Others with 16 k-tiles and more are draws.
        ("nn", H200_RATES, (1000, 2048, 2048), "draws"),
        ("nn", H100_RATES, (1000, 2048, 2048), "network"),
        ("nt", H200_RATES, (1000, 1984, 2048), "draws"),
        ("nt", H200_RATES, (1000, 2048, 1984), "draws"),
        ("nt", H200_RATES, (1000, 2080, 2048), "draws"),
        ("tt", H200_RATES, (1000, 2008, 960), "network"),
        ("tt", H200_RATES, (1000, 2008, 968), "draws"),
    ],
)
def test_the_correction_is_what_its_network_gives(layout, gpu, shape, name):
    content = json.loads((Path(learned.__file__).parent / "correction.json").read_text())
    operation = operation_of(gemm_problem(*shape, "bfloat16", "bfloat16", layout))
    rates = rates_of(SPEC.configs, gpu)
    _, quantities = limits(operation, rates)
    read = learned.read_of(quantities, rates.places)
    problem = np.array(learned.problem_features(operation))[rates.side]
    # Numbers of the product are among both.
    assert np.allclose(read.T[:, -learned.NUMBERS :], problem[:, : learned.NUMBERS])
    features = {
        "config": rates.features(),
        "operands": rates.of_layout(operation).features,
        "mixed": read.T[:, : -learned.NUMBERS],
        "problem": problem,
    }

    net = {part: np.array(value) for part, value in content[name].items()}
    first = sum(value @ net[part] for part, value in features.items())
    first = np.maximum(first + net["chips"][content["chips"].index(gpu.learned)], 0)
    second = np.maximum(first @ net["hidden"] + net["biases"], 0)
    expected = np.exp2(np.clip(second @ net["out"] + net["out_bias"], -0.8, 0.8))
    some = np.array([5, 0, 40])
    assert np.allclose(correction(rates, operation, quantities, rates.places), expected, rtol=1e-4)
    assert np.allclose(correction(rates, operation, quantities, some), expected[some], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(104, 6000, 2000), (4096, 4096, 4096), (1, 64, 40000)])
def test_the_best_config_leads_by_the_limits(shape, dtype):
    operation = operation_of(gemm_problem(*shape, dtype, "bfloat16", "nt"))
    rates = rates_of(SPEC.configs)
    total, quantities = limits(operation, rates)
    factors = correction(rates, operation, quantities, rates.places)
    times, leading = times_us(operation, rates), np.argsort(total)[: leading_count(rates.count, operation.float8)]
    assert 24 <= leading.size < (0.55 if operation.float8 else 0.4) * rates.count
    # But for splits of products of several waves, others have the largest factor, so that none is the least.
    expected = total * factors[leading].max()
    expected[leading] = (total * factors)[leading]
    finite = np.isfinite(times)
    assert set(np.flatnonzero(~finite)) <= {*rates.split_k}
    assert np.allclose(times[finite], expected[finite], rtol=1e-4)
    assert times.argmin() in leading


def test_configs_lead_among_those_of_prepared_operands_and_among_those_of_others():
    problem = dataclasses.replace(
        gemm_problem(1000, 2008, 512, "float32", "float32", "tn"), precision=Precision.parse("tf32")
    )
    operation = operation_of(problem, prepares=True)
    configs = SPEC.configs[:90]
    both = times_us(operation, rates_of(configs * 2, own=len(configs)))
    for times, one in zip(np.split(both, 2), operation.each(), strict=True):
        alone = times_us(one, rates_of(configs))
        assert times.argmin() == alone.argmin()
        assert times.min() == pytest.approx(alone.min(), rel=1e-4)
