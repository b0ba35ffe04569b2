"""How far a product of 8-bit floats may be whose sums Hopper's tensor cores make, 128 of K at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np

#: Of the sum of magnitudes: what inputs of many kinds came to, in a model of the sums that keep 13 bits, was below.
SEEN = 2.0**-9


def assert_promoted(got, a, b, c=None, alpha=1, beta=0):
    """Hold alpha * a @ b + beta * c against float64; return the error as a share of |alpha| |a| |b|, without rounding.

    The last rounding, into the type of `got`, is allowed for; sums of all of K that were never promoted are too far.
    """
    wide = [x.astype(np.float64) for x in (a, b)]
    exact = alpha * (wide[0] @ wide[1])
    size = abs(alpha) * (np.abs(wide[0]) @ np.abs(wide[1]))
    if c is not None and beta:
        exact = exact + beta * c.astype(np.float64)
    info = ml_dtypes.finfo(got.dtype)
    rounded = np.abs(np.clip(exact, -float(info.max), float(info.max)) - got.astype(np.float64))
    own = 1.01 * float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal)
    error = float(np.max(np.maximum(rounded - own, 0) / np.where(size > 0, size, 1), initial=0.0))
    assert np.isfinite(got.astype(np.float64)).all(), "the output holds NaN or infinity: not every element was written"
    assert error < SEEN, f"the error is {error:.3g} of the sums of magnitudes"
    return error
