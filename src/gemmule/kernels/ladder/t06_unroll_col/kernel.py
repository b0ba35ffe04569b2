"""Rung 6: the transpose by columns, 4 elements a thread.

Idea
    As rung 5, by columns.
Change from the rung before
    Reads by columns, as rung 4.
Data movement, limits
    As rung 4: the number of sectors is the same.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel
from gemmule.kernels.ladder.transpose_rung_config import UNROLL


class UnrollCol(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along j."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        x, y = block_x * self.covers[0] + tx, block_y * self.covers[1] + ty
        moved = cute.make_rmem_tensor(cute.make_layout(UNROLL), mS.element_type)
        for u in cutlass.range_constexpr(UNROLL):
            j, i = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                moved[u] = mS[i, j]
        for u in cutlass.range_constexpr(UNROLL):
            j, i = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                mD[i, j] = moved[u]


buildable = UnrollCol.buildable
