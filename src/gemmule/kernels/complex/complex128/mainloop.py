"""Mainloop of the complex128 GEMM: the float64 one with two parts an element, four real products for each."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.mainloop import Float64Mainloop

from .stage import Complex128Stage


class Complex128Mainloop(Float64Mainloop):
    """The loop over K. Registers have a last mode for real and imaginary parts.

    The sign of one product of the four is made by negating imaginary parts of A: for Ar Br - Ai Bi, or, where one of
    the operands is conjugated, for Ar Bi - Ai Br. Then conj(A) B is computed, and A conj(B) is its conjugate.

    Parameters
    ----------
    config : Float64Config
        Tiles and stages.
    types : dict
        The signature.
    """

    stage_type = Complex128Stage
    stageA: Complex128Stage  # noqa: N815 - as of the real one
    stageB: Complex128Stage  # noqa: N815

    def __init__(self, config: Float64Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.mixed = types["conj"] in ("a", "b")

    def registers(self, *shape: int) -> Any:
        return super().registers(*shape, 2)

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                self.stageA.read_parts(rA[half, word, None], start, 2 * block + half, first * self.words + word)

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        for word in cutlass.range_constexpr(self.words):
            self.stageB.read_parts(rB[word, j, None], start, j, first * self.words + word)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns, real parts of A first, so that successive products are independent."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        rA, rB = tile.fragments_a, tile.fragments_b
        negated = cute.make_rmem_tensor(cute.make_layout((2, self.words)), rA.element_type)
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                negated[half, word] = -rA[half, word, 1]
        real, imag = rA[None, None, 0], rA[None, None, 1]
        first, second = (imag, negated) if cutlass.const_expr(self.mixed) else (negated, imag)
        for j in cutlass.range_constexpr(self.columns):
            self.multiply_column(real, rB[None, j, 0], tile.accumulators[None, i, j, 0])
            self.multiply_column(real, rB[None, j, 1], tile.accumulators[None, i, j, 1])
        for j in cutlass.range_constexpr(self.columns):
            self.multiply_column(first, rB[None, j, 1], tile.accumulators[None, i, j, 0])
            self.multiply_column(second, rB[None, j, 0], tile.accumulators[None, i, j, 1])
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(rB, tile.start_b + stage, j, after)
        rA.store(tile.next_a.load())
