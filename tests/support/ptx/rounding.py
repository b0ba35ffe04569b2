"""Rounding to narrow floating-point types, as PTX defines it."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

NARROW = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def rounded(exact, dtype, mode="rn"):
    """Round a fraction into a type, by comparing it with the neighbours of a guess."""
    info = ml_dtypes.finfo(dtype)
    if exact == 0:
        return dtype.type(0)
    largest = Fraction(float(info.max))
    sign = 1 if exact > 0 else -1
    size = abs(exact)
    # The exponent, and from it the unit in the last place.
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, int(info.minexp)) - int(info.nmant))
    count = size / unit
    down = count.numerator // count.denominator
    rest = count - down
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": rest > 0 and sign < 0,
        "rp": rest > 0 and sign > 0,
    }[mode]
    value = (down + up) * unit
    if value > largest:
        to_infinity = mode in ("rn", "rna") or (mode == "rp" and sign > 0) or (mode == "rm" and sign < 0)
        return dtype.type(sign * (np.inf if to_infinity else float(largest)))
    return dtype.type(sign * float(value))
