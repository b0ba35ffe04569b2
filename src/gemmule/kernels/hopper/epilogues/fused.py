"""Fused epilogue: subtile by subtile through shared memory, the inputs of the next subtile in flight.

A warpgroup's accumulators become values in registers, which leave by TMA; C comes by TMA into the same subtiles.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.hopper.tile_config import WARPGROUP

from .fused_fragments import FragmentEpilogue, FusedSubtile
from .subtile_layout import SubtileLayout
from .subtiles import Scale, WarpRows

#: Accumulators of a thread beside which there are registers for more.
_FEW_ACCUMULATORS = 128


@dataclasses.dataclass(frozen=True)
class FusedEpilogue(SubtileLayout):
    """A warpgroup's epilogue of its part of a tile.

    Attributes
    ----------
    epilogue : FragmentEpilogue
        The function of an element.
    num_b : int
        2 where the accumulators of each block are followed by those of a second B, else 1.
    """

    epilogue: FragmentEpilogue | None = None
    num_b: int = 1

    @property
    def block_accumulators(self) -> int:
        """Accumulators of a thread in the subtiles of a block."""
        return self.per_block * self.shape[1] // 2

    @property
    def count(self) -> int:
        """Subtiles of a tile."""
        return self.blocks * self.per_block

    @property
    def prefetches_c(self) -> bool:
        """Whether C is loaded a subtile ahead: not into the buffer of the subtile before."""
        return self.buffers > 1

    @property
    def prefetches_inputs(self) -> bool:
        """Whether there are registers for the inputs of the next subtile."""
        return self.blocks * self.block_accumulators * self.num_b <= _FEW_ACCUMULATORS

    def place(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return where subtile `n` is, in subtiles: those of the same columns of all blocks, then the next columns."""
        return row + n % self.blocks * self.row_block_stride, col + n // self.blocks

    def first_accumulator(self, n: int) -> int:
        """Return the first of a thread's accumulators in subtile `n`."""
        return n % self.blocks * self.block_accumulators * self.num_b + n // self.blocks * self.shape[1] // 2

    def inputs(self, n: int, ctx: Any, corner: Any) -> Any:
        """Issue the loads of subtile `n`'s inputs, but for C."""
        row, col, batch = corner
        assert self.epilogue is not None
        first_row, first_col = self.first_element(n, row, col)
        return self.epilogue.load(ctx.extras, ctx.d.tensor, first_row, first_col, batch[0], self.shape[1])

    def first_element(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return the first row of this warp in subtile `n`, and the subtile's first column."""
        warp = self.warp()
        i, j = self.place(n, row, col)
        return i * self.shape[0] + warp * 16, j * self.shape[1]

    @cute.jit
    def load_c(self, n: cutlass.Constexpr[int], pending: cutlass.Constexpr[int], ctx, corner):
        """Issue the TMA load of C's subtile `n`, when all but the last `pending` stores have read their subtiles."""
        row, col, batch = corner
        warp = self.warp()
        buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
        if warp == 0:
            sC_part, gC_part = self.partitioned(ctx.c, ctx.smem, batch)
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
            with cute.arch.elect_one():
                subtile_bytes = cutlass.const_expr(self.subtile_bytes)
                cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + buffer, subtile_bytes)
            source = gC_part[None, *self.place(n, row, col)]
            cute.copy(ctx.c.atom, source, sC_part[None, buffer], tma_bar_ptr=ctx.c_full + buffer)

    def begin(self, ctx: Any, corner: Any) -> Any:
        """Issue the loads for the first subtile, before the mainloop; return what `finish` needs of them."""
        if self.reads_c and self.prefetches_c:
            self.load_c(0, self.buffers - 1, ctx, corner)
        return self.inputs(0, ctx, corner) if self.prefetches_inputs else None

    @cute.jit
    def finish(self, ctx, inputs, c_phase, accumulators, corner):
        """Compute and write a tile's subtiles; return C's next phase.

        Parameters
        ----------
        ctx : EpilogueContext
            What the warpgroup works on.
        inputs
            What `begin` returned.
        c_phase : Int32
            The phase in which C arrives.
        accumulators : Tensor
            This thread's accumulators, flat, as wgmma leaves them.
        corner : tuple
            Row and column of the warpgroup's first subtile, in subtiles, and the coordinates of the batch.
        """
        row, col, batch = corner
        warp = self.warp()
        sD_part, gD_part = self.partitioned(ctx.d, ctx.smem, batch)
        for n in cutlass.range_constexpr(self.count):
            buffer = ctx.warpgroup_idx * self.buffers + n % self.buffers
            next_inputs = None
            if cutlass.const_expr(not self.prefetches_inputs):
                inputs = self.inputs(n, ctx, corner)
            elif cutlass.const_expr(n + 1 < self.count):
                next_inputs = self.inputs(n + 1, ctx, corner)
            if cutlass.const_expr(self.reads_c):
                if cutlass.const_expr(not self.prefetches_c):
                    self.load_c(n, 0, ctx, corner)
                elif cutlass.const_expr(n + 1 < self.count):
                    self.load_c(n + 1, self.buffers - 2, ctx, corner)
                # C was loaded after the store had read this buffer.
                cute.arch.mbarrier_wait(ctx.c_full + buffer, c_phase)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    c_phase = c_phase ^ 1
            else:
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            address = ctx.smem.iterator.toint() + buffer * cutlass.const_expr(self.subtile_bytes)
            subtile = FusedSubtile(
                WarpRows(address, warp * 16, self.shape[1], self.out, self.column_major), accumulators,
                self.first_accumulator(n), self.block_accumulators if self.num_b > 1 else 0,
                self.epilogue.inside(ctx.d.tensor, *self.first_element(n, row, col)),
            )  # fmt: skip
            self.epilogue.write(subtile, inputs, ctx.extras, Scale(*ctx.scale, self.reads_c))
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if warp == 0:
                cute.copy(ctx.d.atom, sD_part[None, buffer], gD_part[None, *self.place(n, row, col)])
                cute.arch.cp_async_bulk_commit_group()
            inputs = next_inputs
        return c_phase
