"""Native kernels behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    The host does not know what the guard decides: the native kernel is always launched, and reads the shortfall first.
Change from the rung before
    One word is read before anything else.
Data movement
    As of the native kernel, or 4 bytes a CTA.
Limits
    As of the native kernel; where the product is emulated, the launch of its CTAs.
Sources
    As of the native kernels and ozaki_guard.
"""

from __future__ import annotations

import functools
from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.complex64 import kernel as complex64
from gemmule.kernels.complex.complex128 import kernel as complex128
from gemmule.kernels.emulation.guard_words import NEVER
from gemmule.kernels.float64.gemm import kernel as float64
from gemmule.kernels.parts.pdl import overlap_predecessor, wait_for_predecessor
from gemmule.kernels.parts.tensors import tensor_1d
from gemmule.kernels.parts.tile_gemm import TileGemm
from gemmule.kernels.simt.gemm import kernel as simt


class _Guarded:
    """A native kernel where no choice suffices: the shortfall stands behind the kernel's own last arguments."""

    compute_tile: Any

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        # The kernels of the emulation are behind this one: where they are not needed, they return before it ends.
        overlap_predecessor()
        # If CTAs share tiles, all of them return, and none waits for another.
        if first[-1][0] == NEVER:
            own = first[:-1] if cutlass.const_expr(len(first) > 1) else None
            self.compute_tile(mA, mB, mC, mD, alpha, beta, own)


class _GuardedByTma:
    """As `_Guarded`, of the kernel whose operands TMA loads."""

    compute_tiles: Any

    @cute.kernel
    def kernel(self, operands, results, factors, first):
        overlap_predecessor()
        if first[-1][0] == NEVER:
            self.compute_tiles(operands, results, factors, first[:-1])


@functools.cache
def _guarded(native: Any) -> Any:
    """Return a class of native kernels that depend on the shortfall."""
    guard = _Guarded if issubclass(native, TileGemm) else _GuardedByTma
    return type(f"Guarded{native.__name__}", (guard, native), {"__doc__": f"`{native.__name__}`, guarded."})


class GuardedSimtGemm(simt.SimtGemm):
    """`SimtGemm` where no choice suffices."""

    triggers = False

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first, shortfall):
        wait_for_predecessor()
        if shortfall[0] == NEVER:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, first, None)


#: For each element type but float32 the module of its native kernels.
_MODULES: dict[str, Any] = {"float64": float64, "complex64": complex64, "complex128": complex128}
#: Arguments of every GEMM: A, B, C, D, alpha and beta.
_COMMON = 6


def buildable(config: Any, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    shortfall = tensor_1d("int32")
    if types["element"] == "float32":
        return Buildable(GuardedSimtGemm(config, types), (*simt.buildable(config, types).arguments, None, shortfall))
    native: Buildable = _MODULES[types["element"]].buildable(config, types)
    own = tuple(one for shared in native.arguments[_COMMON:] for one in shared)
    kernel: Any = type(native.function)
    return Buildable(_guarded(kernel)(config, types), (*native.arguments[:_COMMON], (*own, shortfall)))
