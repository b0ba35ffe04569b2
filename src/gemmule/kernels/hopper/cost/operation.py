"""A product as the predicted times of Hopper's persistent kernels see it."""

from __future__ import annotations

from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.hopper.tile_config import K_BYTES

from .rates import OperandLayout, Operation


def k_tiles_of(problem: GemmProblem) -> int:
    """Return how many k-tiles of 128 bytes K has."""
    return -(-problem.k * problem.a.dtype.itemsize // K_BYTES)


def why_not_split(problem: GemmProblem, cluster_k: int) -> str | None:
    """Say why K has too few k-tiles for so many CTAs of a cluster, or None where it has enough."""
    if (k_tiles := k_tiles_of(problem)) < cluster_k:
        return f"K={problem.k} has {k_tiles} k-tiles of {K_BYTES} bytes, too few to share among {cluster_k} CTAs"
    return None


#: Bytes of operands that the correction knows with results of their own type only.
_HALF_BYTES = 2
#: Layout of K-major copies of operands.
_COPY = OperandLayout(0, False)


def operation_of(problem: GemmProblem, *, prepares: bool = False) -> Operation:
    """Return a product as the cost model sees it, of one batch dimension at most.

    With `prepares` it has a prepared one, of K-major copies of operands that are MN-major.
    """
    oriented, _, _ = row_result(problem)
    batch, item = (problem.batch or (1,))[0], problem.a.dtype.itemsize
    written = problem.d.dtype.itemsize * problem.m * problem.n * batch
    k_tiles = k_tiles_of(problem)
    d = oriented.d
    a, b = _operand_layouts(oriented)
    return Operation(
        rows=oriented.m,
        cols=oriented.n * num_b_of(oriented.epilogue),
        batch=batch,
        a=a,
        b=b,
        k_tiles=k_tiles,
        last=problem.k * item / K_BYTES - (k_tiles - 1),
        result_begin=_begin(d, d.has_contiguous_rows),
        result_item=problem.d.dtype.itemsize,
        learned_item=item if item == _HALF_BYTES else problem.d.dtype.itemsize,
        read=problem.bytes_min - written,
        written=written,
        prepared=(_COPY if a.mn_major else a, _COPY if b.mn_major else b) if prepares else None,
        float8=problem.a.dtype.is_float8,
    )


def _operand_layouts(oriented: GemmProblem) -> tuple[OperandLayout, OperandLayout]:
    """Return the layouts of the operands of a row-major result."""
    a, b = oriented.a, oriented.b
    a_k_major, b_k_major = a.has_contiguous_rows, b.has_contiguous_cols
    return (
        OperandLayout(_begin(a, a_k_major), not a_k_major),
        OperandLayout(_begin(b, not b_k_major), not b_k_major),
    )


def _begin(matrix: StridedMatrix, in_rows: bool) -> int:
    """Return where lines of a matrix begin: 0 at multiples of 128 bytes, 1 of 64, 2 of 32, 3 elsewhere."""
    lines, stride = (matrix.rows, matrix.row_stride) if in_rows else (matrix.cols, matrix.col_stride)
    line_bytes = stride * matrix.dtype.itemsize
    if lines == 1 or line_bytes % 128 == 0:
        return 0
    return 1 if line_bytes % 64 == 0 else 2 if line_bytes % 32 == 0 else 3
