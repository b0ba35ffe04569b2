"""What is certain of float64 products put together from residues, and inputs that go to the end of it."""

from __future__ import annotations

import numpy as np

from gemmule.core.dtype import FLOAT64
from gemmule.kernels.emulation.residues import MODULI


def largest_residues(at_least):
    """An integer of which what is left is as large as can be for the first moduli; below 2 * at_least."""
    found, unit = 0, 1
    for modulus in MODULI:
        if unit * modulus > at_least:
            break
        wanted = modulus // 2
        found, unit = found + unit * ((wanted - found) * pow(unit, -1, modulus) % modulus), unit * modulus
    return found + -(-(at_least - found) // unit) * unit


def beyond_certain(got, a, b):
    """The largest error, of what is certain: the result's rounding, and that of each row and column by its norm."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    right, sizes = wide[0] @ wide[1], [np.abs(x) for x in wide]
    norms = [np.sqrt((x * x).sum(axis, keepdims=True)) for x, axis in zip(wide, (1, 0), strict=True)]
    most = norms[0] * sizes[1].sum(0, keepdims=True) + sizes[0].sum(1, keepdims=True) * norms[1]
    assert np.isfinite(got).all()
    return float(np.max(np.abs(got - right) / (FLOAT64.unit_roundoff * np.abs(right) + 2.0**-58 * most)))
