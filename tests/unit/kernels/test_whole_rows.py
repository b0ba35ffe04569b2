"""Tiles of whole rows of the target: what is refused, and that the tiles cover the matrix."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.whole_rows.config import WholeRowsConfig
from gemmule.kernels.transpose.whole_rows.spec import SPEC

HOPPER = Arch.parse("sm_90a")


def problem_of(cols, rows, itemsize, pitch=None):
    """To rows of `cols` elements, `pitch` elements apart."""
    return transpose_problem((rows, cols), (1, rows), (pitch or cols, 1), itemsize, (256, 256))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"spans": 0}, "spans must be 1 or more"),
        ({"blocks": 1}, "blocks must be 2 or more"),
        ({"threads": 96}, "threads must be a power of 2"),
    ],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        WholeRowsConfig(**fields)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of(77, 3001, 4), "elements of 4 bytes are not supported"),
        (problem_of(77, 3001, 1, 78), "rows of 77 elements have gaps"),
        (problem_of(80, 3008, 1), "every row is aligned to 16 bytes"),
        (problem_of(77, 63, 1), "rows of 63 elements are less than 64 bytes"),
        (problem_of(77, 3001, 1), None),
        (problem_of(220, 3001, 1), None),
        (problem_of(221, 3001, 1), "those of 40 to 220 are faster"),
        (problem_of(160, 3001, 1), "rows of 160 bytes are whole sectors"),
        (problem_of(96, 3001, 1), None),
        (problem_of(39, 3_000_001, 1), "those of 40 to 500 are faster"),
        (problem_of(500, 3_000_001, 1), None),
        (problem_of(251, 3_000_001, 2), "those of 40 to 500 are faster"),
    ],
)
def test_refusals(problem, reason):
    found = SPEC.why_not(problem, HOPPER, WholeRowsConfig())
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("problem", "config", "reason"),
    [
        (problem_of(819, 3001, 1), WholeRowsConfig(), "of shared memory, more than"),
        (problem_of(28, 3001, 1), WholeRowsConfig(), "have less than 8 words"),
        (problem_of(77, 3001, 1), WholeRowsConfig(blocks=16), "68 words in flight"),
        (problem_of(77, 3001, 2), WholeRowsConfig(blocks=16), None),
    ],
)
def test_configs_that_do_not_fit(problem, config, reason):
    found = config.why_not(problem)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "name"),
    [
        ((241, 1_715_027), (1, 0), 1, "transpose_whole_rows"),
        ((155, 177_603), (1, 0), 2, "transpose_whole_rows"),
        ((61, 263, 391), (0, 2, 1), 1, "transpose_whole_rows"),
        ((287, 45_764), (1, 0), 1, "transpose_whole_sectors"),
        ((1_715_027, 241), (1, 0), 1, "transpose_whole_sectors"),
        ((31, 1_715_027), (1, 0), 1, "transpose_skinny"),
    ],
)
def test_what_calls_choose(shape, axes, itemsize, name):
    moved, strides = tuple(shape[axis] for axis in axes), compact_strides(shape)
    problem = transpose_problem(
        moved, tuple(strides[axis] for axis in axes), compact_strides(moved), itemsize, (256, 256)
    )
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == name


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_tiles_cover_the_rows(config, itemsize):
    tile = config.tile_rows(itemsize)
    problem = dataclasses.replace(problem_of(61, 5 * tile, itemsize))
    assert config.grid(problem) == (5, 1, 1)
    assert config.grid(problem_of(61, 5 * tile + 1, itemsize)) == (6, 1, 1)
