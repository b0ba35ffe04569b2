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
    ld = matrix.row_stride if matrix.has_contiguous_rows else matrix.col_stride
    if matrix.rows * matrix.cols == 1:
        return f"{name} has one element"
    if matrix.dtype.itemsize != _ITEM or matrix.alignment % MAP_ALIGNMENT:
        return f"{name} must have elements of {8 * _ITEM} bits and begin at a multiple of {MAP_ALIGNMENT} bytes"
    if ld % CLASSES == 0 or not 0 < ld < _MOST_LD:
        return f"{name} has lines {ld} elements apart; this kernel is for positive numbers that are no multiple of 8"
    return None


def b_params(name: str, b: StridedMatrix, tile_n: int, ctas: int) -> list[Param]:
    """Describe the classes of lines of B (K, N) as (N, K), from the multiple of 16 bytes before each line on.

    `ctas` of a cluster share a tile of so many columns.
    """
    k_major, found = b.has_contiguous_cols, list[Param]()
    lines = b.transposed() if k_major else b
    for one in line_classes(lines.row_stride):
        some, ahead = class_lines(lines, _read(one, lines.rows))
        found += _params(name, some if k_major else some.transposed(), ahead, tile_n, ctas, k_major=k_major)
    return found


def a_params(problem: GemmProblem, name: str, tile_m: int) -> list[Param]:
    """Describe M-major A: of K-major B as it is, else the lines of each of B's classes."""
    a, b = problem.a, problem.b
    if b.has_contiguous_cols:
        return _params(name, a, 0, tile_m)
    found = list[Param]()
    for one in line_classes(b.row_stride):
        first = _read(one, problem.k)
        some = dataclasses.replace(a, cols=_count(problem.k, first), col_stride=CLASSES * a.col_stride)
        found += _params(name, some, first * a.col_stride, tile_m)
    return found


def class_lines(lines: StridedMatrix, first: int) -> tuple[StridedMatrix, int]:
    """Return the rows of a class, from the multiple of 16 bytes before the first one on, and the elements up to it."""
    ahead = first * lines.row_stride
    shift = ahead % CLASSES
    rows, cols = _count(lines.rows, first), lines.cols + shift
    return dataclasses.replace(lines, rows=rows, cols=cols, row_stride=CLASSES * lines.row_stride), ahead - shift


def _count(lines: int, first: int) -> int:
    """Return how many lines the class of a first one has."""
    return -(-(lines - first) // CLASSES)


def _read(one: LineClass, lines: int) -> int:
    """Return the first line of a class; instead of one without lines the first class's, of which no tile is read."""
    return one.first if one.first < lines else 0


def _params(
    name: str, matrix: StridedMatrix, offset: int, tile: int, ctas: int = 1, *, k_major: bool = False
) -> list[Param]:
    # Of a line of one element there may be one in a class: the matrix that it was a part of tells its major.
    described, extents = operand_params(name, matrix, (), tile, ctas, k_major=k_major)
    assert isinstance(described, TensorMapParam)
    return [dataclasses.replace(described, offset=offset * _ITEM), extents]
