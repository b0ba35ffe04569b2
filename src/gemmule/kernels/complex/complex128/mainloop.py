"""Mainloop of the complex128 GEMM: the float64 one with twice as many elements of K, and two forms of A."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int64, cute

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.mainloop import Float64Mainloop
from gemmule.kernels.float64.warp_products import registers

from .stage import Complex128Stage

#: XOR mask between the addresses of the two parts.
_OTHER = 8
_SIGN_BIT = 63


class Complex128Mainloop(Float64Mainloop):
    """The loop over K, where real and imaginary parts are successive elements of real matrices.

    Rows (Ar, -Ai) of A times columns (Br, Bi) of B are the real parts of the product, rows (Ai, Ar) its imaginary ones.
    If one operand is conjugated, rows are (Ar, Ai) and (-Ai, Ar): then conj(A) B is computed, and A conj(B)
    is its conjugate. Both forms of A are read from the same elements, and B in place.

    Parameters
    ----------
    config : DmmaConfig
        Tiles and stages.
    types : dict
        The signature.
    chained : bool
        As of `Float64Mainloop`.
    """

    parts = 2
    stage_type = Complex128Stage

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        super().__init__(config, types, chained=chained)
        self.mixed = types["conj"] in ("a", "b")

    def lane_registers(self) -> tuple[Any, Any, Any, Any]:
        rows, every = (2, self.words, 2), (self.words, self.columns)
        return registers(rows), registers(rows), registers(every), registers((4, self.blocks, self.columns, 2))

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                for form in cutlass.range_constexpr(2):
                    place = start ^ (form * _OTHER)
                    rA[half, word, form] = self.stageA.read(place, 2 * block + half, first * self.words + word)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns; after the last rows, fragments of B are replaced by the next k's."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        rA, rB = tile.fragments_a, tile.fragments_b
        self.negate(rA)
        for j in cutlass.range_constexpr(self.columns):
            for form in cutlass.range_constexpr(2):
                self.multiply_column(rA[None, None, form], rB[None, j], tile.accumulators[None, i, j, form])
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(rB, tile.start_b + stage, j, after)
        rA.store(tile.next_a.load())

    @cute.jit
    def negate(self, rA: cute.Tensor):
        """Negate imaginary parts of one of the forms: those of odd lanes, or in the other form those of even ones."""
        tid, _, _ = cute.arch.thread_idx()
        form = cutlass.const_expr(1 if self.mixed else 0)
        sign = Int64(tid % 2 ^ form) << _SIGN_BIT
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                rA[half, word, form] = (rA[half, word, form].bitcast(Int64) ^ sign).bitcast(Float64)
