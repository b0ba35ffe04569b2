"""Native kernels behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    The host does not know what the guard decides: the native kernel is always launched, and reads the decision first.
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

from typing import Any

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.complex64 import kernel as complex64
from gemmule.kernels.complex.complex128 import kernel as complex128
from gemmule.kernels.float64.gemm import kernel as float64
from gemmule.kernels.float64.gemm import stream_k
from gemmule.kernels.parts.tensors import tensor_1d
from gemmule.kernels.simt.gemm import kernel as simt


class _Guarded:
    """A native kernel where the decision is 0."""

    compute_tile: Any

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, None)


class GuardedFloat64Gemm(_Guarded, float64.Float64Gemm):
    """`Float64Gemm` where the decision is 0."""


class GuardedStreamKFloat64Gemm(stream_k.StreamKFloat64Gemm):
    """`StreamKFloat64Gemm` where the decision is 0, which stands behind the workspaces and `SharedTiles`."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        # Of a launch that is not needed no CTA waits for a flag.
        if first[-1][0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, first[:-1])


class GuardedComplex64Gemm(_Guarded, complex64.Complex64Gemm):
    """`Complex64Gemm` where the decision is 0."""


class GuardedComplex128Gemm(_Guarded, complex128.Complex128Gemm):
    """`Complex128Gemm` where the decision is 0."""


class GuardedSimtGemm(simt.SimtGemm):
    """`SimtGemm` where the decision is 0."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, first, None)


#: For each element type the module of its native kernel, the guarded kernel, and what stands before the decision.
_KERNELS: dict[str, tuple[Any, Any, tuple[None, ...]]] = {
    "float32": (simt, GuardedSimtGemm, (None,)),
    "float64": (float64, GuardedFloat64Gemm, ()),
    "complex64": (complex64, GuardedComplex64Gemm, ()),
    "complex128": (complex128, GuardedComplex128Gemm, ()),
}


def buildable(config: Any, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    native, guarded, before = _KERNELS[types["element"]]
    arguments = native.buildable(config, types).arguments
    if getattr(config, "stream_k", 0):
        shares = (*arguments[-1], tensor_1d("int32"))
        return Buildable(GuardedStreamKFloat64Gemm(config, types), (*arguments[:-1], shares))
    return Buildable(guarded(config, types), (*arguments, *before, tensor_1d("int32")))
