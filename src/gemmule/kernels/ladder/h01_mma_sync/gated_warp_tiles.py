"""The end of a tile of two factors that mma.sync computed: a square of the first's sums with that of the second's."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from .warp_tiles import SQUARE_M, SQUARE_N, WarpSquares, run_at


class GatedSquares(WarpSquares):
    """How a warp's sums become values: those of the second factor follow the first's in every row of products."""

    @property
    def pairs(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """The squares by their first row and column, each twice: for the first factor and for the second."""
        corners = [(m, n) for m in range(0, self.warp_m, SQUARE_M) for n in range(0, self.warp_n, SQUARE_N)]
        return tuple((corner, corner) for corner in corners)

    @property
    def steps(self) -> int:
        """Runs of a thread in a square."""
        return SQUARE_M * SQUARE_N // (32 * self.run)

    @cute.jit
    def stage(self, sums, sS, i: cutlass.Constexpr[int], j: cutlass.Constexpr[int], beside: cutlass.Constexpr[int]):
        """Put the square of products (i, j), (i, j + 1), ... of one of the factors where it belongs."""
        WarpSquares.stage(self, sums, sS, i, j + beside * (self.warp_n // 8), beside)

    @cute.jit
    def place(self, step):
        """Return where this thread's run of a step begins: row, column and the first of the two squares."""
        tid, _, _ = cute.arch.thread_idx()
        per_row = cutlass.const_expr(SQUARE_N // self.run)
        e = tid % 32 + 32 * step
        return e // per_row, e % per_row * self.run, 0

    def ups(self, sS: Any, step: Any) -> Any:
        """Return the sums of the second factor for this thread's run of a step."""
        row, col, _ = self.place(step)
        return run_at(sS, (row, col, 1), self.run).load()
