"""Ozaki scheme II, guard: the words that its launches read and raise, which are set before any of them begins.

Idea
    Workspaces hold anything. A launch sets the words instead of a memset, as the grid behind it can begin meanwhile.
Change from the rung before
    One thread, and no matrix.
Data movement
    The words.
Limits
    The launch.
Sources
    As of ozaki_guard.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.guard_words import SHORTFALL_WORDS
from gemmule.kernels.emulation.ozaki_config import WORDS_THREADS, ScalesConfig
from gemmule.kernels.parts.tensors import tensor_1d


class GuardWords:
    """S = words."""

    def __init__(self, config: ScalesConfig, types: dict[str, str]) -> None:
        del config, types

    @cute.jit
    def __call__(self, shortfall: cute.Tensor, words):
        self.kernel(shortfall, words).launch(grid=(1, 1, 1), block=(WORDS_THREADS, 1, 1))

    @cute.kernel
    def kernel(self, shortfall: cute.Tensor, words):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            for number in cutlass.range_constexpr(len(words)):
                shortfall[number] = words[number]


def buildable(config: ScalesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    words = tuple(Int32(0) for _ in range(SHORTFALL_WORDS))
    return Buildable(GuardWords(config, types), (tensor_1d("int32"), words))
