"""The end of a tile of a symmetric result whose lines begin anywhere: threads write it, and its mirror image."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from .stmatrix import store_matrices
from .subtile_layout import BoxLayout
from .unaligned_rows import element_at, write_run, write_whole_runs

_WARPGROUP = 128
#: Bytes of a line of 64 elements in shared memory, and 16 more: 8 lines then lie in different banks.
PITCH = 144
#: Lines that a warp writes together.
_TOGETHER = 4


class MirroredRuns(BoxLayout):
    """How a warpgroup writes boxes of 64 x 64 elements of 16 bits, as `MirroredBoxes`, line by line."""

    @cute.jit
    def finish(self, ctx, c_phase, accumulators, row, col, batch):
        """Write epilogue tiles one after the other, the first at (row, col) in such tiles; return `c_phase`.

        Shared memory holds the lines of an epilogue tile of each warpgroup, and of its mirror image.
        """
        gD = ctx.d[None, None, batch]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        area = cutlass.const_expr(self.box_m * PITCH)
        address = ctx.smem.iterator.toint() + 2 * ctx.warpgroup_idx * area
        for n in cutlass.range_constexpr(self.blocks * self.boxes):
            i, j = row + self.apart * (n // self.boxes), col + n % self.boxes
            if i >= j:
                # Whoever read what is there is done.
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=_WARPGROUP)
                self.put(address, warp * 16, accumulators, n * self.box_n // 2, ctx.alpha, False)
                if i > j:
                    self.put(address + area, warp * 16, accumulators, n * self.box_n // 2, ctx.alpha, True)
                cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=_WARPGROUP)
                self.write(gD, address, i * self.box_m, j * self.box_m, warp * 16)
                if i > j:
                    self.write(gD, address + area, j * self.box_m, i * self.box_m, warp * 16)
        return c_phase

    @cute.jit
    def put(self, address, row, sums, first: cutlass.Constexpr[int], alpha, turned: cutlass.Constexpr[bool]):
        """Put a warp's 16 rows of a box into shared memory, or 16 elements of each of its columns."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        for q in cutlass.range_constexpr(self.box_n // 16):
            values = cute.make_rmem_tensor(cute.make_layout(8), cutlass.Float32)
            for v in cutlass.range_constexpr(8):
                values[v] = sums[first + 8 * q + v] * alpha
            written = cute.make_rmem_tensor(cute.make_layout(8), self.out)
            written.store(values.load().to(self.out))
            line, chunk = row + lane % 16, 2 * q + lane // 16
            if cutlass.const_expr(turned):
                line, chunk = 16 * q + lane // 16 * 8 + lane % 8, row // 8 + lane // 8 % 2
            store_matrices(address + line * PITCH + chunk * 16, cute.recast_tensor(written, Int32), turned)

    @cute.jit
    def write(self, gD, address, m0, n0, line):
        """Write 16 of the lines of a box, whose first element is (m0, n0), from one of them on."""
        count = cutlass.min(gD.shape[0] - m0 - line, 16)
        cols = cutlass.min(gD.shape[1] - n0, self.box_n)
        staged = cute.make_ptr(Uint32, address + line * PITCH, cute.AddressSpace.smem, assumed_align=16)
        if cols == self.box_n and count == 16:
            for r in cutlass.range(0, 16, _TOGETHER, unroll=1):
                starts = [element_at(gD, m0 + line + r + x, n0) for x in range(_TOGETHER)]
                write_whole_runs(starts, staged + r * (PITCH // 4), PITCH // 4, self.box_n)
        elif cols > 0:
            for r in cutlass.range(count, unroll=1):
                write_run(element_at(gD, m0 + line + r, n0), staged + r * (PITCH // 4), cols, self.box_n)


def lines_of(box_m: Any) -> Any:
    """Return the rows of 128 bytes of shared memory that the lines of a box take."""
    return box_m * PITCH // 128
