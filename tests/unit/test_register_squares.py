"""Small matrices in registers: what is refused, what is chosen, and that the CTAs cover the matrix."""

from __future__ import annotations

import dataclasses

import pytest
from batched_transposes import batched

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.in_registers.spec import SPEC, SquareConfig, why_not
from gemmule.lab.transposes import transpose_of

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"lanes": 3}, "lanes must divide the 32"),
        ({"lanes": 64}, "lanes must divide the 32"),
        ({"warps": 33}, "up to 32 warps"),
        ({"warps": 0}, "warps must be 1 or more"),
    ],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        SquareConfig(**fields)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (transpose_of(32, 32, 4), "elements of 4 bytes"),
        (transpose_of(62, 64, 1), "rows must begin and end at multiples of 4 bytes"),
        (transpose_of(64, 31, 2), "rows must begin and end at multiples of 4 bytes"),
        (transpose_of(400, 412, 1), "164800 bytes, more than 163840"),
        (batched(transpose_of(64, 64, 1), (41,)), "167936 bytes, more than 163840"),
        (transpose_of(64, 64, 2), "8192 bytes, more than 4096"),
        (batched(transpose_of(16, 16, 2), (3, 2)), "more than one dimension"),
        (transpose_of(1, 2**20, 1), "rows must begin and end at multiples of 4 bytes"),
    ],
)
def test_what_is_refused(problem, reason):
    assert reason in why_not(problem, HOPPER, SquareConfig())


def test_gaps_between_neighbours_are_refused():
    problem = transpose_of(32, 32, 2)
    apart = dataclasses.replace(problem, source=dataclasses.replace(problem.source, row_stride=2))
    assert "2 elements apart in the source" in why_not(apart, HOPPER, SquareConfig())


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_a_thread_for_each_word(config, itemsize):
    tile_i, tile_j = config.tile(itemsize)
    assert tile_i * tile_j * itemsize == 32 * config.warps * 4 * (4 // itemsize)
    recipe = SPEC.launch(batched(transpose_of(100, 52, itemsize), (3,)), config)
    assert recipe.block == (32 * config.warps, 1, 1)
    assert recipe.grid == (-(-100 // tile_j), -(-52 // tile_i), 3)


@pytest.mark.parametrize("itemsize", [1, 2])
def test_small_matrices_take_it_and_large_ones_do_not(itemsize):
    for edge, name in [
        (32, SPEC.name),
        (384, SPEC.name if itemsize == 1 else "transpose_tiled"),
        (8192, "transpose_tiled"),
    ]:
        assert choose(transpose_of(edge, edge, itemsize), HOPPER, multiprocessors=132).spec.name == name
