"""Linear-combination epilogue: D = alpha * accumulators + beta * C, by epilogue tiles in shared memory."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup
from .warp_epi_tile import Scale, WarpEpiTile, write_epi_tile


@dataclass(frozen=True)
class LinearCombination:
    """Epilogue tiles that a warpgroup writes by TMA; C's come by TMA into the same shared memory before."""

    epi_layout: EpiTileLayout  #: The epilogue tiles.

    @cute.jit
    def store_tile(self, ctx, c_phase, accumulators, origin, inputs=None):
        """Write a warpgroup's epilogue tiles; return C's next phase.

        Parameters
        ----------
        ctx : EpilogueContext
            Operands and resources.
        c_phase : Int32
            Phase of C's full barriers.
        accumulators : Tensor
            This thread's accumulators, flat, as wgmma leaves them.
        origin : tuple
            Row and column of the first epilogue tile, in epilogue tiles, and the coordinates of the batch.
        inputs
            None: those of a fused epilogue.
        """
        del inputs
        row, col, batch = origin
        layout, nbytes = self.epi_layout, cutlass.const_expr(self.epi_layout.nbytes)
        sC_part, gC_part = layout.partitioned(ctx.c, ctx.smem, batch)
        sD_part, gD_part = layout.partitioned(ctx.d, ctx.smem, batch)
        for b in cutlass.range_constexpr(len(layout.batches)):
            places = self.places(b, ctx, row, col)
            if warp_in_warpgroup() == 0:
                cute.arch.cp_async_bulk_wait_group(layout.num_buffers - 1, read=True)
                if cutlass.const_expr(layout.reads_c):
                    for n in cutlass.range_constexpr(len(places)):
                        coord, stage = places[n]
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + stage, nbytes)
                        source = gC_part[None, *coord]
                        cute.copy(ctx.c.atom, source, sC_part[None, stage], tma_bar_ptr=ctx.c_full + stage)
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            for n in cutlass.range_constexpr(len(places)):
                coord, stage = places[n]
                if cutlass.const_expr(layout.reads_c):
                    cute.arch.mbarrier_wait(ctx.c_full + stage, c_phase)
                    if cutlass.const_expr(b % layout.num_buffers == layout.num_buffers - 1 and n == len(places) - 1):
                        c_phase = c_phase ^ 1
                address = ctx.smem.iterator.toint() + stage * nbytes
                warp_row = warp_in_warpgroup() * 16
                tile = WarpEpiTile(address, warp_row, layout.shape[1], layout.element, layout.column_major)
                first = cutlass.const_expr((layout.batches[b].start + n) * layout.shape[1] // 2)
                write_epi_tile(tile, accumulators, first, Scale(*ctx.scale, layout.reads_c))
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if warp_in_warpgroup() == 0:
                for n in cutlass.range_constexpr(len(places)):
                    coord, stage = places[n]
                    cute.copy(ctx.d.atom, sD_part[None, stage], gD_part[None, *coord])
                cute.arch.cp_async_bulk_commit_group()
        return c_phase

    def places(self, batch: int, ctx: Any, row: Any, col: Any) -> tuple[tuple[tuple[Any, Any], Any], ...]:
        """Return where each epilogue tile of a batch is, in such tiles, and its stage among those of all warpgroups."""
        layout = self.epi_layout
        first = batch % layout.num_buffers * layout.batch_stages
        return tuple(
            (
                (row + layout.mma_stride_m * (n // layout.epi_tiles_n), col + n % layout.epi_tiles_n),
                ctx.warpgroup_idx * layout.epi_stages + (first + index),
            )
            for index, n in enumerate(layout.batches[batch])
        )
