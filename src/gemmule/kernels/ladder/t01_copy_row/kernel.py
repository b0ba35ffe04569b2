"""Rung 1: a copy by rows, the upper bound.

Idea
    What is no transpose cannot be slower than one: neighbouring threads read neighbours and write neighbours. This is
    the bandwidth that a transpose written as plainly could reach.
Data movement
    Every element is read once and written once. A warp's access fills the sectors that it touches.
Limits
    One element a thread: for small elements too few bytes are on their way to keep the memory busy. Later rungs, which
    keep more on their way, may be faster than this bound.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4: the bounds of the study.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.ladder.block_transpose import BlockConfig
from gemmule.kernels.parts.tensors import major_tensor


class CopyRow:
    """D[i, j] = S[i, j], both with neighbours along i."""

    def __init__(self, config: BlockConfig) -> None:
        self.block = (config.block_x, config.block_y)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        blocks_x, blocks_y = cute.ceil_div(mS.shape[0], self.block[0]), cute.ceil_div(mS.shape[1], self.block[1])
        self.kernel(mS, mD).launch(grid=(blocks_x, blocks_y, 1), block=(*self.block, 1))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        i, j = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


def buildable(config: BlockConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    element = types["element"]
    return Buildable(CopyRow(config), (major_tensor(element, 0), major_tensor(element, 0)))
