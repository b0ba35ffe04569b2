"""The end of a tile without an epilogue: its boxes go through shared memory, where C is added."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.hopper.mainloops.tma_wgmma import WARPGROUP, partitioned

from .subtile_layout import BoxLayout
from .subtiles import write_columns, write_rows


class PlainBoxes(BoxLayout):
    """How a warpgroup writes the boxes of its part of a tile."""

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write epilogue tiles one after the other, the first at (row, col) in such tiles; return C's next phase."""
        box_bytes = cutlass.const_expr(self.box_bytes)
        tile = (self.box_m, self.box_n)
        gC, gD = (cute.local_tile(of_batch(mX, batch), tile, (None, None)) for mX in (ctx.c, ctx.d))
        sC_part, gC_part = partitioned(ctx.tma_c, ctx.smem, gC)
        sD_part, gD_part = partitioned(ctx.tma_d, ctx.smem, gD)
        for n in cutlass.range_constexpr(self.blocks * self.boxes):
            block, box = n // self.boxes, n % self.boxes
            place = (row + self.apart * block, col + box)
            buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
            if self.warp() == 0:
                cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                if cutlass.const_expr(self.reads_c):
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + buffer, box_bytes)
                    cute.copy(ctx.tma_c, gC_part[None, *place], sC_part[None, buffer], tma_bar_ptr=ctx.c_full + buffer)
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if cutlass.const_expr(self.reads_c):
                cute.arch.mbarrier_wait(ctx.c_full + buffer, c_phase)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    c_phase = c_phase ^ 1
            write = write_columns if cutlass.const_expr(self.turned) else write_rows
            write(
                ctx.smem.iterator.toint() + buffer * box_bytes, self.warp() * 16, self.box_n, accumulators,
                n * self.box_n // 2, self.out, self.reads_c, ctx.alpha, ctx.beta,
            )  # fmt: skip
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if self.warp() == 0:
                cute.copy(ctx.tma_d, sD_part[None, buffer], gD_part[None, *place])
                cute.arch.cp_async_bulk_commit_group()
        return c_phase

    @cute.jit
    def warp(self):
        """Return this warp's number in its warpgroup."""
        return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4

    @cute.jit
    def end(self):
        """Wait until the TMA stores have read the last epilogue tiles: the CTA's shared memory may go then."""
        if self.warp() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


def of_batch(matrices: Any, batch: Any) -> Any:
    """Return a matrix of a batch; where there is no batch, the only one."""
    return matrices if batch is None else matrices[None, None, batch]
