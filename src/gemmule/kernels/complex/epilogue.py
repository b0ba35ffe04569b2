"""Epilogue of the complex GEMMs: D = alpha * AB + beta * C of real and imaginary parts, vectors of 8 or 16 bytes."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.block_triangle import STEP
from gemmule.kernels.parts.complex_parts import scaled
from gemmule.kernels.parts.tensors import PARTS, cute_type


class ComplexEpilogue:
    """Writes of elements from their parts.

    Parameters
    ----------
    part : type
        Float32 or Float64.
    types : dict
        The signature: `d_vector` contiguous elements are written at once; where `conj` is ``b`` or ``ab``, the
        accumulators are the conjugate of the product. `d` is the type of C and D where it is not the accumulators'.
    """

    def __init__(self, part: Any, types: dict[str, str]) -> None:
        self.part, self.vector, self.whole = part, int(types["d_vector"]), types["tiles"] == "whole"
        # Type of the parts of C and D.
        self.stored = cute_type(PARTS[types["d"]]) if "d" in types else part
        self.conjugate = types["conj"] in ("b", "ab")
        # Written above the block diagonal of a symmetric result: the transpose, or the adjoint.
        self.above = types.get("above")

    @cute.jit
    def is_mirrored(self, m0, n0):
        """Return whether the tile at (m0, n0) is left of its diagonal block, so that it is written twice."""
        return n0 // STEP < m0 // STEP

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, products: cute.Tensor, at, scalars, mirrored):
        """Write a vector of D at a place, and where it is mirrored at that above the diagonal too.

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        products : Tensor
            Parts of the accumulators, (vector, 2).
        at : tuple of Int32
            Row and column.
        scalars : tuple
            Alpha and beta, pairs of parts. A real one multiplies each part alone: infinities stay what they are.
        mirrored : Boolean
            Whether the tile is.
        """
        alpha, beta = scalars
        if self.whole or (at[0] < gD.shape[0] and at[1] < gD.shape[1]):
            out = cute.make_rmem_tensor(cute.make_layout(2 * self.vector), self.part)
            for v in cutlass.range_constexpr(self.vector):
                real, imag = products[v, 0], products[v, 1]
                if cutlass.const_expr(self.conjugate):
                    imag = -imag
                out[2 * v], out[2 * v + 1] = scaled(alpha, real, imag)
            if beta[0] != 0 or beta[1] != 0:
                addend = cute.make_rmem_tensor(cute.make_layout(2 * self.vector), self.stored)
                cute.autovec_copy(self.vector_at(gC, at, self.vector), addend)
                for v in cutlass.range_constexpr(self.vector):
                    real, imag = scaled(beta, addend[2 * v].to(self.part), addend[2 * v + 1].to(self.part))
                    out[2 * v] += real
                    out[2 * v + 1] += imag
            self.store(out, self.vector_at(gD, at, self.vector))
            if cutlass.const_expr(self.above is not None):  # noqa: SIM102, one when compiled
                if mirrored:
                    for v in cutlass.range_constexpr(self.vector):
                        pair = cute.make_rmem_tensor(cute.make_layout(2), self.part)
                        pair[0], pair[1] = out[2 * v], out[2 * v + 1]
                        if cutlass.const_expr(self.above == "adjoint"):
                            pair[1] = -pair[1]
                        self.store(pair, self.vector_at(gD, (at[1] + v, at[0]), 1))

    @cute.jit
    def store(self, parts: cute.Tensor, target: cute.Tensor):
        """Write parts, rounded to those of D where these are narrower."""
        rounded = parts
        if cutlass.const_expr(self.stored is not self.part):
            rounded = cute.make_rmem_tensor(parts.layout, self.stored)
            for p in cutlass.range_constexpr(cute.size(parts)):
                rounded[p] = parts[p].to(self.stored)
        cute.autovec_copy(rounded, target)

    @cute.jit
    def vector_at(self, gX: cute.Tensor, at, length: cutlass.Constexpr[int]):
        """Return the parts of a vector in memory, its address assumed to be aligned for one access."""
        start = (gX.iterator + cute.crd2idx(at, gX.layout)).toint()
        size = cutlass.const_expr(2 * length * self.stored.width // 8)
        known = cute.make_ptr(self.stored, start, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(known, cute.make_layout(2 * length))
