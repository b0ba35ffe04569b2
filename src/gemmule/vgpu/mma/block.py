"""The tensor core's block FMA: exact products and C, aligned to the largest exponent, cut, and added as integers.

Khattak and Mikaitis, Accurate models of NVIDIA tensor cores (arXiv 2512.07004), and Xie et al., MMA-Sim (arXiv
2511.10909), found these rules by experiment:

1. A product's exponent is the sum of its factors' exponents, its significand in [1, 4) not normalised; a subnormal
   factor has the smallest exponent. Zeros are left out.
2. The largest exponent among the products and C, not below a floor, aligns all: each is cut towards zero at
   `fraction_bits` below it. Hopper has 25 for 16-bit floats and tf32, and 13 for the 8-bit floats of wgmma.
3. The cut terms are added exactly, and the sum is rounded once: towards zero into float32, to nearest into float16.

NaN and infinity follow IEEE arithmetic of the exact terms; the result is never -0.

This gives the H100's bits in all of the 5000 products that the authors of the first publish for each of f16 (into f32
and f16), bf16 and tf32. Those hold no zeros and no wide exponents. There the sources differ, and these details are
still to be confirmed: zeros are left out and the floor is -133 for f32 and -21 for f16 (first source; in
the second a C of zero counts as 2**-126); a subnormal f16 C is aligned at 2**-14 (second source; the first normalises
it).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

#: Below the exponent of anything that is not zero, and twice it is in the range of int16.
_OF_ZERO = -8192
_BIAS = 1023
#: Hopper's: bits below the largest exponent, the exponent of the smallest normal C, the floor of the largest.
FRACTION_BITS = 25
SMALLEST = {"f32": -126, "f16": -14}
FLOOR = {"f32": -133, "f16": -21}


def _exponents(x: Values, smallest: int) -> NDArray[np.int16]:
    field = (x.view(np.int64) >> 52 & 0x7FF).astype(np.int16)
    exponent = np.maximum(field - np.int16(_BIAS), np.int16(smallest))
    return np.where(x == 0, np.int16(_OF_ZERO), exponent)


def _power_of_two(exponent: NDArray[np.int16]) -> Values:
    return (exponent.astype(np.int64) + _BIAS << 52).view(np.float64)


def _aligned_sums(
    a: Values, b: Values, c: Values, smallest: tuple[int, int, int], fraction_bits: int, floor: int
) -> Values:
    # Warps last, so that the inner loops are long: a (k, rows, 1, warps), b (k, 1, 8, warps), c (rows, 8, warps).
    a = np.ascontiguousarray(a.transpose(2, 1, 0))[:, :, None]
    b = np.ascontiguousarray(b.transpose(2, 1, 0))[:, None]
    c = np.ascontiguousarray(c.transpose(1, 2, 0))
    a_exponents, b_exponents = _exponents(a, smallest[0]), _exponents(b, smallest[1])
    largest = np.maximum(_exponents(c, smallest[2]), np.int16(floor))
    term_exponent = np.empty_like(largest)
    for k in range(a.shape[0]):
        np.add(a_exponents[k], b_exponents[k], out=term_exponent)
        np.maximum(largest, term_exponent, out=largest)
    np.minimum(largest, np.int16(512), out=largest)  # with infinities, whose terms stay infinite

    # Scaled by a power of two, which is exact, what is cut is the fraction; the sums are integers below 2**40.
    scale = _power_of_two(np.int16(fraction_bits) - largest)
    total = np.trunc(c * scale)
    term = np.empty_like(total)
    for k in range(a.shape[0]):
        np.multiply(a[k], b[k], out=term)
        np.multiply(term, scale, out=term)
        np.trunc(term, out=term)
        np.add(total, term, out=total)
    total *= _power_of_two(largest - np.int16(fraction_bits))
    return total.transpose(2, 0, 1)


def block_sums(
    a: Values, b: Values, c: Values, *, smallest: tuple[int, int, int], fraction_bits: int, floor: int
) -> Values:
    """Return a @ b + c of each warp, each sum of one block, cut but not yet rounded.

    Parameters
    ----------
    a, b, c : numpy.ndarray of float64
        (warps, rows, k), (warps, 8, k) and (warps, rows, 8), with k the length of the block.
    smallest : tuple of int
        Exponents of the smallest normal numbers of a's, b's and c's formats.
    fraction_bits : int
        Bits retained below the largest exponent.
    floor : int
        The largest exponent is taken to be at least this.

    Returns
    -------
    numpy.ndarray of float64
        (warps, rows, 8).
    """
    with np.errstate(invalid="ignore"):
        return _aligned_sums(a, b, c, smallest, fraction_bits, floor)


def to_float32_towards_zero(x: Values) -> NDArray[np.float32]:
    """Round towards zero into float32, subnormal numbers included; from 2**128 on the result is infinite."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        near = x.astype(np.float32)
    away = np.abs(near) > np.abs(x)
    away &= np.abs(x) < 2.0**128
    near.view(np.uint32)[away] -= np.uint32(1)
    return near
