"""Clusters that take tiles in another order on the virtual GPU, all checks on: the result depends on no permutation."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gemmule.core.dtype import FLOAT16
from gemmule.core.launch import ClusterOrderParam
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import FOR_GPC_ORDER
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.epilogue_cases import CASES
from support.vgpu.epilogues import finish
from support.vgpu.hopper_products import check_product
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Clusters that share activations, with swap_ab too; small tiles, whose divisors are computed first; more than 64 CTAs.
COOPERATIVE = HopperGemmConfig(128, 32, 3, cluster_m=1, cluster_n=2, group=64, ctas=20, gpc_order=1)
SWAPPED = HopperGemmConfig(128, 96, 3, 1, 2, swap_ab=1, group=1, ctas=12, gpc_order=1)
SMALL = HopperGemmConfig(64, 64, 3, 1, 1, 2, group=64, ctas=24, gpc_order=1)
SINGLE = HopperGemmConfig(64, 16, 3, 1, 1, group=64, ctas=100, gpc_order=1)
CONFIGS = {"cooperative": COOPERATIVE, "swap_ab": SWAPPED, "small": SMALL, "single": SINGLE}


@pytest.fixture(autouse=True)
def shuffled(monkeypatch):
    """Permute the clusters of every launch at random."""

    def pack(self, pointers):
        del pointers
        return self.bytes_of(random.Random(self.clusters).sample(range(self.clusters), self.clusters))

    monkeypatch.setattr(ClusterOrderParam, "pack", pack)
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


@pytest.mark.combinations(1)
@pytest.mark.parametrize("shape", [(200, 600, 136), (328, 264, 72), (8, 8, 8)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_ragged_shapes(config, shape, rng):
    check_product(config, shape, rng)


def test_a_batch_and_an_addend(rng):
    check_product(SWAPPED, (104, 200, 136), rng, FLOAT16, FLOAT16, (3,), adds=True)


def test_a_function(rng, monkeypatch):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(COOPERATIVE,)),))
    finish(CASES["row_bias_silu"], rng, shape=(264, 200, 136))


@pytest.mark.slow
@pytest.mark.parametrize("config", FOR_GPC_ORDER, ids=str)
def test_registered_configs(config, rng):
    check_product(config, (200, 584, 264), rng)
