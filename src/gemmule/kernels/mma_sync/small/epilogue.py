"""Epilogue of a small tile: partial sums pass through shared memory, so that a warp writes contiguous elements.

Partial sums of slices of K, and of the CTAs of a cluster, are added on the way, in their order.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.mma_sync.warp_tiles import vector_at
from gemmule.kernels.parts.cluster_reduction import sum_in_cluster

#: Rows and columns of an mma.sync, and contiguous columns of a thread in one.
_ROWS, _COLS, _PAIR = 16, 8, 2
#: Vectors of a loop that is unrolled: the compiler warns of more.
_UNROLLED = 32


@dataclass(frozen=True)
class StagedStore:
    """Writes of a tile.

    Attributes
    ----------
    tile_m, tile_n : int
        Rows and columns of the tile.
    threads : int
        Threads of the CTA.
    vector : int
        Elements of D (and C) that are read and written at once, 1 or 2.
    slices, ctas : int
        Slices of K within a CTA, and CTAs of a cluster, that have partial sums; each CTA writes a share of the tile.
    epilogue : VectorEpilogue or None
        Function of each element.
    """

    tile_m: int
    tile_n: int
    threads: int
    vector: int
    slices: int
    ctas: int
    epilogue: Any = None

    @property
    def row_vectors(self) -> int:
        """Vectors of a row: a power of two, of which those beyond the tile are not written."""
        return 1 << (self.tile_n // self.vector - 1).bit_length()

    @property
    def share(self) -> int:
        """Vectors that a CTA writes; where CTAs do not divide them, of whole rounds, and the last one has fewer."""
        vectors = self.tile_m * self.row_vectors
        if self.divides:
            return vectors // self.ctas
        return -(-vectors // (self.ctas * self.threads)) * self.threads

    @property
    def divides(self) -> bool:
        """Whether all CTAs have as many vectors."""
        return self.tile_m * self.row_vectors % self.ctas == 0

    @property
    def count(self) -> int:
        """Vectors of a thread that has any."""
        return max(self.share // self.threads, 1)

    @property
    def rows(self) -> int:
        """Rows from one vector of a thread to the next."""
        return self.threads // self.row_vectors

    @cute.jit
    def staged(self, staging):
        """Return the partial sums in shared memory; simultaneous stores of half a warp, 4 rows, use all banks."""
        row = cutlass.const_expr(self.tile_n + _COLS)
        layout = cute.make_layout((self.tile_m, self.tile_n, self.slices), stride=(row, 1, self.tile_m * row))
        return cute.make_tensor(staging, layout)

    @cute.jit
    def stage(self, rC: cute.Tensor, staging, place):
        """Store a thread's partial sums, and wait for those of all others.

        Parameters
        ----------
        rC : Tensor
            This thread's 4 accumulators of each product of 16 x 8, by rows and columns of products.
        staging : Pointer
            Shared memory.
        place : tuple of Int32
            First row and column of the warp tile in the tile, and its slice.
        """
        tid, _, _ = cute.arch.thread_idx()
        sS, (row, col, number) = self.staged(staging), place
        row, col = row + tid % 32 // 4, col + tid % 4 * _PAIR
        for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(rC, mode=[2])):
                for half in cutlass.range_constexpr(2):
                    start = rC.iterator + cute.crd2idx((_PAIR * half, i, j), rC.layout)
                    pair = cute.make_tensor(start, cute.make_layout(_PAIR)).load()
                    at = (row + _ROWS * i + _ROWS // 2 * half, col + _COLS * j, number)
                    vector_at(sS, at, _PAIR).store(pair)
        if cutlass.const_expr(self.ctas > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, staging, origin, scalars, rank, inputs):
        """Write D = alpha * sums + beta * C, or a fused epilogue of it, for this CTA's share of the tile.

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        staging : Pointer
            Shared memory with the partial sums.
        origin : tuple of Int32
            First row and column of the tile in D.
        scalars : tuple
            alpha and beta.
        rank : Int32
            This CTA's rank in the cluster.
        inputs : tuple or None
            Inputs of the fused epilogue.
        """
        tid, _, _ = cute.arch.thread_idx()
        if self.share >= self.threads or tid < self.share:
            self.write_vectors(gD, gC, self.staged(staging), origin, scalars, rank * self.share + tid, inputs)
        if cutlass.const_expr(self.ctas > 1):
            # A CTA's shared memory must outlive the others' reads.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    @cute.jit
    def write_vectors(self, gD: cute.Tensor, gC: cute.Tensor, sS, origin, scalars, first, inputs, held=None):
        """Write a thread's vectors, of which the first has that number in the tile, the others the same columns.

        Their sums are those of the staged ones `sS`, unless this thread has `held` them.
        """
        alpha, beta = scalars
        shift = cutlass.const_expr(self.row_vectors.bit_length() - 1)
        row, col = first >> shift, (first & (self.row_vectors - 1)) * self.vector
        at = origin[0] + row, origin[1] + col
        # The rows from this one on that are inside.
        left = cutlass.select_(at[1] < gD.shape[1], gD.shape[0] - at[0], 0)
        if cutlass.const_expr(self.row_vectors * self.vector > self.tile_n):
            left = cutlass.select_(col < self.tile_n, left, 0)
            col = cutlass.min(col, self.tile_n - self.vector)
        if cutlass.const_expr(not self.divides):
            left = cutlass.min(left, self.tile_m - row)
        addends = cute.make_rmem_tensor(cute.make_layout((self.vector, self.count)), gC.element_type)
        addends.fill(gC.element_type(0))
        if beta != 0:
            source = self.vectors_at(gC, at)
            for start in cutlass.range_constexpr(0, self.count, _UNROLLED):
                for number in cutlass.range_constexpr(start, min(start + _UNROLLED, self.count)):
                    if left > number * self.rows:
                        cute.autovec_copy(source[None, number], addends[None, number])
        target = self.vectors_at(gD, at)
        if cutlass.const_expr(held is None):
            staged = self.vectors_at(sS[None, None, 0], (row, col))
        for start in cutlass.range_constexpr(0, self.count, _UNROLLED):
            for number in cutlass.range_constexpr(start, min(start + _UNROLLED, self.count)):
                if cutlass.const_expr(held is None):
                    partials = staged[None, number]
                    if cutlass.const_expr(not self.divides):
                        # Rows beyond the tile are not written.
                        inside = cutlass.min(row + number * self.rows, self.tile_m - 1)
                        partials = vector_at(sS[None, None, 0], (inside, col), self.vector)
                    sums = self.sums(partials)
                else:
                    sums = held[None, number].load()
                addend = addends[None, number]
                if cutlass.const_expr(self.epilogue is None):
                    result = alpha * sums + beta * addend.load().to(Float32)
                else:
                    place = at[0] + number * self.rows, at[1]
                    result = self.epilogue.values(sums, None, addend, inputs, place, gD, alpha, beta).load()
                if left > number * self.rows:
                    target[None, number].store(result.to(gD.element_type))

    @cute.jit
    def hold(self, staging, rank):
        """Return the sums of this thread's vectors over the CTAs of the cluster, which divide the tile."""
        tid, _, _ = cute.arch.thread_idx()
        first = rank * self.share + tid
        shift = cutlass.const_expr(self.row_vectors.bit_length() - 1)
        at = first >> shift, (first & (self.row_vectors - 1)) * self.vector
        staged = self.vectors_at(self.staged(staging)[None, None, 0], at)
        held = cute.make_rmem_tensor(cute.make_layout((self.vector, self.count)), Float32)
        for start in cutlass.range_constexpr(0, self.count, _UNROLLED):
            for number in cutlass.range_constexpr(start, min(start + _UNROLLED, self.count)):
                held[None, number].store(self.sums(staged[None, number]))
        if cutlass.const_expr(self.ctas > 1):
            # A CTA's shared memory must outlive the others' reads.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        return held

    @cute.jit
    def vectors_at(self, tensor: cute.Tensor, at):
        """Return a thread's vectors in a matrix, the first one from a place on."""
        first = vector_at(tensor, at, self.vector)
        return cute.make_tensor(
            first.iterator,
            cute.make_layout((self.vector, self.count), stride=(1, tensor.stride[0] * self.rows)),
        )

    @cute.jit
    def sums(self, vector: cute.Tensor):
        """Return the sums of a vector of the first slice, over the slices and the CTAs of the cluster."""
        found = self.cluster_sums(vector)
        for number in cutlass.range_constexpr(1, self.slices):
            other = vector.iterator + number * self.tile_m * (self.tile_n + _COLS)
            found = found + self.cluster_sums(cute.make_tensor(other, vector.layout))
        return found

    @cute.jit
    def cluster_sums(self, vector: cute.Tensor):
        """Return the sums of a vector over the CTAs of the cluster."""
        if cutlass.const_expr(self.ctas == 1):
            return vector.load()
        return sum_in_cluster(vector.iterator.toint(), Float32, self.vector, self.ctas)
