"""Limits of simt_gemm's configs: masks of copies, and clusters that not every GPU holds."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H100_RATES
from gemmule.dispatch.select import choose
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem


@pytest.mark.parametrize(("tile_m", "tile_n"), [(32, 96), (64, 32)])
def test_copies_beyond_the_bits_of_a_mask_are_refused(tile_m, tile_n):
    with pytest.raises(ArgumentError, match="a thread may copy at most 31 elements"):
        SimtConfig(tile_m=tile_m, tile_n=tile_n, tile_k=16, warps_m=1, warps_n=1)


def test_large_clusters_are_taken_on_whole_gpus_of_one_architecture():
    problem = gemm_problem(64, 64, 8192, "float32", "float32", "nn")
    large = max(SPEC.configs, key=lambda config: config.cluster)
    assert large.cluster == 16
    assert SPEC.why_not(problem, Arch.parse("sm_90a"), large) is None
    assert "known to fit on sm_90 only" in SPEC.why_not(problem, Arch.parse("sm_100a"), large)
    whole, part = (SPEC.configs_on(dataclasses.replace(H100_RATES, multiprocessors=count)) for count in (114, 60))
    assert large in whole
    assert max(config.cluster for config in part) == 8


@pytest.mark.parametrize("sms", [132, 60, 8])
def test_choices_hold_to_the_clusters_of_the_gpu(sms):
    for k in (1000, 8192, 50000):
        problem = gemm_problem(32, 32, k, "float32", "float32", "nn")
        choice = choose(problem, Arch.parse("sm_90a"), multiprocessors=sms, tuned=False)
        assert getattr(choice.config, "cluster", 1) <= (16 if sms == 132 else 8)
