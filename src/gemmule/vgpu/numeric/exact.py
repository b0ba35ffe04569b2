"""Sums and products without error: the rounded result and what rounding took away, in float64."""

from __future__ import annotations

from gemmule.vgpu.types import Array

# Veltkamp's constant: splits a float64 into two halves of 26 bits.
_SPLITTER = 134217729.0


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a + b`` rounded, and its error; Knuth's algorithm, for any order of size."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a * b`` rounded, and its error; Dekker's algorithm, where nothing overflows or underflows."""
    product = a * b
    a_high = a * _SPLITTER
    a_high = a_high - (a_high - a)
    b_high = b * _SPLITTER
    b_high = b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
