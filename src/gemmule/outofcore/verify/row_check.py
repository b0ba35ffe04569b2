"""Compares single rows of a product element by element: the suspicious ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..stores.matrix import Array, MatrixSource
from .block_passes import block_limit, wide
from .rounding_bound import RoundingBound


@dataclasses.dataclass
class Comparison:
    """The result of comparing rows element by element."""

    worst: float = 0.0  #: Largest ratio of an error to its bound.
    element_bound: float = 0.0  #: Largest finite bound of an element.
    unproved: int = 0  #: Elements that the comparison can neither confirm nor refute.
    first_unproved: tuple[int, int] | None = None  #: Row and column of the first of them.
    not_finite: int = 0  #: Elements that are NaN or infinite.

    def add(self, wrong: Array, unproved: Array, rows: Array, first_col: int) -> None:
        """Add the elements of some rows: ratios of errors to bounds, and whether an element is unproved."""
        largest = float(wrong.max(initial=0.0))
        self.worst = max(self.worst, math.inf if math.isnan(largest) else largest)
        self.unproved += int(unproved.sum())
        if self.first_unproved is None and unproved.any():
            row, col = np.argwhere(unproved)[0]
            self.first_unproved = int(rows[row]), first_col + int(col)


def compare_rows(
    a: MatrixSource,
    b: MatrixSource,
    result: MatrixSource,
    c: MatrixSource | None,
    rows: Array,
    bound: RoundingBound,
    *,
    memory: int,
) -> Comparison:
    """Compare the elements of `rows` with a float64 product, each within its own bound.

    Where the exact value, give or take its bound, is beyond the range of the output, the end of that range with a
    possible sign is correct; where it is not a number, a NaN is. An element is unproved where a partial sum may
    overflow although the value is small and the result is not finite, where the float64 product itself overflows, and
    where the operands of a complex product are not finite.
    """
    items = block_limit(memory) // 8
    width = max(min(b.shape[1], math.isqrt(items)), 1)
    height = max(items // max(width, math.isqrt(items)), 1)
    depth = max(items // max(width, height), 1)
    comparison = Comparison()
    for first in range(0, len(rows), height):
        chosen = rows[first : first + height]
        for start in range(0, b.shape[1], width):
            cols = slice(start, min(start + width, b.shape[1]))
            shape = len(chosen), cols.stop - cols.start
            exact, magnitude = np.zeros(shape, _dtype(a, b, c)), np.zeros(shape)
            finite, in_range = np.ones(shape, bool), np.ones(shape, bool)
            norm_a, norm_b = np.zeros((shape[0], 1)), np.zeros(shape[1])
            with np.errstate(all="ignore"):
                for k in range(0, a.shape[1] if bound.alpha != 0 else 0, depth):
                    inner = slice(k, min(k + depth, a.shape[1]))
                    a_part, b_part = _rows(a, chosen, inner), _piece(b, inner, cols)
                    exact += bound.alpha * (a_part @ b_part)
                    a_size, b_size = np.abs(a_part), np.abs(b_part)
                    finite_a, finite_b = np.isfinite(a_part), np.isfinite(b_part)
                    finite &= finite_a.all(axis=1, keepdims=True) & finite_b.all(axis=0)
                    if bound.norms:
                        norm_a = np.hypot(norm_a, np.hypot.reduce(a_part, axis=1, keepdims=True))
                        norm_b = np.hypot(norm_b, np.hypot.reduce(b_part, axis=0))
                    # Non-finite values follow IEEE's rules, unless the finite terms of the sum overflow.
                    a_size, b_size = np.where(finite_a, a_size, 0.0), np.where(finite_b, b_size, 0.0)
                    magnitude += a_size @ b_size
                    in_range &= (a_size < bound.input_top).all(axis=1, keepdims=True)
                    in_range &= (b_size < bound.input_top).all(axis=0)
                allowed = (bound.product + 2.0**-53 * (a.shape[1] + 8) * abs(bound.alpha)) * magnitude
                if bound.norms:
                    allowed += bound.norms * norm_a * norm_b
                sizes = (1 + abs(bound.alpha)) * magnitude
                if c is not None:
                    added = _rows(c, chosen, cols)
                    finite &= np.isfinite(added)
                    exact += bound.beta * added
                    size = np.where(np.isfinite(added), np.abs(added), 0.0)
                    allowed += (bound.addend + 2.0**-50 * abs(bound.beta)) * size
                    sizes += abs(bound.beta) * size
                found = _rows(result, chosen, cols)
                allowed += bound.output * np.where(finite, np.abs(exact), 0.0) * 2 + bound.tiny
                # Parts of complex numbers may be multiplied as sums of two.
                may_overflow = ~(sizes * (4 if np.iscomplexobj(exact) else 1) < bound.sum_top) | ~in_range
                wrong, unproved = _judged(found, exact, allowed, finite, may_overflow, bound)
                comparison.add(wrong, unproved, chosen, start)
                comparison.not_finite += int((~np.isfinite(found)).sum())
                certain = float(allowed[np.isfinite(allowed)].max(initial=0.0))
                comparison.element_bound = max(comparison.element_bound, certain)
    return comparison


def _judged(
    found: Array, exact: Array, allowed: Array, finite: Array, may_overflow: Array, bound: RoundingBound
) -> tuple[Array, Array]:
    """Return the ratio of each error to its bound, 0 where none is proved, and which elements are unproved."""
    if not np.iscomplexobj(exact):
        return _judged_parts(found, exact, allowed, finite, may_overflow, bound)
    found = found.astype(exact.dtype, copy=False)
    parts = [
        _judged_parts(getattr(found, part), getattr(exact, part), allowed, finite, may_overflow, bound)
        for part in ("real", "imag")
    ]
    wrong = np.maximum(parts[0][0], parts[1][0])
    # Rules for the two parts of a complex product whose operands are not finite differ; one of the parts is not finite.
    special = ~finite & ~np.isfinite(found)
    wrong = np.where(special, 0.0, wrong)
    return wrong, (parts[0][1] | parts[1][1] | special) & (wrong <= 1)


def _judged_parts(
    found: Array, exact: Array, allowed: Array, finite: Array, may_overflow: Array, bound: RoundingBound
) -> tuple[Array, Array]:
    ratio = np.abs(found - exact) / allowed
    at_top = np.abs(found) >= bound.top
    lost = ~np.isfinite(found) | at_top
    ends = at_top if bound.saturates else np.isinf(found)
    # Rounding may leave either sign where its bound is beyond the range.
    towards = np.sign(found) * exact
    beyond = (towards + allowed >= bound.top) & (~may_overflow | (towards >= bound.top))
    unknown = finite & ~(np.isfinite(exact) & np.isfinite(allowed))
    right = (
        (~finite & np.isnan(exact) & np.isnan(found))
        | (~finite & np.isnan(found) & bound.to_nan)
        | (~finite & np.isinf(exact) & ends & (np.sign(found) == np.sign(exact)))
        | (finite & ~unknown & beyond & (ends | at_top))
        | (finite & ~unknown & (ratio <= 1))
    )
    unproved = ~right & (unknown | (may_overflow & lost))
    return np.where(right & (np.isnan(ratio) | (ratio > 1)) | unproved, 0.0, ratio), unproved


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
