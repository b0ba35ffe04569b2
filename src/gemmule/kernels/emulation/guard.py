"""The guard of ``precision="ozaki"``: when emulation is as exact as the native kernel promises, as arithmetic.

Rows of A and columns of B are scaled to integers with norms between half of a limit and the limit, and rounded. A
product is then off by at most sqrt(K) times the limit, and K / 4. The native kernel may be off by K + 3 units of the
sum of magnitudes; two are left for the reconstruction. So many moduli suffice as make the limit large against the least
sum of magnitudes, of which a product of 8-bit floats over a part of K, all rounded down, is a lower bound.
"""

from __future__ import annotations

import math
import struct

from gemmule.core.dtype import FLOAT32, FLOAT64, GUARDED_COMPLEX64, GUARDED_PRODUCTS, DType

from .residues import norm_limit

#: Moduli that the guard chooses among, by the type of real numbers; and bits by which scales for them exceed those for
#: the fewest.
CHOICES = {FLOAT64: GUARDED_PRODUCTS, FLOAT32: GUARDED_COMPLEX64}
SCALE_STEPS = (0, 3, 7)
#: Contiguous elements along K that are sampled; samples that are enough, and one of how many runs is one at least.
SAMPLE_RUN, FEWEST_SAMPLES, LARGEST_PERIOD = 16, 256, 16
#: float8_e5m2 holds the integer of an element for the fewest moduli, shifted: 2**15 at most.
MAGNITUDE_SHIFTS = {FLOAT64: 40, FLOAT32: 13}
#: The scale of a line of zeros, whose products are exact. Its sampled magnitudes are large, so that they pass.
ZERO_LINE = 2000
#: Bits of an infinite float32, from which lower bounds are subtracted: the least bound is the furthest below.
INFINITE_BITS = 0x7F800000
#: Rows of A, or columns of B, of which one may be computed natively beside an emulated product. More are refused: then
#: most samples show them early, and a kernel that reads all of the other operand for some lines saves little.
NATIVE_SHARE = 32
#: Zeros count in the geometric mean of a line whose largest element is larger by so many bits at least than that; and
#: the fewest elements of a line whose exponents 32 bits may not hold the sum of, which no sum suffices for.
MEAN_SPAN, MOST_SUMMED, NO_EXPONENTS = 24, 2**20, 2**31 - 1
#: Margin for the roundings of the bound itself.
_SPARE = 17 / 16
#: Margin for the roundings of norms and of a sum of magnitudes in float64.
_ROUNDED = 2.0**-16

#: Magnitudes of float32, other than 0, whose parts in bfloat16 hold all bits, and no sum of whose products overflows:
#: biased exponents from the first to before the second.
PART_EXPONENTS = (127 - 110, 127 + 48)


def sample_period(k: int) -> int:
    """Return of how many runs along K one is sampled: as many as leave enough samples."""
    # The last run may be a part of one.
    return min(max(-(-k // (FEWEST_SAMPLES - SAMPLE_RUN)) - 1, 1), LARGEST_PERIOD)


def sample_runs(k: int) -> int:
    """Return how many runs of `SAMPLE_RUN` elements are sampled."""
    return -(-k // (SAMPLE_RUN * sample_period(k)))


def least_bound(k: int, step: int, real: DType = FLOAT64) -> float:
    """Return the least lower bound of sums of magnitudes, in units of the samples, with which scales suffice.

    Parameters
    ----------
    k : int
        Extent.
    step : int
        Bits by which scales exceed those for the fewest moduli.
    real : DType
        Type of the numbers.
    """
    fraction, exponent = norm_limit(CHOICES[real][0])
    limit = math.sqrt(math.ldexp(fraction, exponent)) * 2.0**step
    error = math.sqrt(k) * limit + k / 4
    return _SPARE * error * 2.0 ** -(2 * (MAGNITUDE_SHIFTS[real] + step)) / real.unit_roundoff / (k + 1)


def least_share(k: int, real: DType = FLOAT64) -> float:
    """Return the least square of a sum of sampled magnitudes, over those of both norms, that the guard may not refuse.

    Norms of scaled lines are at most the limit, and the guard rounds magnitudes down: whatever the scales, a pair of
    lines with less is one that the most moduli do not suffice for.
    """
    fraction, exponent = norm_limit(CHOICES[real][0])
    share = least_bound(k, SCALE_STEPS[-1], real) * 2.0 ** (2 * MAGNITUDE_SHIFTS[real]) / math.ldexp(fraction, exponent)
    return (1 - _ROUNDED) * share**2


def least_magnitude(k: int, real: DType = FLOAT64) -> int:
    """Return the bits of the least magnitude of which a line must have a sample, if the guard is not to refuse.

    A sum of sampled magnitudes is at most the largest of the one line times the sum of the other's, and that is at most
    the root of how many there are times the limit of norms.
    """
    fraction, exponent = norm_limit(CHOICES[real][0])
    most = math.sqrt(sample_runs(k) * SAMPLE_RUN * math.ldexp(fraction, exponent)) * 2.0 ** -MAGNITUDE_SHIFTS[real]
    least = least_bound(k, SCALE_STEPS[-1], real) / most / _SPARE
    return next(bits for bits in range(0x7D) if float8_e5m2(bits) >= least)


def least_exponents(k: int, real: DType = FLOAT64) -> int:
    """Return the least sum of exponents, of a scaled line, with which the fewest moduli suffice whatever the other one.

    The arithmetic mean of the magnitudes of products is at least their geometric mean, which is the product of those of
    both lines, in whatever order their elements meet. Exponents are logarithms rounded down.
    """
    if not 0 < k < MOST_SUMMED:
        return NO_EXPONENTS
    least = math.ldexp(least_bound(k, 0, real), 2 * MAGNITUDE_SHIFTS[real])
    # What zeros add, which count as more: in one line, and in both.
    square, share = math.ldexp(*norm_limit(CHOICES[real][0])), 2.0**-MEAN_SPAN
    least += square * share * (2 * math.sqrt(k) + k * share)
    return math.ceil(k * math.log2(least / k) / 2) + 1


def float8_e5m2(bits: int) -> float:
    """Return the value of positive bits; that after the largest finite one is twice as large as it, at least."""
    exponent, fraction = divmod(bits, 4)
    return math.ldexp(4 * bool(exponent) + fraction, max(exponent, 1) - 17)


def furthest_below(k: int, real: DType = FLOAT64) -> tuple[int, ...]:
    """Return for each choice of moduli how far below `INFINITE_BITS` the bits of lower bounds may be."""
    # The next float32 above: bits of positive ones are ordered as they are.
    return tuple(
        INFINITE_BITS - 1 - struct.unpack("<i", struct.pack("<f", least_bound(k, step, real)))[0]
        for step in SCALE_STEPS
    )
