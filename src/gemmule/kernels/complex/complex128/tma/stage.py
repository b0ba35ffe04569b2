"""Stages of complex128 that TMA fills with its swizzle of 128 bytes, and the reads of whole elements.

A line of a stage is 8 elements of one row (K-major), or 8 rows of one k (MN-major, by panels of 8 rows). TMA stores
element c of line l as element ``c xor l`` of eight. A quarter of a warp reads 2 rows by 4 k at once: rows four apart,
so that no bank is read twice. The epilogue undoes that order of rows; K keeps its order.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.tma.stage import DEPTH, TmaStage
from gemmule.kernels.parts.stage_copies import opaque

#: Bytes of an element, a line and 8 lines.
_ITEM, _LINE, _OCTET = 16, 128, 1024


@dataclass(frozen=True)
class ElementStage(TmaStage):
    """Layout of a k-tile of 8 elements; fields as of `TmaStage`, a multiple of 8 rows."""

    def row(self, g: Any) -> Any:
        """Return the row of 8 that is the `g`-th of a fragment."""
        return g // 2 + g % 2 * 4

    @cute.jit
    def places(self, stages, row):
        """Return the addresses of this lane's elements, of k 0 to 3 and of k 4 to 7, as `TmaStage.places`."""
        tid, _, _ = cute.arch.thread_idx()
        first, t = self.row(tid % 32 // 4), tid % 4
        line = row + first if cutlass.const_expr(self.k_major) else row + t
        start = line * _LINE + (t ^ first) * _ITEM
        return tuple(opaque((stages + start) ^ change) for change in (0, DEPTH * _ITEM))

    @cute.jit
    def read_element(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return the two parts of one of this lane's elements; parameters as of `TmaStage.read`."""
        places, offset = start
        plus = cutlass.const_expr(octet * _OCTET + (0 if self.k_major else word * DEPTH * _LINE))
        place = cute.make_ptr(Float64, places[word] + offset + plus, cute.AddressSpace.smem, assumed_align=_ITEM)
        found = cute.make_rmem_tensor(cute.make_layout(2), Float64)
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(2)), found)
        return found[0], found[1]
