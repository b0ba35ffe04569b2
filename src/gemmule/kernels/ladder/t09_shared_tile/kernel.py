"""Rung 9: a tile through shared memory, so that both sides are rows.

Idea
    Shared memory has no sectors: a tile is written there along its rows and read down its columns, and both the source
    and the target are walked along their own rows.
Change from the rung before
    A square tile in shared memory, a barrier between its halves, several elements a thread.
Data movement
    Every access of a warp fills the sectors that it touches, on both sides. In shared memory the elements of a column
    are in one bank: a warp's read takes as many passes as it has lanes.
Limits
    Bank conflicts, 32 to a read for elements of 4 bytes.
Sources
    M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA technical blog.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.block_kernel import BlockKernel


class SharedTile(BlockKernel):
    """D[i, j] = S[i, j] for S contiguous along i, D along j."""

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_i, block_j, _ = cute.arch.block_idx()
        side, rows = self.block
        i0, j0 = block_i * side, block_j * side
        layout = cute.make_layout((side, side), stride=(1, side))
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


buildable = SharedTile.buildable
