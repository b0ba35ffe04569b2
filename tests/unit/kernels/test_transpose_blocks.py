"""Blocks of several axes: which problems they move, and the numbers of their launches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import inner_problem, split_batch
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.blocks.block import block_bytes, conflicts_of, in_units, places_of
from gemmule.kernels.transpose.blocks.block_choice import tried_blocks
from gemmule.kernels.transpose.blocks.spec import SPEC, divisor_of
from gemmule.kernels.transpose.word_blocks.spec import SPEC as WORDS
from support.permutations import permutation_of

HOPPER = Arch(9, 0, True)


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "kernel"),
    [
        # Many small matrices, of which spans and tiles would fill small parts.
        ((16, 64, 2, 2, 128, 128), (0, 1, 4, 2, 5, 3), 4, "transpose_blocks"),
        ((2, 2, 2, 2, 2, 2, 1 << 18), (6, 5, 4, 3, 2, 1, 0), 8, "transpose_blocks"),
        ((3000, 7, 9, 11), (3, 2, 0, 1), 16, "transpose_merged"),
        # Axes of which a few elements span more bytes than offsets within a block hold.
        ((32, 100, 300_000), (2, 1, 0), 4, "transpose_merged"),
        ((8, 7, 12, 3_000_000), (3, 1, 2, 0), 2, "transpose_merged"),
        # Rows of a few bytes, and longer ones.
        ((256, 32, 7, 32, 7), (0, 1, 3, 2, 4), 4, "transpose_blocks"),
        ((64, 197, 3, 12, 64), (2, 0, 3, 1, 4), 4, "transpose_rows"),
        # Odd rows of 2-byte elements, and rows that share sectors; small matrices of several batch axes.
        ((20, 28990, 65), (1, 0, 2), 2, "transpose_blocks"),
        ((1021, 15, 12, 15, 12, 3), (0, 1, 3, 2, 4, 5), 4, "transpose_blocks"),
        ((8, 2048, 32, 128), (0, 2, 1, 3), 2, "transpose_rows"),
        ((4, 40, 256, 32), (0, 3, 1, 2), 4, "transpose_merged"),
        # Rows that would take several launches; one is predicted to be faster, or long rows are not.
        ((20, 4, 24, 7, 28, 6), (4, 1, 0, 3, 2, 5), 16, "transpose_blocks"),
        ((26, 68, 4, 7, 5, 10), (1, 4, 3, 0, 2, 5), 2, "transpose_blocks"),
        ((15, 67, 18, 29, 3, 26), (3, 0, 2, 4, 1, 5), 1, "transpose_word_blocks"),
        ((3, 40, 4, 50, 60, 1024), (2, 1, 4, 3, 0, 5), 4, "transpose_rows"),
        # Long rows with a short side, and matrices that fill tiles.
        ((64, 224, 224, 3), (0, 3, 1, 2), 1, "transpose_skinny"),
        ((400, 300, 200), (2, 1, 0), 4, "transpose_tiled"),
    ],
)
def test_the_kernel_of_a_permutation(shape, axes, itemsize, kernel):
    problem = permutation_of(shape, axes, itemsize)
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == kernel


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_offsets_within_a_block_are_of_32_bits(config):
    """Whatever the strides, a block is chosen that they allow."""
    for step in (1, 1000, 10**6, 10**9):
        problem = transpose_problem((7, 9, 11), (99 * step, 11 * step, step), compact_strides((7, 9, 11)), 8, (16, 16))
        inner = inner_problem(problem, SPEC.batch_dims)
        assert config.why_not(inner) is None
        block = config.of(inner)
        spans = (abs(axis.source) * (extent - 1) for axis, extent in zip(block.axes, block.extents, strict=True))
        assert 8 * sum(spans) < 2**31


@pytest.mark.parametrize("shape", [(9, 106, 21228, 64), (264, 5, 11693), (7, 8, 9, 10, 11, 12), (2,) * 8, (3,) * 8])
@pytest.mark.parametrize("itemsize", [1, 16])
def test_few_blocks_are_compared(shape, itemsize):
    """A plan's time is that of its comparisons: they are made once for all configs, and their number is limited."""
    tried_blocks.cache_clear()
    problem = inner_problem(permutation_of(shape, (1, 0, *range(len(shape) - 1, 1, -1)), itemsize), SPEC.batch_dims)
    for config in SPEC.configs:
        config.of(problem)
    assert tried_blocks.cache_info().misses == 1
    tried = tried_blocks(in_units(problem))
    assert tried_blocks.cache_info().misses == 1
    assert 10 < len(tried.sizes) < 8000


def test_division_by_multiplication(rng):
    limit = 2**31
    counts = [2, 3, 5, 7, 2**15 + 1, 2**30 - 1, 2**30, *map(int, rng.integers(2, 2**30, 300))]
    for count in counts:
        factor, shift = divisor_of(count)
        numbers = [0, 1, count - 1, count, limit - 1, limit // count * count, limit // count * count - 1]
        for number in [*numbers, *map(int, rng.integers(0, limit, 20))]:
            number = min(number, limit - 1)
            assert (number * (factor % 2**32) >> 32) >> shift == number // count


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_accesses_are_aligned_and_cover_a_block(config, itemsize, rng):
    """Random permutations: an access's elements are contiguous, its address is a multiple of its size."""
    for _ in range(20):
        rank = int(rng.integers(3, 7))
        shape = tuple(map(int, rng.integers(2, 24, rank)))
        problem = permutation_of(shape, tuple(map(int, rng.permutation(rank))), itemsize, int(rng.choice([16, 2, 8])))
        inner = in_units(inner_problem(problem, SPEC.batch_dims))
        block, item = config.of(inner), inner.itemsize
        assert all(
            count <= config.threads * config.count(vector * item)
            for count, vector in zip(block.accesses, block.vectors, strict=True)
        )
        sides = (block.read, "source", block.vectors[0]), (block.inner, "target", block.vectors[1])
        for order, side, vector in sides:
            extents = [block.extents[number] for number in order]
            strides = [getattr(block.axes[number], side) for number in order]
            # Coordinates in an order, the first axis fastest.
            coordinates = [place[::-1] for place in itertools.product(*(range(extent) for extent in extents[::-1]))]
            offsets = np.array([np.dot(place, strides) for place in coordinates]).reshape(-1, vector)
            assert (np.diff(offsets, axis=1) == 1).all()
            assert (offsets[:, 0] * item % (vector * item) == 0).all()
            # Where blocks begin, the last ones too.
            for axis, extent in zip(block.axes, block.extents, strict=True):
                for first in (extent, axis.extent - extent):
                    if extent < axis.extent:
                        assert first * getattr(axis, side) * item % (vector * item) == 0
        extents = [block.extents[number] for number in block.read]
        read = np.array([place[::-1] for place in itertools.product(*(range(n) for n in extents[::-1]))]).T
        inner = read[[block.read.index(number) for number in block.inner]]
        places = places_of(block, item).of(inner, block.vectors[1]).tolist()
        groups = np.array(places).reshape(-1, block.vectors[0])
        # No two elements share a place, and those of an access are contiguous.
        assert len(set(places)) == len(places)
        assert (max(places) + 1) * item == block_bytes(block, item)
        assert (np.diff(groups, axis=1) == 1).all()
        assert (groups[:, 0] % block.vectors[0] == 0).all()


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize"),
    [
        ((82, 312_032, 4), (2, 1, 0), 1),
        ((3, 19, 117, 70, 24, 4), (1, 0, 5, 3, 4, 2), 1),
        ((1512, 40, 320, 100), (0, 3, 1, 2), 2),
    ],
)
def test_a_skew_keeps_lanes_in_different_banks(shape, axes, itemsize):
    problem = inner_problem(permutation_of(shape, axes, itemsize), SPEC.batch_dims)
    block = choose(problem, HOPPER, multiprocessors=132).config.of(problem)
    assert places_of(block, itemsize).skew > 0
    assert conflicts_of(block, itemsize) <= 2


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 0, 5, 7), (3, 2, 1, 0)),
        ((0, 4, 24, 7, 28, 6), (4, 1, 0, 3, 2, 5)),
        ((4, 5, 3, 7, 2, 0), (4, 1, 0, 3, 2, 5)),
        ((0, 33, 65, 77), (3, 2, 1, 0)),
    ],
)
def test_an_empty_permutation_launches_nothing(shape, axes, itemsize):
    problem = permutation_of(shape, axes, itemsize)
    chosen = choose(problem, HOPPER, multiprocessors=132)
    for spec, configs in ((chosen.spec, (chosen.config,)), (SPEC, SPEC.configs), (WORDS, WORDS.configs)):
        inner, outer, _ = split_batch(problem, spec.batch_dims)
        for config in configs:
            if spec.why_not(inner, HOPPER, config) is None:
                assert 0 in outer or not Choice(spec, config).launches(inner)[0]


def test_blocks_of_patches_have_five_axes():
    problem = inner_problem(permutation_of((49_872, 3, 7, 8, 7, 8), (0, 2, 4, 3, 5, 1), 1), SPEC.batch_dims)
    assert len(choose(problem, HOPPER, multiprocessors=132).config.of(problem).inner) == 5
