"""Mainloop of the complex128 GEMM by three real products: real parts, imaginary parts, and their sums."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.mainloop import Float64Mainloop, registers

from .stage import Complex128ElementStage


class ThreeMMainloop(Float64Mainloop):
    """The loop over K with three accumulators for each element: Ar Br, Ai Bi and (Ar + Ai)(Br + Bi).

    Where one of the operands is conjugated, the sums of A are differences: then conj(A) B is computed, and A conj(B) is
    its conjugate. Parameters as of `Complex128Mainloop`.

    Accumulators leave no registers for fragments that are read ahead: each k-tile's are read after its barrier, while
    warps of other CTAs multiply.
    """

    least_k = 4
    stage_type = Complex128ElementStage

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        super().__init__(config, types, chained=chained)
        self.mixed = types["conj"] in ("a", "b")

    def fragments(self) -> tuple[Any, Any, Any, Any]:
        rows, column = (2, self.words, 3), (self.words, 3)
        return registers(rows), None, registers(column), registers((4, self.blocks, self.columns, 3))

    @cute.jit
    def multiply_filled(self, tile, sources, writing, k_tiles):
        """As of `CpAsyncMainloop`; fragments are read in the step that multiplies them."""
        self.wait()
        reading = Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            if k_tile + self.stages - 1 < k_tiles:
                for step in cutlass.range_constexpr(self.copy_steps):
                    self.issue(tile, sources, writing, k_tile + self.stages - 1, step)
            cute.arch.cp_async_commit_group()
            for step in cutlass.range_constexpr(self.steps):
                self.multiply(tile, reading, step)
            self.wait()
            reading, writing = self.next_stage(reading), self.next_stage(writing)
            sources = self.advance(tile, sources)
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns, for 4 or 8 k of the k-tile at `stage`."""
        first, i = cutlass.const_expr(divmod(step, self.blocks))
        rA, rB = tile.fragments_a, tile.fragments_b
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                real, imag = self.stageA.read(tile.start_a + stage, 2 * i + half, first * self.words + word)
                rA[half, word, 0], rA[half, word, 1] = real, imag
                rA[half, word, 2] = real - imag if cutlass.const_expr(self.mixed) else real + imag
        for j in cutlass.range_constexpr(self.columns):
            for word in cutlass.range_constexpr(self.words):
                real, imag = self.stageB.read(tile.start_b + stage, j, first * self.words + word)
                rB[word, 0], rB[word, 1], rB[word, 2] = real, imag, real + imag
            for p in cutlass.range_constexpr(3):
                self.multiply_column(rA[None, None, p], rB[None, p], tile.accumulators[None, i, j, p])

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
