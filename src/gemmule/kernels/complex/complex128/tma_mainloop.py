"""Mainloop of complex128 whose k-tiles TMA loads: an mma.sync has the real and imaginary parts of 8 rows.

Its first 8 rows are real parts of the product, the other 8 imaginary parts of the same ones; of each two elements of K,
the first is of B's real part, the other of its imaginary part. A lane so has (Ar, Ai) and (-Ai, Ar) of one element of
A, which it reads once, for (Br, Bi) of one element of B, which is an operand as it lies in memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.tma.mainloop import TmaMainloop
from gemmule.kernels.float64.warp_products import registers

from .element_stage import ROWS, ElementStage



class Complex128TmaMainloop(TmaMainloop):
    """The loop over K, as of `TmaMainloop`.

    If one operand is conjugated, conj(A) B is computed, and A conj(B) is its conjugate.

    Parameters
    ----------
    config, k_major
        As of `TmaMainloop`.
    mixed : bool
        Whether one operand is conjugated, and the other is not.
    """

    parts = 2
    stage_type = ElementStage

    def __init__(self, config: DmmaConfig, k_major: tuple[bool, bool], *, mixed: bool) -> None:
        super().__init__(config, k_major)
        self.mixed = mixed

    def set_products(self, config: DmmaConfig, stages: tuple[Any, Any]) -> None:
        super().set_products(config, stages)
        # A product has 8 rows, and 4 elements of K for each two words.
        self.blocks, self.elements = self.warp_m // ROWS, self.words // 2

    def lane_registers(self) -> tuple[Any, Any, Any, Any]:
        every = (self.words, self.columns)
        return (
            registers((2, self.words)),
            registers((2, self.elements)),
            registers(every),
            registers((4, self.blocks, self.columns)),
        )

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
        """Make the fragments of A of the elements that were read: rows of real parts, and of imaginary ones."""
        rA = tile.fragments_a
        zero = unknown_zero()
        for e in cutlass.range_constexpr(self.elements):
            real, imag = tile.next_a[0, e], tile.next_a[1, e]
            again, negated = changed(real, zero, 0), changed(imag, zero, 1)
            rA[0, 2 * e], rA[1, 2 * e + 1] = real, again
            rA[1, 2 * e], rA[0, 2 * e + 1] = (negated, imag) if self.mixed else (imag, negated)


@cute.jit
def unknown_zero():
    return cute.arch.inline_ptx("{ .reg .b32 x; mov.b32 x, {$r0}; shr.u32 {$w0}, x, 31; }", write_only_types=[cutlass.Int32], read_only_args=[cute.arch.smid()])


@cute.jit
def changed(value, zero, sign: cutlass.Constexpr[int]):
    high = "add.u32 high, high, 0x80000000" if sign else "xor.b32 high, high, {$r1}"
    return cute.arch.inline_ptx(
        "{ .reg .b32 low, high; mov.b64 {low, high}, {$r0}; xor.b32 low, low, {$r1}; "
        f"{high}; mov.b64 {{$w0}}, {{low, high}}; }}",
        write_only_types=[Float64],
        read_only_args=[value, zero],
    )


@cute.jit
def negate(value):
    """Return minus a float64 by an integer addition, as tensor cores wait for additions of float64."""
    return cute.arch.inline_ptx(
        "{ .reg .b32 low, high; mov.b64 {low, high}, {$r0}; add.u32 high, high, 0x80000000; "
        "mov.b64 {$w0}, {low, high}; }",
        write_only_types=[Float64],
        read_only_args=[value],
    )
