"""Rounding into any binary floating-point format, in any direction, of a value known exactly."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.types import Array


@dataclasses.dataclass(frozen=True)
class Format:
    """A floating-point format."""

    significand: int  #: Bits of the significand, the hidden one included.
    min_exponent: int  #: Exponent of the smallest normal number.
    largest: float  #: Largest finite value.
    has_infinity: bool = True  #: Whether there are infinities.


FORMATS = {
    "f32": Format(24, -126, 3.4028234663852886e38),
    "f16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, 3.3895313892515355e38),
    "tf32": Format(11, -126, 3.4011621342146535e38),
    "e4m3": Format(4, -6, 448.0, has_infinity=False),
    "e5m2": Format(3, -14, 57344.0),
}


def round_to(kind: str, high: Array, low: Array | float, mode: str, *, saturate: bool = False) -> Array:
    """Round ``high + low`` once into a format.

    Parameters
    ----------
    kind : str
        Name of the format.
    high : array of float64
        The value, rounded to float64.
    low : array of float64
        Rounding error: at most half a unit in the last place of `high`.
    mode : str
        ``rn`` to nearest, ties to even; ``rna`` ties away from zero; ``rz``, ``rm``, ``rp`` towards zero, down, up.
    saturate : bool
        Whether values beyond the largest become the largest.

    Returns
    -------
    array of float64
        Values of the format.
    """
    form = FORMATS[kind]
    high = np.asarray(high, np.float64)
    low = np.broadcast_to(np.asarray(low, np.float64), high.shape)
    finite = np.isfinite(high)
    value = np.where(finite, high, 0.0)
    low = np.where(finite, low, 0.0)
    mantissa, exponent = np.frexp(value)
    # Just below a power of two the grid is twice as fine.
    exponent = exponent - ((np.abs(mantissa) == 0.5) & (low * mantissa < 0))
    unit = np.maximum(exponent - form.significand, form.min_exponent - form.significand + 1)
    scaled = np.ldexp(value, -unit)
    down = np.floor(scaled)
    rest = scaled - down
    below = (rest == 0) & (low < 0)
    down = down - below
    tie = (rest == 0.5) & (low == 0)
    more_than_half = (rest > 0.5) | ((rest == 0.5) & (low > 0)) | below
    inexact = (rest > 0) | (low != 0)
    negative = (value < 0) | ((value == 0) & (low < 0))
    if mode == "rn":
        up = more_than_half | (tie & (np.fmod(down, 2) != 0))
    elif mode == "rna":
        up = more_than_half | (tie & ~negative)
    elif mode == "rz":
        up = inexact & negative
    else:
        up = inexact & (mode == "rp")
    rounded = np.ldexp(down + up, unit)
    beyond = np.abs(rounded) > form.largest
    if beyond.any():
        to_largest = saturate | (mode == "rz") | ((mode == "rm") & ~negative) | ((mode == "rp") & negative)
        limit = np.where(to_largest, form.largest, np.inf if form.has_infinity else np.nan)
        rounded = np.where(beyond, np.where(negative, -limit, limit), rounded)
    rounded = np.copysign(rounded, np.where(value == 0, np.where(low == 0, value, low), value))
    if not finite.all():
        if saturate:
            special = np.where(np.isnan(high), np.nan, np.copysign(form.largest, high))
        else:
            special = high if form.has_infinity else np.where(np.isnan(high), high, np.nan)
        rounded = np.where(finite, rounded, special)
    return np.asarray(rounded)
