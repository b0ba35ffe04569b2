"""Writes of a warp's accumulators of complex128, by whatever scheduler they were computed."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.config import COLUMNS
from gemmule.kernels.float64.stage import column_of


class WarpTileWrites:
    """Writes of warp tiles, for classes with a mainloop and an epilogue."""

    mainloop: Any
    epilogue: Any

    @cute.jit
    def write(
        self,
        gD: cute.Tensor,
        gC: cute.Tensor,
        rC: cute.Tensor,
        corner,
        scalars,
        mirrored,
        count: cutlass.Constexpr[int],
    ):
        """Write `count` products of 8 columns of a warp tile."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        for i in cutlass.range_constexpr(self.mainloop.blocks):
            for half in cutlass.range_constexpr(2):
                for j in cutlass.range_constexpr(count):
                    for v in cutlass.range_constexpr(2):
                        at = corner[0] + i * 16 + half * 8 + g, corner[1] + j * COLUMNS + column_of(2 * t + v)
                        products = cute.make_rmem_tensor(cute.make_layout((1, 2)), Float64)
                        for p in cutlass.range_constexpr(2):
                            products[0, p] = rC[2 * half + v, i, j, p]
                        self.epilogue.write(gD, gC, products, at, scalars, mirrored)
