"""Linear-combination epilogue: D = alpha * accumulators + beta * C, subtile by subtile through shared memory."""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.kernels.hopper.tile_config import WARPGROUP

from .subtile_layout import SubtileLayout
from .subtiles import Scale, WarpRows, write_subtile


class LinearCombination(SubtileLayout):
    """Subtiles that a warpgroup writes by TMA; C's come by TMA into the same shared memory before."""

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write subtiles one after the other, the first at (row, col) in such subtiles; return C's next phase."""
        subtile_bytes = cutlass.const_expr(self.subtile_bytes)
        sC_part, gC_part = self.partitioned(ctx.c, ctx.smem, batch)
        sD_part, gD_part = self.partitioned(ctx.d, ctx.smem, batch)
        for n in cutlass.range_constexpr(self.blocks * self.per_block):
            place = (row + self.row_block_stride * (n // self.per_block), col + n % self.per_block)
            buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
            if self.warp() == 0:
                cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                if cutlass.const_expr(self.reads_c):
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + buffer, subtile_bytes)
                    source = gC_part[None, *place]
                    cute.copy(ctx.c.atom, source, sC_part[None, buffer], tma_bar_ptr=ctx.c_full + buffer)
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if cutlass.const_expr(self.reads_c):
                cute.arch.mbarrier_wait(ctx.c_full + buffer, c_phase)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    c_phase = c_phase ^ 1
            address = ctx.smem.iterator.toint() + buffer * subtile_bytes
            rows = WarpRows(address, self.warp() * 16, self.shape[1], self.out, self.column_major)
            write_subtile(rows, accumulators, n * self.shape[1] // 2, Scale(*ctx.scale, self.reads_c))
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if self.warp() == 0:
                cute.copy(ctx.d.atom, sD_part[None, buffer], gD_part[None, *place])
                cute.arch.cp_async_bulk_commit_group()
        return c_phase
