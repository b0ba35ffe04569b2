"""Matrices of which the copy engine (TMA) brings tiles: what it can take, and the tensor maps by which it finds them.

Slices of A and B, and boxes of C and D, are 128 bytes wide, the rows of the copy engine's swizzle.
"""

from __future__ import annotations

from gemmule.core.launch import MAP_ALIGNMENT, ExtentsParam, Param, TensorMapParam
from gemmule.core.layout import StridedMatrix

#: Bytes of K of a slice, which are the rows of the swizzle.
SLICE_BYTES = 128
#: Rows of a box of C or D, and its columns of 16 bits.
BOX_ROWS, BOX_COLS = 64, 64
_MAX_PITCH = 1 << 40


def why_not_copied(name: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> str | None:
    """Say why the copy engine cannot take a matrix, or None where it can."""
    item = matrix.dtype.itemsize
    rows = matrix.lies_in_rows if name in "ab" else matrix.is_row_major
    lines, pitch = (matrix.rows, matrix.row_stride) if rows else (matrix.cols, matrix.col_stride)
    steps = [("pitch", lines, pitch)]
    steps += [("step of the batch", extent, s) for extent, s in zip(batch, matrix.batch_strides, strict=True)]
    if matrix.alignment % MAP_ALIGNMENT:
        return f"{name.upper()} begins at a multiple of {matrix.alignment} bytes; the copy engine needs {MAP_ALIGNMENT}"
    for what, extent, step in steps:
        if extent > 1 and (step <= 0 or step * item % MAP_ALIGNMENT or step * item >= _MAX_PITCH):
            return (
                f"{name.upper()} has a {what} of {step * item} bytes; the copy engine needs positive multiples of "
                f"{MAP_ALIGNMENT}"
            )
    return None


def why_not_written(matrix: StridedMatrix) -> str | None:
    """Say why the copy engine must not write D, or None where it may.

    It writes whole chunks of 16 bytes: of those in which a line ends it writes what lies behind the line, too.
    """
    size = (matrix.cols if matrix.is_row_major else matrix.rows) * matrix.dtype.itemsize
    if beyond := -size % MAP_ALIGNMENT:
        return (
            f"D has lines of {size} bytes; the copy engine writes whole {MAP_ALIGNMENT} bytes, here {beyond} behind "
            "the end of each line, which may be somebody else's"
        )
    return None


def slice_params(
    operand: str, matrix: StridedMatrix, batch: tuple[int, ...], tile: int, sharers: int = 1
) -> tuple[Param, Param]:
    """Describe A, or B as (N, K).

    Parameters
    ----------
    operand : str
        Whose pointer goes in.
    matrix : StridedMatrix
        The matrix, its rows those of a tile.
    batch : tuple of int
        Extents of its batch dimensions: none, or one.
    tile, sharers : int
        Rows of a tile, and CTAs that share a slice of it, of which each brings its part.
    """
    depth = SLICE_BYTES // matrix.dtype.itemsize
    # Lines along K are brought as rows of a tile; lines across K as 128 bytes of each k.
    box = (depth, tile // sharers) if matrix.lies_in_rows else (depth, depth // sharers)
    return map_params(operand, matrix, batch, box)


def box_params(operand: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> tuple[Param, Param]:
    """Describe C or D, in rows."""
    return map_params(operand, matrix, batch, (BOX_COLS, BOX_ROWS))


def map_params(
    operand: str, matrix: StridedMatrix, batch: tuple[int, ...], box: tuple[int, int]
) -> tuple[Param, Param]:
    """Describe a matrix of which boxes are copied: elements along its lines, and lines."""
    item = matrix.dtype.itemsize
    along = matrix if matrix.lies_in_rows else matrix.transposed()
    # Where there is only one line, or one matrix, it does not matter where the next would be.
    line = max(along.row_stride * item, 0) if along.rows > 1 else padded(along.cols * item)
    steps = zip(batch, matrix.batch_strides or batch, strict=True)
    further = tuple(step * item if extent > 1 else padded(line * along.rows) for extent, step in steps)
    described = TensorMapParam(
        operand=operand,
        dtype=matrix.dtype,
        extents=(along.cols, along.rows, *batch),
        pitches=(line, *further),
        box=(*box, *(1 for _ in batch)),
        swizzle=SLICE_BYTES,
    )
    return described, ExtentsParam(operand, (matrix.rows, matrix.cols, *batch))


def padded(size: int) -> int:
    """Return the least pitch of so many bytes that the copy engine takes."""
    return max(-(-size // MAP_ALIGNMENT) * MAP_ALIGNMENT, MAP_ALIGNMENT)
