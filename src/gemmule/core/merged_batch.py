"""Products of a batch of several dimensions as a batch of one: what does not merge them is copied into a workspace.

Heads of attention are such: their dimensions lie before and behind the rows, so that a kernel that covers one dimension
is launched once for each index of the other.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from gemmule.core.dataclass import dataclass

from .batch_folding import fold_batch
from .dtype import Precision
from .layout import StridedMatrix
from .problem import GemmProblem, split_batch
from .product_forms import Step, copy_step, workspace_bytes, workspace_matrix

if TYPE_CHECKING:
    from .config import Config
    from .spec import KernelSpec

#: The form's name, and those of its workspaces by operand.
MERGED = "merged batch"
_COPIES = {"a": "a with one batch dimension", "b": "b with one batch dimension", "d": "result with one batch dimension"}
#: A product, and the copies of its operands by their names.
_Merged = tuple[GemmProblem, dict[str, StridedMatrix]]
#: Batch dimensions that a launch of such a product covers: all.
_ALL = 64


def has_merged_batch(problem: GemmProblem) -> bool:
    """Return whether a product may be computed so: of several dimensions, and of operands that can be copied."""
    if len(problem.batch) < 2 or problem.needed is not None or not problem.k or 0 in problem.batch:
        return False
    if problem.precision not in (Precision.IEEE, Precision.TF32, Precision.FLOAT8):
        return False
    epilogue = problem.epilogue
    if epilogue is not None and (epilogue.second or epilogue.absmax or epilogue.scales):
        return False
    whole = split_batch(problem, _ALL)[0]
    return len(whole.batch) > 1 and _merged(whole) is not None


@dataclass(frozen=True)
class MergedBatch:
    """The form of such a product."""

    kernels: tuple[tuple[KernelSpec, Config], ...] = ()  #: Kernels and configs of `steps`.
    name: ClassVar[str] = MERGED
    batch_dims: ClassVar[int] = _ALL

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the product of a batch of one dimension at most, and the names of operands that are copied."""
        product, copies = _found(problem)[1]
        return product, {name: _COPIES[name] for name in copies}

    def steps(self, inner: GemmProblem) -> tuple[Step, ...]:
        """Return the copies of A and B, and that of the result after the product."""
        whole, (_, copies) = _found(inner)
        found = []
        for name, copy in copies.items():
            given, last = whole.operands()[name], name == "d"
            matrices, names = ((copy, given), (_COPIES[name], name)) if last else ((given, copy), (name, _COPIES[name]))
            found.append(copy_step(whole, whole.batch, matrices, names, is_last=last))
        return tuple(found)

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspaces by name."""
        whole, (_, copies) = _found(inner)
        return {_COPIES[name]: workspace_bytes(copy, whole.batch) for name, copy in copies.items()}


def _found(problem: GemmProblem) -> tuple[GemmProblem, _Merged]:
    """Return a product with as few batch dimensions as its strides allow, and what it becomes."""
    whole = split_batch(problem, _ALL)[0]
    merged = _merged(whole)
    assert merged is not None
    return whole, merged


def _merged(whole: GemmProblem) -> _Merged | None:
    """Return the product of a batch of one dimension at most, and copies by the names of operands; or None.

    One matrix for all of a dimension stays, if that becomes rows or columns, else there is a copy for each.
    """
    operands = whole.operands()
    apart = [name for name, matrix in operands.items() if not _merges(matrix, whole.batch)]
    if not set(apart) <= ({"a", "b"} if whole.c is not None else set(_COPIES)):
        return None
    for copied in ([name for name in apart if 0 not in operands[name].batch_strides], apart):
        copies = {name: _copy(name, operands[name], whole.batch) for name in copied}
        product, outer, _ = split_batch(fold_batch(whole.with_operands(whole.batch, operands | copies)), 1)
        if not outer:
            return product, copies
    return None


def _merges(matrix: StridedMatrix, batch: tuple[int, ...]) -> bool:
    """Return whether the batch dimensions of a matrix are one."""
    steps = matrix.batch_strides
    return all(outer == inner * extent for outer, inner, extent in zip(steps, steps[1:], batch[1:], strict=False))


def _copy(name: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> StridedMatrix:
    """Return the copy of a matrix, which lies like it, one of the batch behind the other.

    What follows lines along K is not written, and must not be read: kernels would multiply it by zeros.
    """
    row_major = matrix.is_row_major or not matrix.is_col_major
    copy = workspace_matrix(matrix.dtype, (matrix.rows, matrix.cols), batch, row_major=row_major)
    return dataclasses.replace(copy, conj=matrix.conj, padded=name == "d" or row_major != (name == "a"))
