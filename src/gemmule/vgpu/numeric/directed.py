"""Rounding of float64 in a direction, from the result to nearest and its error."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.engine.types import Array


def zero_sign(result: Array, total: Array, mode: str, first: Array, second: Array) -> Array:
    """Give a sum that is exactly zero the sign that rounding down asks for: minus, but for two positive zeros."""
    if mode != "rm":
        return result
    return np.where((total == 0) & (np.signbit(first) | np.signbit(second)), -0.0, result)


def directed(high: Array, low: Array, mode: str) -> Array:
    """Round ``high + low``, a float64 rounded to nearest and its error, in a direction instead."""
    low = np.where(np.isfinite(high), low, 0)
    towards = {"rz": np.where(high > 0, low < 0, low > 0), "rm": low < 0, "rp": low > 0}[mode]
    where = {"rz": np.zeros_like(high), "rm": np.full_like(high, -np.inf), "rp": np.full_like(high, np.inf)}[mode]
    return np.where(towards, np.nextafter(high, where), high)
