"""Classes of a matrix's lines of which TMA has a tensor map each: every 8th line, and where it begins."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from gemmule.core.launch import MAP_ALIGNMENT, Param, TensorMapParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.tma_tiles import operand_params

from .config import CLASSES

#: Bytes of the elements of which 8 are a multiple of 16 bytes.
_ITEM = MAP_ALIGNMENT // CLASSES
#: Leading dimensions of which TMA takes 8 times as many bytes are below this.
_MOST_LD = 1 << 35


class LineClass(NamedTuple):
    """Every 8th line of a matrix, which begin `shift` elements after a multiple of 16 bytes."""

    shift: int
    first: int  #: The first of its lines.


def residues(ld: int) -> tuple[int, int]:
    """Return the difference of two shifts of lines so many elements apart, and the first line of the least one."""
    step = math.gcd(ld, CLASSES)
    return step, pow(ld // step, -1, CLASSES // step)


def line_classes(ld: int) -> list[LineClass]:
    """Return the classes of lines so many elements apart, in the order of their shifts."""
    step, inverse = residues(ld)
    return [
        LineClass(number // step * step, (number // step * inverse + number % step * (CLASSES // step)) % CLASSES)
        for number in range(CLASSES)
    ]


def why_not_classes(name: str, matrix: StridedMatrix) -> str | None:
    """Say why the lines of a row- or column-major matrix have no such classes, or None where they have."""
    _, ld = _lines(matrix)
    if matrix.rows * matrix.cols == 1:
        return f"{name} has one element"
    if matrix.dtype.itemsize != _ITEM or matrix.alignment % MAP_ALIGNMENT:
        return f"{name} must have elements of {8 * _ITEM} bits and begin at a multiple of {MAP_ALIGNMENT} bytes"
    if ld % CLASSES == 0 or not 0 < ld < _MOST_LD:
        return f"{name} has lines {ld} elements apart; this kernel is for positive numbers that are no multiple of 8"
    return None


def _lines(matrix: StridedMatrix) -> tuple[int, int]:
    """Return how many lines a matrix has, and the elements from one to the next."""
    if matrix.has_contiguous_rows:
        return matrix.rows, matrix.row_stride
    return matrix.cols, matrix.col_stride


def b_params(name: str, b: StridedMatrix, tile_n: int, ctas: int) -> list[Param]:
    """Describe the classes of lines of B (K, N) as (N, K), from the multiple of 16 bytes before each line on.

    `ctas` of a cluster share a tile of so many columns.
    """
    b, found = b.transposed(), list[Param]()
    lines, ld = _lines(b)
    for one in line_classes(ld):
        (shift, first), count = _read(one, lines)
        changed = (
            dataclasses.replace(b, rows=count, cols=b.cols + shift, row_stride=CLASSES * ld)
            if b.has_contiguous_rows
            else dataclasses.replace(b, rows=b.rows + shift, cols=count, col_stride=CLASSES * ld)
        )
        found += _params(name, changed, first * ld - shift, tile_n, ctas, k_major=b.has_contiguous_rows)
    return found


def a_params(problem: GemmProblem, name: str, tile_m: int) -> list[Param]:
    """Describe M-major A: of K-major B as it is, else the lines of each of B's classes."""
    a, b = problem.a, problem.b
    if b.has_contiguous_cols:
        return _params(name, a, 0, tile_m)
    found = list[Param]()
    for one in line_classes(b.row_stride):
        (_, first), count = _read(one, problem.k)
        some = dataclasses.replace(a, cols=count, col_stride=CLASSES * a.col_stride)
        found += _params(name, some, first * a.col_stride, tile_m)
    return found


def _read(one: LineClass, lines: int) -> tuple[LineClass, int]:
    """Return a class and how many lines it has; instead of one without lines the first, of which no tile is read."""
    one = one if one.first < lines else LineClass(0, 0)
    return one, -(-(lines - one.first) // CLASSES)


def _params(
    name: str, matrix: StridedMatrix, offset: int, tile: int, ctas: int = 1, *, k_major: bool = False
) -> list[Param]:
    # Of a line of one element there may be one in a class: the matrix that it was a part of tells its major.
    described, extents = operand_params(name, matrix, (), tile, ctas, k_major=k_major)
    assert isinstance(described, TensorMapParam)
    return [dataclasses.replace(described, offset=offset * _ITEM), extents]
