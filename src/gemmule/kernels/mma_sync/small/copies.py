"""Copies of 16-bit elements of lines that begin anywhere, with few instructions for each."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import StageCopies, load_or_zero, opaque
from gemmule.kernels.parts.words import permuted


@dataclass(frozen=True)
class ElementCopies(StageCopies):
    """Copies of a k-tile whose elements wait in registers, two for each word.

    The stride in lines between pieces is constant, so that one limit each for the first and the second
    element of a word, compared with constants, gives the pieces inside the matrix.
    """

    in_flight: int = 1  #: k-tiles in flight.

    @cute.jit
    def registers(self):
        """Return registers for the k-tiles in flight: elements of a word, words, k-tiles."""
        count = cutlass.const_expr(self.count if self.by_element else 1)
        return cute.make_rmem_tensor(cute.make_layout((2, count, self.in_flight)), Int32)

    @cute.jit
    def load(self, gX: cute.Tensor, loaded, source, row0, k0, part: cutlass.Constexpr[int]):
        """Load the elements of all pieces of a k-tile, zeros outside the matrix."""
        del part
        first_row, first_k = self.origin()
        left_m, left_k = gX.shape[0] - row0 - first_row, gX.shape[1] - k0 - first_k
        along, lines = (left_k, left_m) if self.stage.k_major else (left_m, left_k)
        stride = Int64(gX.stride[0] if self.stage.k_major else gX.stride[1]) * self.stage.itemsize
        # Multiples of it would be computed before the loop, and wait in registers.
        step = opaque(stride * self.lines)
        address = source
        for p in cutlass.range_constexpr(self.count):
            first, line = cutlass.const_expr(self.element_and_line(p))
            if cutlass.const_expr(p > 0):
                address = address + step
            if cutlass.const_expr(line == 0):
                address = source + first * self.stage.itemsize
            for v in cutlass.range_constexpr(2):
                limit = cutlass.select_(along > first + v, lines, 0)
                loaded[v, p] = load_or_zero(address + v * self.stage.itemsize, line, limit, self.stage.itemsize)

    def element_and_line(self, p: int) -> tuple[int, int]:
        """Return the elements along a line, and the lines, from a thread's first piece to piece p."""
        row, k = self.step(p)
        return (k, row) if self.stage.k_major else (row, k)

    @cute.jit
    def store(self, loaded: cute.Tensor, target, part: cutlass.Constexpr[int]):
        """Join the elements of words, and store them."""
        del part
        for p in cutlass.range_constexpr(self.count):
            place = cute.make_ptr(Int32, self.piece_target(target, p), cute.AddressSpace.smem, assumed_align=4)
            cute.make_tensor(place, cute.make_layout(1))[0] = Int32(permuted(loaded[0, p], loaded[1, p], 0x5410))
