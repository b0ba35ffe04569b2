"""Epilogue of the float64 GEMM: D = alpha * AB + beta * C, written from the accumulators of mma.sync.

A lane has two contiguous elements of a row of each product, and four lanes 64 bytes: whole sectors, without a pass
through shared memory. Where rows of D begin at odd elements, it has two that are stored one by one, each next to those
of the other three lanes (stage.py).
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import opaque

from .stage import column_of

#: Rows of a block of two fragments, of one, and columns.
_BLOCK, _ROWS, _COLUMNS = 16, 8, 8


@dataclass(frozen=True)
class Float64Epilogue:
    """Writes of a warp tile."""

    vector: int  #: Elements of D (and C) that are read and written at once, 1 or 2: they divide its rows.
    whole: bool  #: Whether all of the tile is inside the matrix.
    #: Whether registers are scarce, of a persistent CTA. Then what a lane needs is computed again for each tile, and C
    #: is read by halves of a block, so that no registers are held for them through the loop over K.
    scarce: bool = False

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, m, n, alpha, beta):
        """Write D = alpha * rC + beta * C for a warp tile, which begins at (m, n).

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        rC : Tensor
            This lane's 4 accumulators of each product of 16 x 8, by rows and columns of products.
        """
        tid = self.thread()
        row, columns = self.row(m, tid % 32 // 4), self.columns(n, tid % 4)
        count, loaded = cutlass.const_expr((cute.size(rC, mode=[2]), 1 if self.scarce else 2))
        for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
            for first in cutlass.range_constexpr(0, 2, loaded):
                # All loads of C that they need are issued before their stores.
                addends = cute.make_rmem_tensor(cute.make_layout((4, count)), Float64)
                addends.fill(Float64(0))
                if beta != 0:
                    for half in cutlass.range_constexpr(first, first + loaded):
                        for j in cutlass.range_constexpr(count):
                            for v in cutlass.range_constexpr(0, 2, self.vector):
                                at = row + self.row_step(i, half), columns[v] + self.column_step(j)
                                if self.inside(gC, at):
                                    place = 2 * half + v + cute.crd2idx((0, j), addends.layout)
                                    vector = cute.make_tensor(addends.iterator + place, cute.make_layout(self.vector))
                                    cute.autovec_copy(self.vector_at(gC, at), vector)
                for half in cutlass.range_constexpr(first, first + loaded):
                    for j in cutlass.range_constexpr(count):
                        for v in cutlass.range_constexpr(0, 2, self.vector):
                            at = row + self.row_step(i, half), columns[v] + self.column_step(j)
                            if self.inside(gD, at):
                                vector = cute.make_rmem_tensor(cute.make_layout(self.vector), Float64)
                                for w in cutlass.range_constexpr(self.vector):
                                    place = cutlass.const_expr(2 * half + v + w)
                                    vector[w] = alpha * rC[place, i, j] + beta * addends[place, j]
                                cute.autovec_copy(vector, self.vector_at(gD, at))

    @cute.jit
    def thread(self):
        """Return the number of this thread."""
        tid, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.scarce):
            tid = opaque(tid)
        return tid

    def row(self, m: Any, g: Any) -> Any:
        """Return the first row of lanes with the `g`-th row of a fragment."""
        return m + g

    def row_step(self, i: int, half: int) -> int:
        """Return the rows from a lane's first one to that in one of two fragments of block `i`."""
        return i * _BLOCK + half * _ROWS

    def column_step(self, j: int) -> int:
        """Return the columns from a lane's first ones to those of product `j`."""
        return j * _COLUMNS

    @cute.jit
    def columns(self, n, t):
        """Return the columns of the accumulators of lane `t` of four in the first product."""
        if cutlass.const_expr(self.vector == 2):
            return n + 2 * t, n + 2 * t + 1
        return n + column_of(2 * t), n + column_of(2 * t + 1)

    @cute.jit
    def inside(self, gX: cute.Tensor, at):
        """Return whether a vector is inside the matrix."""
        return self.whole or (at[0] < gX.shape[0] and at[1] < gX.shape[1])

    @cute.jit
    def vector_at(self, gX: cute.Tensor, at):
        """Return a vector in memory, its address assumed to be aligned for one access."""
        start = gX.iterator + cute.crd2idx(at, gX.layout)
        known = cute.make_ptr(Float64, start.toint(), gX.memspace, assumed_align=self.vector * Float64.width // 8)
        return cute.make_tensor(known, cute.make_layout(self.vector))
