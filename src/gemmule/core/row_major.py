"""Row-major and column-major operands: orientation, alignment, and the limits that kernels for them share."""

from __future__ import annotations

import dataclasses

from .dtype import DType
from .last_call_cache import cache_last_call
from .layout import StridedMatrix
from .problem import GemmProblem

#: Extents beyond this could overflow the 32-bit indices of the kernels.
MAX_EXTENT = 2**30
#: CTAs along x, y and z.
MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
#: Bytes of the widest copy that one thread makes.
VECTOR_BYTES = 16


def row_result(problem: GemmProblem) -> tuple[GemmProblem, str, str]:
    """Return a problem whose result is row-major, and the operands that are its A and B.

    A column-major D is the row-major D.T = B.T @ A.T.
    """
    if problem.d.is_row_major:
        return problem, "a", "b"
    a, b, d = problem.b.transposed(), problem.a.transposed(), problem.d.transposed()
    c = problem.c.transposed() if problem.c is not None else None
    epilogue = problem.epilogue.transposed() if problem.epilogue is not None else None
    turned = dataclasses.replace(problem, m=problem.n, n=problem.m, a=a, b=b, c=c, d=d, epilogue=epilogue)
    return turned, "b", "a"


@cache_last_call
def why_not_lines(problem: GemmProblem, dtype: DType) -> str | None:
    """Say which operand is no row- or column-major matrix of that type, or None where all are, C in the layout of D."""
    for name, matrix in problem.operands().items():
        if matrix.dtype != dtype:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes {dtype} only"
    return why_not_strides(problem)


@cache_last_call
def why_not_strides(problem: GemmProblem) -> str | None:
    """Say which operand is no row- or column-major matrix, or None where all are, C in the layout of D."""
    for name, matrix in problem.operands().items():
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
    oriented, _, _ = row_result(problem)
    if oriented.c is not None and not oriented.c.is_row_major:
        return "C and the output have different layouts; this kernel takes both row-major or both column-major"
    return None


def why_not_extents(problem: GemmProblem) -> str | None:
    """Say which extent is too large for 32-bit indices, or None where all fit."""
    for name, extent in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
        if extent > MAX_EXTENT:
            return f"{name}={extent} is more than {MAX_EXTENT}, the most that this kernel's 32-bit indices take"
    return None


def why_not_grid(grid: tuple[int, int, int]) -> str | None:
    """Say which side of the grid is too long, or None where a launch takes it."""
    for axis, ctas, most in zip("xyz", grid, MAX_GRID, strict=True):
        if ctas > most:
            return f"the problem needs {ctas} CTAs along {axis}, more than the {most} of a launch"
    return None


def is_vectorised(matrix: StridedMatrix, *, row_major: bool) -> bool:
    """Whether every row (or column, of a column-major matrix) of every batch starts where a 16-byte copy may."""
    lead = matrix.row_stride if row_major else matrix.col_stride
    item = matrix.dtype.itemsize
    return all(stride * item % VECTOR_BYTES == 0 for stride in (lead, *matrix.batch_strides)) and (
        matrix.alignment % VECTOR_BYTES == 0
    )
