"""Element types and stand-in tensors: how a kernel tells the compiler what it will be given."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

_CUTE_TYPES = {
    "float64": cutlass.Float64,
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
    "float8_e5m2": cutlass.Float8E5M2,
    "int8": cutlass.Int8,
    "int32": cutlass.Int32,
    "uint8": cutlass.Uint8,
    "uint16": cutlass.Uint16,
    "uint32": cutlass.Uint32,
    "uint64": cutlass.Uint64,
}


def cute_type(name: str) -> Any:
    """Return the compiler's type for the DType called `name`."""
    return _CUTE_TYPES[name]


def dynamic_tensor(name: str, rank: int) -> Any:
    """Return a stand-in for a tensor of any shape and strides, both 64 bits wide, aligned to one element."""
    extents = tuple(cute.sym_int64() for _ in range(rank))
    strides = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)
