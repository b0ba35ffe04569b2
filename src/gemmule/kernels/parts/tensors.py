"""Element types and fake tensors: the types of a kernel's arguments for the compiler."""

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
    "uint128": cutlass.Uint128,
    # Complex elements are moved whole; their parts are read as floats.
    "complex64": cutlass.Uint64,
    "complex128": cutlass.Uint128,
}

#: Types of the parts of complex elements.
PARTS = {"complex64": "float32", "complex128": "float64"}


def cute_type(name: str) -> Any:
    """Return the compiler's type for the DType called `name`."""
    return _CUTE_TYPES[name]


def dynamic_tensor(name: str, rank: int) -> Any:
    """Return a fake tensor of any shape and strides, both 64 bits wide, aligned to one element.

    Complex elements are a last mode of two parts, of which strides and alignment are.
    """
    extents = tuple(cute.sym_int64() for _ in range(rank))
    strides = tuple(cute.sym_int64() for _ in range(rank))
    if name in PARTS:
        return cute.runtime.make_fake_tensor(cute_type(PARTS[name]), (*extents, 2), (*strides, 1))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)


def major_tensor(name: str, unit: int, batch: int = 0, vector: int = 1) -> Any:
    """Return a fake matrix with extents of 32 bits, whose mode `unit` has unit stride.

    Parameters
    ----------
    name : str
        Element type.
    unit : int
        The contiguous mode, 0 or 1.
    batch : int
        Batch modes after the two.
    vector : int
        Elements that divide every other stride, and whose size the address is aligned to.
    """
    element = cute_type(name)
    extents = tuple(cute.sym_int32() for _ in range(2 + batch))
    strides = tuple(1 if mode == unit else cute.sym_int64(divisibility=vector) for mode in range(2 + batch))
    return cute.runtime.make_fake_tensor(element, extents, strides, assumed_align=vector * element.width // 8)


def strided_tensor(name: str) -> Any:
    """Return a fake tensor for matrices (M, N, L) of any strides and alignment, with extents of 32 bits."""
    extents, strides = tuple(cute.sym_int32() for _ in range(3)), tuple(cute.sym_int64() for _ in range(3))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)


def tensor_1d(name: str) -> Any:
    """Return a fake one-dimensional tensor of a 32-bit extent, contiguous and aligned to 256 bytes."""
    return cute.runtime.make_fake_compact_tensor(cute_type(name), (cute.sym_int32(),), assumed_align=256)


_STRIDES = {"0": 0, "1": 1, "p": 1}


def marked_tensor(name: str, marks: str) -> Any:
    """Return a fake tensor for matrices (M, N, L) of any alignment, with the strides of M and N by their marks.

    Parameters
    ----------
    name : str
        Element type.
    marks : str
        For M and N each, as of core.epilogue_inputs: ``0``, ``1`` or ``p`` for a stride of 0 or 1, or ``s`` for any.
    """
    extents = tuple(cute.sym_int32() for _ in range(3))
    strides = (*(_STRIDES[mark] if mark in _STRIDES else cute.sym_int64() for mark in marks), cute.sym_int64())
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)
