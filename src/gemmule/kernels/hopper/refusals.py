"""The reasons for which kernels of Hopper refuse a problem, whatever their config."""

from __future__ import annotations

from collections.abc import Collection

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.dtype import DType
from gemmule.core.epilogue import SECOND
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, Problem, inner_problem
from gemmule.core.row_major import MAX_EXTENT, row_result, why_not_extents

from .tma_tiles import why_not_tma

#: The architecture that has wgmma.
HOPPER = Arch(9, 0, True)
#: Bytes of the elements that wgmma takes MN-major.
MN_MAJOR_BYTES = 2


def refuse_hopper(
    problem: GemmProblem,
    arch: Arch,
    operands: Collection[str] = "abcd",
    *,
    tma: Collection[str] = "",
    batch_dims: int = 1,
    takes_empty: bool = False,
) -> str | None:
    """Say why a kernel of Hopper refuses a problem (architecture, strides, alignment, extents), or None.

    Parameters as of `refuse_matrices`.
    """
    return why_not_arch(arch) or refuse_matrices(
        problem, operands, tma=tma, batch_dims=batch_dims, takes_empty=takes_empty
    )


def refuse_matrices(
    problem: GemmProblem,
    operands: Collection[str],
    *,
    tma: Collection[str] = "",
    batch_dims: int = 1,
    takes_empty: bool = False,
) -> str | None:
    """Say why a kernel refuses strides, alignment or extents, or None.

    Parameters
    ----------
    operands : collection of str
        Operands that the kernel reads or writes; they must be row- or column-major, C as D is.
    tma : collection of str
        Those among them that TMA addresses.
    batch_dims : int
        Batch dimensions that one launch covers: those beyond move what an operand's first address is.
    takes_empty : bool
        Whether the kernel takes extents of 0, and an alpha of 0.
    """
    inner = inner_problem(problem, batch_dims)
    oriented, first, second = row_result(inner)
    given = inner.operands()
    for name, matrix in given.items():
        if name in operands and (reason := _why_not_lines(name, matrix)):
            return reason
    if "c" in operands and oriented.c is not None and not oriented.c.is_row_major:
        return "C and the output have different layouts; this kernel takes both row-major or both column-major"
    if tma:
        # The names of the operands that are A and B of the row-major result.
        names = {"a": first, "b": second, SECOND: "b"}
        for name, matrix in (given if oriented is inner else oriented.operands()).items():
            if name in tma and (reason := why_not_tma(names.get(name, name), matrix, inner.batch)):
                return f"of the second factor, {reason}" if name == SECOND else reason
    if not takes_empty and not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    if inner.batch and max(inner.batch) > MAX_EXTENT:
        return (
            f"the batch of {inner.batch[0]} is more than {MAX_EXTENT}, the most that the kernel's 32-bit indices take"
        )
    return why_not_extents(problem)


def refuse_types(dtypes: Collection[DType], types: OperandTypes, arch: Arch) -> str | None:
    """Say why a kernel of Hopper refuses operands that are not all of one type among `dtypes`, or a GPU, or None."""
    if reason := why_not_arch(arch):
        return reason
    given = types.by_name()
    if types.a in dtypes and all(dtype == types.a for dtype in given.values()):
        return None
    named = ", ".join(f"{name.upper()} {dtype}" for name, dtype in given.items())
    return f"the operands are {named}; this kernel takes all of one type, {' or '.join(map(str, dtypes))}"


def why_not_arch(arch: Arch) -> str | None:
    """Say that a GPU has no wgmma, or None where it has."""
    wgmma = (arch.major, arch.minor) == (HOPPER.major, HOPPER.minor)
    return None if wgmma else f"wgmma is an instruction of {HOPPER}, which {arch} lacks"


def _why_not_lines(name: str, matrix: StridedMatrix) -> str | None:
    """Say why a matrix has no lines of contiguous elements, or None where it has."""
    if not (matrix.is_row_major or matrix.is_col_major):
        return (
            f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major and "
            "column-major matrices"
        )
    return why_not_elements(name, matrix)


def why_not_elements(name: str, matrix: StridedMatrix) -> str | None:
    """Say that a matrix begins within an element, or None where it does not."""
    if matrix.alignment % matrix.dtype.itemsize:
        return f"{name.upper()} begins within an element, at a multiple of {matrix.alignment} bytes"
    return None


def refuse_no_config(problem: GemmProblem, arch: Arch, config: Config) -> None:
    """Return that every config takes what `refuses` does not refuse: `KernelSpec.why_not` of many kernels."""
    del problem, arch, config


def refuse_nothing(problem: Problem, arch: Arch) -> None:
    """Return that a kernel takes every problem: `KernelSpec.refuses` of launches that others are followed by."""
    del problem, arch
