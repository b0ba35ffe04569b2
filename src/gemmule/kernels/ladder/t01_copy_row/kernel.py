"""Rung 1: a copy by rows, the upper bound.

Idea
    Consecutive threads read and write consecutive elements: the bandwidth that a transpose as plain could reach.
Data movement
    Every element is read once and written once. A warp's access fills the sectors that it touches.
Limits
    One element a thread: of small elements too few bytes are in flight to keep the memory busy. Later rungs, with more
    in flight, may be faster than this bound.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4: the bounds of the study.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class CopyRow(BlockKernel):
    """D[i, j] = S[i, j], both contiguous along i."""

    copies = True

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        i, j = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = CopyRow.buildable
