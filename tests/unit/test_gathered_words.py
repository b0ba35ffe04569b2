"""Small matrices whose rows begin anywhere: what is refused, what is chosen, and that the CTAs cover the matrix."""

from __future__ import annotations

import dataclasses

import pytest
from batched_transposes import batched

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.gathered.spec import SPEC, GatherConfig, why_not
from gemmule.lab.transposes import transpose_of

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"lanes": 3}, "lanes must divide the 32"),
        ({"lanes": 64}, "lanes must divide the 32"),
        ({"warps": 33}, "up to 32 warps"),
        ({"warps": 0}, "warps must be 1 or more"),
        ({"words": 0}, "words must be 1 or more"),
    ],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        GatherConfig(**fields)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (transpose_of(33, 31, 4), "elements of 4 bytes"),
        (transpose_of(64, 64, 1), "whole vectors are better"),
        (transpose_of(8191, 8193, 1), "are moved in tiles"),
        (transpose_of(3, 10001, 1), "a matrix of 3 rows of 10001 elements is narrower than 16"),
        (transpose_of(10001, 15, 2), "is narrower than 16"),
        (batched(transpose_of(65, 67, 1), (1001,)), "are moved in tiles"),
        (batched(transpose_of(19, 17, 2), (3, 2)), "more than one dimension"),
    ],
)
def test_what_is_refused(problem, reason):
    assert reason in why_not(problem, HOPPER, GatherConfig())


def test_gaps_between_neighbours_are_refused():
    problem = transpose_of(33, 31, 2)
    apart = dataclasses.replace(problem, source=dataclasses.replace(problem.source, row_stride=2))
    assert "2 elements apart in the source" in why_not(apart, HOPPER, GatherConfig())


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_threads_for_each_word_and_what_is_ahead_of_a_row(config, itemsize):
    tile_i, tile_words = config.tile
    assert tile_i * tile_words == 32 * config.warps * config.words
    for cols in range(95, 105):
        recipe = SPEC.launch(batched(transpose_of(cols, 53, itemsize), (3,)), config)
        assert recipe.block == (32 * config.warps, 1, 1)
        # A row that begins at the last element before a multiple of what a warp writes of it needs the most words.
        words = (config.begin - itemsize + cols * itemsize + 3) // 4
        assert recipe.grid == (-(-words // tile_words), -(-53 // tile_i), 3)


@pytest.mark.parametrize("itemsize", [1, 2])
def test_small_matrices_of_odd_rows_take_it(itemsize):
    for shape, name in [((65, 67), SPEC.name), ((300, 301), SPEC.name), ((8191, 8193), "transpose_whole_sectors")]:
        assert choose(transpose_of(*shape, itemsize), HOPPER, multiprocessors=132).spec.name == name
