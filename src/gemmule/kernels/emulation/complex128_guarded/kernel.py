"""complex128_gemm behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    As of float64_guarded.
Change from the rung before
    One word is read before anything else.
Data movement
    As of complex128_gemm, or 4 bytes a CTA.
Limits
    As of complex128_gemm; where the product is emulated, the launch of its CTAs.
Sources
    As of complex128_gemm and ozaki_guard.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.complex128 import kernel as whole
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.parts.tensors import tensor_1d


class GuardedComplex128Gemm(whole.Complex128Gemm):
    """`Complex128Gemm` where the decision is 0."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, None)


def buildable(config: Complex128Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    arguments = whole.buildable(config, types).arguments
    return Buildable(GuardedComplex128Gemm(config, types), (*arguments, tensor_1d("int32")))
