"""Rounding of float64 in a direction, from the result to nearest and its error."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gemmule.vgpu.types import Array

from .exact import two_product

# Exponents of a product, and of its factors, between which Dekker's algorithm is exact.
_SMALL, _LARGE, _LARGE_FACTOR = -900, 1000, 940


def zero_sign(result: Array, total: Array, mode: str, first: Array, second: Array) -> Array:
    """Give a sum that is exactly zero the sign of rounding down: minus, but for two positive zeros."""
    if mode != "rm":
        return result
    return np.where((total == 0) & (np.signbit(first) | np.signbit(second)), -0.0, result)


def directed(high: Array, low: Array, mode: str) -> Array:
    """Round ``high + low``, a float64 rounded to nearest and its error, in a direction instead.

    For an infinity, `low` is 0 if it is exact, and points to the finite numbers if it is an overflow.
    """
    low = np.where(np.isnan(high), 0, low)
    towards = {"rz": np.where(high > 0, low < 0, low > 0), "rm": low < 0, "rp": low > 0}[mode]
    where = {"rz": np.zeros_like(high), "rm": np.full_like(high, -np.inf), "rp": np.full_like(high, np.inf)}[mode]
    return np.where(towards, np.nextafter(high, where), high)


def directed_product(a: Array, b: Array, mode: str) -> Array:
    """Return the product of float64 numbers, rounded in a direction."""
    a, b = np.broadcast_arrays(a, b)
    product, error = two_product(a, b)
    easy = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b)
    exponents = np.stack([np.frexp(a)[1], np.frexp(b)[1]])
    total = exponents.sum(axis=0)
    safe = (total > _SMALL) & (total < _LARGE) & (np.abs(exponents).max(axis=0) < _LARGE_FACTOR)
    error = np.where(easy, 0.0, error)
    for lane in np.flatnonzero(~easy & ~safe):
        exact = Fraction(float(a[lane])) * Fraction(float(b[lane]))
        rounded = float(product[lane])
        # Only the sign counts from here on: an overflow is less than its infinity.
        above = exact > Fraction(rounded) if np.isfinite(rounded) else rounded < 0
        below = exact < Fraction(rounded) if np.isfinite(rounded) else rounded > 0
        error[lane] = float(above) - float(below)
    return directed(product, error, mode)
