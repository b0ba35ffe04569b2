"""Accumulators of the transpose of D, whose rows begin anywhere: through shared memory, where warps' columns meet.

Warps that share a tile store their columns of D to rows in shared memory, one element at a time, as many rows as they
write at once: 16 each. Then each writes 16 rows, as `write_rows` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .unaligned_rows import halves_at, read_rows, words_before, write_rows

#: Rows that a warp writes at once, elements between two rows beyond them, and bytes of an element.
_ROWS, _PAD, _ITEM = 16, 8, 2
#: Vectors that a lane has in flight.
_TOGETHER = 4


@dataclass(frozen=True)
class TransposedRows:
    """Rows of D in shared memory, of warps that share a tile of its transpose.

    Parameters
    ----------
    element : type
        Of C and D: 16 bits.
    length, rows : int
        Columns and rows of D that a tile has.
    warpgroups : int
        Warpgroups that share a tile.
    barrier : int
        Named barrier of the first of them.
    reads_c : bool
        Whether there is a C.
    """

    element: Any
    length: int
    rows: int
    warpgroups: int
    barrier: int
    reads_c: bool

    @property
    def at_once(self) -> int:
        """Rows that all warps write at once."""
        return _ROWS * self.warpgroups * WARPGROUP // 32

    @property
    def row_words(self) -> int:
        """Words from one row to the next."""
        return (self.length + _PAD) * _ITEM // 4

    @property
    def words(self) -> int:
        """Words of the rows that all warps write at once, as far as the tile has so many."""
        return min(self.at_once, self.rows) * self.row_words

    @cute.jit
    def write(self, matrices, origin, staged: cute.Pointer, accumulators, columns: Callable[[int, int], Any], scale):
        """Write a tile, at row and column `origin` of D.

        Parameters
        ----------
        matrices : tuple of Tensor
            C and D.
        staged : Pointer
            The rows in shared memory.
        accumulators : Tensor
            Of this thread, in the order of wgmma.
        columns : callable
            ``columns(mma_tile, half)`` is the column of a wgmma tile of a row of this lane's fragments, in the tile.
        scale : tuple
            Alpha and beta.
        """
        (mC, mD), (m0, n0) = matrices, origin
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = cute.arch.make_warp_uniform(tid % (self.warpgroups * WARPGROUP) // 32), tid % 32
        threads = cutlass.const_expr(self.warpgroups * WARPGROUP)
        barrier = self.barrier + (tid // WARPGROUP % 2 if cutlass.const_expr(self.warpgroups == 1) else 0)
        cols = cutlass.min(mD.shape[1] - n0, self.length)
        # Rows whose numbers are equal modulo 8 begin equally far from a multiple of 16 bytes.
        starts = [2 * words_before(mD, m0 + lane % 4 * 2 + v, n0) for v in range(2)]
        mma_tiles = cutlass.const_expr(cute.size(accumulators) * 2 // self.rows)
        own = staged + warp * (_ROWS * self.row_words)
        # Of a few rows some warps have none.
        has_rows = True if cutlass.const_expr(self.rows >= self.at_once) else warp < self.rows // _ROWS
        for first in cutlass.range_constexpr(0, self.rows, self.at_once):
            count = cutlass.const_expr(min(self.rows - first, self.at_once))
            m = m0 + first + warp * _ROWS
            inside = cutlass.min(mD.shape[0] - m, _ROWS if warp < count // _ROWS else 0)
            part = (m, n0), own, self.row_words, (inside, cols), self.length
            cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
            if cutlass.const_expr(self.reads_c):
                if has_rows:
                    read_rows(mC, *part, mD)
                cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
            for mma_tile in cutlass.range_constexpr(mma_tiles):
                for half in cutlass.range_constexpr(2):
                    column = columns(mma_tile, half)
                    for x in cutlass.range_constexpr(2 * count // 8):
                        n, v = cutlass.const_expr((first + x // 2 * 8) // 8), cutlass.const_expr(x % 2)
                        row = (x // 2 * 8 + lane % 4 * 2 + v) * self.row_words
                        place = halves_at(staged + row, self.length + _PAD)
                        value = accumulators[mma_tile * self.rows // 2 + 4 * n + 2 * half + v]
                        self.store(place, starts[v] + column, value, scale)
            cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
            if has_rows:
                write_rows(mD, *part, _TOGETHER)

    @cute.jit
    def store(self, row: cute.Tensor, place, value, scale):
        """Store an element of D to a row, and add that of C which is there."""
        alpha, beta = scale
        elements = cute.recast_tensor(row, self.element)
        value = value * alpha
        if cutlass.const_expr(self.reads_c):
            value = value + beta * elements[place].to(cutlass.Float32)
        elements[place] = value.to(self.element)


def transposed(matrix: cute.Tensor) -> cute.Tensor:
    """Return a matrix's transpose."""
    return cute.make_tensor(matrix.iterator, cute.select(matrix.layout, [1, 0]))
