"""Copies of operands in workspaces, where TMA can load them: their layout, and the launch that writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from gemmule.core.dtype import DType
from gemmule.core.epilogue import SECOND
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Signature

from .next_kernel import WorkspaceCopy
from .repack_config import PAIR, RepackConfig

#: Bytes that leading dimensions of copies are a multiple of. TMA takes 16, but its boxes have rows of 128 bytes, each
#: of which is one line of the L2 cache where it begins at a multiple of 128, elsewhere two.
REPACKED_BYTES = 128
#: Bytes that memory reads at once.
_SECTOR = 32
#: CTAs of the other operands that have nothing to copy, at most, for each that copies lines across matrices.
_IDLE = 8
_MAX_BATCH, _MAX_EXTENT, _MAX_VECTORS = 2**16 - 1, 2**30, 2**31 - 1


@dataclasses.dataclass
class OperandCopy(WorkspaceCopy):
    """The copy of a matrix, line by line, lines in the same direction."""

    #: length, lines, matrices: Elements of a line, lines of a matrix, and matrices.
    length: int
    lines: int
    matrices: int
    #: strides, copy_strides: Elements from one line, and one matrix, to the next.
    strides: tuple[int, int]
    copy_strides: tuple[int, int]
    vectors: int  #: Vectors of 16 bytes in a line.
    step: int = 1  #: Elements from one element of a line to the next.

    def why_not(self) -> str | None:
        """Say why the matrix is not copied, or None where it can be."""
        name = self.operand.upper()
        if max(self.length, self.lines) > _MAX_EXTENT or self.matrices > _MAX_BATCH:
            return f"{name} is {self.lines} lines of {self.length} elements, {self.matrices} times: too many"
        return None

    def across_matrices(self) -> OperandCopy:
        """Return the same copy, whose lines are the same line of each matrix: for a batch that is nearest in memory."""
        return dataclasses.replace(
            self, lines=self.matrices, matrices=self.lines, strides=self.strides[::-1],
            copy_strides=self.copy_strides[::-1],
        )  # fmt: skip

    def ctas(self, config: RepackConfig, strided: bool = False) -> int:
        """Return the CTAs that copy a matrix, in a launch for lines of any stride or not."""
        vectors = -(-self.vectors // PAIR) * PAIR if strided else self.vectors
        return -(-vectors * self.lines // (config.threads * config.vectors))


def operand_copy(
    operand: str,
    matrix: StridedMatrix,
    batch: tuple[int, ...],
    prefix: str,
    dtype: DType | None = None,
    *,
    rows: bool | None = None,
) -> OperandCopy:
    """Return the copy of a matrix of at most one batch dimension.

    Parameters
    ----------
    operand : str
        Its name.
    batch : tuple of int
        Extents of the batch.
    prefix : str
        First word of the workspace's name.
    dtype : DType, optional
        Type of the copy; the matrix's own unless given.
    rows : bool, optional
        Whether lines are rows; unless given they are what is contiguous of a row- or column-major matrix.
    """
    rows, dtype = matrix.has_contiguous_rows if rows is None else rows, dtype or matrix.dtype
    lines, length = (matrix.rows, matrix.cols) if rows else (matrix.cols, matrix.rows)
    # A thread's writes of a vector do not pass the end of a line.
    unit = max(REPACKED_BYTES // dtype.itemsize, PAIR * MAP_ALIGNMENT // matrix.dtype.itemsize)
    ld = max(-(-length // unit), 1) * unit
    between = (matrix.batch_strides or (0,))[0]
    # One matrix for all of a batch is copied once.
    matrices = batch[0] if batch and between else 1
    step = ld * lines if matrices > 1 else 0
    strides, steps = (ld, 1) if rows else (1, ld), (step,) if batch else ()
    copy = StridedMatrix(dtype, matrix.rows, matrix.cols, *strides, steps, MAP_ALIGNMENT, padded=True, conj=matrix.conj)
    ahead, step_in_line = (matrix.row_stride, matrix.col_stride)[:: 1 if rows else -1]
    given = (ahead, between)
    vectors = -(-length * matrix.dtype.itemsize // MAP_ALIGNMENT)
    named = (operand, f"{prefix} {operand}", copy, ld * lines * matrices * dtype.itemsize)
    # The stride of a single element is unused.
    return OperandCopy(*named, length, lines, matrices, given, (ld, step), vectors, step_in_line if length > 1 else 1)


def in_order(copies: Sequence[OperandCopy]) -> tuple[OperandCopy, ...]:
    """Return the copies of a launch, in which neighbouring threads read what is nearest in memory, also of a batch."""

    def is_across(one: OperandCopy) -> bool:
        nearest = one.matrices > 1 and abs(one.strides[1]) < min(abs(one.step), abs(one.strides[0]))
        return nearest and one.lines <= _MAX_BATCH

    others = sum(one.lines * one.vectors for one in copies if not is_across(one))
    return tuple(
        one.across_matrices() if is_across(one) and others <= _IDLE * one.vectors * one.matrices else one
        for one in copies
    )


def copied_lines(problem: GemmProblem, lines: Callable[[str, StridedMatrix], bool | None]) -> dict[str, bool]:
    """Return the operands to copy, and whether the lines of each copy are rows.

    Both B of a gated epilogue are copied alike if one is, or if their layouts differ.

    Parameters
    ----------
    lines : callable
        ``lines(name, matrix)`` is whether the lines of a factor's copy are rows, None for one that is not copied.
    """
    wanted = {name: lines("a" if name == "a" else "b", matrix) for name, matrix in problem.factors().items()}
    found = {name: rows for name, rows in wanted.items() if rows is not None}
    if SECOND in wanted and ("b" in found or SECOND in found or not are_alike(problem)):
        rows = found.get("b", problem.b.has_contiguous_rows)
        found |= {"b": rows, SECOND: rows}
    return found


def are_alike(problem: GemmProblem) -> bool:
    """Return whether both B of a gated epilogue have the same strides."""
    strides = [(x.row_stride, x.col_stride, x.batch_strides) for name, x in problem.factors().items() if name != "a"]
    return strides[0] == strides[-1]


def is_mirrored(problem: GemmProblem) -> bool:
    """Return whether A's copy, transposed, is that of all other factors: of B, which is A's transpose."""
    return problem.own_transpose and len(problem.factors()) == len("ab")


def why_not_copied(copies: Sequence[OperandCopy], config: RepackConfig, purpose: str) -> str | None:
    """Say why one launch cannot write all copies, or None where it can; `purpose` is a verb, as "repack"."""
    if sum(one.ctas(config, strided=True) for one in copies) * config.threads * config.vectors > _MAX_VECTORS:
        return (
            f"there are more than {_MAX_VECTORS} vectors to {purpose}, the most that the kernel's 32-bit indices take"
        )
    return None


def is_strided(matrix: StridedMatrix) -> bool:
    """Return whether neither rows nor columns are contiguous."""
    return not (matrix.is_row_major or matrix.is_col_major)


def nearer_rows(matrix: StridedMatrix) -> bool:
    """Return whether neighbours in a row are as near in memory as those in a column, or nearer."""
    return abs(matrix.col_stride) <= abs(matrix.row_stride)


def are_strided(copies: Sequence[OperandCopy]) -> bool:
    """Return whether a matrix has lines whose elements are not contiguous."""
    return any(one.step != 1 for one in copies)


def read_bytes(copy: OperandCopy, itemsize: int) -> float:
    """Return roughly the bytes that a copy reads of such elements: whole sectors if they are strided."""
    nearest = min(max(abs(stride), 1) for stride in (copy.step, copy.strides[0]))
    elements = copy.length * copy.lines * copy.matrices
    return elements * min(nearest * itemsize, max(_SECTOR, itemsize))


def strided_key(strided: bool) -> Signature:
    """Return the key of a signature that such lines have."""
    return (("strided", "yes"),) if strided else ()


def copy_launch(copies: Sequence[OperandCopy], config: RepackConfig) -> Launch:
    """Return the launch recipe: CTAs for the vectors of one operand, then those of the other."""
    params: list[Param] = []
    strided = are_strided(copies)
    for one in copies:
        extents = (one.length, one.lines, one.matrices)
        params += [
            TensorParam(one.operand, extents, (one.step, *one.strides) if strided else one.strides),
            TensorParam(one.workspace, extents, one.copy_strides),
        ]
    return Launch(
        grid=(sum(one.ctas(config, strided) for one in copies), 1, max((one.matrices for one in copies), default=1)),
        block=(config.threads, 1, 1),
        params=tuple(params),
        overlaps=True,
    )
