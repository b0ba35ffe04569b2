"""Batch folding: a batched product with a broadcast operand becomes one larger product."""

from __future__ import annotations

import dataclasses

from .epilogue import SECOND
from .layout import StridedMatrix
from .problem import GemmProblem, collapse_batch
from .row_major import MAX_EXTENT


def fold_batch(problem: GemmProblem) -> GemmProblem:
    """Return the same product with batch dimensions folded into rows or columns, where strides allow.

    A dimension over which B is broadcast becomes rows if the matrices of A, C and D continue each other's rows; one
    over which A is broadcast becomes columns likewise. Kernels then compute one large product instead of many small
    ones that read an operand repeatedly. Extents stay within 32-bit indices.

    Parameters
    ----------
    problem : GemmProblem
        Any product; an empty one is returned unchanged.
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
        found = _fold_rows(found, axis) or _fold_columns(found, axis) or found
    return found if len(found.batch) < len(batch) else problem


def _fold_columns(problem: GemmProblem, axis: int) -> GemmProblem | None:
    folded = _fold_rows(problem.transposed(), axis, second_is_b=False)
    return folded.transposed() if folded is not None else None


def _fold_rows(problem: GemmProblem, axis: int, *, second_is_b: bool = True) -> GemmProblem | None:
    """Return the product with a batch dimension folded into rows, or None where B is not broadcast over it."""
    extent, operands = problem.batch[axis], problem.operands()
    fixed = {"b", SECOND} if second_is_b else {"b"}
    folded = {}
    for name, matrix in operands.items():
        step, rest = matrix.batch_strides[axis], _without(matrix, axis)
        if name not in fixed:
            # The row stride of a single row is never used and may be anything.
            if matrix.rows > 1 and step != matrix.rows * matrix.row_stride:
                return None
            rest = dataclasses.replace(rest, rows=matrix.rows * extent, row_stride=step // matrix.rows)
        elif step:
            return None
        folded[name] = rest
    if extent * problem.m > MAX_EXTENT:
        return None
    batch = problem.batch[:axis] + problem.batch[axis + 1 :]
    return dataclasses.replace(problem, m=extent * problem.m).with_operands(batch, folded)


def _without(matrix: StridedMatrix, axis: int) -> StridedMatrix:
    strides = matrix.batch_strides
    return dataclasses.replace(matrix, batch_strides=strides[:axis] + strides[axis + 1 :])
