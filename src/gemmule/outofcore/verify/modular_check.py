"""The check of integer products: exact, modulo the range that they are summed in."""

from __future__ import annotations

import numpy as np

from ..stores.matrix import Array, MatrixSource
from .block_passes import blocks


def check_modular(
    a: MatrixSource,
    b: MatrixSource,
    result: MatrixSource,
    t: Array,
    *,
    alpha: int,
    beta: int,
    c: MatrixSource | None,
    memory: int,
) -> int:
    """Return the largest difference of a row of ``result @ t`` and ``(alpha * a @ b + beta * c) @ t``.

    All arithmetic is modulo 2**64; the difference is taken modulo the range of the result.
    """
    difference = _apply(result, t, memory)
    if alpha != 0:
        difference -= _wrapped(alpha) * _apply(a, _apply(b, t, memory), memory)
    if c is not None:
        difference -= _wrapped(beta) * _apply(c, t, memory)
    bits = 8 * result.dtype.itemsize
    residue = difference.view(np.uint64) & np.uint64(2**bits - 1)
    opposite = (np.uint64(0) - residue) & np.uint64(2**bits - 1)
    return int(np.minimum(residue, opposite).max(initial=0))


def _wrapped(value: int) -> Array:
    return np.array(value % 2**64, dtype=np.uint64).view(np.int64)


def _apply(source: MatrixSource, x: Array, memory: int) -> Array:
    """Return ``source @ x`` modulo 2**64."""
    y = np.zeros((source.shape[0], x.shape[1]), np.int64)
    largest_x = float(np.abs(x.astype(np.float64)).max(initial=0.0))
    info = np.iinfo(source.dtype)
    largest = float(max(-int(info.min), int(info.max))) * max(largest_x, 1.0)
    for rows, cols, piece in blocks(source, memory):
        if largest * piece.shape[1] < 2**53:
            # Every partial sum is an integer below 2**53: the fast product in float64 is exact.
            y[rows] += (piece.astype(np.float64) @ x[cols].astype(np.float64)).astype(np.int64)
        else:
            y[rows] += piece.astype(np.int64) @ x[cols]
    return y
