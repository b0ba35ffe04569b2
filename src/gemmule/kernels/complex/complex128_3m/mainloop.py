"""Mainloop of the complex128 GEMM by three real products: real parts, imaginary parts, and their sums."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.config import BLOCK, COLUMNS, DmmaConfig
from gemmule.kernels.float64.mainloop import Float64Mainloop, registers
from gemmule.kernels.float64.stage import DEPTH

from .stage import Complex128ElementStage

#: Bytes of what a warp reads of sums at once: of 16 rows or 8 columns, and 4 of K.
_ROWS, _COLUMNS = 512, 256


class ThreeMMainloop(Float64Mainloop):
    """The loop over K with three accumulators for each element: Ar Br, Ai Bi and (Ar + Ai)(Br + Bi).

    Where one of the operands is conjugated, the sums of A are differences: then conj(A) B is computed, and A conj(B) is
    its conjugate. Parameters as of `Complex128Mainloop`.

    Sums are made once for all warps, in shared memory, during the products of the k-tile before: the float64 units
    that add are those of the products, which wait meanwhile.
    """

    least_k = 4
    stage_type = Complex128ElementStage
    prepares = True

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        super().__init__(config, types, chained=chained)
        self.mixed = types["conj"] in ("a", "b")
        self.k_words = self.tile_k // DEPTH
        self.sums_a = self.stageA.bytes + self.stageB.bytes
        self.sums_b = self.sums_a + self.tile_m // BLOCK * self.k_words * _ROWS
        self.stage_bytes = self.stride = self.sums_b + self.tile_n // COLUMNS * self.k_words * _COLUMNS

    def fragments(self) -> tuple[Any, Any, Any, Any]:
        rows, every = (2, self.words, 3), (self.words, self.columns, 3)
        return registers(rows), registers(rows), registers(every), registers((4, self.blocks, self.columns, 3))

    @cute.jit
    def prepare(self, tile, stage):
        """Make a warp's share of the sums of a k-tile, in the order in which lanes read them."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = cute.arch.make_warp_uniform(tid // 32), tid % 32
        base = tile.start_b[2] + stage
        warps = cutlass.const_expr(self.threads // 32)
        for first in cutlass.range_constexpr(0, self.tile_m // BLOCK * self.k_words, warps):
            unit = warp + first
            found = registers((2,))
            for half in cutlass.range_constexpr(2):
                parts = registers((2,))
                self.stageA.read_at(parts, base, unit // self.k_words * 2 + half, unit % self.k_words)
                found[half] = parts[0] - parts[1] if cutlass.const_expr(self.mixed) else parts[0] + parts[1]
            cute.autovec_copy(found, self.sums(base + self.sums_a + unit * _ROWS + lane * 16, 2))
        for first in cutlass.range_constexpr(0, self.tile_n // COLUMNS * self.k_words, warps):
            unit = warp + first
            parts = registers((2,))
            self.stageB.read_at(parts, base + self.stageA.bytes, unit // self.k_words, unit % self.k_words)
            self.sums(base + self.sums_b + unit * _COLUMNS + lane * 8, 1)[0] = parts[0] + parts[1]

    @cute.jit
    def sums(self, address, count: cutlass.Constexpr[int]):
        """Return sums in shared memory."""
        place = cute.make_ptr(Float64, address, cute.AddressSpace.smem, assumed_align=8 * count)
        return cute.make_tensor(place, cute.make_layout(count))

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        start, base = start
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                self.read_parts(self.stageA, rA[half, word, None], start, 2 * block + half, first * self.words + word)
            unit = cutlass.const_expr(block * self.k_words + first * self.words + word)
            found = registers((2,))
            cute.autovec_copy(self.sums(base + unit * _ROWS, 2), found)
            for half in cutlass.range_constexpr(2):
                rA[half, word, 2] = found[half]

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        start, base = start
        for word in cutlass.range_constexpr(self.words):
            self.read_parts(self.stageB, rB[word, j, None], start, j, first * self.words + word)
            unit = cutlass.const_expr(j * self.k_words + first * self.words + word)
            rB[word, j, 2] = self.sums(base + unit * _COLUMNS, 1)[0]

    @cute.jit
    def read_parts(self, stage: cutlass.Constexpr[Any], found: cute.Tensor, start, octet, word):
        """Read both parts of an element of a stage."""
        parts = registers((2,))
        stage.read(parts, start, octet, word)
        for p in cutlass.range_constexpr(2):
            found[p] = parts[p]

    @cute.jit
    def places(self, own, operands, origin):
        """As of `Float64Mainloop`; first fragments are those of elements and of sums, and the address of the stages."""
        (gA, gB), (m0, n0), (row, col) = operands, origin, own.corner
        sources = self.copyA.source(gA, m0), self.copyB.source(gB, n0)
        stagesA = own.stages
        stagesB = stagesA + self.stageA.bytes
        targets = stagesA + self.copyA.target(), stagesB + self.copyB.target()
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        sums_a = stagesA + self.sums_a + row // BLOCK * (self.k_words * _ROWS) + lane * 16
        sums_b = stagesA + self.sums_b + col // COLUMNS * (self.k_words * _COLUMNS) + lane * 8
        starts = (stagesA + self.stageA.place(row), sums_a), (stagesB + self.stageB.place(col), sums_b, stagesA)
        return sources, targets, starts

    def read_first(self, tile: Any) -> None:
        self.read_rows(tile.fragments_a, tile.start_a, 0)
        for j in range(self.columns):
            self.read_column(tile.fragments_b, tile.start_b[:2], j, 0)

    def read(self, tile: Any, stage: Any, step: int) -> None:
        self.read_rows(tile.next_a, (tile.start_a[0] + stage, tile.start_a[1] + stage), step)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns; after the last rows, fragments of B are replaced by the next k's."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        rA, rB = tile.fragments_a, tile.fragments_b
        for j in cutlass.range_constexpr(self.columns):
            for p in cutlass.range_constexpr(3):
                self.multiply_column(rA[None, None, p], rB[None, j, p], tile.accumulators[None, i, j, p])
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(rB, (tile.start_b[0] + stage, tile.start_b[1] + stage), j, after)
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
