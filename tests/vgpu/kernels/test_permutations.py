"""Permutations of several axes on the virtual GPU, all checks on: blocks, blocks by words, and merged axes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.tile_config import WARP
from gemmule.vgpu.arch import virtual_arch
from support.transpose_rows import ITEMSIZES, SIZES, check_permutation, permutation_between, random_rows, rows_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

BLOCKS, WORD_BLOCKS, MERGED = (
    next(spec for spec in REGISTRY if spec.name == name)
    for name in ("transpose_blocks", "transpose_word_blocks", "transpose_merged")
)
#: Shapes and orders of axes: long runs on neither side, on both, an axis that both begin with, prime extents, and
#: wide accesses to source and target, to one of them, and in blocks that do not divide their axes.
PERMUTED = [
    ((5, 6, 7, 9, 10), (4, 2, 0, 3, 1)),
    ((4, 4, 4, 4, 4, 4), (5, 4, 3, 2, 1, 0)),
    ((7, 9, 133), (1, 0, 2)),
    ((41, 3, 67), (2, 1, 0)),
    ((2, 3, 1501), (2, 1, 0)),
    ((19, 23, 3, 5), (0, 2, 1, 3)),
    ((36, 5, 7, 44), (3, 2, 1, 0)),
    ((9, 5, 7, 44), (3, 2, 1, 0)),
    ((36, 5, 7, 11), (3, 2, 1, 0)),
    ((2, 148, 3, 212), (0, 3, 2, 1)),
    ((48, 3, 5, 32), (3, 2, 1, 0)),
    ((16, 3, 16, 6, 16), (4, 1, 2, 3, 0)),
    ((3, 2, 5, 3, 2, 5, 3, 4), (7, 6, 5, 4, 3, 2, 1, 0)),
    ((3, 7, 4, 7, 3), (0, 2, 1, 3, 4)),
    ((9, 10, 12, 8), (2, 1, 0, 3)),
    ((2, 3, 4, 14, 3, 14), (0, 2, 4, 3, 5, 1)),
    # Blocks of five axes.
    ((5, 3, 4, 6, 3, 5), (0, 2, 4, 3, 5, 1)),
    ((3, 5, 4, 3, 5, 4), (1, 3, 5, 0, 2, 4)),
    # Vectors of the target that begin a second row of its first axis, and that hold several.
    ((96, 22, 16), (0, 2, 1)),
    ((200, 20, 12), (0, 2, 1)),
    ((200, 4, 24), (0, 2, 1)),
]


@pytest.mark.combinations(2, once=("shape", "order"))
@pytest.mark.parametrize(("pad", "offset"), [(0, 0), (3, 1)])
@pytest.mark.parametrize(("shape", "order"), PERMUTED, ids=str)
@pytest.mark.parametrize("itemsize", SIZES)
@pytest.mark.parametrize("config", BLOCKS.configs, ids=str)
def test_permutations_of_short_axes(config, itemsize, shape, order, pad, offset, rng):
    """Two CTAs move all blocks, the last of which overlap their neighbours; the first axis is reversed with gaps."""
    source = random_rows(rng, shape, itemsize, pad, offset)
    moved = (source[::-1] if pad else source).transpose(order)
    target = rows_of(moved.shape, itemsize, pad, offset)
    problem = permutation_between(moved, target)
    config = dataclasses.replace(config, ctas=2)
    # Dispatch leaves fewer matrices to other kernels.
    assert config.why_not(problem) is None
    check_permutation(BLOCKS, config, moved, target)


@pytest.mark.parametrize(
    ("shape", "steps", "order"),
    [
        ((300,), (2,), (0,)),
        ((50, 81), (1, 2), (1, 0)),
        ((37, 90), (3, -3), (1, 0)),
        ((60, 64), (1, 2), (0, 1)),
        ((5, 40, 33), (1, 1, 2), (0, 2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("itemsize", SIZES)
def test_views_with_a_step_run_in_blocks(itemsize, shape, steps, order, rng):
    source = random_rows(rng, (1, *shape), itemsize)[0][tuple(slice(None, None, step) for step in steps)]
    moved = source.transpose(order)
    target = rows_of((1, *moved.shape), itemsize)[0]
    chosen = choose(permutation_between(moved, target), virtual_arch(), multiprocessors=132)
    assert chosen.spec is BLOCKS
    check_permutation(BLOCKS, chosen.config, moved, target)


@pytest.mark.parametrize(("side", "is_taken"), [(20_000, True), (46_341, False)])
def test_more_blocks_than_32_bits_count_are_refused(side, is_taken):
    # Blocks have up to five axes: all of the short ones but one.
    strides = (64, 64 * side, 1, 2, 4, 8, 16, 32), (64 * side, 64, 32, 16, 8, 4, 2, 1)
    problem = transpose_problem((side, side, 2, 2, 2, 2, 2, 2), *strides, 1, (16, 16))
    for config in BLOCKS.configs:
        assert (config.why_not(problem) is None) == is_taken
        assert is_taken or "blocks, more than" in config.why_not(problem)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((5, 77, 6, 33), (3, 2, 1, 0)),
        ((101, 7, 13), (0, 2, 1)),
        ((3, 9, 16, 11, 7), (1, 0, 4, 3, 2)),
        ((48, 33, 45), (2, 1, 0)),
        ((70, 6, 3, 40), (2, 3, 1, 0)),
        ((20, 29, 65), (1, 0, 2)),
        ((3, 5, 7, 1201), (0, 3, 1, 2)),
        ((187, 4, 14), (2, 1, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("config", WORD_BLOCKS.configs, ids=str)
def test_runs_that_begin_anywhere(config, itemsize, shape, order, offset, rng):
    """Two CTAs move all blocks; runs of the target begin at any element, and memory ends within a vector."""
    source = random_rows(rng, shape, itemsize)
    moved = source.transpose(order)
    target = rows_of(moved.shape, itemsize, 0, offset)
    problem = permutation_between(moved, target)
    config = dataclasses.replace(config, ctas=2)
    # Dispatch leaves short runs of the target to other kernels.
    assert config.predicted(problem) is not None
    check_permutation(WORD_BLOCKS, config, moved, target)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("shape", "order", "pad"),
    [
        # Rows of one, two and three axes on either side, and a batch of as many.
        ((70, 3, 41, 7), (1, 3, 2, 0), 0),
        ((5, 3, 6, 5, 7, 9), (4, 5, 1, 3, 2, 0), 0),
        ((5, 4, 5, 3, 11, 6), (5, 1, 4, 3, 2, 0), 0),
        ((70, 2, 3, 2, 150), (4, 2, 3, 1, 0), 0),
        ((2, 3, 2, 80, 50), (1, 0, 2, 4, 3), 0),
        # The last rows are at the end of memory.
        ((3, 5, 6, 50), (3, 0, 2, 1), 0),
        # Gaps end a row.
        ((70, 3, 5, 40), (1, 3, 2, 0), 3),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("config", "itemsize"),
    [
        (config, itemsize)
        for config, itemsize in itertools.product(MERGED.configs, ITEMSIZES)
        if config.held(itemsize) % (config.threads // (WARP * config.spans)) == 0
    ],
    ids=str,
)
def test_rows_of_several_axes(config, itemsize, shape, order, pad, offset, rng):
    """Rows begin at any element, and tiles end beyond both sides."""
    source = random_rows(rng, shape, itemsize, pad, offset)
    moved = source.transpose(order)
    target = rows_of(moved.shape, itemsize, pad, offset)
    problem = permutation_between(moved, target)
    assert MERGED.why_not(problem, virtual_arch(), config) is None
    check_permutation(MERGED, config, moved, target)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("pitch", [4, 7, 8])
@pytest.mark.parametrize("offset", [0, 1])
def test_rows_of_windows_that_overlap(offset, pitch, rng):
    """Words around a row are in memory, but at both ends of it: rows that share elements end closer to those."""
    memory = random_rows(rng, (1, 2000 + 70 + 160 * pitch), 1, 0, offset)[0]
    moved = np.lib.stride_tricks.as_strided(memory, (3, 70, 161), (1000, 1, pitch))
    for config in MERGED.configs[:3]:
        check_permutation(MERGED, config, moved, rows_of(moved.shape, 1, 0, offset))
