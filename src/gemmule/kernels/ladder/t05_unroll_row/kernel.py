"""Rung 5: the transpose by rows, 4 elements a thread.

Idea
    A thread reads four elements before it writes the first: four loads are in flight at once.
Change from the rung before
    Reads by rows, as rung 3, and a CTA covers 4 times as much along x. Each of a thread's elements has its own test for
    the edge: with one test for all, ragged matrices would be read and written outside.
Data movement, limits
    As rung 3: the number of sectors is the same.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel
from gemmule.kernels.ladder.transpose_rung_config import UNROLL


class UnrollRow(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along i."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        x, y = block_x * self.covers[0] + tx, block_y * self.covers[1] + ty
        moved = cute.make_rmem_tensor(cute.make_layout(UNROLL), mS.element_type)
        for u in cutlass.range_constexpr(UNROLL):
            i, j = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                moved[u] = mS[i, j]
        for u in cutlass.range_constexpr(UNROLL):
            i, j = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                mD[i, j] = moved[u]


buildable = UnrollRow.buildable
