"""Predicted times of mma_sync_small, its configs, and where it is expected to be faster."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from pathlib import Path
from random import Random

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.former_names import current_names, current_record
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.mma_sync.small.config import SmallMmaConfig
from gemmule.kernels.mma_sync.small.spec import SPEC, is_faster
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC_GEMM
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


@pytest.mark.parametrize(
    ("shape", "layout", "arch", "sms"),
    [
        ((352, 693, 2530), "nt", AMPERE, 108),
        ((693, 132, 4204), "nt", AMPERE, 108),
        ((658, 434, 2496), "tn", Arch.parse("sm_89"), 128),
    ],
)
def test_no_kernel_is_left_for_clusters_that_a_gpu_lacks(shape, layout, arch, sms):
    """The least time of mma_sync_small is of clusters, which sm_90 has; without them mma_sync_gemm is faster."""
    problem, gpu = product(*shape, layout), dataclasses.replace(H200_RATES, multiprocessors=sms)
    _, without = SPEC.cheapest(problem, arch, gpu)
    _, other = MMA_SYNC_GEMM.cheapest(problem, arch, gpu)
    assert SPEC.least_cost(problem, gpu) < other < without
    assert choose(problem, arch, multiprocessors=sms).spec is MMA_SYNC_GEMM
    # Where tiles without clusters are faster they run.
    assert choose(product(127, 127, 127), arch, multiprocessors=sms).spec.name == SPEC.name


def test_a_round_is_one_wait():
    # Matrices in L2, and in device memory; a round of four k-tiles, or two rounds.
    two, four = (next(x for x in SPEC.configs if (x.k_tiles, x.cluster_k) == (rounds, 1)) for rounds in (2, 4))
    for shape in ((33, 33, 511), (65, 65, 5119)):
        assert SPEC.cost(product(*shape), four, H200_RATES) < SPEC.cost(product(*shape), two, H200_RATES)
    short = product(33, 33, 127)
    assert SPEC.cost(short, two, H200_RATES) < SPEC.cost(short, four, H200_RATES)


def test_clusters_that_do_not_fit_share_sms():
    # GPCs of 16 or 18 SMs have four clusters of four CTAs each, and one of 8 two: 30, of which no SM has two CTAs.
    config = next(x for x in SPEC.configs if x.cluster_k == 4 and x.tile_m == 32)
    fits, more, most = (SPEC.cost(product(32, 32 * tiles - 1, 1023), config, H200_RATES) for tiles in (30, 31, 33))
    assert more > fits + 0.3
    assert most < more + 0.1


def test_c_is_read():
    plain = product(127, 127, 127)
    c = dataclasses.replace(plain, c=plain.d, beta=1)
    assert SPEC.least_cost(c, H200_RATES) > SPEC.least_cost(plain, H200_RATES) + 0.3


def records():
    """Yield products of the record, with the measured times of kernels and their configs."""
    record = RESULTS / "20261129T023120-nvidia-h200-b50fda3ab0.jsonl"
    _, configs, *products = (current_record(json.loads(line)) for line in record.read_text().splitlines())
    kernels = [current_names(name) for name in configs["kernels"]]
    for one in products:
        times = {(kernels[int(x)], json.dumps(configs["configs"][int(x)])): us for x, us in one["times_us"].items()}
        yield gemm_problem(*(one[x] for x in ("m", "n", "k", "dtype", "dtype", "layout"))), times


def test_predicted_times_beside_measured_ones():
    shares = []
    for problem, times in records():
        mine = {config: us for (kernel, config), us in times.items() if kernel == SPEC.name}
        if mine:
            config = min(mine, key=mine.get)
            cost = SPEC.cost(problem, SmallMmaConfig(**json.loads(config)), H200_RATES)
            shares.append(cost / mine[config])
    assert len(shares) > 70
    assert statistics.median(shares) == pytest.approx(1, abs=0.03)
    assert 0.75 < min(shares) < max(shares) < 1.5


def test_choices_of_a_record_are_hardly_slower_than_any_kernel():
    losses = []
    for problem, times in records():
        choice = choose(problem, HOPPER, multiprocessors=132)
        found = [us for (kernel, config), us in times.items() if kernel == choice.spec.name]
        mine = times.get((SPEC.name, json.dumps(choice.config.as_dict())))
        # Of other kernels a record has the config that was chosen then.
        chosen = mine if choice.spec is SPEC else min(found, default=None)
        if choice.spec is REPACKED:
            # The record is older than splits of K in hopper_gemm_unaligned, and than how it writes rows.
            chosen = REPACKED.least_cost(problem, H200_RATES)
        if chosen is not None:
            losses.append(chosen / min(times.values()))
    assert len(losses) > 70
    assert max(losses) < 1.15
    assert statistics.geometric_mean(losses) < 1.01


def test_no_large_product_is_chosen():
    random = Random(6)
    for _ in range(200):
        step = random.choice((1, 2, 4, 8))
        m, n, k = (random.randrange(768, 4096) // step * step for _ in range(3))
        name = choose(product(m, n, k, random.choice(("nn", "nt", "tn", "tt"))), HOPPER, multiprocessors=132).spec.name
        assert name != SPEC.name, (m, n, k)


def test_what_it_refuses_falls_to_another_kernel():
    plain = product(128, 128, 128)
    silu = Epilogue(Expression(("acc", "silu 0")))
    for epilogue, name in (
        (None, SPEC.name),
        (silu, SPEC.name),
        (dataclasses.replace(silu, absmax=True), "hopper_gemm"),
        (Epilogue(Expression(("acc", "up", "mul 0 1")), second=plain.b), "hopper_gemm"),
    ):
        chosen = choose(dataclasses.replace(plain, epilogue=epilogue), HOPPER, multiprocessors=132)
        assert chosen.spec.name == name


def test_where_it_is_expected_to_be_faster():
    assert is_faster(product(127, 127, 127), 5, H200_RATES)
    assert not is_faster(product(127, 127, 127), 1, H200_RATES)
    assert is_faster(product(128, 128, 128), 1.6, H200_RATES)
    # Large, and of another type.
    assert not is_faster(product(4095, 4095, 127), math.inf, H200_RATES)
    assert not is_faster(gemm_problem(127, 127, 127, "int8", "int32", "nt"), math.inf, H200_RATES)


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        ((771, 143, 71), "nt", "mma_sync_small"),
        ((71, 395, 1423), "nn", "hopper_gemm_repacked"),
        ((13, 7835, 441), "tn", "mma_sync_small"),
        ((117, 115, 7419), "tn", "hopper_gemm_repacked"),
        ((1001, 745, 359), "nn", "hopper_gemm_repacked"),
        ((2047, 2047, 2047), "nn", "hopper_gemm_repacked"),
        # Aligned ones: a short K, then a longer one, whose times are about equal.
        ((128, 128, 128), "nn", "mma_sync_small"),
        ((64, 256, 72), "nt", "mma_sync_small"),
        ((384, 64, 64), "tn", "mma_sync_small"),
        ((200, 96, 512), "nt", "hopper_gemm"),
        ((48, 48, 1024), "nn", "hopper_gemm"),
        ((2048, 2048, 64), "nn", "hopper_gemm"),
        # Rows that begin at multiples of 8 bytes.
        ((100, 100, 100), "nn", "mma_sync_small"),
        ((52, 404, 252), "tt", "mma_sync_small"),
    ],
)
def test_choice(shape, layout, name):
    assert choose(product(*shape, layout), HOPPER, multiprocessors=132).spec.name == name


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        # Odd ones, then aligned ones: small ones, a longer K, and more rows and columns.
        ((467, 67, 105), "tt", "mma_sync_small"),
        ((87, 89, 683), "nt", "mma_sync_small"),
        ((789, 1235, 125), "nn", "mma_sync_small"),
        ((17, 109, 6179), "tt", "mma_sync_gemm"),
        ((2529, 811, 1815), "tn", "hopper_gemm_k_major"),
        ((579, 407, 719), "nt", "hopper_gemm_repacked"),
        ((140, 584, 68), "tt", "mma_sync_small"),
        ((312, 200, 164), "tn", "mma_sync_small"),
        ((480, 212, 708), "tn", "mma_sync_gemm"),
        ((324, 740, 264), "nt", "hopper_gemm"),
    ],
)
def test_choice_of_tf32(shape, layout, name):
    problem = dataclasses.replace(gemm_problem(*shape, "float32", "float32", layout), precision=Precision.TF32)
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == name


def test_odd_results_with_an_epilogue_and_few_rows_are_not_repacked():
    plain = product(3, 2047, 3000)
    relu = dataclasses.replace(plain, epilogue=Epilogue(Expression.parse("acc; relu 0"), (), ()))
    assert {choose(one, HOPPER, multiprocessors=132).spec.name for one in (plain, relu)} == {SPEC.name}


def test_large_ctas_have_one_round():
    large = next(one for one in SPEC.configs if one.threads == 512)
    assert math.isfinite(SPEC.cost(product(65, 65, 255), large, H200_RATES))
    assert math.isinf(SPEC.cost(product(65, 65, 257), large, H200_RATES))


def test_clusters_need_hopper():
    split = next(one for one in SPEC.configs if one.cluster_k > 1)
    assert SPEC.why_not(product(127, 127, 1277), HOPPER, split) is None
    assert "sm_80 has no clusters" in SPEC.why_not(product(127, 127, 1277), AMPERE, split)
    assert SPEC.launch(product(127, 65, 1277), split).grid == (4 * split.cluster_k, 3, 1)


@pytest.mark.parametrize(("shape", "overlaps"), [((205, 2099, 101), True), ((12, 3358, 6142), False)])
def test_launches_overlap_up_to_4_mb(shape, overlaps):
    assert SPEC.launch(product(*shape, "tn"), SPEC.default).overlaps == overlaps
