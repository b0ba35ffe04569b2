"""Integers as residues: the constants that the kernels compute with, held against exact arithmetic."""

from __future__ import annotations

import itertools
import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest

from gemmule.core.dtype import GUARDED_COMPLEX64
from gemmule.kernels.emulation.residues import (
    FLOAT_BASE,
    FLOAT_BITS,
    MODULI,
    MOST_K,
    SHIFT,
    byte_weights,
    centred,
    middle,
    norm_limit,
    product,
    quotient,
    weights,
)

COUNTS = (14, 15, 16)


def test_moduli_have_no_common_factor_and_fit_into_bytes():
    assert all(math.gcd(a, b) == 1 for a, b in itertools.combinations(MODULI, 2))
    assert max(MODULI) == 256
    assert min(MODULI) > 128
    # Products of residues: 128 * 128 of one modulus, 127 * 127 of the others; what is left from before, and these.
    assert MOST_K * 128 * 128 + 255 <= 2**30 + 255


@pytest.mark.parametrize("count", [*GUARDED_COMPLEX64, *COUNTS])
def test_norms_leave_room_for_roundings(count):
    mantissa, exponent = norm_limit(count)
    limit = Fraction(mantissa) * 2**exponent
    assert 1 <= mantissa < 2
    assert limit < Fraction(product(count), 2) * (1 - Fraction(1, 2**21))
    # Integers of 64 bits hold what one element alone may be; and half is added to each of 2**32 of them, the parts of
    # complex numbers.
    norm = math.isqrt(int(limit)) + 1
    assert norm < 2**63
    assert (norm + 2**15) ** 2 < product(count) // 2 * (1 - 2.0**-22)


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def residue(value, modulus):
    """What the kernel does, instruction by instruction."""
    low, high, start = byte_weights(modulus)
    unsigned = (value + 2**63) % 2**64
    weights_of = [(word >> 8 * place & 255 ^ 128) - 128 for word in (low, high) for place in range(4)]
    total = start + sum((unsigned >> 8 * place & 255) * weight for place, weight in enumerate(weights_of))
    assert abs(total) < 2**22
    as_float = struct.unpack("<f", struct.pack("<i", FLOAT_BITS + total))[0]
    assert as_float == FLOAT_BASE + total
    inverse = Fraction(float32(1 / modulus))
    turns = float32(float(Fraction(as_float - FLOAT_BASE) * inverse + Fraction(FLOAT_BASE))) - FLOAT_BASE
    left = as_float - turns * modulus
    assert left == float32(left)
    return struct.unpack("<i", struct.pack("<f", left))[0] & 255


@pytest.mark.parametrize("modulus", MODULI)
def test_residues_by_weights_of_bytes(modulus):
    draw = random.Random(modulus)
    values = [0, 1, -1, 2**62, -(2**62), modulus // 2, -(modulus // 2), modulus - modulus // 2]
    values += [draw.randrange(-(2**62), 2**62) for _ in range(300)] + [draw.randrange(-999, 999) for _ in range(100)]
    for value in values:
        byte = residue(value, modulus)
        signed = byte - 256 if byte > 127 else byte
        assert (signed - value) % modulus == 0
        assert abs(signed) <= modulus // 2
        assert centred(signed, modulus) == centred(value, modulus)


@pytest.mark.parametrize("modulus", MODULI)
def test_sums_are_reduced_without_division(modulus):
    offset, factor = quotient(modulus)
    most = 2**30 + 255
    draw = random.Random(modulus)
    edges = [base + step for base in (-most, 0, most) for step in range(-2 * modulus, 2 * modulus)]
    for value in [one for one in edges if abs(one) <= most] + [draw.randint(-most, most) for _ in range(2000)]:
        moved = value + offset
        assert 0 <= moved < 2**32
        assert factor < 2**32
        assert moved - (moved * factor >> 32 + SHIFT) * modulus == (value + middle(modulus)) % modulus


@pytest.mark.parametrize("count", COUNTS)
def test_integers_come_back_from_their_residues(count):
    parts, whole = weights(count)
    assert sum(map(Fraction, whole)) == product(count)
    mantissa, exponent = norm_limit(count)
    most = int(mantissa * 2**52) << exponent - 52
    draw = random.Random(count)
    values = [0, 1, -1, most, -most, most - 1] + [draw.randint(-most, most) for _ in range(500)]
    values += [draw.randint(-(2**bits), 2**bits) for bits in range(1, exponent)]
    for value in values:
        residues = [(value + middle(modulus)) % modulus - middle(modulus) for modulus in MODULI[:count]]
        sums = [0.0, 0.0, 0.0]
        for one, weight in zip(residues, parts, strict=True):
            for place in range(3):
                exact = Fraction(sums[place]) + one * Fraction(weight[place])
                sums[place] = float(exact)
                assert sums[place] == exact
        turns = float(np.rint(sums[0] * (1.0 / product(count))))
        left = [Fraction(total) - Fraction(turns) * Fraction(part) for total, part in zip(sums, whole, strict=True)]
        assert all(float(one) == one for one in left)
        assert sum(left) == value
        first, second, third = map(float, left)
        total = first + second
        got = total + (float(Fraction(first) + Fraction(second) - Fraction(total)) + third)
        assert abs(Fraction(got) - value) <= abs(Fraction(value)) * Fraction(2) ** -52
        if abs(value) < 2**53:
            assert got == value
