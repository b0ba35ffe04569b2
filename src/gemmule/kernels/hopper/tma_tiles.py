"""Matrices of which TMA loads or stores tiles: which it takes, and their tensor maps.

K-tiles of A and B, and epilogue tiles of C and D, have rows of at most 128 bytes, the longest of TMA's swizzle.
"""

from __future__ import annotations

from gemmule.core.block_scales import BlockScales
from gemmule.core.dtype import FLOAT32
from gemmule.core.epilogue import SECOND
from gemmule.core.launch import MAP_ALIGNMENT, ExtentsParam, Param, TensorMapParam, TensorParam, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

from .tile_config import K_BYTES

#: Rows of a product, or in the mean of a group, up to which reading weights takes longer than multiplying: measured
#: with up to 128 rows, and with 512.
_MEMORY_BOUND_ROWS = 256
#: Global strides that cuTensorMapEncodeTiled takes are below this.
_MAX_STRIDE_BYTES = 1 << 40


def why_not_tma(name: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> str | None:
    """Say why TMA cannot address a matrix, or None where it can."""
    if matrix.alignment % MAP_ALIGNMENT:
        return f"{name.upper()} begins at a multiple of {matrix.alignment} bytes; TMA needs {MAP_ALIGNMENT}"
    item = matrix.dtype.itemsize
    rows = matrix.has_contiguous_rows if name in "ab" else matrix.is_row_major
    lines, ld = (matrix.rows, matrix.row_stride) if rows else (matrix.cols, matrix.col_stride)
    what, wrong = "leading dimension", ld * item if lines > 1 and not _is_stride(ld * item) else None
    if batch and wrong is None:
        strides = [stride * item for stride in matrix.batch_strides]
        what = "batch stride"
        # 0 where one matrix is for all of the batch.
        wrong = next(
            (x for extent, x in zip(batch, strides, strict=True) if extent > 1 and x and not _is_stride(x)), None
        )
    if wrong is None:
        return None
    return (
        f"{name.upper()} has a {what} of {wrong} bytes; TMA needs positive multiples of {MAP_ALIGNMENT} below "
        f"{_MAX_STRIDE_BYTES}"
    )


def _is_stride(nbytes: int) -> bool:
    return nbytes % MAP_ALIGNMENT == 0 and 0 < nbytes < _MAX_STRIDE_BYTES


def why_not_stored(matrix: StridedMatrix) -> str | None:
    """Say why TMA must not store D, or None where it may.

    It writes whole chunks of 16 bytes, also where a line ends within one.
    """
    size = (matrix.cols if matrix.is_row_major else matrix.rows) * matrix.dtype.itemsize
    if not matrix.padded and (beyond := -size % MAP_ALIGNMENT):
        return (
            f"D has lines of {size} bytes; TMA writes whole {MAP_ALIGNMENT} bytes, here {beyond} after the end of each "
            "line, which may belong to another array"
        )
    return None


def promotion_for(rows: float) -> int | None:
    """Return the L2 promotion of operands in bytes, as of `TensorMapParam`, by the rows that weights are multiplied by.

    A row of a TMA box has 128 bytes, and 256 prefetch those of the next k-tile. With few rows memory is the limit, and
    128 are faster; with many, tensor cores are, and prefetching pays or costs nothing.
    """
    return 128 if rows < _MEMORY_BOUND_ROWS else None


def operand_params(
    operand: str,
    matrix: StridedMatrix,
    batch: tuple[int, ...],
    tile: int,
    multicast_size: int = 1,
    promotion: int | None = None,
    parts: int = 1,
    k_major: bool | None = None,
) -> tuple[Param, Param]:
    """Describe A, or B as (N, K), of which TMA loads k-tiles.

    Parameters
    ----------
    operand : str
        The operand whose address it is.
    matrix : StridedMatrix
        The matrix, its rows those of a tile.
    batch : tuple of int
        Extents of the batch dimensions of the map.
    tile, multicast_size : int
        Rows of a tile, and CTAs of a cluster that share its k-tiles, of which each loads a part for all.
    promotion : int, optional
        As of `TensorMapParam`.
    parts : int
        Parts of a tile that MN-major rows in shared memory do not cross.
    k_major : bool, optional
        Whether the kernel has it K-major, which of a single element its strides do not tell.
    """
    item = matrix.dtype.itemsize
    depth = K_BYTES // item
    if matrix.has_contiguous_rows if k_major is None else k_major:
        described = _tensor_map(operand, matrix, batch, (depth, tile // multicast_size), promotion)
    else:
        # The K-major box above is 128 bytes of K by rows of M or N; an MN-major one is up to 128 bytes of M or N by K.
        row_bytes = next(row_bytes for row_bytes in (128, 64, 32, 16) if tile // parts * item % row_bytes == 0)
        box = (row_bytes // item, depth // multicast_size)
        described = _tensor_map(operand, matrix.transposed(), batch, box, promotion)
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, *batch))


def part_params(
    operand: str, matrix: StridedMatrix, batch: tuple[int, ...], tile: int, *, k_major: bool
) -> tuple[Param, Param]:
    """Describe complex A, or B as (N, K), by its parts, of which TMA loads k-tiles with lines of 128 bytes."""
    parts = 2
    steps = tuple(parts * step for step in matrix.batch_strides)
    lines = matrix if k_major else matrix.transposed()
    described = StridedMatrix(
        matrix.dtype.part, lines.rows, parts * lines.cols, parts * lines.row_stride, 1, steps, matrix.alignment
    )
    item = matrix.dtype.part.itemsize
    box = (K_BYTES // item, tile if k_major else K_BYTES // matrix.dtype.itemsize)
    extents = (matrix.rows, parts * matrix.cols) if k_major else (parts * matrix.rows, matrix.cols)
    return _tensor_map(operand, described, batch, box), ExtentsParam(operand, (*extents, *batch))


def result_params(
    operand: str, matrix: StridedMatrix, batch: tuple[int, ...], box: tuple[int, int], *, swap_ab: bool = False
) -> tuple[Param, Param]:
    """Describe row-major C or D, of which TMA loads or stores epilogue tiles; with swap_ab the kernel sees columns."""
    extents = (matrix.cols, matrix.rows) if swap_ab else (matrix.rows, matrix.cols)
    return _tensor_map(operand, matrix, batch, box), ExtentsParam(operand, (*extents, *batch))


def _tensor_map(
    operand: str, matrix: StridedMatrix, batch: tuple[int, ...], box: tuple[int, int], promotion: int | None = None
) -> TensorMapParam:
    """Describe a row-major matrix by a TMA box of `box` columns and rows."""
    item = matrix.dtype.itemsize
    # TMA never uses the stride of a single row or matrix, but it must be valid.
    row_stride_bytes = max(matrix.row_stride * item, 0) if matrix.rows > 1 else _padded(matrix.cols * item)
    # Without batch strides all matrices of the batch have extent 1.
    batch_strides = zip(batch, matrix.batch_strides or (0,) * len(batch), strict=True)
    batch_strides_bytes = tuple(
        stride * item if extent > 1 else _padded(row_stride_bytes * matrix.rows) for extent, stride in batch_strides
    )
    box_row_bytes = box[0] * item
    return TensorMapParam(
        operand=operand,
        dtype=matrix.dtype,
        extents=(matrix.cols, matrix.rows, *batch),
        pitches=(row_stride_bytes, *batch_strides_bytes),
        box=(*box, *(1 for _ in batch)),
        swizzle=box_row_bytes if box_row_bytes // MAP_ALIGNMENT % 2 == 0 else 0,
        promotion=promotion,
        tf32=matrix.dtype == FLOAT32 and operand in ("a", "b", SECOND),
    )


def _padded(size: int) -> int:
    """Return the least multiple of 16 bytes that holds so many."""
    return max(-(-size // MAP_ALIGNMENT) * MAP_ALIGNMENT, MAP_ALIGNMENT)


def row_params(problem: GemmProblem, batch: tuple[int, ...]) -> tuple[Param, Param]:
    """Describe row-major C, or D where there is none, and D, which threads read and write."""
    c = ("d", problem.d) if problem.c is None else ("c", problem.c)
    return row_param(*c, batch), row_param("d", problem.d, batch)


def row_param(operand: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> TensorParam:
    """Describe a row-major matrix that threads read or write."""
    batch_strides = (matrix.batch_strides or (0,)) if batch else ()
    return TensorParam(operand, (matrix.rows, matrix.cols, *batch), (matrix.row_stride, *batch_strides))


def scale_params(problem: GemmProblem) -> tuple[Param, ...]:
    """Describe alpha and beta."""
    return scalar_params(problem.scale_type, problem.alpha, problem.beta if problem.c is not None else 0)


def block_scale_params(scales: BlockScales | None, names: tuple[str, str]) -> tuple[Param, ...]:
    """Describe scales by blocks: for each line of blocks of A, and of B as (N, K), its blocks of K.

    Parameters
    ----------
    scales : BlockScales or None
        The scales, oriented as the kernel's product.
    names : tuple of str
        The operands that are the kernel's A and B.
    """
    if scales is None:
        return ()
    matrices = zip(names, (scales.a, scales.b.transposed()), strict=True)
    return tuple(
        TensorParam(f"scale_{name}", (matrix.rows, matrix.cols), (matrix.row_stride, matrix.col_stride))
        for name, matrix in matrices
    )
