"""Layouts of a complex128 stage in shared memory, and the reads of whole elements.

A line has 8 elements of one row, or 16 (K-major), or 8 rows of one k (MN-major, by panels of 8 rows). Of each eight,
element c of line l is stored as element ``c xor l``, as TMA's swizzle of 128 bytes does. A quarter of a warp reads 2
rows by 4 k at once: rows four apart, so that no bank is read twice. The epilogue undoes that order of rows; K keeps its
order, and results their bits.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.stage import DEPTH, ROWS, Float64Stage
from gemmule.kernels.float64.tma.stage import TmaStage
from gemmule.kernels.parts.stage_copies import opaque

#: Bytes of an element and of eight, and what changes (xor) in the address of the next 4 elements of K.
_ITEM, _LINE, _NEXT = 16, 128, 64


def row_of(g: Any) -> Any:
    """Return the row of 8 (of B, the column) that is the `g`-th of a fragment."""
    return g // 2 + g % 2 * 4


@dataclass(frozen=True)
class Complex128Stage(Float64Stage):
    """Layout of a k-tile that threads copy, extent and depth multiples of 8; fields as of `Float64Stage`."""

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return self.depth * _ITEM if self.k_major else _LINE

    def swizzle(self, line: Any) -> Any:
        return (line & 7) << 4

    def step(self, octet: int, word: int) -> tuple[int, int]:
        lines, beyond = octet * (ROWS if self.k_major else self.depth), word // 2 * _LINE
        if not self.k_major:
            lines, beyond = lines + word * DEPTH, 0
        return word % 2 * _NEXT, lines * self.line + beyond

    @cute.jit
    def place(self, row):
        tid, _, _ = cute.arch.thread_idx()
        first, t = row_of(tid % 32 // 4), tid % 4
        line = row + first if cutlass.const_expr(self.k_major) else row // ROWS * self.depth + t
        return line * self.line + (t ^ first) * _ITEM

    @cute.jit
    def read_element(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return the two parts of one of this lane's elements; parameters as of `read`."""
        change, plus = cutlass.const_expr(self.step(octet, word))
        return parts_at((start ^ change) + plus)


@dataclass(frozen=True)
class TmaComplex128Stage(TmaStage):
    """Layout of a k-tile of 8 elements that TMA loads; fields as of `TmaStage`."""

    @property
    def copied(self) -> Complex128Stage:
        """The same layout as threads copy it."""
        return Complex128Stage(self.extent, _LINE // _ITEM, self.k_major)

    @cute.jit
    def places(self, stages, row):
        """Return the addresses of this lane's elements, of k 0 to 3 and of k 4 to 7, as `TmaStage.places`."""
        start = self.copied.place(row)
        return tuple(opaque((stages + start) ^ change) for change in (0, _NEXT))

    @cute.jit
    def read_element(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return the two parts of one of this lane's elements; parameters as of `read`."""
        places, offset = start
        _, plus = cutlass.const_expr(self.copied.step(octet, word))
        return parts_at(places[word % 2] + offset + plus)


@cute.jit
def parts_at(address):
    """Return the parts of an element in shared memory."""
    place = cute.make_ptr(Float64, address, cute.AddressSpace.smem, assumed_align=_ITEM)
    found = cute.make_rmem_tensor(cute.make_layout(2), Float64)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(2)), found)
    return found[0], found[1]
