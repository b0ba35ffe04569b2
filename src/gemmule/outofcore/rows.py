"""Compares single rows of a product element by element: the suspicious ones."""

from __future__ import annotations

import math

import numpy as np

from .matrix import Array, MatrixSource
from .rounding_bound import RoundingBound
from .stream import block_limit, wide


def compare_rows(
    a: MatrixSource,
    b: MatrixSource,
    result: MatrixSource,
    c: MatrixSource | None,
    rows: Array,
    bound: RoundingBound,
    *,
    memory: int,
) -> tuple[float, float]:
    """Return the largest ratio of an error to its bound among the elements of `rows`, and the largest finite bound.

    Where the exact value, give or take its bound, is beyond the range of the output or of the sum, an infinity, a
    NaN and the largest value of the right sign count as correct; where it is not a number, a NaN or an infinity does.
    """
    items = block_limit(memory) // 8
    width = max(min(b.shape[1], math.isqrt(items)), 1)
    height = max(items // max(width, math.isqrt(items)), 1)
    depth = max(items // max(width, height), 1)
    worst = largest = 0.0
    for first in range(0, len(rows), height):
        chosen = rows[first : first + height]
        for start in range(0, b.shape[1], width):
            cols = slice(start, min(start + width, b.shape[1]))
            shape = len(chosen), cols.stop - cols.start
            exact, magnitude = np.zeros(shape, _dtype(a, b, c)), np.zeros(shape)
            with np.errstate(all="ignore"):
                for k in range(0, a.shape[1] if bound.alpha != 0 else 0, depth):
                    inner = slice(k, min(k + depth, a.shape[1]))
                    a_part, b_part = _rows(a, chosen, inner), _piece(b, inner, cols)
                    exact += bound.alpha * (a_part @ b_part)
                    magnitude += np.abs(a_part) @ np.abs(b_part)
                allowed = (bound.product + 2.0**-53 * (a.shape[1] + 8) * abs(bound.alpha)) * magnitude
                if c is not None:
                    added = _rows(c, chosen, cols)
                    exact += bound.beta * added
                    allowed += (bound.addend + 2.0**-50 * abs(bound.beta)) * np.abs(added)
                found = _rows(result, chosen, cols)
                allowed += bound.output * np.abs(exact) * 2 + bound.tiny
                worst = max(worst, _ratio(found, exact, allowed, magnitude, bound))
                largest = max(largest, float(allowed[np.isfinite(allowed)].max(initial=0.0)))
    return worst, largest


def _ratio(found: Array, exact: Array, allowed: Array, magnitude: Array, bound: RoundingBound) -> float:
    ratio = np.abs(found - exact) / allowed
    ends = ~(np.abs(found) < bound.top)
    same_sign = np.isnan(found) | (np.sign(found.real) == np.sign(exact.real)) | (found.dtype.kind == "c")
    out_of_range = ends & same_sign & ~(np.abs(exact) + allowed < bound.top)
    lost = ~(np.abs(found) < math.inf)
    # A sum may overflow on its way even where the exact value is small.
    sum_overflows = ~((1 + abs(bound.alpha)) * magnitude < bound.sum_top)
    undefined = ~np.isfinite(exact) | ~np.isfinite(allowed)
    correct = out_of_range | (ends & undefined) | (lost & sum_overflows) | (ends & sum_overflows)
    largest = float(np.where(correct, 0.0, ratio).max(initial=0.0))
    return math.inf if math.isnan(largest) else largest


def _dtype(*sources: MatrixSource | None) -> np.dtype[np.float64] | np.dtype[np.complex128]:
    is_complex = any(source is not None and source.dtype.kind == "c" for source in sources)
    return np.dtype(np.complex128) if is_complex else np.dtype(np.float64)


def _piece(source: MatrixSource, rows: slice, cols: slice) -> Array:
    shape = rows.stop - rows.start, cols.stop - cols.start
    piece = np.empty(shape, source.dtype, order="F" if source.order == "F" else "C")
    source.read(rows, cols, piece)
    return wide(piece)


def _rows(source: MatrixSource, rows: Array, cols: slice) -> Array:
    parts = [_piece(source, slice(int(row), int(row) + 1), cols) for row in rows]
    return np.concatenate(parts)
