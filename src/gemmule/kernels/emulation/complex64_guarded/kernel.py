"""complex64_gemm behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    As of float64_guarded.
Change from the rung before
    One word is read before anything else.
Data movement
    As of complex64_gemm, or 4 bytes a CTA.
Limits
    As of complex64_gemm; where the product is emulated, the launch of its CTAs.
Sources
    As of complex64_gemm and ozaki_guard.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.complex64 import kernel as whole
from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.parts.tensors import tensor_1d


class GuardedComplex64Gemm(whole.Complex64Gemm):
    """`Complex64Gemm` where the decision is 0."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, None)


def buildable(config: Complex64Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    arguments = whole.buildable(config, types).arguments
    return Buildable(GuardedComplex64Gemm(config, types), (*arguments, tensor_1d("int32")))
