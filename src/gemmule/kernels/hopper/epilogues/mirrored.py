"""Epilogues of a symmetric result: tiles below the diagonal are written a second time, transposed."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.hopper.tile_config import WARPGROUP

from .subtile_layout import SubtileLayout
from .subtiles import Scale, WarpRows, store_matrices, write_subtile
from .unaligned_rows import element_at, write_row, write_whole_rows

#: Bytes of a row of 64 elements in shared memory, and 16 more: 8 rows then lie in different banks.
ROW_BYTES = 144
# The same in words, and rows that a warp writes together.
_ROW_WORDS, _TOGETHER = ROW_BYTES // 4, 4


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


class MirroredRows(SubtileLayout):
    """Subtiles of 64 x 64 elements of 16 bits that a warpgroup writes as `Mirrored` does, row by row."""

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write subtiles one after the other, the first at (row, col) in such subtiles; return `c_phase`.

        Shared memory holds the rows of a subtile of each warpgroup, and of its mirror image.
        """
        gD = ctx.d.tensor[(None, None, *batch)]
        warp = self.warp()
        area = cutlass.const_expr(self.shape[0] * ROW_BYTES)
        address = ctx.smem.iterator.toint() + 2 * ctx.warpgroup_idx * area
        for n in cutlass.range_constexpr(self.blocks * self.per_block):
            i, j = row + self.row_block_stride * (n // self.per_block), col + n % self.per_block
            first = cutlass.const_expr(n * self.shape[1] // 2)
            if i >= j:
                # The rows of the subtile before are read.
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                self.store(address, warp * 16, accumulators, first, ctx.scale[0], False)
                if i > j:
                    self.store(address + area, warp * 16, accumulators, first, ctx.scale[0], True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
                self.write(gD, address, i * self.shape[0], j * self.shape[0], warp * 16)
                if i > j:
                    self.write(gD, address + area, j * self.shape[0], i * self.shape[0], warp * 16)
        return c_phase

    @cute.jit
    def store(
        self, address, row, accumulators, first: cutlass.Constexpr[int], alpha, transposed: cutlass.Constexpr[bool]
    ):
        """Store a warp's 16 rows of a subtile to shared memory, or 16 elements of each of its columns."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        for q in cutlass.range_constexpr(self.shape[1] // 16):
            values = cute.make_rmem_tensor(cute.make_layout(8), cutlass.Float32)
            for v in cutlass.range_constexpr(8):
                values[v] = accumulators[first + 8 * q + v] * alpha
            written = cute.make_rmem_tensor(cute.make_layout(8), self.out)
            written.store(values.load().to(self.out))
            line, chunk = row + lane % 16, 2 * q + lane // 16
            if cutlass.const_expr(transposed):
                line, chunk = 16 * q + lane // 16 * 8 + lane % 8, row // 8 + lane // 8 % 2
            store_matrices(address + line * ROW_BYTES + chunk * 16, cute.recast_tensor(written, Int32), transposed)

    @cute.jit
    def write(self, gD, address, m0, n0, row):
        """Write 16 rows of a subtile, whose first element is (m0, n0), from one of them on."""
        count = cutlass.min(gD.shape[0] - m0 - row, 16)
        cols = cutlass.min(gD.shape[1] - n0, self.shape[1])
        staged = cute.make_ptr(Uint32, address + row * ROW_BYTES, cute.AddressSpace.smem, assumed_align=16)
        if cols == self.shape[1] and count == 16:
            for r in cutlass.range(0, 16, _TOGETHER, unroll=1):
                starts = [element_at(gD, m0 + row + r + x, n0) for x in range(_TOGETHER)]
                write_whole_rows(starts, staged + r * _ROW_WORDS, _ROW_WORDS, self.shape[1])
        elif cols > 0:
            for r in cutlass.range(count, unroll=1):
                write_row(element_at(gD, m0 + row + r, n0), staged + r * _ROW_WORDS, cols, self.shape[1])

    def allocate(self, smem: Any) -> Any:
        """Allocate the rows of all warpgroups' subtiles, as lines of 128 bytes."""
        lines = dataclasses.replace(self, shape=(self.shape[0] * ROW_BYTES // 128, self.shape[1])).smem_layout()
        return smem.allocate_tensor(self.out, lines.outer, 1024, swizzle=lines.inner)
