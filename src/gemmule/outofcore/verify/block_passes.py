"""Passes over a source in blocks: products with a few vectors, and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..stores.matrix import Array, MatrixSource

#: Largest block in bytes of float64: it stays near the cache.
BLOCK_BYTES = 8 << 20
_LEAST_BLOCK_BYTES = 64 << 10


def block_limit(memory: int) -> int:
    """Return the bytes of float64 of one block when `memory` is the limit: a block is there up to six times."""
    return min(max(memory // 16, _LEAST_BLOCK_BYTES), BLOCK_BYTES)


def blocks(source: MatrixSource, memory: int) -> Iterator[tuple[slice, slice, Array]]:
    """Yield (rows, columns, values) over the whole source, along its order; the values are gone at the next one."""
    rows, cols = source.shape
    items = block_limit(memory) // 8
    across, along = (rows, cols) if source.order == "C" else (cols, rows)
    length = min(along, items)
    if not length:
        return
    lines = max(min(items // length, across), 1)
    buffer = np.empty(lines * length, source.dtype)
    for first in range(0, across, lines):
        for start in range(0, along, length):
            outer = slice(first, min(first + lines, across))
            inner = slice(start, min(start + length, along))
            row_part, col_part = (outer, inner) if source.order == "C" else (inner, outer)
            shape = row_part.stop - row_part.start, col_part.stop - col_part.start
            piece = buffer[: shape[0] * shape[1]].reshape(shape, order="F" if source.order == "F" else "C")
            source.read(row_part, col_part, piece)
            yield row_part, col_part, piece


def wide(piece: Array) -> Array:
    """Return floats as float64, complex numbers as complex128."""
    return piece.astype(np.complex128 if piece.dtype.kind == "c" else np.float64, copy=False)


def apply(source: MatrixSource, x: Array, memory: int) -> Array:
    """Return ``source @ x`` in float64 (complex128 for complex numbers); `x` has a few columns."""
    dtype = np.result_type(x.dtype, np.complex128 if source.dtype.kind == "c" else np.float64)
    y = np.zeros((source.shape[0], x.shape[1]), dtype)
    for rows, cols, piece in blocks(source, memory):
        y[rows] += wide(piece) @ x[cols]
    return y


def row_norms(source: MatrixSource, memory: int, look: Callable[[slice, Array], None] | None = None) -> Array:
    """Return the Euclidean norm of every row; `look` sees (rows, values) of every block on the way."""
    # Squares are taken of values relative to the largest so far, so that they neither vanish nor overflow.
    scale, squares = np.zeros(source.shape[0]), np.zeros(source.shape[0])
    for rows, _, piece in blocks(source, memory):
        if look:
            look(rows, piece)
        magnitude = np.abs(wide(piece))
        larger = np.maximum(scale[rows], magnitude.max(axis=1, initial=0.0))
        safe = np.where((larger > 0) & np.isfinite(larger), larger, 1.0)
        squares[rows] *= (scale[rows] / safe) ** 2
        magnitude /= safe[:, None]
        squares[rows] += np.einsum("ij,ij->i", magnitude, magnitude)
        scale[rows] = np.where(np.isfinite(larger), np.where(larger > 0, larger, 0.0), 1.0)
    return np.asarray(np.sqrt(squares) * scale)


def apply_magnitudes(source: MatrixSource, x: Array, memory: int) -> Array:
    """Return ``|source| @ x`` for one vector."""
    y = np.zeros(source.shape[0])
    for rows, cols, piece in blocks(source, memory):
        y[rows] += np.abs(wide(piece)) @ x[cols]
    return y
