"""Fragments of mma.sync: the places of the elements of a matrix in the registers of a warp.

The figures of the PTX ISA (8.7, "Matrix fragments for mma") follow one rule. With lane = 4 g + t, and p elements in a
register (p = 4 for 8-bit, 2 for 16-bit, 1 for tf32 and f64), element s of a register holds

- A, register 2 q + h: row g + 8 h, column 4 p q + p t + s; with 8 rows there is no h, register q
- B, register q: row 4 p q + p t + s, column g
- C and D, element 2 h + s: row g + 8 h, column 2 t + s; 16-bit elements are packed in pairs, s = 0 in the low half

The tables here say at which place of a warp's registers, laid end to end, an element of the matrix is found. Along k
the elements of a register are adjacent, so that A and B can be moved by whole registers: k then counts registers.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.intp]


def _row_and_column(rows: int, columns: int) -> tuple[Places, Places]:
    return np.arange(rows)[:, None], np.arange(columns)


@functools.cache
def places_of_a(rows: int, k: int) -> Places:
    """Return the places of A's registers, (rows, k), with k registers in a row."""
    row, column = _row_and_column(rows, k)
    halves = rows // 8
    register = halves * (column // 4) + row // 8
    return (4 * (row % 8) + column % 4) * (halves * k // 4) + register


@functools.cache
def places_of_b(k: int) -> Places:
    """Return the places of B's registers, (8, k), a row of them for each column of B."""
    column, row = _row_and_column(8, k)
    return (4 * column + row % 4) * (k // 4) + row // 4


@functools.cache
def places_of_accumulator(rows: int) -> Places:
    """Return the places of the elements of C and D, (rows, 8)."""
    row, column = _row_and_column(rows, 8)
    return (4 * (row % 8) + column // 2) * (rows // 4) + 2 * (row // 8) + column % 2


@functools.cache
def places_in_accumulator(rows: int) -> Places:
    """Return which element of C or D, of its rows laid end to end, each place of a warp holds: (32, rows / 4)."""
    return np.argsort(places_of_accumulator(rows), axis=None).reshape(32, rows // 4)
