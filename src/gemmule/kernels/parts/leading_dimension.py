"""Leading dimension of a matrix, row-major or column-major, and the widest copies that its alignment allows."""

from __future__ import annotations

import math
from typing import NamedTuple

from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem


class LeadingDimension(NamedTuple):
    """Layout of a matrix in memory."""

    row_major: bool  #: Whether its rows are contiguous, else its columns.
    copy_bytes: int  #: Bytes that a copy along them may move at once.
    stride: int  #: Elements from one row, or column, to the next.


def leading_dimension(matrix: StridedMatrix, sizes: tuple[int, ...], *, ends: bool = False) -> LeadingDimension:
    """Return the leading dimension of a matrix; a single row or column is taken for that with wider copies.

    Parameters
    ----------
    matrix : StridedMatrix
        Row-major or column-major.
    sizes : tuple of int
        Bytes that copies may move, widest first, those of an element last.
    ends : bool
        Whether rows must end where a copy does too, so that no copy is half outside of the matrix; those of padded ones
        need not.
    """
    ends = ends and not matrix.padded
    by_rows = by_cols = 0
    if matrix.is_row_major:
        by_rows = _copy_bytes(matrix, matrix.rows, matrix.row_stride, matrix.cols if ends else 0, sizes)
    if matrix.is_col_major:
        by_cols = _copy_bytes(matrix, matrix.cols, matrix.col_stride, matrix.rows if ends else 0, sizes)
    if by_rows >= by_cols:
        return LeadingDimension(True, by_rows, matrix.row_stride)
    return LeadingDimension(False, by_cols, matrix.col_stride)


def _copy_bytes(matrix: StridedMatrix, count: int, stride: int, length: int, sizes: tuple[int, ...]) -> int:
    """Return the widest copies of rows (or columns), whose ends count where `length` is not 0."""
    step = math.gcd(stride if count > 1 else 0, length, *matrix.batch_strides)
    known = math.gcd(matrix.alignment, step * matrix.dtype.itemsize)
    for size in sizes:
        if known % size == 0:
            break
    return size


def address_multiple(matrix: StridedMatrix, count: int, stride: int) -> int:
    """Return the bytes that the address of every row (or column) of every matrix of the batch is a multiple of.

    Parameters
    ----------
    count, stride : int
        Its rows or columns, and the elements from one to the next.
    """
    # A single row has no next one: its stride is of no use.
    step = math.gcd(stride if count > 1 else 0, *matrix.batch_strides)
    return math.gcd(matrix.alignment, step * matrix.dtype.itemsize)


def result_vector(problem: GemmProblem, vector: int) -> int:
    """Return how many elements of D, and of C, are moved at once: `vector` where their rows allow it, else one."""
    outputs = [matrix for matrix in (problem.c, problem.d) if matrix is not None]
    aligned = all(address_multiple(x, x.rows, x.row_stride) % (vector * x.dtype.itemsize) == 0 for x in outputs)
    return vector if problem.n % vector == 0 and aligned else 1
