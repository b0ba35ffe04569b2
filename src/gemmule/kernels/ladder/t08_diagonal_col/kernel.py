"""Rung 8: the naive transpose by columns, its blocks along diagonals.

Idea
    As rung 7, by columns.
Change from the rung before
    Reads by columns, as rung 4.
Data movement, limits
    As rung 4; what limits rung 7 holds too.
Sources
    G. Ruetsch, P. Micikevicius, "Optimizing Matrix Transpose in CUDA", NVIDIA, 2009: diagonal block order.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class DiagonalCol(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along j."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        bx, by, _ = cute.arch.block_idx()
        blocks_x, blocks_y, _ = cute.arch.grid_dim()
        # The CTAs' number, counted along x, goes down the diagonals; every block is met once on grids of any shape.
        number = bx + by * blocks_x
        block_y = number % blocks_y
        block_x = (number // blocks_y + block_y) % blocks_x
        j, i = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = DiagonalCol.buildable
