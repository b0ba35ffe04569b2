"""The Hopper kernel's recipe: the copy engine brings what the kernel waits for, and is asked for what it can do."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.registry import VIRTUAL
from gemmule.dispatch.select import choose
from gemmule.kernels.gemm.h09_production.spec import BOX_M, BUFFERS, CONSUMERS, K_BYTES, SPEC, ProductionConfig
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
LAYOUTS = ["nn", "nt", "tn", "tt"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_boxes_fill_a_stage(config, layout):
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", layout)
    assert SPEC.why_not(problem, HOPPER, config) is None
    params = SPEC.launch(problem, config).params
    maps = [param for param in params if isinstance(param, TensorMapParam)]
    assert [param.operand for param in maps] == ["a", "b", "d", "d"]
    for param, tile, sharers in zip(
        maps, (config.tile_m, config.tile_n), (config.cluster_n, config.cluster_m), strict=False
    ):
        brought = 2 * math.prod(param.box)
        # Along K a copy brings all lines of the CTA's part; across K one for every 128 bytes of the tile.
        copies = 1 if param.box[1] == tile // sharers and param.extents[0] == 264 else tile * 2 // K_BYTES
        assert copies * brought * sharers == tile * K_BYTES
    for param in maps:
        assert param.box[0] * 2 == param.swizzle == K_BYTES
        assert all(0 < side <= 256 for side in param.box)
        assert param.dtype.name == "bfloat16"
        # Compact: a line begins where the one before it ends.
        assert param.pitches == (2 * param.extents[0], 2 * param.extents[0] * param.extents[1])
    extents = [param.extents for param in params if isinstance(param, ExtentsParam)]
    assert extents == [(1000, 264, 1), (520, 264, 1), (1000, 520, 1), (1000, 520, 1)]


def test_lines_and_matrices_that_lie_apart():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    wide = {name: dataclasses.replace(one, row_stride=2048, batch_strides=(1 << 22,))
            for name, one in (("a", problem.a), ("b", problem.b), ("d", problem.d))}  # fmt: skip
    params = SPEC.launch(dataclasses.replace(problem, batch=(3,), **wide), SPEC.default).params
    maps = [param for param in params if isinstance(param, TensorMapParam)]
    assert {param.pitches for param in maps} == {(2 * 2048, 2 << 22)}
    assert {param.extents[2] for param in maps} == {3}


@pytest.mark.parametrize(
    ("config", "batch", "grid"),
    [
        # Tiles of 256 x 256 for a cluster: 4 x 3 of them.
        (ProductionConfig(), (), 24),
        (ProductionConfig(), (5,), 120),
        (ProductionConfig(), (50,), 132),
        (ProductionConfig(cluster_m=1, cluster_n=2), (), 32),
        (ProductionConfig(cluster_m=2, cluster_n=2), (50,), 132),
        (ProductionConfig(cluster_m=1, ctas=7), (), 7),
    ],
)
def test_as_many_ctas_as_share_the_tiles(config, batch, grid):
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    strided = {name: dataclasses.replace(one, batch_strides=(1 << 22,) if batch else ())
               for name, one in (("a", problem.a), ("b", problem.b), ("d", problem.d))}  # fmt: skip
    launch = SPEC.launch(dataclasses.replace(problem, batch=batch, **strided), config)
    assert launch.grid == (grid, 1, 1)
    assert launch.cluster == (config.cluster_m * config.cluster_n, 1, 1)


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_shared_memory_holds_the_stages_and_their_barriers(config):
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    slices = config.stages * (config.tile_m + config.tile_n) * K_BYTES
    boxes = CONSUMERS * BUFFERS * BOX_M * K_BYTES
    # One barrier of 8 bytes says that a stage is full, one that it is free.
    assert SPEC.launch(problem, config).shared_bytes >= slices + boxes + 16 * config.stages


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_in_columns_is_the_transposed_product(layout):
    problem = gemm_problem(1000, 520, 264, "float16", "float16", layout)
    turned = dataclasses.replace(problem, d=contiguous(problem.d.dtype, 520, 1000).transposed())
    params = SPEC.launch(turned, SPEC.default).params
    assert [param.operand for param in params if isinstance(param, TensorMapParam)] == ["b", "a", "d", "d"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: dataclasses.replace(p, alpha=0), "alpha is 0"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=8)), "A begins at a multiple of 8"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, row_stride=p.k + 1)), "pitch of 530 bytes"),
        (lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, row_stride=-p.n)), "pitch of -1040 bytes"),
        (lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, row_stride=1 << 40)), "pitch of 2199023255552"),
        (lambda p: gemm_problem(1000, 520, 264, "float32", "float32", "nn"), "takes all of one type"),
    ],
)
def test_what_the_copy_engine_cannot_take(change, reason):
    problem = change(gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn"))
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)


def test_only_hopper_has_the_instructions():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    for name in ("sm_80", "sm_100a"):
        assert "wgmma" in SPEC.why_not(problem, Arch.parse(name), SPEC.default)
    assert choose(problem, HOPPER).spec is SPEC
    assert choose(problem, HOPPER, VIRTUAL).spec.name == "h01_mma_sync"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tile_m": 96}, "tile_m must be a multiple of 128"),
        ({"tile_n": 320}, "tile_n 64, 128, 192 or 256"),
        ({"tile_n": 96}, "tile_n 64, 128, 192 or 256"),
        ({"stages": 8}, "bytes of shared memory"),
        ({"tile_m": 256}, "sums of a tile"),
        ({"pingpong": 1}, "sums of a tile"),
        ({"cluster_m": 3}, "1 or 2 CTAs"),
        ({"cluster_n": 3}, "1 or 2 CTAs"),
        ({"stages": 1}, "stages are 2 or more"),
        ({"ctas": 1}, "1 or 2 CTAs"),
    ],
)
def test_configs_that_cannot_be(fields, reason):
    with pytest.raises(ArgumentError, match=reason):
        ProductionConfig(**fields)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((512, 512, 512), (64, 64)), ((1024, 1024, 1024), (64, 128)), ((4096, 4096, 4096), (128, 128))],
)
def test_small_products_take_small_tiles(shape, tile):
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", "tn")
    config = choose(problem, HOPPER, multiprocessors=132).config
    assert (config.tile_m, config.tile_n) == tile
