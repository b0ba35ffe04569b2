"""Rows of both matrices as whole units, the widest accesses that their alignment allows."""

from __future__ import annotations

from gemmule.core.dtype import opaque_dtype
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES

from .refusals import is_aligned


def unit_of_rows(problem: TransposeProblem) -> int:
    """Return the most bytes, up to 16, that every row of two matrices contiguous along j begins and ends at."""
    size = VECTOR_BYTES
    while size > problem.itemsize and not all(
        is_aligned(matrix, problem.batch, size) for matrix in (problem.source, problem.target)
    ):
        size //= 2
    return size


def units_of(problem: TransposeProblem) -> TransposeProblem:
    """Return the same permutation of units, whose longest axis but the last is that of the matrices' rows.

    The batch's first axes are those of the shortest strides in the source.
    """
    unit, item = unit_of_rows(problem), problem.itemsize
    extents = (problem.rows, *problem.batch)
    longest = extents.index(max(extents))
    strides = (problem.source.row_stride, *problem.source.batch_strides)
    others = (axis for axis in range(len(extents)) if axis != longest)
    order = (longest, *sorted(others, key=lambda axis: abs(strides[axis])))

    def of_units(matrix: StridedMatrix) -> StridedMatrix:
        strides = (matrix.row_stride, *matrix.batch_strides)
        row, *batch = (strides[axis] * item // unit for axis in order)
        return StridedMatrix(
            opaque_dtype(unit), extents[longest], cols, row, 1, tuple(batch), max(matrix.alignment, unit)
        )

    cols = problem.cols * item // unit
    batch = tuple(extents[axis] for axis in order[1:])
    return TransposeProblem(extents[longest], cols, batch, of_units(problem.source), of_units(problem.target))
