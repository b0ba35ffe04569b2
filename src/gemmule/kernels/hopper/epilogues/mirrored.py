"""The end of a tile of a symmetric result: what lies below the diagonal is written a second time, transposed."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.kernels.hopper.mainloops.tma_wgmma import WARPGROUP, partitioned

from .subtile_layout import BoxLayout
from .subtiles import write_columns, write_rows


class MirroredBoxes(BoxLayout):
    """How a warpgroup writes the boxes of its part of a tile, in pairs: as they are, and mirrored at the diagonal.

    A box lies within one of the squares of 64 x 64 elements that the matrix is made of. Boxes of squares above the
    diagonal are left to their mirror images; those of squares on it are written as they are.
    """

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write epilogue tiles one after the other, the first at (row, col) in such tiles; return `c_phase`.

        Of the context, `c` is D's transpose, in columns. Behind each epilogue tile lies the one for its mirror image.
        """
        box_bytes, pairs = cutlass.const_expr(self.box_bytes), cutlass.const_expr(self.buffers // 2)
        sM = self.turned_boxes(ctx.smem)
        sM_part, gM_part = self.parts(ctx.tma_c, sM, ctx.c, batch)
        sD_part, gD_part = self.parts(ctx.tma_d, ctx.smem, ctx.d, batch)
        for n in cutlass.range_constexpr(self.blocks * self.boxes):
            block, box = n // self.boxes, n % self.boxes
            place = (row + self.apart * block, col + box)
            buffer = ctx.warpgroup_idx * self.buffers + n % pairs * 2
            # How many squares the box is below the diagonal.
            below = place[0] - place[1] * self.box_n // self.box_m
            if below >= 0:
                if self.warp() == 0:
                    cute.arch.cp_async_bulk_wait_group(pairs - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                address, first = ctx.smem.iterator.toint() + buffer * box_bytes, n * self.box_n // 2
                write_rows(
                    address, self.warp() * 16, self.box_n, accumulators, first, self.out, False, ctx.alpha, ctx.beta
                )
                if below > 0:
                    write_columns(
                        address + box_bytes,
                        self.warp() * 16,
                        self.box_n,
                        accumulators,
                        first,
                        self.out,
                        False,
                        ctx.alpha,
                        ctx.beta,
                    )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                if self.warp() == 0:
                    cute.copy(ctx.tma_d, sD_part[None, buffer], gD_part[None, *place])
                    if below > 0:
                        cute.copy(ctx.tma_c, sM_part[None, buffer + 1], gM_part[None, *place])
            if self.warp() == 0:
                # One for each box, of which some are empty: so many later ones tell that a pair has left.
                cute.arch.cp_async_bulk_commit_group()
        return c_phase

    @cute.jit
    def warp(self):
        """Return this warp's number in its warpgroup."""
        return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4

    def turned_boxes(self, sD: Any) -> Any:
        """Return the same boxes in shared memory, their columns one after the other."""
        shape = (self.box_m, self.box_n)
        layout = hopper_helpers.make_smem_layout_epi(self.out, LayoutEnum.COL_MAJOR, shape, cute.size(sD, mode=[2]))
        plain = cute.make_ptr(self.out, sD.iterator.toint(), cute.AddressSpace.smem, assumed_align=1024)
        return cute.make_tensor(cute.recast_ptr(plain, layout.inner), layout.outer)

    def parts(self, tma: Any, sX: Any, mX: Any, batch: Any) -> Any:
        """Return boxes in shared memory, and those of the matrix, as the copy engine takes them."""
        gX = cute.local_tile(mX[None, None, batch], (self.box_m, self.box_n), (None, None))
        return partitioned(tma, sX, gX)
