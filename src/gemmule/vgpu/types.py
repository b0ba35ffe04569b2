"""PTX types as NumPy types."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import TYPE_BYTES

Array = np.ndarray[Any, np.dtype[Any]]

_BY_NAME: dict[str, Any] = {
    "pred": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"{kind}{bits}": f"uint{bits}" for kind in "bu" for bits in (8, 16, 32, 64)},
    # Packed and narrow types are handled as their bits.
    "bf16": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "f32x2": np.uint64,
    "tf32": np.uint32,
    "e4m3x2": np.uint16,
    "e5m2x2": np.uint16,
}
NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in _BY_NAME.items()}

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
SIGNED = ("s16", "s32", "s64")
BITS = ("pred", "b16", "b32", "b64")
FLOATS = ("f32", "f64")


def is_signed(kind: str) -> bool:
    """Say whether the type is a signed integer."""
    return kind.startswith("s")


def size_of(kind: str) -> int:
    """Return the bytes of a value of that type."""
    return TYPE_BYTES[kind]
