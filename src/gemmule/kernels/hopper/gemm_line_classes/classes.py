"""Classes of a matrix's lines of which TMA has a tensor map each: every 8th line, and where it begins."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from gemmule.core.launch import Param
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.tma_tiles import operand_params

from .config import CLASSES

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
    if matrix.dtype.itemsize != 2 or matrix.alignment % 16:
        return f"{name} must have elements of 16 bits and begin at a multiple of 16 bytes"
    if ld % CLASSES == 0 or not 0 < ld < _MOST_LD:
        return f"{name} has lines {ld} elements apart; this kernel is for positive numbers that are no multiple of 8"
    return None


def _lines(matrix: StridedMatrix) -> tuple[int, int]:
    """Return how many lines a matrix has, and the elements from one to the next."""
    if matrix.has_contiguous_rows:
        return matrix.rows, matrix.row_stride
    return matrix.cols, matrix.col_stride


def b_params(name: str, b: StridedMatrix, tile_n: int, ctas: int) -> list[Param]:
    """Describe the classes of lines of B (K, N) as (N, K), from the multiple of 16 bytes before each line on."""
    n_by_k, found = b.transposed(), list[Param]()
    lines, ld = _lines(n_by_k)
    for shift, first in line_classes(ld):
        first, shift, count = _of(lines, first, shift)
        rows, cols = n_by_k.rows, n_by_k.cols
        shape, strides = ((count, cols + shift), (CLASSES * ld, 1)) if n_by_k.has_contiguous_rows else (
            (rows + shift, count), (1, CLASSES * ld))  # fmt: skip
        found += _params(name, dataclasses.replace(n_by_k, rows=shape[0], cols=shape[1], row_stride=strides[0],
                                                   col_stride=strides[1]), (tile_n, ctas), first * ld - shift)  # fmt: skip
    return found


def _of(lines: int, first: int, shift: int) -> tuple[int, int, int]:
    """Return a class's first line, shift and lines; of one without lines those of the first, which none reads."""
    return (first, shift, -(-(lines - first) // CLASSES)) if first < lines else (0, 0, -(-lines // CLASSES))


def a_params(problem: GemmProblem, name: str, tile_m: int) -> list[Param]:
    """Describe M-major A: of K-major B as it is, else the lines of each of B's classes."""
    a, b = problem.a, problem.b
    if b.has_contiguous_cols:
        return _params(name, a, (tile_m, 1), 0)
    found = list[Param]()
    for _, first in line_classes(b.row_stride):
        first, _, count = _of(problem.k, first, 0)
        some = dataclasses.replace(a, cols=count, col_stride=CLASSES * a.col_stride)
        found += _params(name, some, (tile_m, 1), first * a.col_stride)
    return found


def _params(name: str, matrix: StridedMatrix, tile: tuple[int, int], offset: int) -> list[Param]:
    described, extents = operand_params(name, matrix, (), *tile)
    return [dataclasses.replace(described, offset=offset * matrix.dtype.itemsize), extents]
