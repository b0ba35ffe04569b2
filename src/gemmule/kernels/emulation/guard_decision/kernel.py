"""The guard's decision: how many products emulate the native one, or none of them.

Idea
    The guard's measurement is one number, the shortfall. Later launches read the decision and return at once where they
    are not needed, so that the host need not wait.
Change from the rung before
    One thread.
Data movement
    Four bytes in, four bytes out.
Limits
    The launch.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard import MODULI_CHOICES
from gemmule.kernels.emulation.ozaki_config import DecisionConfig
from gemmule.kernels.parts.tensors import tensor_1d


class Decision:
    """N[0] = the first choice whose largest shortfall S[0] does not exceed, the fewest products first; else 0."""

    def __init__(self, config: DecisionConfig, types: dict[str, str]) -> None:
        del config, types

    @cute.jit
    def __call__(self, shortfall: cute.Tensor, products: cute.Tensor, largest, fewest):
        self.kernel(shortfall, products, largest, fewest).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, shortfall: cute.Tensor, products: cute.Tensor, largest, fewest):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            found, measured = Int32(0), shortfall[0]
            for number in cutlass.range_constexpr(len(MODULI_CHOICES) - 1, -1, -1):
                found = fewest + number if measured <= largest[number] else found
            products[0] = found


def buildable(config: DecisionConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    words = (tensor_1d("int32"), tensor_1d("int32"))
    return Buildable(Decision(config, types), (*words, tuple(Int32(0) for _ in MODULI_CHOICES), Int32(0)))
