"""Batches of small matrices of 1- and 2-byte elements: which they are, and what calls choose."""

from __future__ import annotations

import pytest

from gemmule.core.arch import Arch
from gemmule.core.problem import inner_problem
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.blocks.spec import SPEC as BLOCKS
from gemmule.kernels.transpose.small_batches import is_small_batch
from support.permutations import permutation_of

HOPPER = Arch(9, 0, True)


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "kernel"),
    [
        # Runs of blocks share sectors, which the L2 cache holds until all are written.
        ((61, 264, 391), (0, 2, 1), 1, "transpose_blocks"),
        ((21, 1612, 199), (0, 2, 1), 1, "transpose_blocks"),
        ((52, 302, 127), (0, 2, 1), 1, "transpose_whole_matrices"),
        ((885, 27, 64), (0, 2, 1), 2, "transpose_blocks"),
        # Blocks that move elements one by one, and fewer bytes.
        ((61, 263, 391), (0, 2, 1), 1, "transpose_whole_rows"),
        ((245, 124, 220), (0, 2, 1), 1, "transpose_whole_rows"),
        ((427, 60, 585), (0, 2, 1), 1, "transpose_whole_rows"),
        # Parts of longer rows, and longer rows.
        ((900, 3, 430), (2, 1, 0), 1, "transpose_merged"),
        ((4, 2548, 263), (0, 2, 1), 1, "transpose_merged"),
        ((15, 120, 5982), (0, 2, 1), 1, "transpose_whole_rows"),
        # Matrices that fill small parts of many tiles, and those that fill more of fewer.
        ((98, 350, 12, 2), (2, 3, 1, 0), 2, "transpose_blocks"),
        ((511, 44, 29), (0, 2, 1), 2, "transpose_blocks"),
        ((32, 127, 74), (0, 2, 1), 2, "transpose_word_aligned"),
        ((32, 283, 113), (0, 2, 1), 1, "transpose_word_aligned"),
        # Structures of few elements.
        ((2000, 3, 1001), (0, 2, 1), 1, "transpose_word_blocks"),
    ],
)
def test_what_calls_choose(shape, axes, itemsize, kernel):
    assert choose(permutation_of(shape, axes, itemsize), HOPPER, multiprocessors=132).spec.name == kernel


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize", "expected"),
    [
        ((61, 264, 391), (0, 2, 1), 1, True),
        ((61, 264, 391), (0, 2, 1), 4, False),
        # A matrix, rows that are kept, and several batch axes.
        ((264, 391), (1, 0), 1, False),
        ((61, 264, 391), (1, 0, 2), 1, False),
        ((8, 9, 264, 391), (1, 0, 3, 2), 1, False),
        # Short sides, large matrices, and many.
        ((61, 6, 391), (0, 2, 1), 1, True),
        ((61, 5, 391), (0, 2, 1), 1, False),
        ((2, 512, 512), (0, 2, 1), 2, True),
        ((2, 512, 513), (0, 2, 1), 2, False),
        ((156, 264, 391), (0, 2, 1), 1, False),
    ],
)
def test_small_batches(shape, axes, itemsize, expected):
    assert is_small_batch(inner_problem(permutation_of(shape, axes, itemsize), BLOCKS.batch_dims)) is expected
