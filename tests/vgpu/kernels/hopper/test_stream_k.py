"""Stream-K on the virtual GPU, all checks on: tiles of which two, three and more CTAs have parts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT16, dtype_named
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.hopper_products import check_product
from support.vgpu.kernel_products import multiply
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

COOPERATIVE = HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=1, ctas=5, stream_k=1)
PINGPONG = dataclasses.replace(COOPERATIVE, tile_m=64, pingpong=1)
SLOW = [pytest.mark.slow]
#: What the five CTAs have to do, for tiles of 128 x 32 and of 64 x 32: tiles of which two have parts, with whole waves
#: of tiles before or without; two tiles of 17 k-tiles, so that each has parts of three or four; nothing to share.
SHAPES = [
    (136, 104, 328),
    *(pytest.param(shape, marks=SLOW) for shape in ((200, 200, 136), (64, 40, 1032), (136, 160, 72))),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", [COOPERATIVE, PINGPONG], ids=["cooperative", "ping-pong"])
def test_ragged_shapes(config, shape, rng):
    check_product(config, shape, rng)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_batch_with_c(schedule, rng):
    check_product(COOPERATIVE, (136, 40, 136), rng, FLOAT16, FLOAT16, batch=(3,), adds=True, schedule=schedule)


def test_launches_one_after_another(rng):
    """Two launches, since no one batch describes that B: the second finds no flags of the first."""
    m, n, k = 64, 8, 1032
    a = random_matrix(rng, BFLOAT16, (2, 2, m, k))
    b = np.broadcast_to(random_matrix(rng, BFLOAT16, (2, 1, k, n)), (2, 2, k, n))
    assert_product(multiply(SPEC, a, b, poisoned(BFLOAT16, (2, 2, m, n)), config=COOPERATIVE), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "fields",
    [
        {"cluster_m": 2, "ctas": 6},
        {"cluster_n": 2, "ctas": 6},
        {"swap_ab": 1},
        {"tile_m": 64, "pingpong": 1, "swap_ab": 1, "cluster_m": 2, "ctas": 6},
        {"tile_m": 256, "tile_n": 80},
        {"ctas": 17},
    ],
    ids=str,
)
def test_other_configs(fields, schedule, rng):
    config = dataclasses.replace(COOPERATIVE, **fields)
    for shape in ((264, 72, 520), (264, 200, 200), (64, 40, 1032)):
        check_product(config, shape, rng, schedule=schedule, adds=True)


def test_an_epilogue_and_the_absolute_maximum(monkeypatch, rng):
    """Of five CTAs with parts of two tiles, those that have none to finish add nothing to the maximum."""
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(COOPERATIVE,)),))
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    a, b = random_matrix(rng, BFLOAT16, (64, 1032)), random_matrix(rng, BFLOAT16, (1032, 40))
    d, largest = poisoned(dtype_named("float32"), (64, 40)), np.full(1, 1e30, np.float32)
    gm.gemm(a, b, epilogue=lambda acc: acc - 100, out=d, absmax=largest, executor="vgpu")
    assert_product(d + 100, a, b)
    assert largest[0] == np.abs(d).max()
