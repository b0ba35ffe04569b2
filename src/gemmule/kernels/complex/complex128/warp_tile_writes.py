"""Writes of a warp's accumulators of complex128, by whatever scheduler they were computed."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.config import COLUMNS
from gemmule.kernels.float64.stage import ROWS

from .stage import row_of


class WarpTileWrites:
    """Writes of warp tiles, for classes with an epilogue."""

    epilogue: Any

    @cute.jit
    def write(self, results, rC: cute.Tensor, first, scalars, mirrored):
        """Write a warp tile that begins at `first`; `results` are D and C."""
        tid, _, _ = cute.arch.thread_idx()
        row, col = first[0] + row_of(tid % 32 // 4), first[1] + tid % 4
        for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(rC, mode=[2])):
                for v in cutlass.range_constexpr(2):
                    at = row + i * ROWS, col + j * COLUMNS + cutlass.const_expr(row_of(v))
                    products = cute.make_rmem_tensor(cute.make_layout((1, 2)), Float64)
                    products[0, 0], products[0, 1] = rC[v, i, j], rC[2 + v, i, j]
                    self.epilogue.write(*results, products, at, scalars, mirrored)
