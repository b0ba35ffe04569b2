"""Lines of a matrix: its rows or its columns, whichever are contiguous, and how wide the copies in them may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.layout import StridedMatrix


@dataclasses.dataclass(frozen=True)
class Lines:
    """How a matrix lies in memory.

    Attributes
    ----------
    rows : bool
        Whether its lines are rows.
    copy_bytes : int
        Bytes that a copy in them may move at once.
    stride : int
        Elements from one line to the next.
    """

    rows: bool
    copy_bytes: int
    stride: int


def lines_of(matrix: StridedMatrix, sizes: Sequence[int], *, ends: bool = False) -> Lines:
    """Return the lines of a matrix; a single row or column is what takes the wider copies.

    Parameters
    ----------
    matrix : StridedMatrix
        Row-major or column-major.
    sizes : sequence of int
        Bytes that copies may move, widest first, those of an element last.
    ends : bool
        Whether lines must end where a copy does too, so that no copy lies half outside of the matrix.
    """
    found = []
    if matrix.is_row_major:
        found.append((True, matrix.rows, matrix.row_stride, matrix.cols))
    if matrix.is_col_major:
        found.append((False, matrix.cols, matrix.col_stride, matrix.rows))
    lines = []
    for rows, count, stride, length in found:
        known = math.gcd(line_bytes(matrix, count, stride), length * matrix.dtype.itemsize if ends else 0)
        lines.append(Lines(rows, next(size for size in sizes if known % size == 0), stride))
    return max(lines, key=lambda line: line.copy_bytes)


def line_bytes(matrix: StridedMatrix, lines: int, stride: int) -> int:
    """Return the bytes that the address of every line of every matrix of the batch is a multiple of.

    Parameters
    ----------
    matrix : StridedMatrix
        The matrix.
    lines, stride : int
        How many lines it has, and the elements from one to the next.
    """
    # Of a single line it does not matter where the next would be.
    steps = (stride if lines > 1 else 0, *matrix.batch_strides)
    return math.gcd(matrix.alignment, *(step * matrix.dtype.itemsize for step in steps))
