"""Leading dimension of a matrix, row-major or column-major, and the widest copies that its alignment allows."""

from __future__ import annotations

import functools
import math

from gemmule.core.dataclass import dataclass
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem


@dataclass(frozen=True)
class LeadingDimension:
    """Layout of a matrix in memory."""

    row_major: bool  #: Whether its rows are contiguous, else its columns.
    copy_bytes: int  #: Bytes that a copy along them may move at once.
    stride: int  #: Elements from one row, or column, to the next.


# A choice asks for those of the same few operands several times.
@functools.lru_cache(maxsize=64)
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
    layouts, ends = [], ends and not matrix.padded
    for row_major, count, stride, length in (
        (True, matrix.rows, matrix.row_stride, matrix.cols),
        (False, matrix.cols, matrix.col_stride, matrix.rows),
    ):
        if matrix.is_row_major if row_major else matrix.is_col_major:
            known = math.gcd(address_multiple(matrix, count, stride), length * matrix.dtype.itemsize if ends else 0)
            layouts.append(LeadingDimension(row_major, next(size for size in sizes if known % size == 0), stride))
    return max(layouts, key=lambda one: one.copy_bytes)


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
