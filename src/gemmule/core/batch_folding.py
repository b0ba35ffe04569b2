"""Batches that are one larger product: where a factor is the same for every matrix, the others stack up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .epilogue import SECOND
from .layout import StridedMatrix
from .problem import GemmProblem, collapse_batch
from .row_major import MAX_EXTENT


def fold_batch(problem: GemmProblem) -> GemmProblem:
    """Return the same product with dimensions of the batch made rows, or columns, where that is the same memory.

    A dimension over which B is repeated becomes rows if the matrices of A, of C and of D follow each other as their
    rows do; one over which A is repeated becomes columns if those of B, C and D follow as their columns. Kernels then
    see one large product instead of many small ones that read a factor again and again. An extent stays within what
    kernels with 32-bit indices take.

    Parameters
    ----------
    problem : GemmProblem
        Any product. One without elements stays as it is.
    """
    operands = problem.operands()
    if 0 in problem.batch or not (problem.m and problem.n):
        return problem
    batch, strides = collapse_batch(problem.batch, [x.batch_strides for x in operands.values()])
    found = problem.with_operands(
        batch,
        {
            name: dataclasses.replace(matrix, batch_strides=own)
            for (name, matrix), own in zip(operands.items(), strides, strict=True)
        },
    )
    for axis in reversed(range(len(batch))):
        found = _stacked_over(found, axis)
    return found if len(found.batch) < len(batch) else problem


def _stacked_over(problem: GemmProblem, axis: int) -> GemmProblem:
    """Return the product with one dimension of the batch made rows or columns, if it can be."""
    extent = problem.batch[axis]
    for repeated, along in (("b", "row"), ("a", "col")):
        operands = problem.operands()
        fixed = {"a": ("a",), "b": ("b", SECOND)}[repeated]
        others = {name: matrix for name, matrix in operands.items() if name not in fixed}
        size = extent * (problem.m if along == "row" else problem.n)
        still = all(operands[name].batch_strides[axis] == 0 for name in fixed if name in operands)
        if still and size <= MAX_EXTENT and _follow(others, axis, along):
            grown = {name: _grown(matrix, axis, along, extent) for name, matrix in others.items()}
            grown |= {name: _without(operands[name], axis) for name in fixed if name in operands}
            m, n = (size, problem.n) if along == "row" else (problem.m, size)
            return dataclasses.replace(problem, m=m, n=n).with_operands(_dropped(problem.batch, axis), grown)
    return problem


def _follow(matrices: Mapping[str, StridedMatrix], axis: int, along: str) -> bool:
    """Whether the next matrix of each begins where its next row, or column, would."""
    return all(
        _extent(x, along) == 1 or x.batch_strides[axis] == _extent(x, along) * _step(x, along)
        for x in matrices.values()
    )


def _extent(matrix: StridedMatrix, along: str) -> int:
    return matrix.rows if along == "row" else matrix.cols


def _step(matrix: StridedMatrix, along: str) -> int:
    return matrix.row_stride if along == "row" else matrix.col_stride


def _grown(matrix: StridedMatrix, axis: int, along: str, extent: int) -> StridedMatrix:
    # The step of a single row, or column, is never walked and may be anything.
    step = matrix.batch_strides[axis] // _extent(matrix, along)
    rest = _without(matrix, axis)
    if along == "row":
        return dataclasses.replace(rest, rows=matrix.rows * extent, row_stride=step)
    return dataclasses.replace(rest, cols=matrix.cols * extent, col_stride=step)


def _without(matrix: StridedMatrix, axis: int) -> StridedMatrix:
    return dataclasses.replace(matrix, batch_strides=_dropped(matrix.batch_strides, axis))


def _dropped(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]
