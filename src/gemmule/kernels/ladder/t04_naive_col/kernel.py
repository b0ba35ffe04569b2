"""Rung 4: the naive transpose that reads by columns.

Idea
    The other way round: read down a column of the source, write along the target's rows.
Change from the rung before
    The threads' x is the target's row.
Data movement
    A warp's write fills its sectors, its read touches 32 sectors for 32 elements. The other warps of the block find
    them in L1: 8 along y use all of a sector of 4-byte elements.
Limits
    Requests: 32 sectors for each read, though most hit L1.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class NaiveCol(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along j."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        j, i = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = NaiveCol.buildable
