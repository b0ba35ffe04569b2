"""float64_gemm behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    The host does not know what the guard decides: the native kernel is always launched, and reads the decision first.
Change from the rung before
    One word is read before anything else.
Data movement
    As of float64_gemm, or 4 bytes a CTA.
Limits
    As of float64_gemm; where the product is emulated, the launch of its CTAs.
Sources
    As of float64_gemm and ozaki_guard.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm import kernel as whole
from gemmule.kernels.parts.tensors import tensor_1d


class GuardedFloat64Gemm(whole.Float64Gemm):
    """`Float64Gemm` where the decision is 0."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, None)


def buildable(config: Float64Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    arguments = whole.buildable(config, types).arguments
    return Buildable(GuardedFloat64Gemm(config, types), (*arguments, tensor_1d("int32")))
