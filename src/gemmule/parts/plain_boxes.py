"""The end of a tile without an epilogue: its boxes go through shared memory, where C is added."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from .box_layout import BoxLayout
from .boxes import write_columns, write_rows

_WARPGROUP = 128


class PlainBoxes(BoxLayout):
    """How a warpgroup writes the boxes of its part of a tile."""

    @cute.jit
    def finish(self, tma_c, mC, tma_d, mD, sD, arrived, brought, sums, row, col, batch, mine, barrier, alpha, beta):
        """Write boxes one after the other, the first at (row, col) in boxes; return the phase of C's arrival."""
        box_bytes = cutlass.const_expr(self.box_bytes)
        gC, gD = (cute.local_tile(mX[None, None, batch], (self.box_m, self.box_n), (None, None)) for mX in (mC, mD))
        sC_part, gC_part = self.parts(tma_c, sD, gC)
        sD_part, gD_part = self.parts(tma_d, sD, gD)
        for n in cutlass.range_constexpr(self.blocks * self.boxes):
            block, box = n // self.boxes, n % self.boxes
            place = (row + self.apart * block, col + box)
            buffer = mine * self.buffers + n % self.buffers
            if self.warp() == 0:
                cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                if cutlass.const_expr(self.reads_c):
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(arrived + buffer, box_bytes)
                    cute.copy(tma_c, gC_part[None, *place], sC_part[None, buffer], tma_bar_ptr=arrived + buffer)
            cute.arch.barrier(barrier_id=barrier, number_of_threads=_WARPGROUP)
            if cutlass.const_expr(self.reads_c):
                cute.arch.mbarrier_wait(arrived + buffer, brought)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    brought = brought ^ 1
            write = write_columns if cutlass.const_expr(self.turned) else write_rows
            write(
                sD.iterator.toint() + buffer * box_bytes, self.warp() * 16, self.box_n, sums,
                n * self.box_n // 2, self.out, self.reads_c, alpha, beta,
            )  # fmt: skip
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=barrier, number_of_threads=_WARPGROUP)
            if self.warp() == 0:
                cute.copy(tma_d, sD_part[None, buffer], gD_part[None, *place])
                cute.arch.cp_async_bulk_commit_group()
        return brought

    @cute.jit
    def warp(self):
        """Return this warp's number in its warpgroup."""
        return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4

    def parts(self, tma: Any, sX: Any, gX: Any) -> Any:
        """Return boxes in shared memory, and those of the matrix, as the copy engine takes them."""
        return cpasync.tma_partition(
            tma, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
        )
