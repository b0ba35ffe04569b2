"""Writes alpha * sum + beta * c, rounded once, into an output of any dtype."""

from __future__ import annotations

import cmath
from typing import Any

import numpy as np

from ..core.dtype import NARROW_FLOATS, dtype_named
from ..core.errors import ArgumentError
from ..executor.tiles import Array
from .arithmetic import check_kind, name_of, plain, widened
from .product import blocks

Scalar = int | float | complex

#: Elements that are scaled and rounded at a time: their temporaries stay in the cache.
PIECE = 2**15
#: The same for small tiles, whose temporaries must not need more memory than their elements.
SMALL_PIECE = 2**12


def scale_dtype(
    total: np.dtype[Any], out: np.dtype[Any], alpha: Scalar, beta: Scalar, c: np.dtype[Any] | None
) -> np.dtype[Any]:
    """Return the type that alpha * sum + beta * c is computed in, after checking that it may go into `out`.

    Parameters
    ----------
    total, out : numpy.dtype
        Types of the sum and of the output.
    c : numpy.dtype or None
        Type of the matrix to add; None if it is not read.

    Returns
    -------
    numpy.dtype
        The type of the sum for an integer output (int64 for bool), else the common type of the sum and `c`.

    Raises
    ------
    DTypeError
        If the sum or `c` is of a higher kind than `out`.
    ArgumentError
        If a scalar is not integral though `out` is, is complex though `out` is real, or does not fit into the type.
    """
    check_kind(total, out, "a product")
    if c is not None:
        check_kind(c, out, "c")
    if plain(out).kind in "biu":
        dtype = np.dtype(np.int64) if total.kind == "b" else total
    else:
        dtype = total if total.kind in "fc" else np.dtype(np.float64)
        if c is not None:
            dtype = np.result_type(dtype, plain(c))
        for name, value in (("alpha", alpha), ("beta", beta)):
            if isinstance(value, complex | np.complexfloating):
                if plain(out).kind != "c":
                    raise ArgumentError(f"{name}={value} is complex but the output is {out}; give out a complex dtype")
                dtype = np.result_type(dtype, np.complex64)
    for name, value in (("alpha", alpha), ("beta", beta)):
        _scalar(name, value, dtype)
    return dtype


def _scalar(name: str, value: Scalar, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        integer = _integer(value)
        if integer is None:
            raise ArgumentError(
                f"{name}={value} is not an integer but the output is of an integer dtype; "
                f"give out a floating-point dtype or an integral {name}"
            )
        bits = 8 * dtype.itemsize
        return np.array(integer % 2**bits, dtype=f"u{dtype.itemsize}").view(dtype)[()]
    try:
        with np.errstate(all="ignore"):
            scalar = dtype.type(value)
        fits = bool(np.isfinite(scalar)) or not cmath.isfinite(value)
    except OverflowError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"{name}={value} does not fit into {dtype}, which scales the sum; scale the operands instead"
        )
    return scalar


def _integer(value: Scalar) -> int | None:
    if isinstance(value, complex | np.complexfloating):
        return None
    try:
        return int(value) if value == int(value) else None
    except (OverflowError, ValueError):  # infinity and NaN
        return None


def write_bytes(total: np.dtype[Any], elements: int, *, small: bool = False) -> int:
    """Most memory in bytes that `write` takes for so many elements."""
    # Five temporaries, as complex numbers if `c` is complex.
    return min(elements, SMALL_PIECE if small else PIECE) * 5 * max(2 * total.itemsize, 16)


def write(
    out: Array,
    total: Array | None,
    alpha: Scalar,
    beta: Scalar,
    c: Array | None,
    scale: np.dtype[Any],
    *,
    small: bool = False,
) -> None:
    """Write ``alpha * total + beta * c`` into `out`, rounded once.

    Parameters
    ----------
    out : numpy.ndarray
        Any dtype and strides.
    total, c : numpy.ndarray or None, shape of out
        The sum and the matrix to add; None counts as zero and its scalar is not used. Each may be `out` itself.
    scale : numpy.dtype
        Type to compute in, from `scale_dtype`.
    small : bool
        Prefer less memory to speed.
    """
    with np.errstate(all="ignore"):
        factor_total = None if total is None or alpha == 1 else _scalar("alpha", alpha, scale)
        factor_c = None if c is None else _scalar("beta", beta, scale)
        for piece in blocks(out.shape, SMALL_PIECE if small else PIECE):
            value: Array | None = None
            if total is not None:
                value = total[piece]
                if factor_total is not None:
                    value = _times(value.astype(scale, copy=False), factor_total)
            if c is not None:
                term = _times(widened(c[piece]).astype(scale, copy=False), factor_c)
                value = term if value is None else value.astype(scale, copy=False) + term
            if value is None:
                out[piece] = 0
            else:
                _round_into(out[piece], value)


def _times(value: Array, factor: Any) -> Array:
    """Return numbers times a scalar of their type; a real one leaves the infinities of complex ones in their part."""
    if value.dtype.kind != "c" or factor.imag:
        scaled: Array = value * factor
        return scaled
    scaled = np.empty_like(value)
    np.multiply(value.real, factor.real, out=scaled.real)
    np.multiply(value.imag, factor.real, out=scaled.imag)
    return scaled


def _round_into(out: Array, value: Array) -> None:
    name = name_of(out.dtype)
    if name in NARROW_FLOATS:
        if value.dtype != np.float32:
            # An integer goes to float64 first, since NumPy would take it through float32 and round twice.
            value = _float32_to_odd(value if value.dtype.kind == "f" else _float64_to_odd(value))
        if name.startswith("float8"):
            limit = np.float32(dtype_named(name).max_value)
            value = np.clip(value, -limit, limit)
        value = value.astype(dtype_named(name).numpy())
    np.copyto(out, value, casting="unsafe")


def _float64_to_odd(value: Array) -> Array:
    """Convert integers of up to 64 bits so that later roundings into narrow types give what one rounding would."""
    if value.dtype.itemsize == 8:
        one, low = value.dtype.type(1), value.dtype.type(2**12 - 1)
        wide = (value >= value.dtype.type(2**52)) | (
            value < -value.dtype.type(2**52) if value.dtype.kind == "i" else False
        )
        # Twelve bits fewer fit into float64 exactly; the last of the others is a sticky bit.
        sticky = ((value & low) != 0).astype(value.dtype) * (low + one)
        value = np.where(wide, (value & ~low) | sticky, value)
    return value.astype(np.float64)


def _float32_to_odd(value: Array) -> Array:
    """Round to float32 so that a second rounding, into a narrow type, gives what one rounding would.

    NumPy and ml_dtypes take wide types to narrow ones through float32. Round to odd keeps on which side of a tie
    the value lay: the result is truncated, and its last bit set if anything was cut off.
    """
    near = value.astype(np.float32)
    bits = near.view(np.uint32)
    cut = near != value
    bits -= np.abs(near) > np.abs(value)
    bits |= cut
    return near
