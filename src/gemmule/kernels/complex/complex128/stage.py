"""Layout of a complex128 stage in shared memory, and the reads of its fragments for mma.sync.

Lane 4 g + t has row g of every 8 (of A, or column of B), and k = t of every 4, as of float64. A quarter of a warp reads
at once, 16 bytes a lane: 2 rows by 4 k. K-major, these are 64 bytes of each of 2 lines; MN-major, 32 bytes of each of 4
lines. Bits 0 and 1 of a line's number change (xor) bits 6 and 5 of the offset in it: both kinds of reads use all banks,
and so do copies, which write whole lines.

Of B, lane 4 g + t has column `column_of` g: the two accumulators of a lane are then of columns t and 4 + (t ^ 1), and
four lanes store 64 contiguous bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.stage import DEPTH, ROWS, Float64Stage

_ITEM, _PANEL = 16, 8


@dataclasses.dataclass(frozen=True)
class Complex128Stage(Float64Stage):
    """Layout of a k-tile, extent and depth multiples of 8; MN-major, a line is 8 rows of one k.

    Attributes
    ----------
    extent, depth, k_major, itemsize, permuted
        As of `Float64Stage`.
    """

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return (self.depth if self.k_major else _PANEL) * _ITEM

    def swizzle(self, line: Any) -> Any:
        return (line & 1) << 6 | (line & 2) << 4

    def step(self, octet: int, word: int) -> tuple[int, int]:
        if self.k_major:
            return word * DEPTH * _ITEM, octet * ROWS * self.line
        return 0, (octet * self.depth + word * DEPTH) * self.line

    @cute.jit
    def place(self, row):
        """Return the offset of this lane's first element in its warp tile, which begins at `row`, in bytes."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        if cutlass.const_expr(self.permuted):
            g = column_of(g)
        if cutlass.const_expr(self.k_major):
            return (row + g) * self.line + (t * _ITEM ^ self.swizzle(g))
        return (row // _PANEL * self.depth + t) * self.line + (g * _ITEM ^ self.swizzle(t))

    @cute.jit
    def read_parts(self, parts: cute.Tensor, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Read real and imaginary part of one of this lane's elements; arguments as of `Float64Stage.read`."""
        change, plus = cutlass.const_expr(self.step(octet, word))
        place = cute.make_ptr(Float64, (start ^ change) + plus, cute.AddressSpace.smem, assumed_align=_ITEM)
        pair = cute.make_rmem_tensor(cute.make_layout(2), Float64)
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(2)), pair)
        parts[0], parts[1] = pair[0], pair[1]


def column_of(g: Any) -> Any:
    """Return the column that is the `g`-th of a product of 8 where columns are permuted."""
    return g // 2 + g % 2 * (4 + (g // 2 ^ 1) - g // 2)
