"""The f64 mma.sync: fused multiply-adds in the order of k, each rounded once.

A fused multiply-add out of multiplications and additions: S. Boldo and G. Melquiond, Emulation of a FMA and correctly
rounded sums: proved algorithms using rounding to odd, IEEE Transactions on Computers 57 (4), 2008. The error-free
product and sum are Dekker's and Knuth's.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_SPLITTER = 2.0**27 + 1
# Inside these bounds no intermediate value overflows and no error term is lost to underflow.
_FACTOR_BOUND = 2.0**990
_SUM_BOUND = 2.0**1020
_PRODUCT_FLOOR = 2.0**-900


def _two_sum(x: Values, y: Values) -> tuple[Values, Values]:
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def _product_error(x: Values, y: Values, product: Values) -> Values:
    x_high = x * _SPLITTER
    x_high -= x_high - x
    y_high = y * _SPLITTER
    y_high -= y_high - y
    x_low, y_low = x - x_high, y - y_high
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def _sum_to_odd(x: Values, y: Values) -> Values:
    total, error = _two_sum(x, y)
    bits = total.view(np.int64)
    # An inexact even sum moves to its odd neighbour on the side of the exact one: away from 0 if the signs agree.
    step = (error.view(np.int64) ^ bits) >> 63 | 1
    step *= ~bits & (error != 0)
    return (bits + step).view(np.float64)


def _exact(a: float, b: float, c: float, unfused: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return unfused
    if not math.isfinite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return unfused
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _tame(x: Values) -> bool:
    """Return whether no value or product of two, added to less than 2**1000, overflows or loses bits to underflow."""
    size = np.abs(x)
    return bool(((size == 0) | (size > 2.0**-400) & (size < 2.0**400)).all())


def fused_multiply_add(a: Values, b: Values, c: Values) -> Values:
    """Return a * b + c rounded once to nearest, ties to even, as fma.rn.f64 does; which NaN is not defined."""
    with np.errstate(all="ignore"):
        product = a * b
        middle, low = _two_sum(c, _product_error(a, b, product))
        high, remainder = _two_sum(product, middle)
        fused = high + _sum_to_odd(low, remainder)
        zero = fused == 0
        if zero.any():
            np.copyto(fused, product + c, where=zero)  # for its sign
        # One comparison, which NaN fails too.
        if np.abs(c).max(initial=0) < 2.0**1000 and _tame(a) and _tame(b):
            return fused
        return _with_wild_values(a, b, c, fused)


def _with_wild_values(a: Values, b: Values, c: Values, fused: Values) -> Values:
    """Compute those elements again that overflow, underflow, infinities or NaN may have spoilt."""
    product = a * b
    size = np.abs(product)
    safe = (np.abs(a) < _FACTOR_BOUND) & (np.abs(b) < _FACTOR_BOUND) & (np.abs(c) < _SUM_BOUND)
    safe &= (size < _SUM_BOUND) & ((size > _PRODUCT_FLOOR) | (a == 0) | (b == 0))
    rest = np.flatnonzero(~safe)
    a, b, c = (np.broadcast_to(x, fused.shape).flat[rest] for x in (a, b, c))
    values = zip(a, b, c, a * b + c, strict=True)
    fused.flat[rest] = [_exact(*map(float, four)) for four in values]
    return fused


def ordered_products(a: Values, b: Values, c: Values) -> Values:
    """Return a @ b + c of each warp, for k = 0, 1, ... one fused multiply-add after the other, starting from c.

    a is (warps, rows, k), b (warps, 8, k) and c (warps, rows, 8).
    """
    a = np.ascontiguousarray(a.transpose(2, 1, 0))[:, :, None]
    b = np.ascontiguousarray(b.transpose(2, 1, 0))[:, None]
    total = np.ascontiguousarray(c.transpose(1, 2, 0))
    for k in range(a.shape[0]):
        total = fused_multiply_add(a[k], b[k], total)
    return total.transpose(2, 0, 1)
