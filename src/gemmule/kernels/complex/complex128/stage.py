"""Layout of a complex128 stage in shared memory: for mma.sync, K has real and imaginary parts in turn.

Of the real matrix with twice as many elements of K, lane 4 g + t has row g of every 8 and k = t of every 4: real parts
where t is even, imaginary ones where it is odd. The other part of an element is in the adjacent 8 bytes.

K-major, all is as of float64 with the depth doubled. MN-major, half a warp reads 64 bytes of each of 2 lines: the odd
one has its halves exchanged.
"""

from __future__ import annotations

from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.stage import DEPTH, Float64Stage

_ITEM, _PANEL, _PARTS = 16, 8, 2


@dataclass(frozen=True)
class Complex128Stage(Float64Stage):
    """Layout of a k-tile, extent and depth multiples of 8; MN-major, a line is 8 rows of one k.

    Attributes
    ----------
    extent, depth, k_major, itemsize, permuted
        As of `Float64Stage`; `depth` counts complex elements.
    """

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return (self.depth if self.k_major else _PANEL) * _ITEM

    def swizzle(self, line: Any) -> Any:
        return super().swizzle(line) if self.k_major else (line & 1) << 6

    def step(self, octet: int, word: int) -> tuple[int, int]:
        if self.k_major:
            return super().step(octet, word)
        return 0, (octet * self.depth + word * DEPTH // _PARTS) * self.line

    def panel_place(self, row: Any, g: Any, t: Any) -> Any:
        k, part = t // _PARTS, t % _PARTS
        return (row // _PANEL * self.depth + k) * self.line + (g * _ITEM + part * _ITEM // _PARTS ^ self.swizzle(k))
