"""Tiles that write whole sectors: what is refused, what is chosen, and that the tiles cover the matrix."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.cost import sector_cost
from gemmule.kernels.transpose.tile_config import SECTOR, SectorTileConfig
from gemmule.kernels.transpose.whole_sectors.spec import SPEC
from gemmule.lab.transposes import transpose_of

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"write_bytes": 32}, "power of 2 from 64"),
        ({"write_bytes": 192}, "power of 2 from 64"),
        ({"threads": 96}, "threads must be a power of 2"),
        ({"threads": 2048}, "threads must be a power of 2"),
        ({"group": -1}, "group must be 0 or more"),
        ({"spans": 0}, "spans must be 1 or more"),
        ({"spans": 3}, "spans must divide the warps"),
    ],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        SectorTileConfig(**fields)


@pytest.mark.parametrize(
    ("problem", "config", "reason"),
    [
        (transpose_of(100, 100, 16), {}, "elements of 16 bytes"),
        (transpose_of(128, 128, 4), {}, "whole vectors are faster"),
        (transpose_of(101, 15, 4), {}, "rows of 15 elements are less than 64 bytes"),
        (transpose_of(2**30 + 1, 65, 1), {}, "is more than"),
        (transpose_of(301, 301, 4), {"write_bytes": 512, "threads": 512, "spans": 16}, "shared memory"),
        (transpose_of(301, 301, 8), {"threads": 1024}, "do not share the tile evenly"),
        (transpose_of(65, 2**23 - 1, 8), {"group": 0, "spans": 1, "threads": 128}, "CTAs along y, more than the 65535"),
    ],
)
def test_what_is_refused(problem, config, reason):
    assert reason in SPEC.why_not(problem, HOPPER, SectorTileConfig(**config))


def test_gaps_between_elements_are_refused():
    problem = transpose_of(101, 99, 4)
    gaps = dataclasses.replace(problem, source=dataclasses.replace(problem.source, row_stride=2))
    assert "a stride of 2 in the source" in SPEC.why_not(gaps, HOPPER, SectorTileConfig())


def test_an_empty_batch_launches_nothing():
    problem = dataclasses.replace(transpose_of(1000, 1001, 4), batch=(0,))
    matrices = {
        name: dataclasses.replace(one, batch_strides=(1000 * 1001,)) for name, one in problem.operands().items()
    }
    for config in SPEC.configs:
        assert 0 in SPEC.launch(problem.with_operands((0,), matrices), config).grid


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_rows_that_begin_anywhere_take_it_and_others_do_not(itemsize):
    for m, n in [(8191, 8193), (2000, 2001), *([(127, 129)] if itemsize > 2 else [])]:
        assert choose(transpose_of(m, n, itemsize), HOPPER, multiprocessors=132).spec.name == "transpose_whole_sectors"
    for m, n, name in [(8192, 8192, "tiled"), (3, 100001, "skinny"), (100001, 3, "skinny")]:
        choice = choose(transpose_of(m, n, itemsize), HOPPER, multiprocessors=132)
        assert choice.spec.name == f"transpose_{name}"


def test_groups_move_matrices_whose_rows_the_l2_cache_would_forget():
    large, small = (
        choose(transpose_of(rows, cols, size), HOPPER, multiprocessors=132)
        for rows, cols, size in ((1_187_094, 1254, 2), (1707, 193, 8))
    )
    assert large.config.group > 0
    assert small.config.group == 0


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("config", [SectorTileConfig(), SectorTileConfig(1, 256, 256), SectorTileConfig(4, 512, 512)])
def test_the_tile_holds_what_it_writes_and_a_sector_more(config, itemsize):
    tile_i, tile_j = config.tile(itemsize)
    word = max(itemsize, 4)
    assert config.held(itemsize) * word == tile_j * itemsize + SECTOR
    assert config.row_words(itemsize) % 2 == 1
    assert config.row_words(itemsize) >= config.held(itemsize)
    assert config.tile_bytes(itemsize) == tile_i * config.row_words(itemsize) * word


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_of_whole_vectors_it_takes_large_matrices_that_end_within_sectors(itemsize):
    edge = 8192 // itemsize * 4
    for m, n, name in [
        (edge + 16 // itemsize, edge, "transpose_whole_sectors"),
        (edge, edge + 16 // itemsize, "transpose_tiled"),
        (1024 // itemsize + 16 // itemsize, 1024 // itemsize, "transpose_tiled"),
    ]:
        assert choose(transpose_of(m, n, itemsize), HOPPER, multiprocessors=132).spec.name == name


def test_larger_matrices_cost_more():
    costs = [sector_cost(transpose_of(m, m, 4), SectorTileConfig(), H200_RATES) for m in (101, 1001, 4001, 8001)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1] / 10
