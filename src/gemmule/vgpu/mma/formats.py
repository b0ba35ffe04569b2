"""Formats of the operands of mma.sync and wgmma: their bits as float64 values, which hold each exactly."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Format:
    """An element type of A and B."""

    name: str  #: Its name in PTX.
    kind: str  #: ``float``, ``int`` or ``double``: which arithmetic multiplies it.
    stored: np.dtype[Any]  #: Type of a register's elements; bfloat16 stays as bits.
    #: Exponent of the smallest normal number, which subnormal ones have too: where they are aligned. An 8-bit float is
    #: given that of float16, into which Hopper unpacks it.
    min_exponent: int = 0

    @property
    def per_register(self) -> int:
        """Elements in a register."""
        return 1 if self.kind == "double" else 4 // self.stored.itemsize


FORMATS = {
    form.name: form
    for form in (
        Format("f16", "float", np.dtype(np.float16), -14),
        Format("bf16", "float", np.dtype(np.uint16), -126),
        Format("tf32", "float", np.dtype(np.uint32), -126),
        Format("e4m3", "float", np.dtype(np.uint8), -14),
        Format("e5m2", "float", np.dtype(np.uint8), -14),
        Format("s8", "int", np.dtype(np.int8)),
        Format("u8", "int", np.dtype(np.uint8)),
        Format("f64", "double", np.dtype(np.float64)),
    )
}

#: The other type that B may have, by A's; and the NumPy types of C and D.
PARTNERS = {"e4m3": "e5m2", "e5m2": "e4m3", "s8": "u8", "u8": "s8"}
ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "s32": np.dtype(np.int32),
    "f64": np.dtype(np.float64),
}
_NAN_BITS = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}

#: Only these bits of a 32-bit register are read as tf32: a value that cvt.rna.tf32 has not rounded is cut.
TF32_MASK = np.uint32(0xFFFFE000)

with np.errstate(invalid="ignore"):
    _BYTES = np.arange(256, dtype=np.uint8)
    _EIGHT_BIT = {
        "e4m3": _BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64),
        "e5m2": _BYTES.view(ml_dtypes.float8_e5m2).astype(np.float64),
    }


def values(registers: NDArray[np.uint32], form: Format) -> NDArray[np.float64]:
    """Return the elements of 32-bit registers along the last axis, those of one register next to each other."""
    elements: NDArray[Any] = np.ascontiguousarray(registers).view(form.stored)
    if form.name in _EIGHT_BIT:
        return np.asarray(_EIGHT_BIT[form.name][elements])
    if form.name == "bf16":
        elements = (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif form.name == "tf32":
        elements = (elements & TF32_MASK).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN sets the flag when it is converted
        return elements.astype(np.float64)


def canonical(d: NDArray[Any], d_type: str) -> NDArray[Any]:
    """Return D with every NaN replaced, in place, by the one that the hardware gives."""
    if (nan := np.isnan(d)).any():
        d.view(f"u{d.itemsize}")[nan] = _NAN_BITS[d_type]
    return d


def integer_sums(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], satfinite: bool) -> NDArray[Any]:
    """Return a @ b + c of integers, a and b given as float32; sums wrap unless they are clamped."""
    # Sums of 32 products of 8-bit integers stay below 2**24: float32 is exact, and BLAS multiplies it.
    total = (a @ b).astype(np.int64) + c
    found: NDArray[Any] = (np.clip(total, -(2**31), 2**31 - 1) if satfinite else total).astype(np.int32)
    return found
