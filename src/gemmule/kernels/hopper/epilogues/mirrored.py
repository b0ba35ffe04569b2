"""Epilogue of a symmetric result: what lies below the diagonal is written a second time, transposed."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.hopper.mainloops.operands import WARPGROUP

from .subtile_layout import SubtileLayout
from .subtiles import Scale, WarpRows, write_subtile


class Mirrored(SubtileLayout):
    """Subtiles that a warpgroup writes in pairs: as they are, and mirrored at the diagonal.

    A subtile lies within one of the blocks of 64 x 64 elements that the matrix is made of. Subtiles of blocks above the
    diagonal are left to their mirror images; those of blocks on it are written as they are.
    """

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write subtiles one after the other, the first at (row, col) in such subtiles; return `c_phase`.

        Of the context, `c` is D's transpose, column-major. After each subtile lies the one for its mirror image.
        """
        subtile_bytes, pairs = cutlass.const_expr(self.subtile_bytes), cutlass.const_expr(self.buffers // 2)
        sM_part, gM_part = self.partitioned(ctx.c, self.transposed_subtiles(ctx.smem), batch)
        sD_part, gD_part = self.partitioned(ctx.d, ctx.smem, batch)
        for n in cutlass.range_constexpr(self.blocks * self.per_block):
            place = (row + self.row_block_stride * (n // self.per_block), col + n % self.per_block)
            buffer = ctx.warpgroup_idx * self.buffers + n % pairs * 2
            # Blocks from the diagonal down to the subtile.
            below = place[0] - place[1] * self.shape[1] // self.shape[0]
            if below >= 0:
                if self.warp() == 0:
                    cute.arch.cp_async_bulk_wait_group(pairs - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                address, first = ctx.smem.iterator.toint() + buffer * subtile_bytes, n * self.shape[1] // 2
                scale = Scale(*ctx.scale, False)
                write_subtile(WarpRows(address, self.warp() * 16, self.shape[1], self.out), accumulators, first, scale)
                if below > 0:
                    rows = WarpRows(address + subtile_bytes, self.warp() * 16, self.shape[1], self.out, True)
                    write_subtile(rows, accumulators, first, scale)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                if self.warp() == 0:
                    cute.copy(ctx.d.atom, sD_part[None, buffer], gD_part[None, *place])
                    if below > 0:
                        cute.copy(ctx.c.atom, sM_part[None, buffer + 1], gM_part[None, *place])
            if self.warp() == 0:
                # A group for each subtile, of which some are empty: the wait counts groups.
                cute.arch.cp_async_bulk_commit_group()
        return c_phase

    def transposed_subtiles(self, smem: Any) -> Any:
        """Return the same subtiles in shared memory, column-major."""
        layout = self.smem_layout(transposed=True)
        plain = cute.make_ptr(self.out, smem.iterator.toint(), cute.AddressSpace.smem, assumed_align=1024)
        return cute.make_tensor(cute.recast_ptr(plain, layout.inner), layout.outer)
