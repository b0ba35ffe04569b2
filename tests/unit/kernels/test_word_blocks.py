"""Blocks by words: places in shared memory, tables of runs, and which problems they move."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.problem import inner_problem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.blocks.block import in_units
from gemmule.kernels.transpose.tile_config import MAX_SHARED, SECTOR, WORD
from gemmule.kernels.transpose.word_blocks.spec import SPEC
from gemmule.kernels.transpose.word_blocks.word_block import classes_of, pitches_of, stage_bytes, words_of
from support.permutations import permutation_of

HOPPER = Arch(9, 0, True)


def blocks_of(config, itemsize, rng, count):
    """Yield blocks of random permutations, and the bytes of their elements."""
    while count:
        rank = int(rng.integers(3, 7))
        shape, axes = tuple(map(int, rng.integers(2, 24, rank))), tuple(map(int, rng.permutation(rank)))
        problem = inner_problem(permutation_of(shape, axes, itemsize), SPEC.batch_dims)
        if (
            in_units(problem).itemsize <= 2
            and config.predicted(problem) is not None
            and config.why_not(problem) is None
        ):
            count -= 1
            yield config.of(problem), in_units(problem).itemsize, config.shared(problem)


def offsets_of(extents, strides):
    """The offsets of all places along axes, the first axis fastest."""
    coordinates = itertools.product(*(range(extent) for extent in reversed(extents)))
    return np.array([sum(map(math.prod, zip(place, reversed(strides), strict=True))) for place in coordinates])


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "kernel"),
    [
        ((100_001, 7, 13), (0, 2, 1), 1, "transpose_word_blocks"),
        ((3, 78, 167, 117, 7), (1, 0, 4, 3, 2), 1, "transpose_word_blocks"),
        ((600_001, 7, 11), (0, 2, 1), 2, "transpose_word_blocks"),
        ((9, 7, 942, 3, 6, 31), (5, 3, 2, 1, 4, 0), 1, "transpose_word_blocks"),
        # Short runs of the target, and larger blocks.
        ((77, 65, 55, 33), (3, 1, 0, 2), 1, "transpose_word_blocks"),
        # Long rows of several axes, and a small tensor.
        ((1048, 20, 5, 5, 40), (4, 3, 1, 2, 0), 1, "transpose_merged"),
        ((20_000, 7, 9, 11), (0, 3, 2, 1), 1, "transpose_blocks"),
        # Elements of 4 bytes.
        ((100_001, 7, 13), (0, 2, 1), 4, "transpose_blocks"),
    ],
)
def test_the_kernel_of_a_permutation(shape, axes, itemsize, kernel):
    problem = permutation_of(shape, axes, itemsize)
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == kernel


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_places_hold_the_vectors_of_runs(config, itemsize, rng):
    """Runs begin within vectors as in the source; the vectors of two runs, wherever a block begins, are different."""
    for block, item, shared in blocks_of(config, itemsize, rng, 15):
        pitches = dict(zip(block.inner, pitches_of(block, item), strict=True))
        others = [number for number, _, _ in block.source_others]
        extents = [block.extents[number] for number in others]
        places = offsets_of(extents, [pitches[number] for number in others]) * item
        offsets = offsets_of(extents, [block.axes[number].source for number in others]) * item
        run = block.source_run * item
        assert ((places - offsets) % VECTOR_BYTES == 0).all()
        assert len(places) <= config.threads
        for within in range(0, VECTOR_BYTES, item):
            first, last = (places + within) // VECTOR_BYTES, (places + within + run - 1) // VECTOR_BYTES
            order = np.argsort(first)
            assert (first[order][1:] > last[order][:-1]).all()
            assert (last.max() + 1) * VECTOR_BYTES <= stage_bytes(block, item)
        along = [block.extents[number] for number in block.source], [pitches[number] for number in block.source]
        assert (np.diff(offsets_of(*along)) == 1).all()
        assert shared <= MAX_SHARED


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_runs_of_the_target(config, itemsize, rng):
    """They are contiguous, of a sector at least, in words of a thread each, and counted by their beginning in words."""
    for block, item, _ in blocks_of(config, itemsize, rng, 15):
        targets = [block.axes[number].target for number in block.target]
        along = offsets_of([*(block.extents[number] for number in block.target[:-1]), block.part], targets)
        assert (np.diff(along) == 1).all()
        assert len(along) * item >= SECTOR
        assert words_of(len(along), item) <= config.threads
        others = block.target_others
        begins = offsets_of([one[1] for one in others], [block.axes[one].target * step for one, _, step in others])
        assert len(begins) * len(along) == math.prod(block.extents)
        pack = WORD // item
        first = [int((begins % pack < number).sum()) for number in range(pack)]
        assert classes_of(block, item) == (*first, *(len(begins),) * (WORD + 1 - pack))
