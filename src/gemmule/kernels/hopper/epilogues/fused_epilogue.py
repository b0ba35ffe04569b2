"""Fused epilogue: by epilogue tiles in shared memory, the inputs of the next one in flight.

A warpgroup's accumulators become values in registers, which leave by TMA; C comes by TMA into the same epilogue tiles.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup
from .fused_fragments import FragmentFusion, FusedEpiTile
from .lane_columns import LaneColumns
from .warp_epi_tile import Scale, WarpEpiTile

#: With at most so many accumulators a thread has registers to prefetch the inputs of the next epilogue tile, and with
#: at most so many with an epilogue tile wider than a number of columns.
_MAX_PREFETCH_ACCUMULATORS, _MAX_WIDE_ACCUMULATORS, _WIDE = 128, 96, 64


@dataclass(frozen=True)
class FusedEpilogue:
    """A warpgroup's epilogue of its part of a tile."""

    epi_layout: EpiTileLayout  #: The epilogue tiles.
    fusion: FragmentFusion  #: The function of an element.
    num_b: int = 1  #: 2 where the accumulators of each wgmma tile are followed by those of the second B, else 1.

    @property
    def mma_tile_accumulators(self) -> int:
        """Accumulators of a thread in the epilogue tiles of a wgmma tile."""
        return self.epi_layout.epi_tiles_n * self.epi_layout.shape[1] // 2

    @property
    def prefetches_c(self) -> bool:
        """Whether C is loaded an epilogue tile ahead: not into the stage of the one before."""
        return self.epi_layout.epi_stages > 1

    @property
    def prefetches_inputs(self) -> bool:
        """Whether the inputs of the next epilogue tile, but for C, are loaded an epilogue tile ahead."""
        if self.fusion.takes_few_registers:
            return True
        most = _MAX_WIDE_ACCUMULATORS if self.epi_layout.shape[1] > _WIDE else _MAX_PREFETCH_ACCUMULATORS
        return self.epi_layout.mma_tiles_m * self.mma_tile_accumulators * self.num_b <= most

    def coord(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return where epilogue tile `n` is, in such tiles: those of the same columns first, then the next columns."""
        mma_tile, epi_tile_n = n % self.epi_layout.mma_tiles_m, n // self.epi_layout.mma_tiles_m
        return row + mma_tile * self.epi_layout.mma_stride_m, col + epi_tile_n

    def first_accumulator(self, n: int) -> int:
        """Return the first of a thread's accumulators in epilogue tile `n`."""
        mma_tile, epi_tile_n = n % self.epi_layout.mma_tiles_m, n // self.epi_layout.mma_tiles_m
        return mma_tile * self.mma_tile_accumulators * self.num_b + epi_tile_n * self.epi_layout.shape[1] // 2

    def load_inputs(self, n: int, ctx: Any, origin: Any, previous: Any = None) -> Any:
        """Issue the loads of epilogue tile `n`'s inputs, but for C and what the `previous` tile's have of its lines."""
        row, col, batch = origin
        first_row, first_col = self.first_element(n, row, col)
        if previous is not None:
            (i, j), (last_i, last_j) = self.coord(n, 0, 0), self.coord(n - 1, 0, 0)
            previous = self.fusion.unchanged(previous, same_rows=i == last_i, same_cols=j == last_j)
        width = self.epi_layout.shape[1]
        return self.fusion.load(ctx.aux_args, ctx.d.tensor, first_row, first_col, batch[0], width, previous)

    def first_element(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return the first row of this warp in epilogue tile `n`, and the tile's first column."""
        warp = warp_in_warpgroup()
        i, j = self.coord(n, row, col)
        return i * self.epi_layout.shape[0] + warp * 16, j * self.epi_layout.shape[1]

    @cute.jit
    def load_c(self, n: cutlass.Constexpr[int], pending: cutlass.Constexpr[int], ctx, origin):
        """Issue the TMA load of C's epilogue tile `n`, when all but the last `pending` stores have read theirs."""
        row, col, batch = origin
        warp = warp_in_warpgroup()
        stage = self.stage(n, ctx)
        if warp == 0:
            sC_part, gC_part = self.epi_layout.partitioned(ctx.c, ctx.smem, batch)
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
            with cute.arch.elect_one():
                nbytes = cutlass.const_expr(self.epi_layout.nbytes)
                cute.arch.mbarrier_arrive_and_expect_tx(ctx.c_full + stage, nbytes)
            source = gC_part[None, *self.coord(n, row, col)]
            cute.copy(ctx.c.atom, source, sC_part[None, stage], tma_bar_ptr=ctx.c_full + stage)

    def stage(self, n: int, ctx: Any) -> Any:
        """Return the stage of epilogue tile `n`, among those of all warpgroups."""
        return ctx.warpgroup_idx * self.epi_layout.epi_stages + n % self.epi_layout.epi_stages

    def prefetch_inputs(self, ctx: Any, origin: Any) -> Any:
        """Issue the loads for the first epilogue tile, before the mainloop; return the inputs for `store_tile`."""
        if self.epi_layout.reads_c and self.prefetches_c:
            self.load_c(0, self.epi_layout.epi_stages - 1, ctx, origin)
        return self.load_inputs(0, ctx, origin) if self.prefetches_inputs else None

    @cute.jit
    def store_tile(self, ctx, c_phase, accumulators, origin, inputs=None):
        """Compute and write a warpgroup's epilogue tiles; return C's next phase.

        Parameters
        ----------
        ctx, c_phase, accumulators, origin
            As of `LinearCombination.store_tile`.
        inputs
            What `prefetch_inputs` returned.
        """
        row, col, batch = origin
        layout, warp = self.epi_layout, warp_in_warpgroup()
        sD_part, gD_part = layout.partitioned(ctx.d, ctx.smem, batch)
        for n in cutlass.range_constexpr(layout.num_epi_tiles):
            stage = self.stage(n, ctx)
            next_inputs = None
            if cutlass.const_expr(not self.prefetches_inputs):
                inputs = self.load_inputs(n, ctx, origin, inputs)
            elif cutlass.const_expr(n + 1 < layout.num_epi_tiles):
                next_inputs = self.load_inputs(n + 1, ctx, origin, inputs)
            if cutlass.const_expr(layout.reads_c):
                if cutlass.const_expr(not self.prefetches_c):
                    self.load_c(n, 0, ctx, origin)
                elif cutlass.const_expr(n + 1 < layout.num_epi_tiles):
                    self.load_c(n + 1, layout.epi_stages - 2, ctx, origin)
                # C was loaded after the store had read this stage.
                cute.arch.mbarrier_wait(ctx.c_full + stage, c_phase)
                if cutlass.const_expr(n % layout.epi_stages == layout.epi_stages - 1):
                    c_phase = c_phase ^ 1
            else:
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(layout.epi_stages - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            address = ctx.smem.iterator.toint() + stage * cutlass.const_expr(layout.nbytes)
            epi_tile = FusedEpiTile(
                WarpEpiTile(address, warp * 16, layout.shape[1], layout.element, layout.column_major), accumulators,
                self.first_accumulator(n), self.mma_tile_accumulators if self.num_b > 1 else 0,
                self.fusion.inside(ctx.d.tensor, *self.first_element(n, row, col)), ctx.absmax,
            )  # fmt: skip
            first_col = cutlass.const_expr(self.coord(n, 0, 0)[1] * layout.shape[1])
            own = [one.from_column(first_col) if isinstance(one, LaneColumns) else one for one in inputs]
            self.fusion.write(epi_tile, own, ctx.aux_args, Scale(*ctx.scale, layout.reads_c))
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if warp == 0:
                cute.copy(ctx.d.atom, sD_part[None, stage], gD_part[None, *self.coord(n, row, col)])
                cute.arch.cp_async_bulk_commit_group()
            if cutlass.const_expr(self.prefetches_inputs):
                inputs = next_inputs
        return c_phase
