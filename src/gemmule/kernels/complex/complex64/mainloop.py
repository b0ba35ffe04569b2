"""Mainloop of the complex64 GEMM: that of the float32 GEMM with vectors of 2 elements, and 4 FMAs for a product."""

from __future__ import annotations

import cutlass
from cutlass import Float32, cute

from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.simt.gemm.mainloop import SimtGemmMainloop


class Complex64Mainloop(SimtGemmMainloop):
    """The loop over K; a step is one k. A vector is (real, imaginary, real, imaginary).

    Where one of the operands is conjugated, conj(A) B is computed; A conj(B) is its conjugate.

    Parameters
    ----------
    config : Complex64Config
        Tiles and stages.
    types : dict
        The signature.
    """

    def __init__(self, config: Complex64Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.mixed = types["conj"] in ("a", "b")

    @cute.jit
    def accumulators(self, rows: cutlass.Constexpr[int], cols: cutlass.Constexpr[int]):
        """Return registers for a thread tile; the fastest mode is that of real and imaginary parts."""
        return cute.make_rmem_tensor(cute.make_layout((2, rows, cols), stride=(1, 2 * cols, 2)), Float32)

    @cute.jit
    def multiply_fragments(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the products of one k in serpentine order, as those of float32; an FMA negates for free."""
        cols = cutlass.const_expr(cute.size(rC, mode=[2]))
        for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
            real_a, imag_a = rA[i % 2 * 2, i // 2], rA[i % 2 * 2 + 1, i // 2]
            for place in cutlass.range_constexpr(cols):
                j = cutlass.const_expr(place if i % 2 == 0 else cols - 1 - place)
                real_b, imag_b = rB[j % 2 * 2, j // 2], rB[j % 2 * 2 + 1, j // 2]
                rC[0, i, j] += real_a * real_b
                rC[1, i, j] += real_a * imag_b
                if cutlass.const_expr(self.mixed):
                    rC[0, i, j] += imag_a * imag_b
                    rC[1, i, j] -= imag_a * real_b
                else:
                    rC[0, i, j] -= imag_a * imag_b
                    rC[1, i, j] += imag_a * real_b
