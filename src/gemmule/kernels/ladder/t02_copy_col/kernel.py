"""Rung 2: a copy by columns, the lower bound.

Idea
    The worst access of a transpose, on both sides: consecutive threads read and write with a stride of a whole row.
Change from the rung before
    The threads' x is the column.
Data movement
    Every access of a warp touches 32 sectors and uses one element of each. The threads along y use the others, if the
    caches still hold them.
Limits
    Sectors: 32 for each access, instead of 4 for elements of 4 bytes.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4: the bounds of the study.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class CopyCol(BlockKernel):
    """D[i, j] = S[i, j], both contiguous along i, by consecutive threads along j."""

    copies = True

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        j, i = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = CopyCol.buildable
