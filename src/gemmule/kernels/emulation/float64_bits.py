"""Device code on the bits of a float64."""

from __future__ import annotations

from cutlass import Float64, Int64, cute

#: The bias of the exponent, the bits of the fraction, and the exponent of what is not finite.
BIAS, FRACTION, SPECIAL = 1023, 52, 2047


@cute.jit
def biased_power(exponent):
    """Return the float64 with a biased exponent, from 1 on."""
    return (Int64(exponent) << FRACTION).bitcast(Float64)


@cute.jit
def power(exponent):
    """Return 2**exponent."""
    return (Int64(exponent + BIAS) << FRACTION).bitcast(Float64)
