"""Real and complex matrices multiplied on the host by real products: half of the work, and no zero times infinity."""

from __future__ import annotations

from typing import TypeAlias

from ..executor.tiles import Array

#: A, B, the output, and C or None.
Operands: TypeAlias = tuple[Array, Array, Array, Array | None]


def is_half_real(a: Array, b: Array) -> bool:
    """Return whether one of two matrices is complex."""
    return (a.dtype.kind == "c") != (b.dtype.kind == "c")


def in_rows(a: Array, b: Array, out: Array, c: Array | None) -> Operands | None:
    """Return the product as one of real numbers, or None where complex matrices have no contiguous rows.

    With a complex A it is the product of the transposes.

    Parameters
    ----------
    a, b, out : numpy.ndarray
        One factor is complex, and the output.
    c : numpy.ndarray or None
        Matrix to add, broadcastable to the output.
    """
    if c is not None and c.shape != out.shape:
        return None
    if a.dtype.kind == "c":
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
        c = None if c is None else c.swapaxes(-1, -2)
    if not all(_has_rows(one) for one in (b, out, c) if one is not None):
        return None
    return a, _pairs(b), _pairs(out), None if c is None else _pairs(c)


def by_parts(a: Array, b: Array, out: Array, c: Array | None) -> tuple[Operands, Operands]:
    """Return the products of real and of imaginary parts, in any layout; parameters as of `in_rows`."""
    (a_real, b_real), (a_imag, b_imag) = (
        ((a.real, b), (a.imag, b)) if a.dtype.kind == "c" else ((a, b.real), (a, b.imag))
    )
    c_real, c_imag = (None, None) if c is None else (c.real, c.imag)
    return (a_real, b_real, out.real, c_real), (a_imag, b_imag, out.imag, c_imag)


def _has_rows(x: Array) -> bool:
    return x.dtype.kind == "c" and x.dtype.isnative and x.strides[-1] == x.itemsize


def _pairs(x: Array) -> Array:
    """Return complex rows as pairs of real numbers."""
    pairs: Array = x.view(x.real.dtype)
    return pairs
