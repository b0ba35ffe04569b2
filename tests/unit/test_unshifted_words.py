"""Matrices through words that are not shifted: what is refused, what is chosen, and that the CTAs cover the matrix."""

from __future__ import annotations

import dataclasses

import pytest
from batched_transposes import batched

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.word_aligned.spec import SPEC, UnshiftedConfig, why_not
from gemmule.lab.transposes import transpose_of

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"lanes": 8}, "lanes must be 16 or 32"),
        ({"words": 12}, "words 8, 16 or 32"),
        ({"threads": 96}, "power of 2 from 32 to 1024"),
        ({"threads": 2048}, "power of 2 from 32 to 1024"),
        ({"begin": 12}, "begin must be 4, 8, 16 or 32"),
        ({"begin": 32}, "divide the rows of all threads"),
        ({"threads": 0}, "threads must be 1 or more"),
    ],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        UnshiftedConfig(**fields)


def with_pitch(problem, pitch):
    return dataclasses.replace(problem, source=dataclasses.replace(problem.source, col_stride=pitch))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (transpose_of(511, 513, 4), "elements of 4 bytes"),
        (transpose_of(512, 512, 1), "whole vectors are better"),
        (transpose_of(8191, 8193, 1), "are moved in tiles"),
        (transpose_of(3, 10001, 1), "a matrix of 3 rows of 10001 elements is narrower than 16"),
        (batched(transpose_of(65, 67, 1), (1001,)), "are moved in tiles"),
        (batched(transpose_of(19, 17, 2), (3, 2)), "more than one dimension"),
        (with_pitch(transpose_of(511, 513, 1), 3), "begin 3 bytes apart"),
        (with_pitch(transpose_of(511, 513, 2), -1), "begin 2 bytes apart"),
        (with_pitch(transpose_of(511, 513, 1), 1 << 22), "reach over 1073741824 bytes"),
        (with_pitch(transpose_of(511, 513, 1), -(1 << 22)), "reach over 1073741824 bytes"),
    ],
)
def test_what_is_refused(problem, reason):
    assert reason in why_not(problem, HOPPER, UnshiftedConfig())


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_every_row_and_word_has_a_cta(config, itemsize):
    for cols in range(95, 105):
        recipe = SPEC.launch(batched(transpose_of(cols, 131, itemsize), (3,)), config)
        # A row that begins at the last element before such a multiple needs the most words.
        words = (config.begin - itemsize + cols * itemsize + 3) // 4
        assert recipe.grid == (-(-words // config.words), -(-131 // config.tile_i(itemsize)), 3)
        assert recipe.overlaps


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_the_rows_of_a_tile_lie_apart(config, itemsize):
    pack, words = 4 // itemsize, config.kind(itemsize)
    starts = [row % pack * words + row // pack * config.pitch for row in range(config.slots(itemsize) * pack)]
    assert all(b - a >= config.lanes for a, b in zip(sorted(starts), sorted(starts)[1:], strict=False))
    assert 4 * (max(starts) + config.lanes) <= config.tile_bytes(itemsize)
    # Every element of a word that begins anywhere has a row.
    assert config.slots(itemsize) * pack >= config.held(itemsize) == config.words * pack + config.begin // itemsize - 1


@pytest.mark.parametrize(
    ("itemsize", "shape", "name"),
    [
        (1, (300, 301), "transpose_gathered"),
        (1, (383, 385), SPEC.name),
        (1, (1000, 1001), SPEC.name),
        (1, (1024, 1025), "transpose_whole_sectors"),
        (2, (383, 385), "transpose_gathered"),
        (2, (511, 513), SPEC.name),
        (2, (1000, 1001), SPEC.name),
        (2, (1024, 1025), "transpose_whole_sectors"),
    ],
)
def test_which_matrices_take_it(itemsize, shape, name):
    assert choose(transpose_of(*shape, itemsize), HOPPER, multiprocessors=132).spec.name == name
