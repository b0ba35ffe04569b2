"""Tiles of merged axes: which axes are merged, and which problems they move."""

from __future__ import annotations

import math

import pytest

from gemmule.core.arch import Arch
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import inner_problem
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.blocks.block import axes_of
from gemmule.kernels.transpose.merged.config import LEVELS, merged_of
from gemmule.kernels.transpose.merged.spec import SPEC
from support.permutations import permutation_of

HOPPER = Arch(9, 0, True)


def extents_of(merged):
    return tuple(tuple(axis.extent for axis in axes) for axes in merged)


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "wanted"),
    [
        # Rows of the source are of the last axes, those of the target of others.
        ((669, 95, 71, 7), (1, 3, 2, 0), 1, ((7, 71, 95), (669,), ())),
        ((2, 6, 106, 20, 83, 9), (4, 2, 5, 3, 1, 0), 1, ((9, 83), (2, 6, 20), (106,))),
        # An axis that would follow on both sides is merged where more of the tiles is filled.
        ((15, 25, 15, 25, 15, 25), (5, 3, 1, 4, 2, 0), 4, ((25, 15, 25), (15, 15), (25,))),
        ((24, 157, 5, 19, 31), (4, 2, 0, 3, 1), 4, ((31, 19, 5), (157,), (24,))),
    ],
)
def test_axes_that_follow_one_another_are_merged(shape, axes, itemsize, wanted):
    problem = permutation_of(shape, axes, itemsize)
    assert SPEC.refuses(problem, HOPPER) is None
    assert extents_of(merged_of(problem, SPEC.default.tile(itemsize))) == wanted


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_merged_axes_are_all_axes(itemsize, rng):
    """Each axis is in one place, and the strides of rows are those of elements without gaps."""
    count = 0
    while count < 40:
        rank = int(rng.integers(3, 8))
        shape, axes = tuple(map(int, rng.integers(2, 40, rank))), tuple(map(int, rng.permutation(rank)))
        problem = inner_problem(permutation_of(shape, axes, itemsize), SPEC.batch_dims)
        if SPEC.refuses(problem, HOPPER) is not None:
            continue
        count += 1
        for config in SPEC.configs:
            merged = config.merged(problem)
            assert sorted(sum(merged, ())) == sorted(axes_of(problem))
            assert max(map(len, merged)) <= LEVELS
            for side, row in (("source", merged.source), ("target", merged.target)):
                strides = [getattr(axis, side) for axis in row]
                assert strides == [math.prod(axis.extent for axis in row[:place]) for place in range(len(row))]


@pytest.mark.parametrize(
    ("shape", "source", "reason"),
    [
        ((40, 5, 60), (-1, 200, 1000), "elements have a stride of -1"),
        ((40, 5, 60), (1, -40, 200), "reversed"),
        ((40, 5, 60), (1, 0, 40), "a stride of 0 in the source"),
        ((40, 60), (1, 40), "2 axes"),
        ((2, 3, 60), (1, 2, 6), "do not make rows"),
    ],
)
def test_what_has_no_rows_is_refused(shape, source, reason):
    target = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    problem = transpose_problem(shape, source, target, 4, (16, 16))
    assert reason in SPEC.refuses(problem, HOPPER)


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "kernel"),
    [
        ((669, 95, 71, 7), (1, 3, 2, 0), 1, "transpose_merged"),
        ((1048, 20, 5, 5, 40), (4, 3, 1, 2, 0), 1, "transpose_merged"),
        ((15, 25, 15, 25, 15, 25), (5, 3, 1, 4, 2, 0), 2, "transpose_merged"),
        ((24, 157, 5, 19, 31), (4, 2, 0, 3, 1), 4, "transpose_merged"),
        # Large tensors, of whose short rows blocks and other tiles read parts of sectors.
        ((467_418, 4, 13), (2, 1, 0), 8, "transpose_merged"),
        ((279_666, 15, 243), (2, 1, 0), 1, "transpose_merged"),
        # Rows that fill small parts of tiles.
        ((6, 57548, 8, 2, 3, 4), (5, 2, 4, 1, 3, 0), 8, "transpose_blocks"),
        ((100_001, 7, 13), (0, 2, 1), 1, "transpose_word_blocks"),
    ],
)
def test_the_kernel_of_a_permutation(shape, axes, itemsize, kernel):
    problem = permutation_of(shape, axes, itemsize)
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == kernel
