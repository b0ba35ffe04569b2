"""Fused epilogue: by epilogue tiles in shared memory, the inputs of the next one in flight.

A warpgroup's accumulators become values in registers, which leave by TMA; C comes by TMA into the same epilogue tiles.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .c_tiles import CTiles
from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup
from .fused_fragments import FusedEpiTile
from .lane_columns import LaneColumns
from .warp_epi_tile import Scale, WarpEpiTile, write_epi_tile

#: With at most so many accumulators a thread has registers to prefetch the inputs of the next epilogue tile, and with
#: at most so many with an epilogue tile wider than a number of columns.
_MAX_PREFETCH_ACCUMULATORS, _MAX_WIDE_ACCUMULATORS, _WIDE = 128, 96, 64


@dataclass(frozen=True)
class FusedEpilogue:
    """A warpgroup's epilogue of its part of a tile."""

    epi_layout: EpiTileLayout  #: The epilogue tiles.
    fusion: Any  #: FragmentFusion or None. The function of an element; None for a linear combination with C.
    #: num_b, num_a: 2 where the accumulators of each wgmma tile are followed by those of the second B, or those of all
    #: by those of the second A; else 1.
    num_b: int = 1
    num_a: int = 1

    @property
    def mma_tile_accumulators(self) -> int:
        """Accumulators of a thread in the epilogue tiles of a wgmma tile."""
        return self.epi_layout.epi_tiles_n * self.epi_layout.shape[1] // 2

    @property
    def c_tiles(self) -> CTiles:
        """The loads of C."""
        return CTiles(self.epi_layout)

    @property
    def prefetches_inputs(self) -> bool:
        """Whether the inputs of the next epilogue tile, but for C, are loaded before this one is computed.

        Else they are loaded when it is written, and its accumulators have left their registers.
        """
        if self.fusion.takes_few_registers:
            return True
        most = _MAX_WIDE_ACCUMULATORS if self.epi_layout.shape[1] > _WIDE else _MAX_PREFETCH_ACCUMULATORS
        return self.epi_layout.mma_tiles_m * self.mma_tile_accumulators * self.num_b * self.num_a <= most

    def first_accumulator(self, n: int) -> int:
        """Return the first of a thread's accumulators in epilogue tile `n`."""
        mma_tile, epi_tile_n = n % self.epi_layout.mma_tiles_m, n // self.epi_layout.mma_tiles_m
        return mma_tile * self.mma_tile_accumulators * self.num_b + epi_tile_n * self.epi_layout.shape[1] // 2

    @property
    def up_offset(self) -> int:
        """Accumulators from one of the first B, or A, to its pair of the second; 0 without one."""
        if self.num_a > 1:
            return self.epi_layout.mma_tiles_m * self.mma_tile_accumulators
        return self.mma_tile_accumulators if self.num_b > 1 else 0

    def load_inputs(self, n: int, ctx: Any, origin: Any, previous: Any = None) -> Any:
        """Issue the loads of epilogue tile `n`'s inputs, but for C and what the `previous` tile's have of its lines."""
        row, col, batch = origin
        first_row, first_col = self.first_element(n, row, col)
        if previous is not None:
            (i, j), (last_i, last_j) = self.epi_layout.coord(n, 0, 0), self.epi_layout.coord(n - 1, 0, 0)
            previous = self.fusion.unchanged(previous, same_rows=i == last_i, same_cols=j == last_j)
        width = self.epi_layout.shape[1]
        return self.fusion.load(ctx.aux_args, ctx.d.tensor, first_row, first_col, batch[0], width, previous)

    def first_element(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return the first row of this warp in epilogue tile `n`, and the tile's first column."""
        warp = warp_in_warpgroup()
        i, j = self.epi_layout.coord(n, row, col)
        return i * self.epi_layout.shape[0] + warp * 16, j * self.epi_layout.shape[1]

    def stage(self, n: int, ctx: Any) -> Any:
        """Return the stage of epilogue tile `n`, among those of all warpgroups."""
        layout = self.epi_layout
        if layout.reads_c or layout.holds_all:
            return self.c_tiles.stage(n, ctx)
        b, batch = next((b, batch) for b, batch in enumerate(layout.batches) if n in batch)
        first = b % layout.num_buffers * layout.batch_stages
        return ctx.warpgroup_idx * layout.epi_stages + (first + n - batch.start)

    def prefetch_inputs(self, ctx: Any, origin: Any) -> Any:
        """Issue the loads for the first epilogue tile, but for C, before the mainloop; return the inputs."""
        layout, (row, col, batch) = self.epi_layout, origin
        rows = ((layout.mma_tiles_m - 1) * layout.mma_stride_m + 1) * layout.shape[0]
        first = row * layout.shape[0], col * layout.shape[1], batch[0]
        self.fusion.prefetch(ctx.aux_args, ctx.d.tensor, first, (rows, layout.epi_tiles_n * layout.shape[1]))
        return self.load_inputs(0, ctx, origin) if self.prefetches_inputs else None

    @cute.jit
    def store_tile(self, ctx, c_phases, accumulators, origin, inputs=None):
        """Compute and write a warpgroup's epilogue tiles; return C's next phases.

        Parameters
        ----------
        ctx, accumulators, origin
            As of `LinearCombination.store_tile`.
        c_phases : Int32
            Phases of C's full barriers, a bit for each stage.
        inputs
            What `prefetch_inputs` returned.
        """
        row, col, batch = origin
        layout, warp = self.epi_layout, warp_in_warpgroup()
        sD_part, gD_part = layout.partitioned(ctx.d, ctx.smem, batch)
        for b in cutlass.range_constexpr(len(layout.batches)):
            tiles = cutlass.const_expr(layout.batches[b])
            for n in cutlass.range_constexpr(tiles.start, tiles.stop):
                next_inputs = None
                has_next = cutlass.const_expr(self.fusion is not None and n + 1 < layout.num_epi_tiles)
                if cutlass.const_expr(self.fusion is not None and n == 0 and not self.prefetches_inputs):
                    inputs = self.load_inputs(n, ctx, origin)
                if cutlass.const_expr(has_next and self.prefetches_inputs):
                    next_inputs = self.load_inputs(n + 1, ctx, origin, inputs)
                if cutlass.const_expr(layout.reads_c):
                    if cutlass.const_expr(n == tiles.start):
                        self.c_tiles.refill(b, ctx, origin)
                    # C was loaded after the store had read this stage.
                    self.c_tiles.wait(n, ctx, c_phases)
                elif cutlass.const_expr(n == 0 or (n == tiles.start and not layout.holds_all)):
                    if warp == 0:
                        pending = cutlass.const_expr(0 if layout.holds_all else layout.num_buffers - 1)
                        cute.arch.cp_async_bulk_wait_group(pending, read=True)
                    cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                self.write(n, ctx, accumulators, origin, inputs)
                if cutlass.const_expr(has_next and not self.prefetches_inputs):
                    next_inputs = self.load_inputs(n + 1, ctx, origin, inputs)
                inputs = next_inputs
            cute.arch.fence_proxy("async.shared", space="cta")
            layout.await_written(b, ctx)
            if warp == 0:
                for n in cutlass.range_constexpr(tiles.start, tiles.stop):
                    cute.copy(ctx.d.atom, sD_part[None, self.stage(n, ctx)], gD_part[None, *layout.coord(n, row, col)])
                cute.arch.cp_async_bulk_commit_group()
        return self.c_tiles.next_phases(c_phases) if cutlass.const_expr(layout.reads_c) else c_phases

    def write(self, n: int, ctx: Any, accumulators: Any, origin: Any, inputs: Any) -> None:
        """Compute epilogue tile `n` and write it into shared memory."""
        row, col, _ = origin
        layout, warp = self.epi_layout, warp_in_warpgroup()
        address = ctx.smem.iterator.toint() + self.stage(n, ctx) * layout.nbytes
        smem_tile = WarpEpiTile(address, warp * 16, layout.shape[1], layout.element, layout.column_major)
        alpha, beta = ctx.scale
        scale, first = Scale(alpha, beta, layout.reads_c), self.first_accumulator(n)
        if self.fusion is None:
            write_epi_tile(smem_tile, accumulators, first, scale)
            return
        epi_tile = FusedEpiTile(
            smem_tile, accumulators, first, self.up_offset,
            self.fusion.inside(ctx.d.tensor, *self.first_element(n, row, col)), ctx.absmax,
        )  # fmt: skip
        first_col = self.epi_layout.coord(n, 0, 0)[1] * layout.shape[1]
        own = [one.from_column(first_col) if isinstance(one, LaneColumns) else one for one in inputs]
        self.fusion.write(epi_tile, own, ctx.aux_args, scale)
