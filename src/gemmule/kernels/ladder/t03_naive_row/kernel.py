"""Rung 3: the naive transpose that reads by rows.

Idea
    One element a thread: read along the source's rows, write wherever it belongs, down a column of the target.
Change from the rung before
    The target is the transpose; reading is by rows again.
Data movement
    A warp's read fills its sectors, its write touches 32 sectors for 32 elements. L1 is write-through: each part of a
    sector goes to the L2 cache alone.
Limits
    Writes: 32 sectors for each access.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class NaiveRow(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along i."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        i, j = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = NaiveRow.buildable
