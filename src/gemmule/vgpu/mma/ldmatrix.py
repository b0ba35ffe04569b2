"""Addresses of ldmatrix and stmatrix: the bytes of shared memory that each register of each lane holds.

PTX ISA 8.7, "Warp-level matrix load instruction: ldmatrix" and "stmatrix". A matrix has 8 rows of 16 bytes, anywhere in
shared memory, each at a multiple of 16; lane 8 m + i gives the address of row i of matrix m, register m of every lane
holds its part of matrix m. stmatrix is the same with source and destination exchanged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmule.core.errors import ShapeError

Addresses = NDArray[np.int64]

_LANES: NDArray[np.int64] = np.arange(32)


def row_lanes(matrices: int) -> NDArray[np.bool_]:
    """Return which of the 32 lanes' addresses are read, for .x1, .x2 or .x4; those of the others are ignored."""
    return np.arange(32) < 8 * _checked(matrices)


def word_addresses(rows: Addresses, matrices: int) -> Addresses:
    """Return the address of each register's 4-byte word, without .trans.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        Address operand of each lane, (warps, 32).
    matrices : int
        1, 2 or 4, for .x1, .x2 and .x4.

    Returns
    -------
    numpy.ndarray of int64
        Byte addresses, (warps, 32, matrices): lane l has columns 2 (l mod 4) and the next, of row l div 4.
    """
    row = 8 * np.arange(_checked(matrices)) + _LANES[:, None] // 4
    return rows[:, row] + 4 * (_LANES[:, None] % 4)


def half_addresses(rows: Addresses, matrices: int) -> Addresses:
    """Return the addresses of each register's two 2-byte halves, with .trans.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        Address operand of each lane, (warps, 32).
    matrices : int
        1, 2 or 4, for .x1, .x2 and .x4.

    Returns
    -------
    numpy.ndarray of int64
        Byte addresses, (warps, 32, matrices, 2), the low half first: lane l has rows 2 (l mod 4) and the next, of
        column l div 4.
    """
    lane = _LANES[:, None, None]
    row = 8 * np.arange(_checked(matrices))[:, None] + 2 * (lane % 4) + np.arange(2)
    return rows[:, row] + 2 * (lane // 4)


def _checked(matrices: int) -> int:
    if matrices not in (1, 2, 4):
        raise ShapeError(f"{matrices} matrices: ldmatrix and stmatrix move 1, 2 or 4")
    return matrices
