"""Row-major and column-major operands: orientation, alignment, and common limits of kernels."""

from __future__ import annotations

from .arch import Arch
from .dtype import DType
from .epilogue import SECOND
from .last_call_cache import cache_last_call
from .layout import StridedMatrix
from .problem import GemmProblem, OperandTypes

#: Largest extent without overflow of the kernels' 32-bit indices.
MAX_EXTENT = 2**30
# Inputs of an epilogue may have any strides.
_FACTORS_AND_RESULT = frozenset(("a", "b", "c", "d", SECOND))
#: Most CTAs along x, y and z.
MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
#: Bytes of a thread's widest load.
VECTOR_BYTES = 16


def row_result(problem: GemmProblem) -> tuple[GemmProblem, str, str]:
    """Return the equivalent problem with a row-major result, and the operands that are its A and B.

    A column-major D is the row-major D.T = B.T @ A.T.
    """
    if problem.d.is_row_major:
        return problem, "a", "b"
    return _transposed(problem), "b", "a"


#: A choice needs the same transposed problem several times.
_transposed = cache_last_call(GemmProblem.transposed)


def why_not_types(dtype: DType, types: OperandTypes, arch: Arch) -> str | None:
    """Return which operand is not of a kernel's only type, or None: `KernelSpec.refuses_types`."""
    del arch
    others = ((name, other) for name, other in types.by_name().items() if other != dtype)
    return next((f"{name.upper()} is {other}; this kernel takes {dtype} only" for name, other in others), None)


@cache_last_call
def why_not_lines(problem: GemmProblem, dtype: DType) -> str | None:
    """Return why an operand is no row- or column-major matrix of a type, C in D's layout; None where all are."""
    for name, matrix in problem.operands().items():
        if matrix.dtype != dtype:
            return f"{name.upper()} is {matrix.dtype}; this kernel takes {dtype} only"
    return why_not_strides(problem)


@cache_last_call
def why_not_strides(problem: GemmProblem) -> str | None:
    """Return why A, B, C or D is no row- or column-major matrix, or C not in D's layout; None where all are."""
    for name, matrix in problem.operands().items():
        if name in _FACTORS_AND_RESULT and not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
    oriented, _, _ = row_result(problem)
    if oriented.c is not None and not oriented.c.is_row_major:
        return "C and the output have different layouts; this kernel takes both row-major or both column-major"
    return None


def why_not_extents(problem: GemmProblem) -> str | None:
    """Return which extent is too large for 32-bit indices, or None."""
    if max(problem.m, problem.n, problem.k) <= MAX_EXTENT:
        return None
    for name, extent in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
        if extent > MAX_EXTENT:
            return f"{name}={extent} is more than {MAX_EXTENT}, the most that this kernel's 32-bit indices take"
    return None


def why_not_grid(grid: tuple[int, int, int]) -> str | None:
    """Return which side of the grid is too long for a launch, or None."""
    if max(grid) <= MAX_GRID[1]:
        return None
    for axis, ctas, most in zip("xyz", grid, MAX_GRID, strict=True):
        if ctas > most:
            return f"the problem needs {ctas} CTAs along {axis}, more than the {most} of a launch"
    return None


def is_vectorised(matrix: StridedMatrix, *, row_major: bool) -> bool:
    """Whether every row (or column of a column-major matrix) of every batch is aligned for 16-byte loads."""
    lead = matrix.row_stride if row_major else matrix.col_stride
    item = matrix.dtype.itemsize
    return all(stride * item % VECTOR_BYTES == 0 for stride in (lead, *matrix.batch_strides)) and (
        matrix.alignment % VECTOR_BYTES == 0
    )
