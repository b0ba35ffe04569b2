"""simt_gemm behind the guard of ``precision="ozaki"``: CTAs return at once where the product is emulated.

Idea
    The host does not know what the guard decides: the native kernel is always launched, and reads the decision first.
Change from the rung before
    One word is read before anything else.
Data movement
    As of simt_gemm, or 4 bytes a CTA.
Limits
    As of simt_gemm; where the product is emulated, the launch of its CTAs.
Sources
    As of simt_gemm and ozaki_guard.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import tensor_1d
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm import kernel as whole


class GuardedSimtGemm(whole.SimtGemm):
    """`SimtGemm` where the decision is 0."""

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first, products):
        if products[0] == 0:
            self.compute_tile(mA, mB, mC, mD, alpha, beta, first, None)


def buildable(config: SimtConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    arguments = whole.buildable(config, types).arguments
    return Buildable(GuardedSimtGemm(config, types), (*arguments, None, tensor_1d("int32")))
