"""Limits of simt_gemm's configs: masks of copies, and clusters that not every GPU holds."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H100_RATES
from gemmule.dispatch.select import choose
from gemmule.kernels.simt.batched.spec import SPEC as BATCHED
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.cost import limits
from gemmule.kernels.simt.gemm.spec import SPEC as GEMM
from gemmule.lab.products import gemm_problem


@pytest.mark.parametrize(("tile_m", "tile_n"), [(32, 96), (96, 32)])
def test_copies_beyond_the_bits_of_a_mask_are_refused(tile_m, tile_n):
    with pytest.raises(ArgumentError, match="a thread may copy at most 32 elements"):
        SimtConfig(tile_m=tile_m, tile_n=tile_n, tile_k=16, warps_m=1, warps_n=1)


@pytest.mark.parametrize("spec", [GEMM, BATCHED], ids=lambda spec: spec.name)
def test_large_clusters_are_taken_on_whole_gpus_of_one_architecture(spec):
    problem = gemm_problem(16, 64, 8192, "float32", "float32", "nn")
    large = max(spec.configs, key=lambda config: config.cluster_size)
    assert large.cluster_size == 16
    assert spec.why_not(problem, Arch.parse("sm_90a"), large) is None
    assert "known to fit on sm_90 only" in spec.why_not(problem, Arch.parse("sm_100a"), large)
    whole, part = (spec.configs_on(dataclasses.replace(H100_RATES, multiprocessors=count)) for count in (114, 60))
    assert large in whole
    assert max(config.cluster_size for config in part) == 8


@pytest.mark.parametrize("sms", [132, 60, 8])
def test_choices_hold_to_the_clusters_of_the_gpu(sms):
    for rows, k in itertools.product((8, 32), (1000, 8192, 50000)):
        problem = gemm_problem(rows, 32, k, "float32", "float32", "nn")
        choice = choose(problem, Arch.parse("sm_90a"), multiprocessors=sms, tuned=False)
        assert choice.config.cluster_size <= (16 if sms == 132 else 8)


@pytest.mark.parametrize(
    ("ctas", "clusters", "busiest"),
    [
        *((3, 39, 1), (3, 40, 2), (3, 79, 2), (3, 80, 3), (3, 124, 3), (3, 125, 4), (3, 162, 4), (3, 168, 5)),
        *((4, 30, 1), (4, 31, 2), (4, 62, 2), (4, 63, 3), (4, 92, 3), (4, 93, 4)),
        *((6, 17, 1), (6, 18, 2), (6, 39, 2), (6, 40, 3), (6, 60, 3), (6, 100, 5), (6, 162, 8)),
        *((8, 15, 1), (8, 16, 2), (8, 30, 2), (8, 31, 3)),
        *((16, 7, 1), (16, 8, 2), (16, 14, 2), (16, 15, 3)),
    ],
)
def test_clusters_that_do_not_fit_take_the_time_of_one_cta_more(ctas, clusters, busiest):
    config = SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=ctas)
    problem = gemm_problem(64 * clusters, 64, 4096, "float32", "float32", "tn")
    assert limits(problem, (config,), H100_RATES).ctas == [busiest]


@pytest.mark.parametrize("chip", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_batches_that_memory_bounds_stay_with_the_kernel_that_was_fitted_to_them(chip):
    problem = gemm_problem(32, 32, 32, "float64", "float64", "nn", batch=(8192,))
    choice = choose(problem, Arch.parse("sm_90a"), multiprocessors=132, chip=chip, tuned=False)
    assert choice.spec.name == BATCHED.name
    # Three CTAs an SM, not two.
    assert (choice.config.thread_m, choice.config.matrices) == (4, 2)


@pytest.mark.parametrize(("ctas", "writers"), [(1, 1), (3, 2), (6, 4), (7, 4), (16, 8)])
def test_as_many_ctas_write_as_divide_the_rows_of_a_thread(ctas, writers):
    assert SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=ctas).writers == writers


@pytest.mark.parametrize("extents", [(96, 64), (64, 96), (32, 32)])
def test_rows_that_all_warps_copy_at_once_divide_a_side_or_all_panels(extents):
    SimtConfig(tile_m=96, tile_n=96, tile_k=32, warps_m=3, warps_n=1, stages=3, warps_k=2)
    with pytest.raises(ArgumentError, match="multiples of the 24 rows that all warps copy at once"):
        SimtConfig(*extents, tile_k=48, warps_m=1, warps_n=1, stages=3, warps_k=6)


def test_stages_that_other_gpus_have_no_room_for_are_refused():
    config = SimtConfig(tile_m=96, tile_n=192, tile_k=32, warps_m=3, warps_n=2, stages=4, warps_k=2)
    assert config in GEMM.configs
    problem = gemm_problem(1536, 1536, 1536, "float32", "float32", "nt")
    assert GEMM.why_not(problem, Arch.parse("sm_90a"), config) is None
    assert "bytes of shared memory; a CTA on sm_86 has up to" in GEMM.why_not(problem, Arch.parse("sm_86"), config)


@pytest.mark.parametrize(("tile_k", "warps_k"), [(16, 4), (32, 3)])
def test_groups_of_warps_have_whole_octets_of_k(tile_k, warps_k):
    with pytest.raises(ArgumentError, match="tile_k must be 8 or 16 times warps_k"):
        SimtConfig(tile_m=64, tile_n=64, tile_k=tile_k, warps_m=2, warps_n=1, warps_k=warps_k)


@pytest.mark.parametrize(("extents", "groups"), [((81, 137, 5157), 4), ((172, 2328, 1116), 4), ((4096, 4096, 4096), 1)])
def test_groups_of_warps_share_the_tiles_that_they_were_timed_for(extents, groups):
    problem = gemm_problem(*extents, "float32", "float32", "tn")
    choice = choose(problem, Arch.parse("sm_90a"), multiprocessors=132, tuned=False)
    assert choice.config.warps_k == groups


def test_partial_sums_of_groups_of_warps_fit_into_the_stages():
    with pytest.raises(ArgumentError, match="the partial sums fit into the stages"):
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, warps_k=2)
