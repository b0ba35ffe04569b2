"""Rung 10: a padded tile, without bank conflicts.

Idea
    One element of padding after each row of the tile moves the next row by one bank: the elements of a column are in
    different ones.
Change from the rung before
    The tile's rows are one element longer.
Data movement
    As rung 9 in device memory. In shared memory a warp's access takes one pass for elements of 4 bytes.
Limits
    One element at a time: for each access of a warp its address, its test for the edge, its instruction. Elements of 1
    and 2 bytes fill a quarter and a half of what an access can carry, and rows of the tile are 32 and 64 bytes.
Sources
    M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA technical blog: the padded tile.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.block_kernel import BlockKernel


class PaddedTile(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_i, block_j, _ = cute.arch.block_idx()
        side, rows = self.block
        i0, j0 = block_i * side, block_j * side
        layout = cute.make_layout((side, side), stride=(1, side + 1))
        sT = SmemAllocator().allocate_tensor(mS.element_type, layout, 16)
        for row in cutlass.range_constexpr(0, side, rows):
            i, j = tx, row + ty
            if i0 + i < mS.shape[0] and j0 + j < mS.shape[1]:
                sT[i, j] = mS[i0 + i, j0 + j]
        cute.arch.sync_threads()
        for row in cutlass.range_constexpr(0, side, rows):
            i, j = row + ty, tx
            if i0 + i < mS.shape[0] and j0 + j < mS.shape[1]:
                mD[i0 + i, j0 + j] = sT[i, j]


buildable = PaddedTile.buildable
