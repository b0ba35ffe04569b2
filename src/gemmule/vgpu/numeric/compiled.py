"""The same fused multiply-adds through the processor's own, where Numba is installed (the extra ``vgpu``).

The results are those of `fma`, bit for bit; a test compares them. Without Numba, or on a processor without the
instruction, NumPy computes.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.types import Array

_NAN32 = np.uint32(0x7FFFFFFF).view(np.float32)
Loop = Callable[[Array, Array, Array, Array], None]


@functools.cache
def compiler() -> Any:
    """Return Numba; None where it is not installed, or disabled by ``GEMMULE_VGPU_NUMBA=0``."""
    if os.environ.get("GEMMULE_VGPU_NUMBA") == "0":
        return None
    try:
        import numba
    except ImportError:
        return None
    return numba


@functools.cache
def loops() -> tuple[Loop, Loop] | None:
    """Return a compiled ``out = a * b + c`` of contiguous float32 and float64 arrays; None without Numba."""
    numba = compiler()
    if numba is None:
        return None
    from llvmlite import binding
    from numba.extending import intrinsic

    if platform.machine() != "aarch64" and not binding.get_host_cpu_features().get("fma"):
        return None

    @intrinsic  # type: ignore[untyped-decorator]
    def fused(context: Any, a: Any, b: Any, c: Any) -> Any:
        del context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            return builder.fma(*arguments)

        return a(a, b, c), generate

    @numba.njit("void(f4[::1], f4[::1], f4[::1], f4[::1])", nogil=True)  # type: ignore[untyped-decorator]
    def single(a: Array, b: Array, c: Array, out: Array) -> None:
        for lane in range(out.size):
            value: Any = fused(a[lane], b[lane], c[lane])
            out[lane] = _NAN32 if np.isnan(value) else value

    @numba.njit("void(f8[::1], f8[::1], f8[::1], f8[::1])", nogil=True)  # type: ignore[untyped-decorator]
    def double(a: Array, b: Array, c: Array, out: Array) -> None:
        for lane in range(out.size):
            out[lane] = fused(a[lane], b[lane], c[lane])

    return single, double
