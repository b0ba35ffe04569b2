"""Mainloop of the complex128 GEMM by three real products: real parts, imaginary parts, and their sums."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.mainloop import Float64Mainloop, registers

from .stage import Complex128ElementStage


class ThreeMMainloop(Float64Mainloop):
    """The loop over K with three accumulators for each element: Ar Br, Ai Bi and (Ar + Ai)(Br + Bi).

    Where one of the operands is conjugated, the sums of A are differences: then conj(A) B is computed, and A conj(B) is
    its conjugate. Parameters as of `Complex128Mainloop`.
    """

    least_k = 4
    stage_type = Complex128ElementStage

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        super().__init__(config, types, chained=chained)
        self.mixed = types["conj"] in ("a", "b")

    def fragments(self) -> tuple[Any, Any, Any, Any]:
        rows, every = (2, self.words, 2), (self.words, self.columns, 2)
        return registers(rows), registers(rows), registers(every), registers((4, self.blocks, self.columns, 3))

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                self.read_parts(self.stageA, rA[half, word, None], start, 2 * block + half, first * self.words + word)

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        for word in cutlass.range_constexpr(self.words):
            self.read_parts(self.stageB, rB[word, j, None], start, j, first * self.words + word)

    @cute.jit
    def read_parts(self, stage: cutlass.Constexpr[Any], found: cute.Tensor, start, octet, word):
        """Read both parts of an element of a stage."""
        parts = registers((2,))
        stage.read(parts, start, octet, word)
        for p in cutlass.range_constexpr(2):
            found[p] = parts[p]

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns; after the last rows, fragments of B are replaced by the next k's."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        rA, rB = tile.fragments_a, tile.fragments_b
        sums_a, sums_b = registers((2, self.words)), registers((self.words,))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                real, imag = rA[half, word, 0], rA[half, word, 1]
                sums_a[half, word] = real - imag if cutlass.const_expr(self.mixed) else real + imag
        for j in cutlass.range_constexpr(self.columns):
            for word in cutlass.range_constexpr(self.words):
                sums_b[word] = rB[word, j, 0] + rB[word, j, 1]
            for p in cutlass.range_constexpr(2):
                self.multiply_column(rA[None, None, p], rB[None, j, p], tile.accumulators[None, i, j, p])
            self.multiply_column(sums_a, sums_b, tile.accumulators[None, i, j, 2])
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(rB, tile.start_b + stage, j, after)
        rA.store(tile.next_a.load())

    @cute.jit
    def results(self, accumulators: cute.Tensor):
        """Return real and imaginary parts, in the place of the first two products."""
        for j in cutlass.range_constexpr(self.columns):
            for i in cutlass.range_constexpr(self.blocks):
                for x in cutlass.range_constexpr(4):
                    real, imag, both = (accumulators[x, i, j, p] for p in range(3))
                    # One conjugate changes the sign of Ai, and so of Ai Bi.
                    imag = -imag if cutlass.const_expr(self.mixed) else imag
                    accumulators[x, i, j, 0] = real - imag
                    accumulators[x, i, j, 1] = both - real - imag
        return cute.make_tensor(accumulators.iterator, cute.make_layout((4, self.blocks, self.columns, 2)))
