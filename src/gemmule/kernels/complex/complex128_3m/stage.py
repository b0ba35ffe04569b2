"""Layout of a complex128 stage in shared memory for mma.sync of real and of imaginary parts: elements as they lie.

Lane 4 g + t has row g of every 8 (of A, or column of B) and k = t of every 4. A quarter of a warp reads at once, 16
bytes a lane: 2 rows by 4 k. K-major these are 64 bytes of each of 2 lines, which begin in other halves of 128 bytes.
MN-major they are 2 elements of each of 4 lines, which are exchanged (xor) by k so that the 8 are apart.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.stage import DEPTH, ROWS, column_of
from gemmule.kernels.parts.stage_copies import StageLayout

_ITEM = 16


@dataclass(frozen=True)
class Complex128ElementStage(StageLayout):
    """Layout of a k-tile, extent and depth multiples of 8; MN-major, a line is 8 rows of one k.

    Attributes
    ----------
    extent, depth, k_major, itemsize
        As of `StageLayout`.
    permuted : bool
        Whether lanes have columns in the order of `column_of`: those of a quarter of a warp differ by 6 (xor), else
        by 1.
    """

    itemsize: int = _ITEM
    permuted: bool = False

    @property
    def line(self) -> int:
        return (self.depth if self.k_major else ROWS) * _ITEM

    def swizzle(self, line: Any) -> Any:
        if self.k_major:
            return (line >> (2 if self.permuted else 0) & 1) << 6
        return (line & 3) << (4 if self.permuted else 5)

    @cute.jit
    def place(self, row):
        """Return the offset of this lane's first element in its warp tile, which begins at `row`, in bytes."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        if cutlass.const_expr(self.permuted):
            g = column_of(g)
        if cutlass.const_expr(self.k_major):
            return (row + g) * self.line + (t * _ITEM ^ self.swizzle(g))
        return (row // ROWS * self.depth + t) * self.line + (g * _ITEM ^ self.swizzle(t))

    @cute.jit
    def read(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return the parts of one of this lane's elements; `start`, `octet` and `word` as of `Float64Stage`."""
        panel = cutlass.const_expr(octet * self.depth + word * DEPTH)
        change, plus = cutlass.const_expr(
            (word * DEPTH * _ITEM, octet * ROWS * self.line) if self.k_major else (0, panel * self.line)
        )
        place = cute.make_ptr(Float64, (start ^ change) + plus, cute.AddressSpace.smem, assumed_align=_ITEM)
        parts = cute.make_rmem_tensor(cute.make_layout(2), Float64)
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(2)), parts)
        return parts[0], parts[1]
