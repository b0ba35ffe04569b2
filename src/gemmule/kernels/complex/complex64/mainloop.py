"""Mainloop of the complex64 GEMM: that of the float32 GEMM with vectors of 2 elements, and 4 FMAs for a product."""

from __future__ import annotations

import cutlass
from cutlass import Float32, cute

from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.simt.gemm.mainloop import SimtGemmMainloop


class Complex64Mainloop(SimtGemmMainloop):
    """The loop over K; a step is one k. A vector is (real, imaginary, real, imaginary).

    If one operand is conjugated, conj(A) B is computed; A conj(B) is its conjugate.

    Parameters
    ----------
    config : Complex64Config
        Tiles and stages.
    types : dict
        The signature.
    """

    one_bit = False

    def __init__(self, config: Complex64Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.mixed = types["conj"] in ("a", "b")
        # With their masked copies no register is left for the other order.
        self.turns = not (self.whole or self.transposes)

    def groups(self, unaligned: bool) -> int:
        """Return how many steps of a k-tile issue asynchronous copies: all but the last, as was measured."""
        del unaligned
        return self.copy_steps

    @cute.jit
    def accumulators(self, rows: cutlass.Constexpr[int], cols: cutlass.Constexpr[int]):
        """Return registers for a thread tile; the fastest mode is that of real and imaginary parts."""
        return cute.make_rmem_tensor(cute.make_layout((2, rows, cols), stride=(1, 2 * cols, 2)), Float32)

    @cute.jit
    def multiply_fragments(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the products of one k; an FMA negates for free.

        A part of an element of one operand is held while all parts of the other one pass: successive FMAs share it,
        and read one fragment and one accumulator, for which there are two register banks. All real parts pass, then
        all imaginary ones, and back, so that few accumulators are in the bank of what passes. Columns are held, or
        rows where there are more: by the registers that the compiler then allocates.
        """
        rows, cols = cutlass.const_expr((cute.size(rC, mode=[1]), cute.size(rC, mode=[2])))
        for one in cutlass.range_constexpr(2 * max(rows, cols)):
            for other in cutlass.range_constexpr(2 * min(rows, cols)):
                second, place = cutlass.const_expr(divmod(other, min(rows, cols)))
                place = cutlass.const_expr(min(rows, cols) - 1 - place if self.turns and second else place)
                held, passing = cutlass.const_expr(((one // 2, (one ^ one // 2) % 2), (place, (second ^ one) % 2)))
                (i, part_a), (j, part_b) = cutlass.const_expr((held, passing) if rows > cols else (passing, held))
                a, b = rA[i % 2 * 2 + part_a, i // 2], rB[j % 2 * 2 + part_b, j // 2]
                part = cutlass.const_expr(part_a ^ part_b)
                if cutlass.const_expr(part_a == 1 and (part_b == 0) == self.mixed):
                    rC[part, i, j] -= a * b
                else:
                    rC[part, i, j] += a * b
