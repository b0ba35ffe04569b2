"""Integers as their residues for small moduli that have no common factor: the numbers that kernels compute with.

Of a matrix of integers the residues for each modulus are a matrix of bytes. Products of those, modulo each, are the
residues of the product, and by the Chinese remainder theorem these say which integer of a range of `product` it is.
"""

from __future__ import annotations

import functools
import math

#: Moduli up to 256, no two of which have a common factor: the largest such that 16 can be chosen.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
#: Margin in the limit of squared norms for the rounding of their sums: 2**-20 of it. And in norms, the margin
#: for rounded integers: up to a half each, by which norms grow by up to 2**15 for the longest lines, of 2**32.
_SPARE, _SPARE_NORM = 20, 2**16
#: Bits of the parts of a weight but the last: with residues of 8 bits, of up to 16 moduli, sums of float64 are exact.
_PART = 42
#: Bytes of residues of a block of columns of B and of the result, besides those of A.
BLOCK_BYTES = 1 << 30
#: K whose products of residues, up to 2**14 each, stay below 2**30.
MOST_K = 2**16
#: Shift of a quotient after a product's upper half.
SHIFT = 7
#: A float32 to which integers up to 2**22 can be added in its last bits: 1.5 * 2**23.
FLOAT_BASE, FLOAT_BITS = 12582912.0, 0x4B400000


def product(count: int) -> int:
    """Return the product of the first `count` moduli: the number of integers that their residues distinguish."""
    return math.prod(MODULI[:count])


@functools.cache
def norm_limit(count: int) -> tuple[float, int]:
    """Return (m, e) with 1 <= m < 2: rows and columns whose squares sum up to m * 2**e at most have a product in range.

    By Cauchy and Schwarz: half of the moduli's product, as results have two signs, less what roundings may add: for few
    moduli, that of integers, which are small.
    """
    half = product(count) // 2
    limit = min(half * (2**_SPARE - 1) >> _SPARE, (math.isqrt(half) - _SPARE_NORM) ** 2)
    exponent = limit.bit_length() - 1
    # Cut, not rounded, to the bits of a float64.
    return (limit >> exponent - 52) / 2**52, exponent


def centred(value: int, modulus: int) -> int:
    """Return the residue between -modulus / 2 and modulus / 2, of two the negative one."""
    return (value + modulus // 2) % modulus - modulus // 2


def byte_weights(modulus: int) -> tuple[int, int, int]:
    """Return what makes a small number of the same residue of an integer of 64 bits.

    Two words with a signed byte for each of its bytes, the lowest first, the integer's sign bit being turned over; and
    what is to be added, for that bit.
    """
    weights = [centred(256**place, modulus) % 256 for place in range(8)]
    words = [sum(byte << 8 * place for place, byte in enumerate(weights[first : first + 4])) for first in (0, 4)]
    return words[0], words[1], centred(-(2**63), modulus)


def middle(modulus: int) -> int:
    """Return the addend of a product's residues before they are written: bytes then have no sign."""
    return modulus // 2


def quotient(modulus: int) -> tuple[int, int]:
    """Return (offset, factor): for s from -2**30 - 255 to 2**30 + 255, t = s + offset is from 0 to 2**31 + 1023.

    t - (t * factor >> 32 + SHIFT) * modulus is then the residue of s + middle(modulus).
    """
    offset = -(-(2**30 + 255) // modulus) * modulus + middle(modulus)
    return offset, -(-(2 ** (32 + SHIFT)) // modulus)


def _rounded(value: int, bits: int) -> int:
    """Return the multiple of 2**bits that is nearest."""
    return (value + (1 << bits >> 1)) >> bits << bits


def _parts(value: int, units: tuple[int, int]) -> tuple[float, float, float]:
    """Return three float64 whose sum is `value`, the first two multiples of 2**unit."""
    first = _rounded(value, units[0])
    second = _rounded(value - first, units[1])
    found = (first, second, value - first - second)
    assert all(int(float(part)) == part for part in found)
    return float(found[0]), float(found[1]), float(found[2])


@functools.cache
def weights(count: int) -> tuple[tuple[tuple[float, float, float], ...], tuple[float, float, float]]:
    """Return the weights with which residues sum up to the integer, but for multiples of the product; and the product.

    Each in three parts.
    """
    whole = product(count)
    bits = whole.bit_length()
    units = (bits - _PART, max(bits - 2 * _PART, 0))
    found = []
    for modulus in MODULI[:count]:
        others = whole // modulus
        found.append(_parts(centred(others * pow(others, -1, modulus), whole), units))
    return tuple(found), _parts(whole, units)
