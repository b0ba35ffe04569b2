"""The end of a tile with an epilogue: box by box through shared memory, what goes into the next box on its way.

A warpgroup's sums become values in registers, which leave by the copy engine; C comes by it, into the same boxes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.hopper.mainloops.tma_wgmma import WARPGROUP, partitioned

from .fused_fragments import FragmentEpilogue
from .subtile_layout import BoxLayout

#: Sums of a thread beside which there are registers for more.
_FEW_SUMS = 128


@dataclasses.dataclass(frozen=True)
class FinishedBoxes(BoxLayout):
    """How a warpgroup finishes its part of a tile.

    Attributes
    ----------
    epilogue : FragmentEpilogue
        What is computed.
    factors : int
        2 where the sums of each block are followed by those of a second factor, else 1.
    """

    epilogue: FragmentEpilogue
    factors: int = 1

    @property
    def block_sums(self) -> int:
        """Sums of a thread in the boxes of a block."""
        return self.boxes * self.box_n // 2

    @property
    def count(self) -> int:
        """Boxes of a tile."""
        return self.blocks * self.boxes

    @property
    def ahead(self) -> bool:
        """Whether C comes a box ahead: not into the buffer of the box before."""
        return self.buffers > 1

    @property
    def early(self) -> bool:
        """Whether there are registers for what goes into a box before its turn."""
        return self.blocks * self.block_sums * self.factors <= _FEW_SUMS

    def place(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return where box `n` is, in boxes: of the blocks one after the other, whose columns are the same."""
        return row + n % self.blocks * self.apart, col + n // self.blocks

    def first_sum(self, n: int) -> int:
        """Return the first of a thread's sums in box `n`."""
        return n % self.blocks * self.block_sums * self.factors + n // self.blocks * self.box_n // 2

    def inputs(self, n: int, ctx: Any, row: Any, col: Any, batch: Any) -> Any:
        """Start to load what goes into box `n`, but for C."""
        return self.epilogue.load(ctx.extras, ctx.d, *self.begins(n, row, col), batch, self.box_n)

    def begins(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return the first row of this warp in box `n`, and the box's first column."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        i, j = self.place(n, row, col)
        return i * self.box_m + warp * 16, j * self.box_n

    @cute.jit
    def load_c(self, n: cutlass.Constexpr[int], pending: cutlass.Constexpr[int], ctx, row, col, batch):
        """Issue the TMA load of C's epilogue tile `n`, when all but the last `pending` stores have read their tiles."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
        if warp == 0:
            sC_part, gC_part = self.parts(ctx.tma_c, ctx.c, ctx.smem, batch)
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
            with cute.arch.elect_one():
                box_bytes = cutlass.const_expr(self.box_bytes)
                cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + buffer, box_bytes)
            source = gC_part[None, *self.place(n, row, col)]
            cute.copy(ctx.tma_c, source, sC_part[None, buffer], tma_bar_ptr=ctx.c_full + buffer)

    def begin(self, ctx: Any, row: Any, col: Any, batch: Any) -> Any:
        """Start what goes into the first epilogue tile, before the mainloop; return what `finish` needs of it."""
        if self.reads_c and self.ahead:
            self.load_c(0, self.buffers - 1, ctx, row, col, batch)
        return self.inputs(0, ctx, row, col, batch) if self.early else None

    @cute.jit
    def finish(self, ctx, begun, c_phase, accumulators, row, col, batch):
        """Compute and write a tile's epilogue tiles; return C's next phase.

        Parameters
        ----------
        ctx : EpilogueContext
            What the warpgroup works on.
        begun
            What `begin` returned.
        c_phase : Int32
            The phase in which C arrives.
        accumulators : Tensor
            This thread's accumulators, flat, as wgmma leaves them.
        row, col, batch : Int32
            The warpgroup's first epilogue tile, in such tiles, and the matrix.
        """
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        sD_part, gD_part = self.parts(ctx.tma_d, ctx.d, ctx.smem, batch)
        inputs = begun
        for n in cutlass.range_constexpr(self.count):
            buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
            following = None
            if cutlass.const_expr(not self.early):
                inputs = self.inputs(n, ctx, row, col, batch)
            elif cutlass.const_expr(n + 1 < self.count):
                following = self.inputs(n + 1, ctx, row, col, batch)
            if cutlass.const_expr(self.reads_c):
                if cutlass.const_expr(not self.ahead):
                    self.load_c(n, 0, ctx, row, col, batch)
                elif cutlass.const_expr(n + 1 < self.count):
                    self.load_c(n + 1, self.buffers - 2, ctx, row, col, batch)
                # Where C has come, the box before has left.
                cute.arch.mbarrier_wait(ctx.c_full + buffer, c_phase)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    c_phase = c_phase ^ 1
            else:
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            box_bytes = cutlass.const_expr(self.box_bytes)
            self.epilogue.write(
                inputs, ctx.extras, ctx.smem.iterator.toint() + buffer * box_bytes, warp * 16, self.box_n, accumulators,
                self.first_sum(n), self.out, ctx.alpha, ctx.beta, reads_c=self.reads_c, columns=self.turned,
                up=self.block_sums if self.factors > 1 else 0,
                inside=self.epilogue.inside(ctx.d, *self.begins(n, row, col)),
            )  # fmt: skip
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if warp == 0:
                cute.copy(ctx.tma_d, sD_part[None, buffer], gD_part[None, *self.place(n, row, col)])
                cute.arch.cp_async_bulk_commit_group()
            inputs = following
        return c_phase

    def parts(self, tma: Any, mX: Any, sD: Any, batch: Any) -> Any:
        """Return boxes in shared memory, and those of the matrix, as the copy engine takes them."""
        gX = cute.local_tile(mX[None, None, batch], (self.box_m, self.box_n), (None, None))
        return partitioned(tma, sD, gX)
