"""Rung 7: the naive transpose by rows, its blocks along diagonals.

Idea
    Memory is split into partitions. Concurrent blocks down a column may all access the same one; blocks on a diagonal
    access different ones.
Change from the rung before
    One element a thread again, by rows, as rung 3, and the blocks in another order. The study's mapping needs as many
    blocks along x as along y; this one counts down the diagonals of any grid.
Data movement, limits
    As rung 3. GPUs that spread addresses over the partitions by a hash leave nothing to gain.
Sources
    G. Ruetsch, P. Micikevicius, "Optimizing Matrix Transpose in CUDA", NVIDIA, 2009: diagonal block order.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.kernels.ladder.block_kernel import BlockKernel


class DiagonalRow(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j, by consecutive threads along i."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        bx, by, _ = cute.arch.block_idx()
        blocks_x, blocks_y, _ = cute.arch.grid_dim()
        # The CTAs' number, counted along x, goes down the diagonals; every block is met once on grids of any shape.
        number = bx + by * blocks_x
        block_y = number % blocks_y
        block_x = (number // blocks_y + block_y) % blocks_x
        i, j = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


buildable = DiagonalRow.buildable
