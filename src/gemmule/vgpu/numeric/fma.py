"""Fused multiply-add: ``a * b + c`` rounded once, as the hardware does.

float32: the product of two float32 values is exact in float64, and so the sum is rounded twice only where its float64
rounding falls on the middle between two float32 values; those few lanes are rounded again with the error of the sum.
float64: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 57 (2008):
the small parts are added with rounding to odd. Lanes whose exponents would make a step overflow or underflow go
through exact fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gemmule.vgpu.types import Array

from .compiled import Loop, loops
from .exact import two_product, two_sum
from .formats import round_to

# The bits of a float64 that a float32 does not hold, and the middle between two float32 values.
_TAIL, _MIDDLE = np.int64((1 << 29) - 1), np.int64(1 << 28)
# Twice the bits of the largest subnormal float32.
_SUBNORMAL = np.uint32(0x00FFFFFE)
_ONE = np.uint32(1)
# Twice the bits of infinity, and what is no number.
_INFINITE = np.uint32(0xFF000000)
_NAN32 = np.uint32(0x7FFFFFFF).view(np.float32)
# Exponents between which Dekker's and Knuth's algorithms are exact.
_SMALL, _LARGE = -900, 1000
# Factors between which every product is between those.
_TINY, _HUGE = 2.0**-440, 2.0**440


def fma32(a: Array, b: Array, c: Array, out: Array) -> None:
    """Write float32 ``a * b + c`` into `out`; what is no number is 0x7FFFFFFF."""
    compiled = loops()
    if compiled is not None:
        _through(compiled[0], a, b, c, out)
        return
    fma32_numpy(a, b, c, out)


def fma64(a: Array, b: Array, c: Array, out: Array) -> None:
    """Write float64 ``a * b + c`` into `out`."""
    compiled = loops()
    if compiled is not None:
        _through(compiled[1], a, b, c, out)
        return
    fma64_numpy(a, b, c, out)


def _through(loop: Loop, a: Array, b: Array, c: Array, out: Array) -> None:
    """Call a compiled loop, which takes arrays of the result's size: constants among the operands are spread."""
    if a.ndim and b.ndim and c.ndim:
        loop(a, b, c, out)
        return
    first, second, third = (np.array(np.broadcast_to(operand, out.shape)) for operand in (a, b, c))
    loop(first, second, third, out)


def fma32_numpy(a: Array, b: Array, c: Array, out: Array) -> None:
    """Write float32 ``a * b + c`` into `out`, by NumPy."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    rounded = total.astype(np.float32)
    doubled = rounded.view(np.uint32) << _ONE
    # Zero wraps to the largest value, so that only subnormals are small.
    suspicious = np.minimum.reduce(doubled - _ONE) < _SUBNORMAL
    if suspicious or ((total.view(np.int64) & _TAIL) == _MIDDLE).any():
        _round_again(product, np.asarray(c), total, rounded)
    if np.maximum.reduce(doubled) > _INFINITE:
        rounded[np.isnan(rounded)] = _NAN32
    np.copyto(out, rounded)


def _round_again(product: Array, c: Array, total: Array, rounded: Array) -> None:
    """Mend those lanes whose float64 sum may have been rounded onto a middle of two float32 values."""
    doubled = rounded.view(np.uint32) << _ONE
    suspect = ((total.view(np.int64) & _TAIL) == _MIDDLE) | ((doubled - _ONE) < _SUBNORMAL)
    where = np.flatnonzero(suspect)
    _, error = two_sum(product[where], np.broadcast_to(c, product.shape)[where].astype(np.float64))
    rounded[where] = round_to("f32", total[where], error, "rn")


def fma64_numpy(a: Array, b: Array, c: Array, out: Array) -> None:
    """Write float64 ``a * b + c`` into `out`, by NumPy."""
    if _are_ordinary(a) and _are_ordinary(b) and _are_ordinary(c, zero=True):
        np.copyto(out, _rounded_once(a, b, c))
        return
    a, b, c = np.broadcast_arrays(np.asarray(a, np.float64), b, c)
    plain = a * b + c
    a_exponent, b_exponent, c_exponent = np.frexp(a)[1], np.frexp(b)[1], np.frexp(c)[1]
    exponents = a_exponent + b_exponent
    safe = (exponents > _SMALL) & (exponents < _LARGE) & (c_exponent > _SMALL) & (c_exponent < _LARGE)
    safe &= (np.abs(a_exponent) < _LARGE - 60) & (np.abs(b_exponent) < _LARGE - 60)
    easy = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    with np.errstate(all="ignore"):
        result = _rounded_once(a, b, c)
    result = np.where(easy, plain, result)
    # An infinite c stays, however large the product of finite numbers is.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    hard = np.flatnonzero(~easy & ~safe)
    for lane in hard:
        result[lane] = _by_fractions(float(a[lane]), float(b[lane]), float(c[lane]))
    np.copyto(out, result)


def _are_ordinary(values: Array, zero: bool = False) -> bool:
    """Return whether all are finite, neither tiny nor huge, and none, unless it may be, is zero."""
    sizes = np.abs(values)
    # A NaN is no maximum that is less.
    if not np.max(sizes, initial=0) < _HUGE:
        return False
    return bool(np.min(sizes, initial=1) > _TINY or (zero and np.all((sizes == 0) | (sizes > _TINY))))


def _rounded_once(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c where nothing overflows or underflows."""
    product, product_error = two_product(a, b)
    upper, upper_error = two_sum(c, product_error)
    high, low = two_sum(product, upper)
    return high + _sum_to_odd(low, upper_error)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """Return a + b rounded to odd: where it is not exact, to that neighbour whose last bit is 1."""
    total, error = two_sum(a, b)
    bits = total.view(np.int64)
    away = (error > 0) == (total > 0)
    step = np.where((error != 0) & ((bits & 1) == 0), np.where(away, 1, -1), 0)
    return (bits + step).view(np.float64)


def _by_fractions(a: float, b: float, c: float) -> float:
    """Return a * b + c for finite numbers of any size, a and b not zero."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def fma_narrow(kind: str, a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` rounded once into f16 or bf16, from and as float64 values of that type."""
    total, error = two_sum(a * b, c)
    return round_to(kind, total, np.where(np.isfinite(total), error, 0.0), "rn")
