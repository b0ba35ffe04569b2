"""SYRK epilogues: epilogue tiles below the diagonal are stored a second time, transposed."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .epi_tile_layout import EpiTileLayout, warp_in_warpgroup
from .linear_combination import LinearCombination
from .unaligned_rows import element_at, write_row, write_whole_rows
from .warp_epi_tile import Scale, WarpEpiTile, stmatrix, write_epi_tile

#: Bytes of a row of 64 elements in shared memory, and 16 more: 8 rows are then in different banks.
ROW_BYTES = 144
# The same in words, and rows that a warp writes together.
_ROW_WORDS, _TOGETHER = ROW_BYTES // 4, 4


class PaddedRowLayout(EpiTileLayout):
    """Epilogue tiles whose rows have 16 bytes of padding, for threads to write."""

    def allocate(self, smem: Any) -> Any:
        """Allocate the rows of all warpgroups' epilogue tiles, as rows of 128 bytes."""
        shape = (self.shape[0] * ROW_BYTES // 128, self.shape[1])
        rows = dataclasses.replace(self, shape=shape).smem_layout()
        return smem.allocate_tensor(self.element, rows.outer, 1024, swizzle=rows.inner)


@dataclass(frozen=True)
class Mirrored(LinearCombination):
    """Epilogue tiles that a warpgroup writes in pairs: as they are, and mirrored at the diagonal.

    An epilogue tile is inside one of the matrix's blocks of 64 x 64 elements. Those of blocks above
    the diagonal are left to their mirror images; those of blocks on it are written as they are.

    Attributes
    ----------
    epi_layout : EpiTileLayout
        The epilogue tiles; a stage has one, then the one for its mirror image.
    """

    @cute.jit
    def store_tile(self, ctx, c_phase, accumulators, origin, inputs=None):
        """Write a warpgroup's epilogue tiles; return `c_phase`. Parameters as of `LinearCombination.store_tile`."""
        del inputs
        row, col, batch = origin
        layout, nbytes = self.epi_layout, cutlass.const_expr(self.epi_layout.nbytes)
        sM_part, gM_part = layout.partitioned(ctx.d_transposed, self.transposed(ctx.smem), batch)
        sD_part, gD_part = layout.partitioned(ctx.d, ctx.smem, batch)
        for n in cutlass.range_constexpr(layout.num_epi_tiles):
            coord = (row + layout.mma_stride_m * (n // layout.epi_tiles_n), col + n % layout.epi_tiles_n)
            smem_tile = (ctx.warpgroup_idx * layout.epi_stages + n % layout.epi_stages) * layout.tiles_per_stage
            # Blocks from the diagonal down to the epilogue tile.
            below = coord[0] - coord[1] * layout.shape[1] // layout.shape[0]
            if below >= 0:
                if warp_in_warpgroup() == 0:
                    cute.arch.cp_async_bulk_wait_group(layout.epi_stages - 1, read=True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                address, first = ctx.smem.iterator.toint() + smem_tile * nbytes, n * layout.shape[1] // 2
                scale = Scale(*ctx.scale, False)
                warp_row = warp_in_warpgroup() * 16
                tile = WarpEpiTile(address, warp_row, layout.shape[1], layout.element)
                write_epi_tile(tile, accumulators, first, scale)
                if below > 0:
                    mirrored = WarpEpiTile(
                        address + nbytes, warp_in_warpgroup() * 16, layout.shape[1], layout.element, True
                    )
                    write_epi_tile(mirrored, accumulators, first, scale)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                if warp_in_warpgroup() == 0:
                    cute.copy(ctx.d.atom, sD_part[None, smem_tile], gD_part[None, *coord])
                    if below > 0:
                        cute.copy(ctx.d_transposed.atom, sM_part[None, smem_tile + 1], gM_part[None, *coord])
            if warp_in_warpgroup() == 0:
                # A group for each epilogue tile, of which some are empty: the wait counts groups.
                cute.arch.cp_async_bulk_commit_group()
        return c_phase

    def transposed(self, smem: Any) -> Any:
        """Return the same epilogue tiles in shared memory, column-major."""
        layout = self.epi_layout.smem_layout(transposed=True)
        start = cute.make_ptr(
            self.epi_layout.element, smem.iterator.toint(), cute.AddressSpace.smem, assumed_align=1024
        )
        return cute.make_tensor(cute.recast_ptr(start, layout.inner), layout.outer)


@dataclass(frozen=True)
class MirroredRows(LinearCombination):
    """Epilogue tiles of 64 x 64 elements of 16 bits that a warpgroup writes as `Mirrored` does, row by row."""

    epi_layout: PaddedRowLayout  #: The epilogue tiles: one stage, of one and its mirror image.

    @cute.jit
    def store_tile(self, ctx, c_phase, accumulators, origin, inputs=None):
        """Write a warpgroup's epilogue tiles; return `c_phase`. Parameters as of `LinearCombination.store_tile`."""
        del inputs
        row, col, batch = origin
        layout, gD = self.epi_layout, ctx.d.tensor[(None, None, *batch)]
        warp = warp_in_warpgroup()
        nbytes = cutlass.const_expr(layout.shape[0] * ROW_BYTES)
        address = ctx.smem.iterator.toint() + 2 * ctx.warpgroup_idx * nbytes
        for n in cutlass.range_constexpr(layout.num_epi_tiles):
            i, j = row + layout.mma_stride_m * (n // layout.epi_tiles_n), col + n % layout.epi_tiles_n
            first = cutlass.const_expr(n * layout.shape[1] // 2)
            if i >= j:
                # The rows of the epilogue tile before are read.
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                self.store(address, warp * 16, accumulators, first, ctx.scale[0], False)
                if i > j:
                    self.store(address + nbytes, warp * 16, accumulators, first, ctx.scale[0], True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                self.write(gD, address, i * layout.shape[0], j * layout.shape[0], warp * 16)
                if i > j:
                    self.write(gD, address + nbytes, j * layout.shape[0], i * layout.shape[0], warp * 16)
        return c_phase

    @cute.jit
    def store(
        self, address, row, accumulators, first: cutlass.Constexpr[int], alpha, transposed: cutlass.Constexpr[bool]
    ):
        """Store a warp's 16 rows of an epilogue tile to shared memory, or 16 elements of each of its columns."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        for q in cutlass.range_constexpr(self.epi_layout.shape[1] // 16):
            values = cute.make_rmem_tensor(cute.make_layout(8), cutlass.Float32)
            for v in cutlass.range_constexpr(8):
                values[v] = accumulators[first + 8 * q + v] * alpha
            written = cute.make_rmem_tensor(cute.make_layout(8), self.epi_layout.element)
            written.store(values.load().to(self.epi_layout.element))
            smem_row, chunk = row + lane % 16, 2 * q + lane // 16
            if cutlass.const_expr(transposed):
                smem_row, chunk = 16 * q + lane // 16 * 8 + lane % 8, row // 8 + lane // 8 % 2
            stmatrix(address + smem_row * ROW_BYTES + chunk * 16, cute.recast_tensor(written, Int32), transposed)

    @cute.jit
    def write(self, gD, address, m0, n0, row):
        """Write 16 rows of an epilogue tile, whose first element is (m0, n0), from one of them on."""
        count = cutlass.min(gD.shape[0] - m0 - row, 16)
        cols = cutlass.min(gD.shape[1] - n0, self.epi_layout.shape[1])
        staged = cute.make_ptr(Uint32, address + row * ROW_BYTES, cute.AddressSpace.smem, assumed_align=16)
        if cols == self.epi_layout.shape[1] and count == 16:
            for r in cutlass.range(0, 16, _TOGETHER, unroll=1):
                starts = [element_at(gD, m0 + row + r + x, n0) for x in range(_TOGETHER)]
                write_whole_rows(starts, staged + r * _ROW_WORDS, _ROW_WORDS, self.epi_layout.shape[1])
        elif cols > 0:
            for r in cutlass.range(count, unroll=1):
                write_row(element_at(gD, m0 + row + r, n0), staged + r * _ROW_WORDS, cols, self.epi_layout.shape[1])
