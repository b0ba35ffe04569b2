"""Tiles whose width 16 does not divide, on the virtual GPU, all checks on."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import (
    FOR_H200,
    FOR_MN_MAJOR_A,
    FOR_SHARED_ROWS,
    FOR_THREE_CONSUMERS,
)
from gemmule.kernels.hopper.gemm.layer_configs import FOR_LAYERS
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.gemm.width_configs import FOR_WIDTHS
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.epilogues import finish
from support.vgpu.kernel_products import laid_out, multiply
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: With epilogue tiles of 24 columns and of 8, cooperative and ping-pong, alone and in clusters along N.
COLUMNS = HopperGemmConfig(tile_m=64, tile_n=72, stages=4, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1)
ROWS = HopperGemmConfig(tile_m=128, tile_n=136, stages=4, cluster_m=1)
#: CTAs load slices of B that begin within a swizzle pattern, of 18 rows and of 52.
SLICES = HopperGemmConfig(tile_m=64, tile_n=72, stages=4, pingpong=1, cluster_m=4, swap_ab=1)
#: Warpgroups side by side, of 104 and of 24 columns each.
SIDE_BY_SIDE = HopperGemmConfig(tile_m=64, tile_n=208, stages=4, cluster_m=1, side_by_side=1)
SIDE_BY_SIDE_COLUMNS = HopperGemmConfig(tile_m=192, tile_n=48, stages=4, swap_ab=1, side_by_side=1)
#: Three warpgroups share a tile: of columns by rows in slices of 36, and of rows; stages are used twice.
THREE_COLUMNS = HopperGemmConfig(tile_m=192, tile_n=72, stages=3, cluster_m=2, swap_ab=1, consumers=3)
THREE_ROWS = HopperGemmConfig(tile_m=192, tile_n=160, stages=3, cluster_m=1, cluster_n=2, consumers=3)
#: Epilogue tiles of 8 columns in several batches, which alternate in two buffers.
BATCHES = HopperGemmConfig(tile_m=128, tile_n=232, stages=4, cluster_m=1)
CONFIGS = [
    COLUMNS,
    ROWS,
    SLICES,
    SIDE_BY_SIDE,
    SIDE_BY_SIDE_COLUMNS,
    THREE_COLUMNS,
    THREE_ROWS,
    BATCHES,
    *(
        pytest.param(one, marks=pytest.mark.slow)
        for one in (
            HopperGemmConfig(tile_m=192, tile_n=112, stages=4, pingpong=1, cluster_m=1, swap_ab=1),
            HopperGemmConfig(tile_m=64, tile_n=168, stages=4, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
            HopperGemmConfig(tile_m=64, tile_n=56, stages=4, pingpong=1, cluster_m=1, cluster_n=2),
            HopperGemmConfig(tile_m=256, tile_n=104, stages=3, cluster_m=1, swap_ab=1),
            HopperGemmConfig(tile_m=64, tile_n=24, stages=4, pingpong=1, cluster_m=1, cluster_k=3, swap_ab=1),
            HopperGemmConfig(tile_m=128, tile_n=104, stages=4, cluster_m=2, cluster_n=2),
            HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_n=2, cluster_m=1, swap_ab=1, side_by_side=1),
            *FOR_LAYERS,
            *FOR_H200,
            *FOR_MN_MAJOR_A,
            *FOR_THREE_CONSUMERS,
            *FOR_WIDTHS,
        )
    ),
]
SLOW = [pytest.mark.slow]


@pytest.mark.combinations(1)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(
    ("out", "adds"), [(BFLOAT16, False), (FLOAT32, True), pytest.param(BFLOAT16, True, marks=SLOW)]
)
def test_results(config, out, adds, rng):
    m, n, k = 200, 144, 200
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    c = random_matrix(rng, out, (m, n)) if adds else None
    factors = (0.75, -1.5) if adds else (1, 0)
    d = multiply(SPEC, a, laid_out(b, "col"), poisoned(out, (m, n)), c, *factors, config=config)
    assert_product(d, a, b, *((c, *factors) if adds else ()))


@pytest.mark.parametrize(
    "config",
    [
        SIDE_BY_SIDE_COLUMNS,
        SIDE_BY_SIDE,
        SLICES,
        THREE_COLUMNS,
        *(
            pytest.param(one, marks=SLOW)
            for one in (*FOR_SHARED_ROWS, *FOR_LAYERS, *FOR_H200, *FOR_MN_MAJOR_A, *FOR_THREE_CONSUMERS, *FOR_WIDTHS)
        ),
    ],
    ids=str,
)
def test_an_mn_major_operand(config, rng):
    # The kernel's A is MN-major: B of the product with swap_ab.
    a, b = random_matrix(rng, BFLOAT16, (200, 200)), random_matrix(rng, BFLOAT16, (200, 144))
    d = multiply(
        SPEC,
        laid_out(a, "row" if config.swap_ab else "col"),
        laid_out(b, "row" if config.swap_ab else "col"),
        poisoned(BFLOAT16, (200, 144)),
        config=config,
    )
    assert_product(d, a, b)


@pytest.mark.parametrize(
    "config",
    [
        SIDE_BY_SIDE,
        dataclasses.replace(SIDE_BY_SIDE_COLUMNS, tile_m=64, tile_n=192, cluster_m=2),
        THREE_ROWS,
        *(pytest.param(one, marks=SLOW) for one in (*FOR_THREE_CONSUMERS, *FOR_WIDTHS) if one.mma_n % 32 == 0),
        *(
            pytest.param(dataclasses.replace(SIDE_BY_SIDE, tile_m=192, tile_n=width, **fields), marks=SLOW)
            for width in (128, 144, 160, 192)
            for fields in ({"cluster_n": 2}, {"cluster_m": 2, "swap_ab": 1})
        ),
    ],
    ids=str,
)
def test_two_mn_major_operands(config, rng):
    # Warpgroups side by side have rows of their own in shared memory: of 16 to 128 bytes.
    a, b = random_matrix(rng, BFLOAT16, (200, 136)), random_matrix(rng, BFLOAT16, (136, 232))
    d = multiply(SPEC, laid_out(a, "col"), laid_out(b, "row"), poisoned(BFLOAT16, (200, 232)), config=config)
    assert_product(d, a, b)


@pytest.mark.parametrize("config", [COLUMNS, pytest.param(dataclasses.replace(ROWS, tile_n=40), marks=SLOW)], ids=str)
def test_an_epilogue(config, monkeypatch, rng):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(config,)),))
    case = next(case for case in CASES.values() if "c" in case.arrays and "bias" in case.arrays)
    finish(case, rng, shape=(88, 104, 200))
