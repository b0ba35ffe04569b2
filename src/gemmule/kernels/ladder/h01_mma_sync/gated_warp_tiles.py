"""Epilogue of a gated form: subtiles of the accumulators of the first B, each with that of the second."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from .config import SUBTILE_M, SUBTILE_N
from .warp_tiles import WarpTile, vector_at


class GatedWarpTile(WarpTile):
    """A warp tile whose accumulators of the second B follow those of the first in every row of products."""

    @property
    def pairs(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """First row and column of each subtile, twice: for the first B and for the second."""
        corners = [(m, n) for m in range(0, self.warp_m, SUBTILE_M) for n in range(0, self.warp_n, SUBTILE_N)]
        return tuple((corner, corner) for corner in corners)

    @property
    def steps(self) -> int:
        """Vectors of a thread in a subtile."""
        return SUBTILE_M * SUBTILE_N // (32 * self.vector)

    @cute.jit
    def stage(self, rC, sS, i: cutlass.Constexpr[int], j: cutlass.Constexpr[int], beside: cutlass.Constexpr[int]):
        """Store the subtile of products (i, j), (i, j + 1), ... of one B in shared memory."""
        WarpTile.stage(self, rC, sS, i, j + beside * (self.warp_n // 8), beside)

    @cute.jit
    def place(self, step):
        """Return the place of this thread's vector of a step: row, column and the first of the two subtiles."""
        tid, _, _ = cute.arch.thread_idx()
        per_row = cutlass.const_expr(SUBTILE_N // self.vector)
        e = tid % 32 + 32 * step
        return e // per_row, e % per_row * self.vector, 0

    def ups(self, sS: Any, step: Any) -> Any:
        """Return the accumulators of the second B for this thread's vector of a step."""
        row, col, _ = self.place(step)
        return vector_at(sS, (row, col, 1), self.vector).load()
