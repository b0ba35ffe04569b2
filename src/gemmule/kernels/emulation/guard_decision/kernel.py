"""The guard's decision: how many products emulate the native one, or none of them.

Idea
    The guard's measurement is one number, the shortfall, which later launches read. This one writes what it means, for
    whoever asks for the decision without the product, and how many rows and columns are computed natively.
Change from the rung before
    One thread.
Data movement
    Twelve bytes in, twelve bytes out.
Limits
    The launch.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard_words import LISTED, NEVER
from gemmule.kernels.emulation.ozaki_config import DecisionConfig
from gemmule.kernels.parts.tensors import tensor_1d


class Decision:
    """N[0] = the products of the first choice that suffices by the shortfall S[0], or 0; N[1:] = listed lines."""

    def __init__(self, config: DecisionConfig, types: dict[str, str]) -> None:
        del config, types

    @cute.jit
    def __call__(self, shortfall: cute.Tensor, products: cute.Tensor, fewest):
        self.kernel(shortfall, products, fewest).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, shortfall: cute.Tensor, products: cute.Tensor, fewest):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            short = shortfall[0]
            products[0] = fewest + short if short < NEVER else Int32(0)
            for side in cutlass.range_constexpr(2):
                products[1 + side] = shortfall[LISTED + side] if short < NEVER else Int32(0)


def buildable(config: DecisionConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    words = (tensor_1d("int32"), tensor_1d("int32"))
    return Buildable(Decision(config, types), (*words, Int32(0)))
