"""Products of a warp tile of complex128: an mma.sync has the real and imaginary parts of 8 rows.

Its first 8 rows are real parts of the product, the other 8 imaginary parts of the same ones. Of each two of a lane's
elements of K, the first is for B's real part, the other for its imaginary part. A lane so has (Ar, Ai) and (-Ai, Ar) of
an element of A, which it reads once, for (Br, Bi) of one of B, which are the operand as they lie in memory.

If one operand is conjugated, conj(A) B is computed: (Ar, -Ai) and (Ai, Ar); A conj(B) is its conjugate.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, cute

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.stage import ROWS
from gemmule.kernels.float64.warp_products import WarpProducts, registers
from gemmule.kernels.parts.stage_copies import opaque


class ElementProducts(WarpProducts):
    """Products of 8 rows of A with 8 columns of B, for 4 or 8 elements of K; fields as of `WarpProducts`."""

    #: Real elements of K for each of an operand.
    parts = 2
    #: Whether one operand is conjugated, and the other is not.
    mixed = False

    def set_products(self, config: DmmaConfig, stages: tuple[Any, Any]) -> None:
        super().set_products(config, stages)
        self.blocks, self.elements = self.warp_m // ROWS, self.words // self.parts

    def lane_registers(self) -> tuple[Any, Any, Any, Any]:
        rows, read = registers((2, self.words)), registers((2, self.elements))
        return rows, read, registers((self.words, self.columns)), registers((4, self.blocks, self.columns))

    @cute.jit
    def read_rows(self, rA: cute.Tensor, start, step: cutlass.Constexpr[int]):
        first, block = cutlass.const_expr(divmod(step, self.blocks))
        for e in cutlass.range_constexpr(self.elements):
            rA[0, e], rA[1, e] = self.stageA.read_element(start, block, first * self.elements + e)

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        for e in cutlass.range_constexpr(self.elements):
            rB[2 * e, j], rB[2 * e + 1, j] = self.stageB.read_element(start, j, first * self.elements + e)

    @cute.jit
    def take_rows(self, tile):
        rA, zero = tile.fragments_a, opaque(cute.arch.smid()) >> 31
        for e in cutlass.range_constexpr(self.elements):
            real, imag = tile.next_a[0, e], tile.next_a[1, e]
            negated = _changed(imag, zero, "add.u32 high, high, 0x80000000")
            rA[0, 2 * e], rA[1, 2 * e + 1] = real, _changed(real, zero, "xor.b32 high, high, {$r1}")
            rA[1, 2 * e], rA[0, 2 * e + 1] = (negated, imag) if self.mixed else (imag, negated)


@cute.jit
def _changed(value, zero: Int32, high: cutlass.Constexpr[str]):
    """Return a float64 whose low half is that of another one, and what an instruction makes of its high half.

    `zero` is one that ptxas does not know: it would copy equal values once more for each product. Signs are no
    negation, which would be an addition of float64, for which tensor cores wait.
    """
    return cute.arch.inline_ptx(
        f"{{ .reg .b32 low, high; mov.b64 {{low, high}}, {{$r0}}; xor.b32 low, low, {{$r1}}; {high}; "
        "mov.b64 {$w0}, {low, high}; }",
        write_only_types=[Float64],
        read_only_args=[value, zero],
    )
