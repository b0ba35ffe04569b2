"""Epilogue of tiles that end before their last row or column: nothing is written beyond."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.mainloops.operands import TmaTensor
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup
from .fused_fragments import FusedEpiTile
from .unaligned_rows import element_at
from .warp_epi_tile import Scale, WarpEpiTile, swizzled_address, write_epi_tile

_CHUNK = 16


class Region(NamedTuple):
    """The part of a matrix of D that a warpgroup writes: its first row and column, and the ends of both."""

    row: Any
    col: Any
    row_end: Any
    col_end: Any


@dataclass(frozen=True)
class LimitedStore:
    """Epilogue tiles that TMA stores where all of their rows count, else threads, row by row."""

    epi_layout: EpiTileLayout  #: The epilogue tiles.
    #: Whether D's rows and the first column are multiples of 16 bytes; else threads write each element by itself.
    by_tma: bool
    fusion: Any = None  #: FragmentFusion or None. The function of an element; its inputs have a matrix for each group.
    num_b: int = 1  #: 2 where the accumulators of each wgmma tile are followed by those of the second B, else 1.

    @cute.jit
    def write_epi_tile(self, n: cutlass.Constexpr[int], ctx, tile, accumulators, part, group):
        """Write epilogue tile `n` into shared memory; `group` is that of its inputs, negative where D is zero."""
        layout, plain = self.epi_layout, Scale(Float32(1), Float32(0), False)
        if cutlass.const_expr(self.fusion is None):
            write_epi_tile(tile, accumulators, n * layout.shape[1] // 2, plain)
        else:
            mma_tile_accumulators = cutlass.const_expr(layout.epi_tiles_n * layout.shape[1] // 2)
            first = cutlass.const_expr(
                n // layout.epi_tiles_n * mma_tile_accumulators * self.num_b
                + n % layout.epi_tiles_n * layout.shape[1] // 2
            )
            up_offset = cutlass.const_expr(mma_tile_accumulators if self.num_b > 1 else 0)
            if group < 0:
                write_epi_tile(tile, accumulators, first, plain)
            else:
                row = part.row + warp_in_warpgroup() * 16
                inputs = self.fusion.load(ctx.aux_args, ctx.d.tensor, row, part.col, group, layout.shape[1])
                fused = FusedEpiTile(tile, accumulators, first, up_offset, None, None)
                self.fusion.write(fused, inputs, ctx.aux_args, plain)

    @cute.jit
    def store_tile(self, ctx, accumulators, region, batch, rows_clipped: cutlass.Constexpr[bool] = False, group=0):
        """Write a warpgroup's epilogue tiles.

        Parameters
        ----------
        ctx : EpilogueContext
            Operands and resources; `d` is D, and where TMA stores it `c` is D for threads.
        accumulators : Tensor
            This thread's accumulators, flat, as wgmma leaves them.
        region : Region
            Destination.
        batch : Int32
            The matrix of D.
        rows_clipped : bool
            Whether the rows end where D does, which TMA knows.
        group : Int32
            As of `write_epi_tile`.
        """
        layout = self.epi_layout
        if cutlass.const_expr(self.by_tma):
            mD = cute.domain_offset((region.row, region.col), ctx.d.tensor[None, None, batch])
            sD_part, gD_part = layout.partitioned(TmaTensor(ctx.d.atom, mD), ctx.smem, ())
        for n in cutlass.range_constexpr(layout.num_epi_tiles):
            coord = (layout.mma_stride_m * (n // layout.epi_tiles_n), n % layout.epi_tiles_n)
            stage = ctx.warpgroup_idx * layout.epi_stages + n % layout.epi_stages
            if warp_in_warpgroup() == 0:
                cute.arch.cp_async_bulk_wait_group(layout.epi_stages - 1, read=True)
            # Nobody reads the epilogue tile before any more, TMA and threads alike.
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            address = ctx.smem.iterator.toint() + stage * layout.nbytes
            part = Region(
                region.row + layout.shape[0] * coord[0], region.col + layout.shape[1] * coord[1], region.row_end,
                region.col_end,
            )  # fmt: skip
            tile = WarpEpiTile(address, warp_in_warpgroup() * 16, layout.shape[1], layout.element)
            self.write_epi_tile(n, ctx, tile, accumulators, part, group)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if cutlass.const_expr(not self.by_tma):
                self.write_elements(ctx.d.tensor[None, None, batch], address, part)
            elif cutlass.const_expr(rows_clipped):
                self.store(ctx, sD_part[None, stage], gD_part[None, *coord])
            else:
                if part.row + layout.shape[0] <= part.row_end:
                    self.store(ctx, sD_part[None, stage], gD_part[None, *coord])
                else:
                    self.write_chunks(ctx.c.tensor[None, None, batch], address, part)
                    # Groups of stores are counted by epilogue tiles.
                    if warp_in_warpgroup() == 0:
                        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def store(self, ctx, source, target):
        """Store an epilogue tile by TMA."""
        if warp_in_warpgroup() == 0:
            cute.copy(ctx.d.atom, source, target)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def write_chunks(self, gD, address, part):
        """Write the rows of an epilogue tile that count, 16 bytes a thread; columns end at multiples of 16 bytes."""
        tid, _, _ = cute.arch.thread_idx()
        item = cutlass.const_expr(self.epi_layout.element.width // 8)
        row_bytes = cutlass.const_expr(self.epi_layout.shape[1] * item)
        chunks = cutlass.const_expr(row_bytes // _CHUNK)
        count = cutlass.const_expr(self.epi_layout.shape[0] * chunks)
        for x in cutlass.range_constexpr(-(-count // WARPGROUP)):
            unit = tid % WARPGROUP + x * WARPGROUP
            row, chunk = unit // chunks, unit % chunks
            r, c = part.row + row, part.col + chunk * (_CHUNK // item)
            row_end = part.row_end
            if cutlass.const_expr((x + 1) * WARPGROUP > count):
                # With an odd number of chunks in a row, the last iteration has chunks for half of the threads.
                row_end = cutlass.min(row_end, part.row + self.epi_layout.shape[0])
            if r < row_end and c < part.col_end:
                source = swizzled_address(address, row, chunk, row_bytes)
                staged = cute.make_ptr(cutlass.Uint32, source, cute.AddressSpace.smem, assumed_align=_CHUNK)
                start = element_at(gD, r, c)
                target = cute.make_ptr(cutlass.Uint32, start.toint(), start.memspace, assumed_align=_CHUNK)
                words = cute.make_tensor(staged, cute.make_layout(4)).load()
                cute.make_tensor(target, cute.make_layout(4)).store(words)

    @cute.jit
    def write_elements(self, gD, address, part):
        """Write the elements of an epilogue tile that count, one by one."""
        tid, _, _ = cute.arch.thread_idx()
        element, width = self.epi_layout.element, cutlass.const_expr(self.epi_layout.shape[1])
        item = cutlass.const_expr(element.width // 8)
        for unit in cutlass.range(tid % WARPGROUP, self.epi_layout.shape[0] * width, WARPGROUP, unroll=4):
            row, col = unit // width, unit % width
            if part.row + row < part.row_end and part.col + col < part.col_end:
                chunk = swizzled_address(address, row, col * item // _CHUNK, width * item)
                place = chunk + col * item % _CHUNK
                staged = cute.make_ptr(element, place, cute.AddressSpace.smem, assumed_align=item)
                gD[part.row + row, part.col + col] = cute.make_tensor(staged, cute.make_layout(1))[0]
