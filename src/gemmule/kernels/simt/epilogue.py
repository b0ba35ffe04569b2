"""Epilogue of the float32 GEMM: D = alpha * AB + beta * C, or a function of it, written from thread tiles.

Eight lanes have 128 contiguous bytes of a row: whole sectors, without a pass through shared memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Float32, cute

from .config import LANES_M, LANES_N, VECTOR


@dataclasses.dataclass(frozen=True)
class SimtEpilogue:
    """Writes of a thread tile.

    Attributes
    ----------
    vector : int
        Elements of D (and C) that are read and written at once, 1 or 4: they divide its rows.
    whole : bool
        Whether all of the tile is inside the matrix.
    fused : VectorEpilogue or None
        Function of each element.
    """

    vector: int
    whole: bool
    fused: Any = None

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, corner, first, scalars, extras=None):
        """Write D = alpha * rC + beta * C, or a fused epilogue of it, for rows of a thread tile.

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        rC : Tensor
            Accumulators, (rows, columns).
        corner : tuple of Int32
            First row and column of the thread tile.
        first : int or Int32
            Which row of the thread tile the first of `rC` is.
        scalars : tuple
            Alpha and beta.
        extras : tuple or None
            Inputs of the fused epilogue.
        """
        alpha, beta = scalars
        rows, cols = cutlass.const_expr((cute.size(rC, mode=[0]), cute.size(rC, mode=[1])))
        for i in cutlass.range_constexpr(rows):
            number = first + i
            row = corner[0] + number // VECTOR * (LANES_M * VECTOR) + number % VECTOR
            # All loads of C that a row needs are issued before its stores.
            addends = cute.make_rmem_tensor(cute.make_layout(cols), gC.element_type)
            addends.fill(gC.element_type(0))
            if beta != 0:
                for j in cutlass.range_constexpr(0, cols, self.vector):
                    at = row, corner[1] + (j // VECTOR * (LANES_N * VECTOR) + j % VECTOR)
                    if self.inside(gC, at):
                        vector = cute.make_tensor(addends.iterator + j, cute.make_layout(self.vector))
                        cute.autovec_copy(self.vector_at(gC, at), vector)
            for j in cutlass.range_constexpr(0, cols, self.vector):
                at = row, corner[1] + (j // VECTOR * (LANES_N * VECTOR) + j % VECTOR)
                if cutlass.const_expr(self.fused is None):
                    if self.inside(gD, at):
                        vector = cute.make_rmem_tensor(cute.make_layout(self.vector), Float32)
                        for v in cutlass.range_constexpr(self.vector):
                            vector[v] = alpha * rC[i, j + v] + beta * addends[j + v].to(Float32)
                        self.store(gD, at, vector)
                else:
                    products = cute.make_rmem_tensor(cute.make_layout(self.vector), Float32)
                    for v in cutlass.range_constexpr(self.vector):
                        products[v] = rC[i, j + v]
                    addend = cute.make_tensor(addends.iterator + j, cute.make_layout(self.vector))
                    vector = self.fused.values(products, None, addend, extras, at, gD, alpha, beta)
                    if self.inside(gD, at):
                        self.store(gD, at, vector)

    @cute.jit
    def store(self, gD: cute.Tensor, at, vector: cute.Tensor):
        """Store a vector of float32 in D's type."""
        if cutlass.const_expr(gD.element_type is Float32):
            cute.autovec_copy(vector, self.vector_at(gD, at))
        else:
            self.vector_at(gD, at).store(vector.load().to(gD.element_type))

    @cute.jit
    def inside(self, gX: cute.Tensor, at):
        """Return whether the vector at a place is inside the matrix."""
        return self.whole or (at[0] < gX.shape[0] and at[1] < gX.shape[1])

    @cute.jit
    def vector_at(self, gX: cute.Tensor, at):
        """Return a vector in memory, its address assumed to be aligned for one access."""
        start = gX.iterator + cute.crd2idx(at, gX.layout)
        size = self.vector * gX.element_type.width // 8
        known = cute.make_ptr(gX.element_type, start.toint(), gX.memspace, assumed_align=size)
        return cute.make_tensor(known, cute.make_layout(self.vector))
