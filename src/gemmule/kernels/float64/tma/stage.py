"""Stages of float64 that TMA fills with its swizzle of 128 bytes, and the reads of fragments for mma.sync.

A line of a stage is 16 elements of one row (K-major), or 16 rows of one k (MN-major, by panels of 16 rows). TMA stores
chunk c of 16 bytes of line l as chunk ``c xor l`` of eight. Half a warp reads 4 rows by 4 k at once. Were the rows
consecutive, two lines would meet in the same banks: so lanes have rows in another order, which the epilogue undoes. The
order of K is as everywhere, and with it the bits of results.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import opaque

#: Bytes of an element, a line, a chunk and a panel; elements of K of a fragment's word, and rows of a fragment.
_ITEM, _LINE, _CHUNK, _PANEL = 8, 128, 16, 2048
DEPTH, ROWS, BLOCK = 4, 8, 16


@dataclass(frozen=True)
class TmaStage:
    """Layout of a k-tile of 16 elements, and the rows (of A, or columns of B) that lanes have of it."""

    extent: int  #: Rows of the k-tile, a multiple of 16.
    k_major: bool  #: Whether the operand is K-major.

    @property
    def bytes(self) -> int:
        """Bytes of the stage."""
        return self.extent * _LINE

    def row(self, g: Any) -> Any:
        """Return the row of 16 that is the `g`-th of the first 8 of a fragment."""
        if self.k_major:
            return g % 4 * 2 + g // 4
        return g % 2 + g // 4 * 2 + g // 2 % 2 * ROWS

    def octet(self, number: int) -> int:
        """Return the rows from the first fragment of 8 of a warp tile to another one."""
        return number * ROWS if self.k_major else number // 2 * BLOCK + number % 2 * 4

    @cute.jit
    def places(self, stages, row):
        """Return the addresses of this lane's elements in the first of the stages, of a warp tile that begins at `row`.

        They are those of the first element, and of others that the swizzle stores elsewhere: of each word, or MN-major
        of each parity of octet and word. Registers hold them through the loop over K.
        """
        tid, _, _ = cute.arch.thread_idx()
        first, t = self.row(tid % 32 // 4), tid % 4
        if cutlass.const_expr(self.k_major):
            start = (row + first) * _LINE + (t * _ITEM ^ first * _CHUNK)
        else:
            start = row // BLOCK * _PANEL + t * _LINE + (first * _ITEM ^ t * _CHUNK)
        return tuple(opaque((stages + start) ^ change) for change in self.changes)

    @property
    def changes(self) -> tuple[int, ...]:
        """What changes (xor) in the address of a lane's first element, for each of `places`."""
        if self.k_major:
            return tuple(word * DEPTH * _ITEM for word in range(BLOCK // DEPTH))
        return tuple(octet * 4 * _ITEM ^ word * 4 * _CHUNK for word in range(2) for octet in range(2))

    @cute.jit
    def read(self, start, octet: cutlass.Constexpr[int], word: cutlass.Constexpr[int]):
        """Return one of this lane's elements.

        Parameters
        ----------
        start : tuple
            What `places` returned, and bytes from the first stage to the one to read.
        octet, word : int
            Which 8 rows of the warp's, and which 4 elements of K of the k-tile.
        """
        places, offset = start
        if cutlass.const_expr(self.k_major):
            number, plus = cutlass.const_expr((word, octet * ROWS * _LINE))
        else:
            number = cutlass.const_expr(octet % 2 + word % 2 * 2)
            plus = cutlass.const_expr(word * DEPTH * _LINE + octet // 2 * _PANEL)
        place = cute.make_ptr(Float64, places[number] + offset + plus, cute.AddressSpace.smem, assumed_align=_ITEM)
        return cute.make_tensor(place, cute.make_layout(1))[0]
