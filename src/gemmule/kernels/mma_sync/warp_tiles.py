"""Epilogue of mma.sync: the accumulators of a warp pass through shared memory, so that whole rows are written.

In a gated activation each subtile of the accumulators of the first B passes with that of the second.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.cluster_reduction import sum_in_cluster

from .config import SUBTILE_M, SUBTILE_N, WARP_BYTES

#: Words from one subtile to the next in its row in shared memory.
_BESIDE = SUBTILE_N + 4
#: Vectors that a thread loads and writes in one go.
_TOGETHER = 4


@dataclass(frozen=True)
class WarpTile:
    """Writes of a warp tile, in pairs of subtiles of 16 x 32, or with `gated` each subtile of both B.

    The accumulators of a second B follow those of the first in every row of products.

    Attributes
    ----------
    warp_m, warp_n : int
        Rows and columns of the warp tile.
    vector : int
        Elements of D (and C) that are read and written at once: they divide its rows.
    whole : bool
        Whether all of the tile is inside the matrix.
    paired_m, paired_n : bool
        Whether fragment rows g and g + 8 (columns g of the first and the second 8) are the rows 2g and 2g + 1.
    epilogue : VectorEpilogue or None
        Function of each element.
    ctas : int
        CTAs of a cluster that have partial sums of the tile; each writes a share of it.
    """

    warp_m: int
    warp_n: int
    vector: int
    whole: bool
    paired_m: bool
    paired_n: bool
    epilogue: Any = None
    ctas: int = 1

    @property
    def gated(self) -> bool:
        """Whether the epilogue is a function of two products."""
        return self.epilogue is not None and self.epilogue.expression.gated

    @property
    def pairs(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """First row and column of the subtiles in the warp tile, two by two, along rows first; with `gated` twice."""
        corners = [(m, n) for m in range(0, self.warp_m, SUBTILE_M) for n in range(0, self.warp_n, SUBTILE_N)]
        first, second = (corners, corners) if self.gated else (corners[::2], corners[1::2])
        return tuple(zip(first, second, strict=True))

    @property
    def steps(self) -> int:
        """Vectors of D that a thread writes of a pair of subtiles."""
        return (1 if self.gated else 2) * SUBTILE_M * SUBTILE_N // (32 * self.vector)

    @property
    def row_stride(self) -> int:
        """Words from one row to the next in shared memory: simultaneous stores of a part of the warp use all banks.

        Half a warp stores 8 bytes a thread: 4 rows of 8 words. With paired columns, a quarter stores 16 bytes a
        thread: 2 rows of 16 words. With paired rows, the rows of a warp are every other one.
        """
        return {(False, False): 72, (True, False): 76, (False, True): 80, (True, True): 72}[
            self.paired_m, self.paired_n
        ]

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, staging, origin, scalars, extras=None):
        """Write D = alpha * rC + beta * C, or a fused epilogue of it, for the warp tile.

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        rC : Tensor
            This thread's 4 accumulators of each product of 16 x 8, by rows and columns of products.
        staging : Pointer
            `WARP_BYTES` of shared memory for each warp, of the type of alpha.
        origin : tuple of Int32
            First row and column of the warp tile in D.
        scalars : tuple
            alpha and beta.
        extras : tuple or None
            Inputs of the fused epilogue.
        """
        sS = self.staged(staging, 0)
        for p in cutlass.range_constexpr(len(self.pairs)):
            cute.arch.sync_warp()
            self.stage_pair(rC, sS, p)
            cute.arch.sync_warp()
            self.finish_pair(gD, gC, sS, origin, p, (0, self.steps), scalars, extras)

    @cute.jit
    def write_share(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, staging, origin, scalars, rank, extras):
        """Add the partial sums of the cluster's CTAs, and write this CTA's share of the warp tile.

        Parameters
        ----------
        gD, gC, rC, origin, scalars, extras
            As of `write`.
        staging : Pointer
            The same in every CTA: `WARP_BYTES` for each warp and pair of subtiles.
        rank : Int32
            This CTA's rank.
        """
        for p in cutlass.range_constexpr(len(self.pairs)):
            self.stage_pair(rC, self.staged(staging, p), p)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        share = self.steps * rank // self.ctas, self.steps * (rank + 1) // self.ctas
        for p in cutlass.range_constexpr(len(self.pairs)):
            self.finish_pair(gD, gC, self.staged(staging, p), origin, p, share, scalars, extras)
        # A CTA's shared memory must outlive the others' reads.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    @cute.jit
    def staged(self, staging, p: cutlass.Constexpr[int]):
        """Return this warp's memory for a pair of subtiles."""
        tid, _, _ = cute.arch.thread_idx()
        layout = cute.make_layout((SUBTILE_M, SUBTILE_N, 2), stride=(self.row_stride, 1, _BESIDE))
        warp = cutlass.const_expr(len(self.pairs) if self.ctas > 1 else 1)
        return cute.make_tensor(staging + (tid // 32 * warp + p) * (WARP_BYTES // 4), layout)

    @cute.jit
    def stage_pair(self, rC: cute.Tensor, sS: cute.Tensor, p: cutlass.Constexpr[int]):
        """Store a pair of subtiles in shared memory."""
        for beside in cutlass.range_constexpr(2):
            row, col = cutlass.const_expr(self.pairs[p][beside])
            second_b = cutlass.const_expr(self.warp_n if self.gated and beside else 0)
            self.stage(rC, sS, row // SUBTILE_M, (second_b + col) // 8, beside)

    @cute.jit
    def finish_pair(self, gD, gC, sS, origin, p: cutlass.Constexpr[int], share, scalars, extras):
        """Write the vectors of a pair of subtiles from a step on to another, `share`."""
        each = cutlass.const_expr(self.steps // self.ctas if self.steps % self.ctas == 0 else 1)
        together = cutlass.const_expr(min(each, _TOGETHER))
        for first in cutlass.range(share[0], share[1], together, unroll=1):
            addends = self.addends(gC, origin, p, first, together, scalars[1])
            for step in cutlass.range(together, unroll_full=True):
                self.finish(gD, sS, addends[None, step], origin, p, first + step, scalars, extras)

    @cute.jit
    def stage(self, rC, sS, i: cutlass.Constexpr[int], j: cutlass.Constexpr[int], beside: cutlass.Constexpr[int]):
        """Store the subtile of products (i, j), (i, j + 1), ... in shared memory, by rows."""
        tid, _, _ = cute.arch.thread_idx()
        g, t = tid % 32 // 4, tid % 4
        for half in cutlass.range_constexpr(2):
            row = 2 * g + half if self.paired_m else g + 8 * half
            for first in cutlass.range(0, SUBTILE_N // 8, 2, unroll_full=True):
                left, right = (_halved(rC, half, i, j + first + place).to(sS.element_type) for place in range(2))
                if cutlass.const_expr(self.paired_n):
                    # The columns of two products alternate.
                    vector = cute.make_rmem_tensor(cute.make_layout((2, 2)), sS.element_type)
                    vector[0, None].store(left)
                    vector[1, None].store(right)
                    cute.autovec_copy(vector, vector_at(sS, (row, 8 * first + 4 * t, beside), 4))
                else:
                    vector_at(sS, (row, 8 * first + 2 * t, beside), 2).store(left)
                    vector_at(sS, (row, 8 * first + 8 + 2 * t, beside), 2).store(right)

    @cute.jit
    def place(self, step):
        """Return the place of this thread's vector of a step in a pair: row, column and which of the two subtiles."""
        tid, _, _ = cute.arch.thread_idx()
        per_row = cutlass.const_expr(SUBTILE_N // self.vector)
        e = tid % 32 + 32 * step
        if cutlass.const_expr(self.gated):
            return e // per_row, e % per_row * self.vector, 0
        return e // (2 * per_row), e % per_row * self.vector, e // per_row % 2

    @cute.jit
    def place_in_matrix(self, origin, p: cutlass.Constexpr[int], step):
        """Return the row and column of that vector in D."""
        row, col, beside = self.place(step)
        (row0, col0), (row1, col1) = cutlass.const_expr(self.pairs[p])
        return origin[0] + row0 + row + beside * (row1 - row0), origin[1] + col0 + col + beside * (col1 - col0)

    @cute.jit
    def addends(self, gC: cute.Tensor, origin, p: cutlass.Constexpr[int], first, count: cutlass.Constexpr[int], beta):
        """Return this thread's vectors of C of some steps, all loads issued at once; zeros where beta is 0."""
        vectors = cute.make_rmem_tensor(cute.make_layout((self.vector, count)), gC.element_type)
        vectors.fill(gC.element_type(0))
        if beta != 0:
            for step in cutlass.range_constexpr(count):
                at = self.place_in_matrix(origin, p, first + step)
                if self.whole or (at[0] < gC.shape[0] and at[1] < gC.shape[1]):
                    cute.autovec_copy(vector_at(gC, at, self.vector), vectors[None, step])
        return vectors

    @cute.jit
    def finish(self, gD, sS, addend, origin, p: cutlass.Constexpr[int], step, scalars, extras):
        """Scale a vector of accumulators, add C, apply the epilogue, and write the result."""
        alpha, beta = scalars
        accumulators = self.sums(sS, self.place(step))
        if cutlass.const_expr(self.epilogue is None):
            result = alpha * accumulators + beta * addend.load().to(sS.element_type)
        else:
            place, ups = self.place_in_matrix(origin, p, step), None
            if cutlass.const_expr(self.gated):
                row, col, _ = self.place(step)
                ups = self.sums(sS, (row, col, 1))
            result = self.epilogue.values(accumulators, ups, addend, extras, place, gD, alpha, beta).load()
        at = self.place_in_matrix(origin, p, step)
        if self.whole or (at[0] < gD.shape[0] and at[1] < gD.shape[1]):
            vector_at(gD, at, self.vector).store(result.to(gD.element_type))

    @cute.jit
    def sums(self, sS: cute.Tensor, at):
        """Return a vector of accumulators: those of this CTA, or of all of the cluster."""
        found = vector_at(sS, at, self.vector)
        if cutlass.const_expr(self.ctas == 1):
            return found.load()
        return sum_in_cluster(found.iterator.toint(), sS.element_type, self.vector, self.ctas)


@cute.jit
def _halved(rC: cute.Tensor, half: cutlass.Constexpr[int], i: cutlass.Constexpr[int], j):
    """Return the two accumulators of product (i, j) in one row: contiguous elements of the result."""
    start = rC.iterator + cute.crd2idx((2 * half, i, j), rC.layout)
    return cute.make_tensor(start, cute.make_layout(2)).load()


@cute.jit
def vector_at(tensor: cute.Tensor, at, length: cutlass.Constexpr[int]):
    """Return contiguous elements as a tensor, its address assumed to be aligned for one access."""
    start = tensor.iterator + cute.crd2idx(at, tensor.layout)
    size = length * tensor.element_type.width // 8
    known = cute.make_ptr(tensor.element_type, start.toint(), tensor.memspace, assumed_align=size)
    return cute.make_tensor(known, cute.make_layout(length))
