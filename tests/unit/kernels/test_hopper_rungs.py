"""The recipes of the Hopper rungs: what the copy engine brings, how many CTAs there are, and that none is chosen."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, ScalarParam, TensorMapParam, TensorParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.tile_config import EPI_TILE_M, K_BYTES
from gemmule.kernels.ladder.hopper_rung_config import (
    PersistentConfig,
    PingpongConfig,
    RolesConfig,
    RungConfig,
    StoreConfig,
)
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
SPECS = {spec.name[:3]: spec for spec in REGISTRY if "h02" <= spec.name[:3] <= "h08"}
LAYOUTS = ["nn", "nt", "tn", "tt"]
CONFIGS = [
    pytest.param(spec, config, id=f"{spec.name}-{config}".replace(" ", ","))
    for spec in SPECS.values()
    for config in spec.configs
]


def test_every_step_is_there():
    assert sorted(SPECS) == [f"h0{rung}" for rung in range(2, 9)]
    assert [spec.name for spec in SPECS.values()][::-1] == [name for name in LADDER if name[:3] in SPECS]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_copies_fill_a_stage(spec, config, layout):
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", layout)
    assert spec.why_not(problem, HOPPER, config) is None
    launch = spec.launch(problem, config)
    maps = [param for param in launch.params if isinstance(param, TensorMapParam)]
    shares = ((config.tile_m, 1), (config.tile_n, config.cluster_size))
    for param, (tile, sharers) in zip(maps, shares, strict=False):
        brought = 2 * math.prod(param.box)
        # Along K a copy brings all lines of the CTA's part; across K one for every 128 bytes of the tile.
        copies = 1 if param.box[1] == tile // sharers and param.extents[0] == 264 else tile * 2 // K_BYTES
        assert copies * brought * sharers == tile * K_BYTES
        assert param.box[0] * 2 == K_BYTES
        assert all(0 < side <= 256 for side in param.box)
        assert len(param.pitches) == 1
        assert param.pitches[0] % 16 == 0
    extents = [param.extents for param in launch.params if isinstance(param, ExtentsParam)]
    assert extents[:2] == [(1000, 264), (520, 264)]
    if config.epi_tiles:
        assert [param.operand for param in maps] == ["a", "b", "d", "d"]
        assert extents[2:] == [(1000, 520), (1000, 520)]
        assert [param.box for param in maps[2:]] == [(64, EPI_TILE_M)] * 2
    else:
        results = [param for param in launch.params if isinstance(param, TensorParam)]
        assert [(param.operand, param.shape, param.strides) for param in results] == [("d", (1000, 520), (520,))] * 2


@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_a_launch_covers_all_tiles_and_fits(spec, config):
    for m, n in ((1, 8), (129, 264), (4096, 4096), (16384, 8192)):
        launch = spec.launch(gemm_problem(m, n, 64, "float16", "float16", "nn"), config)
        tiles = math.ceil(m / config.tile_m) * math.ceil(n / config.tile_n)
        (ctas, *_), (cluster, *_) = launch.grid, launch.cluster
        assert ctas % cluster == 0
        if isinstance(config, PersistentConfig):
            assert ctas <= config.ctas
            assert ctas >= min(tiles, config.ctas)
        else:
            assert ctas == tiles
        assert launch.shared_bytes + 1024 <= 228 << 10
        assert launch.threads == (384 if isinstance(config, RolesConfig) else 128)


def test_epilogue_stages_divide_the_epilogue_tiles_of_a_tile():
    with pytest.raises(ArgumentError, match="a warpgroup has 3 epilogue tiles of a tile"):
        PingpongConfig(tile_m=64, tile_n=192)
    with pytest.raises(ArgumentError, match="a warpgroup has 1 epilogue tiles of a tile"):
        StoreConfig(tile_n=64)
    assert PingpongConfig(tile_m=128, tile_n=192, stages=4).mma_tiles_m == 2


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_a_result_in_columns_is_the_transposed_product_and_c_is_read(spec):
    problem = gemm_problem(1000, 520, 264, "float16", "float16", "nn")
    c = contiguous(problem.d.dtype, 520, 1000).transposed()
    turned = dataclasses.replace(problem, c=c, d=c, alpha=2, beta=-1)
    params = spec.launch(turned, spec.default).params
    operands = [param.operand for param in params if isinstance(param, (TensorMapParam, TensorParam))]
    assert operands == ["b", "a", "c", "d"]
    scalars = [(param.name, param.value) for param in params if isinstance(param, ScalarParam)]
    assert scalars == [("alpha", 2), ("beta", -1)]
    assert dict(spec.signature(turned, spec.default)) == {
        "element": "float16",
        "a_major": "m",
        "b_major": "k",
        "adds": "yes",
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: dataclasses.replace(p, alpha=0), "alpha is 0"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=8)), "A begins at a multiple of 8"),
        (
            lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, row_stride=p.k + 1)),
            "leading dimension of 530 bytes",
        ),
        (
            lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, row_stride=-p.n)),
            "leading dimension of -1040 bytes",
        ),
        (lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, col_stride=2)), "B has strides"),
        (
            lambda p: dataclasses.replace(p, c=contiguous(p.d.dtype, p.n, p.m).transposed(), beta=1),
            "C and the output have different layouts",
        ),
        (lambda p: gemm_problem(64, 64, 64, "float32", "float32", "nn"), "A float32"),
        (lambda p: gemm_problem(64, 64, 64, "float16", "float32", "nn"), "D float32"),
    ],
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_what_a_rung_does_not_take(spec, change, reason):
    problem = change(gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn"))
    assert reason in spec.why_not(problem, HOPPER, spec.default)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_every_matrix_of_a_batch_must_begin_at_whole_16_bytes(spec):
    problem = gemm_problem(64, 64, 64, "bfloat16", "bfloat16", "nn")

    def batched(step):
        a, b, d = (contiguous(problem.d.dtype, 64, 64, (2, 3)) for _ in range(3))
        a = dataclasses.replace(a, batch_strides=(3 * step, step))
        return dataclasses.replace(problem, batch=(2, 3), a=a, b=b, d=d)

    assert spec.why_not(batched(4096), HOPPER, spec.default) is None
    assert spec.why_not(batched(4104), HOPPER, spec.default) is None
    assert "A begins at a multiple of 8 bytes" in spec.why_not(batched(4100), HOPPER, spec.default)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_only_hopper_has_the_instructions(spec):
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    for name in ("sm_80", "sm_100a"):
        assert "wgmma" in spec.why_not(problem, Arch.parse(name), spec.default)


@pytest.mark.parametrize("extent", [8, 64, 1000, 4096])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_rung_is_never_chosen_where_the_last_one_is(dtype, extent):
    problem = gemm_problem(extent, extent, extent, dtype, dtype, "nn")
    assert choose(problem, HOPPER, multiprocessors=132).spec.name not in {spec.name for spec in SPECS.values()}


@pytest.mark.parametrize("fields", [{"tile_m": 96}, {"tile_n": 320}, {"tile_n": 32}, {"stages": 8}])
@pytest.mark.parametrize("kind", [RungConfig, RolesConfig, PersistentConfig])
def test_configs_that_cannot_be(kind, fields):
    with pytest.raises(ArgumentError, match="config tile_m="):
        kind(**fields)
