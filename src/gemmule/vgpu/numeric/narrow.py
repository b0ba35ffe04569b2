"""Bits of the narrow floating-point types to float64 values and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gemmule.vgpu.types import Array

_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
#: The hardware's NaN.
NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F}


def to_float64(kind: str, bits: Array) -> Array:
    """Return the values of `bits`."""
    return bits.view(_TYPES[kind]).astype(np.float64)


def from_float64(kind: str, values: Array) -> Array:
    """Return the bits of values that the type holds exactly."""
    dtype = _TYPES[kind]
    bits = values.astype(dtype).view(f"u{dtype.itemsize}")
    return np.where(np.isnan(values), np.array(NAN_BITS[kind], bits.dtype), bits)
