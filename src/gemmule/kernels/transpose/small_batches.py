"""Batches of small matrices of 1- and 2-byte elements, whose predicted times are fitted apart."""

from __future__ import annotations

from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.blocks.block import axes_of
from gemmule.kernels.transpose.tile_config import WORD

# Bytes of both tensors and of a matrix at most, and elements of its shorter side at least: of those that were measured.
_TENSORS, _MATRIX, _SIDE = 32_000_000, 512 << 10, 6


def is_small_batch(problem: TransposeProblem) -> bool:
    """Return whether a problem is a transposed batch of small matrices, whose elements are less than a word."""
    if problem.itemsize >= WORD or problem.bytes_min > _TENSORS or len(axes_of(problem)) != 3:
        return False
    is_transposed = problem.source.row_stride == problem.target.col_stride == 1
    size = problem.rows * problem.cols * problem.itemsize
    return is_transposed and size <= _MATRIX and min(problem.rows, problem.cols) >= _SIDE
