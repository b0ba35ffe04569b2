"""Quantisation to 8-bit floats on the host: the arithmetic of the kernels, in NumPy's float32."""

from __future__ import annotations

import numpy as np

from ..core.block_scales import BLOCK
from ..core.dtype import dtype_named
from ..core.quantize_problem import LEAST_SCALE
from ..executor.tiles import Array

_MANTISSA_BITS = 23


def quantize(x: Array, by: str, values: Array, scales: Array) -> None:
    """Write the 8-bit floats and their scales.

    Parameters
    ----------
    x : numpy.ndarray
        A matrix of floats of up to 32 bits.
    by : str
        ``tensor``, ``row`` or ``block``.
    values, scales : numpy.ndarray
        Outputs: 8-bit floats of the shape of `x`; (1, 1), (rows, 1) or (rows, blocks) of float32, or of uint8 for
        exponents (E8M0).
    """
    if not scales.size:
        return
    wide, largest = x.astype(np.float32), np.float32(dtype_named(values.dtype.name).max_value)
    magnitudes = np.abs(wide)
    if by == "block":
        most = np.maximum.reduceat(magnitudes, np.arange(0, x.shape[1], BLOCK), axis=1)
    else:
        most = magnitudes.max(axis=None if by == "tensor" else 1, keepdims=True, initial=0)
    with np.errstate(all="ignore"):
        found = np.maximum(most / largest, np.float32(LEAST_SCALE))
        if scales.dtype == np.uint8:
            exponents = (found.view(np.uint32) + np.uint32((1 << _MANTISSA_BITS) - 1)) >> _MANTISSA_BITS
            # For NaN the addition carries into the sign.
            exponents = np.minimum(exponents, np.uint32(255))
            scales[...] = exponents.astype(np.uint8)
            found = (exponents << _MANTISSA_BITS).view(np.float32)
        else:
            scales[...] = found
        whole = np.repeat(found, BLOCK, axis=1)[:, : x.shape[1]] if by == "block" else found
        # Conversion does not saturate; NaN passes both comparisons.
        values[...] = np.clip(wide * (np.float32(1) / whole), -largest, largest).astype(values.dtype)
