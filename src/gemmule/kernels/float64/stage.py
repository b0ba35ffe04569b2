"""Layout of a float64 stage in shared memory, and the reads of its fragments for mma.sync.

Lane 4 g + t has row g of every 8 (of A, or column of B), and k = t of every 4. Half a warp reads at once, 8 bytes a
lane: 4 rows by 4 k. K-major or MN-major, these are 32 bytes of each of 4 consecutive lines. Group c of
32 bytes of line l is stored as group ``c xor l`` of four. Such reads use all banks, and so do copies, which write
whole lines.

Of B, lane 4 g + t may have column `column_of` g instead: the two accumulators of a lane, then of columns `t` and
`4 + (t ^ 2)`, are stored one by one where rows of D begin at odd elements, and four lanes store 32 contiguous bytes.
Half a warp still reads 4 columns of different remainders by 4, without bank conflicts.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import StageLayout

#: Rows of a fragment, and elements of K.
ROWS, DEPTH = 8, 4
_ITEM, _PANEL = 8, 16


@dataclass(frozen=True)
class Float64Stage(StageLayout):
    """Layout of a k-tile, extent and depth multiples of 16; MN-major, a line is 16 rows of one k.

    Attributes
    ----------
    extent, depth, k_major, itemsize
        As of `StageLayout`.
    permuted : bool
        Whether lanes have columns in the order of `column_of`.
    """

    itemsize: int = _ITEM
    permuted: bool = False

    @property
    def line(self) -> int:
        return (self.depth if self.k_major else _PANEL) * _ITEM

    def swizzle(self, line: Any) -> Any:
        return (line & 3) << 5

    def step(self, octet: int, word: int) -> tuple[int, int]:
        """Return what to change in (xor) and then to add to a lane's offset for one of its elements.

        Parameters
        ----------
        octet : int
            Which 8 rows of the warp's.
        word : int
            Which 4 elements of K of the k-tile.
        """
        if self.k_major:
            return word * DEPTH * _ITEM, octet * ROWS * self.line
        panel, inside = divmod(octet * ROWS, _PANEL)
        return inside * _ITEM, (panel * self.depth + word * DEPTH) * self.line

    @cute.jit
    def place(self, row):
        """Return the offset of this lane's first element in its warp tile, which begins at `row`, in bytes."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        if cutlass.const_expr(self.permuted):
            g = column_of(g)
        if cutlass.const_expr(self.k_major):
            return (row + g) * self.line + (t * _ITEM ^ self.swizzle(g))
        return self.panel_place(row, g, t)

    def panel_place(self, row: Any, g: Any, t: Any) -> Any:
        """Return the offset of row g and the t-th element of K of an MN-major warp tile, which begins at `row`."""
        return (row // _PANEL * self.depth + t) * self.line + (g * _ITEM ^ self.swizzle(t))

    @cute.jit
    def read(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return one of this lane's elements.

        Parameters
        ----------
        start : Int32
            Address of the stage, a multiple of 1024, plus this lane's offset in it.
        octet, word : int
            Which 8 rows of the warp's, and which 4 elements of K of the k-tile.
        """
        change, plus = cutlass.const_expr(self.step(octet, word))
        place = cute.make_ptr(Float64, (start ^ change) + plus, cute.AddressSpace.smem, assumed_align=_ITEM)
        return cute.make_tensor(place, cute.make_layout(1))[0]


def column_of(g: Any) -> Any:
    """Return the column that is the `g`-th of a product of 8 where columns are permuted."""
    return g // 2 + g % 2 * (4 + (g // 2 ^ 2) - g // 2)
