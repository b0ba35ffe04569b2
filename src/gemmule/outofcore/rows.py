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

    Where the exact value, give or take its bound, is beyond the range of the output, the end of that range with the
    right sign is correct; where it is not a number, a NaN is; where the sum may overflow on its way, any of these are.
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
            finite = np.ones(shape, bool)
            norm_a, norm_b = np.zeros((shape[0], 1)), np.zeros(shape[1])
            with np.errstate(all="ignore"):
                for k in range(0, a.shape[1] if bound.alpha != 0 else 0, depth):
                    inner = slice(k, min(k + depth, a.shape[1]))
                    a_part, b_part = _rows(a, chosen, inner), _piece(b, inner, cols)
                    exact += bound.alpha * (a_part @ b_part)
                    magnitude += np.abs(a_part) @ np.abs(b_part)
                    if bound.norms:
                        norm_a = np.hypot(norm_a, np.hypot.reduce(a_part, axis=1, keepdims=True))
                        norm_b = np.hypot(norm_b, np.hypot.reduce(b_part, axis=0))
                    finite &= np.isfinite(a_part).all(axis=1, keepdims=True) & np.isfinite(b_part).all(axis=0)
                allowed = (bound.product + 2.0**-53 * (a.shape[1] + 8) * abs(bound.alpha)) * magnitude
                if bound.norms:
                    allowed += bound.norms * norm_a * norm_b
                if c is not None:
                    added = _rows(c, chosen, cols)
                    finite &= np.isfinite(added)
                    exact += bound.beta * added
                    allowed += (bound.addend + 2.0**-50 * abs(bound.beta)) * np.abs(added)
                found = _rows(result, chosen, cols)
                allowed += bound.output * np.abs(exact) * 2 + bound.tiny
                # A sum may overflow on its way even where the exact value is small; then an infinity or a NaN is left.
                overflows = finite & ~((1 + abs(bound.alpha)) * magnitude < bound.sum_top)
                if bound.to_nan:
                    exact = np.where(~finite & np.isnan(found), np.nan, exact)
                worst = max(worst, _ratio(found, exact, allowed, overflows, bound))
                largest = max(largest, float(allowed[np.isfinite(allowed)].max(initial=0.0)))
    return worst, largest


def _ratio(found: Array, exact: Array, allowed: Array, overflows: Array, bound: RoundingBound) -> float:
    ratio = np.abs(found - exact) / allowed
    lost = ~np.isfinite(found) | (np.abs(found) >= bound.top)
    if found.dtype.kind == "c":
        # The parts of a complex product that is not finite, on its way or in the end, follow no rule.
        correct = ~np.isfinite(exact) | ~np.isfinite(allowed) | ~(np.abs(exact) + allowed < bound.top)
        return _worst(np.where(correct | (overflows & lost), 0.0, ratio))
    undefined = np.isnan(exact) | np.isnan(allowed)
    signed = np.sign(found) == np.sign(exact)
    ends = np.abs(found) >= bound.top if bound.saturates else np.isinf(found)
    # The sum may be anywhere within its bound: also beyond the end on the other side of zero than the exact value.
    beyond = ~(np.sign(found) * exact + allowed < bound.top)
    correct = (
        (undefined & np.isnan(found))
        | (np.isinf(exact) & ends & signed)
        | (np.isfinite(exact) & beyond & (ends | (np.abs(found) >= bound.top)))
        | (overflows & lost)
    )
    return _worst(np.where(correct, 0.0, ratio))


def _worst(ratio: Array) -> float:
    largest = float(ratio.max(initial=0.0))
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
