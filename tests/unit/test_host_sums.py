"""What the host's sums are kept in does not follow from the type of the result, as the documentation says."""

from __future__ import annotations

import numpy as np

import gemmule as gm


def test_float64_out_of_float32_holds_sums_in_float32():
    # 2**24 + 1 is no float32.
    a, b = np.array([[2.0**24, 1.0]], np.float32), np.ones((2, 1), np.float32)
    narrow = gm.matmul(a, b, out_dtype=np.float64, executor="host")
    assert (narrow.dtype, narrow[0, 0]) == (np.float64, 2.0**24)
    assert gm.matmul(a, b.astype(np.float64), executor="host")[0, 0] == 2.0**24 + 1
    out = np.empty((1, 1))
    gm.multiply(a, b, out, executor="host")
    assert out[0, 0] == 2.0**24
    gm.multiply(a, b, out, compute_dtype=np.float64, executor="host")
    assert out[0, 0] == 2.0**24 + 1
