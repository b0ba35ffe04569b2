"""The GEMM that is never wrong: shared-memory tiles with a predicate on every access.

Idea
    A CTA of 256 threads computes a 64 x 64 tile of C. The loop over K goes in k-tiles of 16: those of A and B
    are converted to the accumulator's type before they are stored in shared memory, where each value is read 64 times.
    A thread owns every 16th row and column of the tile, 4 x 4 accumulators in registers.
Data movement
    Per tile and k-tile (64 + 64) * 16 elements are read for 2 * 64 * 64 * 16 operations: 32 / itemsize FLOP per byte,
    8 for float32, 4 for float64. Shared memory: 8 values read for 16 multiply-adds.
Limits
    None on shapes, strides or alignment: extents, strides and offsets are 64 bits wide, loads are one element wide.
    That is what makes it slow: address arithmetic and predicates around every load, no overlap of loads with
    arithmetic, no tensor cores.
Sources
    The tiling is the textbook one, "CUDA C++ Programming Guide", shared memory section.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.absolute_maximum import absmax_atomic_max, absmax_init, absmax_update, fake_absmax
from gemmule.kernels.parts.complex_parts import fake_scalars, scaled
from gemmule.kernels.parts.epilogue import ElementEpilogue
from gemmule.kernels.parts.tensors import PARTS, cute_type, dynamic_tensor

from .config import ReferenceConfig

_LANES, _RANK = 16, 4


class GemmReference:
    """D = alpha * A @ B + beta * C for tensors A (M, K, L0, L1), B (N, K, L0, L1), C and D (M, N, L0, L1).

    Complex matrices have a last mode for real and imaginary parts, and so have accumulators and k-tiles. Real factors
    of complex products have one part. Complex scalars are pairs.
    """

    def __init__(
        self,
        config: ReferenceConfig,
        accumulator: Any,
        scale_type: Any,
        epilogue: ElementEpilogue | None = None,
        conj: str | None = None,
    ) -> None:
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, config.tile_k
        self.threads = config.threads
        self.acc, self.scale_type = accumulator, scale_type
        # Conjugated operands of a complex product; None for real ones.
        self.conj, self.parts = conj or "", 1 if conj is None else 2
        self.epilogue: Any = epilogue
        # A second B, with accumulators of its own.
        self.gated = epilogue is not None and epilogue.expression.gated
        self.has_absmax = epilogue is not None and epilogue.has_absmax

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        tiles = cute.ceil_div(mD.shape[0], self.tile_m) * cute.ceil_div(mD.shape[1], self.tile_n)
        grid = cutlass.Int32(tiles * mD.shape[2] * mD.shape[3])
        self.kernel(mA, mB, mC, mD, alpha, beta, extras, mU).launch(grid=(grid, 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        acc = self.acc
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        row, col = tid // _LANES, tid % _LANES

        smem = SmemAllocator()
        # One element of padding: threads along K write to different banks.
        sA = smem.allocate_tensor(acc, self.staged(self.tile_m), 16)
        sB = smem.allocate_tensor(acc, self.staged(self.tile_n), 16)
        rows, cols = self.tile_m // _LANES, self.tile_n // _LANES
        rC = cute.make_rmem_tensor(cute.make_layout((rows, cols, self.parts)), acc)
        rD = rC
        if cutlass.const_expr(self.scale_type is not acc):
            rD = cute.make_rmem_tensor(rC.layout, self.scale_type)
        sU, rU = sB, rC
        if cutlass.const_expr(self.gated):
            sU = smem.allocate_tensor(acc, sB.layout, 16)
            rU = cute.make_rmem_tensor(rC.layout, acc)
        largest = absmax_init() if cutlass.const_expr(self.has_absmax) else None

        # cute.size keeps the 64 bits of an extent, where .shape and cute.ceil_div would give 32.
        M, N, L0, L1 = (cute.size(mD, mode=[mode]) for mode in range(4))
        k_tiles = (cute.size(mA, mode=[1]) + self.tile_k - 1) // self.tile_k
        if self.is_zero(alpha):
            k_tiles = Int64(0)
        tiles_n = (N + self.tile_n - 1) // self.tile_n
        tiles = (M + self.tile_m - 1) // self.tile_m * tiles_n
        tile = Int64(cta)
        while tile < tiles * L0 * L1:
            l1 = tile // (tiles * L0)
            l0 = tile // tiles % L0
            m0 = tile % tiles // tiles_n * self.tile_m
            n0 = tile % tiles_n * self.tile_n
            rC.fill(acc(0))
            if cutlass.const_expr(self.gated):
                rU.fill(acc(0))
            for s in cutlass.range(k_tiles):
                self.stage(sA, mA, m0, s * self.tile_k, l0, l1, "a")
                self.stage(sB, mB, n0, s * self.tile_k, l0, l1, "b")
                if cutlass.const_expr(self.gated):
                    self.stage(sU, mU, n0, s * self.tile_k, l0, l1, "u")
                cute.arch.sync_threads()
                for k in cutlass.range(self.tile_k, unroll=4):
                    for i in cutlass.range_constexpr(rows):
                        for j in cutlass.range_constexpr(cols):
                            self.multiply(rC[i, j, None], sA[row + _LANES * i, k, None], sB[col + _LANES * j, k, None])
                            if cutlass.const_expr(self.gated):
                                self.multiply(
                                    rU[i, j, None], sA[row + _LANES * i, k, None], sU[col + _LANES * j, k, None]
                                )
                cute.arch.sync_threads()
            # Loads of C that a row of elements needs come before their uses, and all before the stores.
            for i in cutlass.range_constexpr(rows):
                rE = cute.make_rmem_tensor(cute.make_layout((cols, self.parts)), mC.element_type)
                rE.fill(mC.element_type(0))
                if not self.is_zero(beta):
                    for j in cutlass.range_constexpr(cols):
                        m, n = m0 + row + _LANES * i, n0 + col + _LANES * j
                        if m < M and n < N:
                            if cutlass.const_expr(cute.rank(mC) > _RANK):
                                rE[j, 0], rE[j, 1] = mC[m, n, l0, l1, 0], mC[m, n, l0, l1, 1]
                                if cutlass.const_expr("c" in self.conj):
                                    rE[j, 1] = -rE[j, 1]
                            else:
                                rE[j, 0] = mC[m, n, l0, l1]
                for j in cutlass.range_constexpr(cols):
                    m, n = m0 + row + _LANES * i, n0 + col + _LANES * j
                    if cutlass.const_expr(self.parts > 1):
                        self.add_parts(rC[i, j, None], rE[j, None], alpha, beta)
                    else:
                        value = alpha * rC[i, j, 0].to(self.scale_type)
                        if beta != self.scale_type(0):
                            value += beta * rE[j, 0].to(self.scale_type)
                        if cutlass.const_expr(self.epilogue is not None):  # noqa: SIM102
                            if m < M and n < N:
                                up = alpha * rU[i, j, 0].to(self.scale_type)
                                value = self.epilogue.value(value, up, mC, extras, (m, n, l0, l1), mD.element_type)
                        if cutlass.const_expr(self.has_absmax):
                            absmax_update(largest, value, (m < M) & (n < N))
                        rD[i, j, 0] = value
            for i in cutlass.range_constexpr(rows):
                for j in cutlass.range_constexpr(cols):
                    m, n = m0 + row + _LANES * i, n0 + col + _LANES * j
                    if m < M and n < N:
                        if cutlass.const_expr(self.parts > 1):
                            for p in cutlass.range_constexpr(2):
                                mD[m, n, l0, l1, p] = rC[i, j, p].to(mD.element_type)
                        else:
                            mD[m, n, l0, l1] = rD[i, j, 0].to(mD.element_type)
            tile += ctas
        if cutlass.const_expr(self.has_absmax):
            absmax_atomic_max(largest, extras[-1])

    def staged(self, extent: int) -> cute.Layout:
        """Return the layout of a k-tile in shared memory; its parts are one after the other."""
        ld = extent + 1
        return cute.make_layout((extent, self.tile_k, self.parts), stride=(1, ld, ld * self.tile_k))

    @cute.jit
    def is_zero(self, scalar):
        """Return whether a scalar is zero."""
        if cutlass.const_expr(self.parts > 1):
            return scalar[0] == self.acc(0) and scalar[1] == self.acc(0)
        return scalar == self.scale_type(0)

    @cute.jit
    def multiply(self, rC: cute.Tensor, sA: cute.Tensor, sB: cute.Tensor):
        """Add a product of elements, by their parts."""
        rC[0] += sA[0] * sB[0]
        if cutlass.const_expr(self.parts > 1):
            rC[0] -= sA[1] * sB[1]
            rC[1] += sA[0] * sB[1]
            rC[1] += sA[1] * sB[0]

    @cute.jit
    def add_parts(self, sums: cute.Tensor, addends: cute.Tensor, alpha, beta):
        """Scale a complex element and add C; a real scalar multiplies the parts alone."""
        values = scaled(alpha, sums[0], sums[1])
        if not self.is_zero(beta):
            more = scaled(beta, addends[0].to(self.acc), addends[1].to(self.acc))
            values = values[0] + more[0], values[1] + more[1]
        for p in cutlass.range_constexpr(2):
            sums[p] = values[p]

    @cute.jit
    def stage(self, sX: cute.Tensor, mX: cute.Tensor, row0, k0, l0, l1, name: cutlass.Constexpr[str]):
        """Copy the k-tile at (row0, k0) into shared memory in the accumulator's type, zeros beyond the edges."""
        tid, _, _ = cute.arch.thread_idx()
        extent = cute.size(sX, mode=[0])
        for p in cutlass.range_constexpr(extent * self.tile_k // self.threads):
            e = tid + p * self.threads
            # Consecutive threads read contiguous memory.
            r, k = e // self.tile_k, e % self.tile_k
            if mX.stride[0] == 1:
                r, k = e % extent, e // extent
            value, imag = self.acc(0), self.acc(0)
            if row0 + r < cute.size(mX, mode=[0]) and k0 + k < cute.size(mX, mode=[1]):
                if cutlass.const_expr(cute.rank(mX) > _RANK):
                    value = mX[row0 + r, k0 + k, l0, l1, 0].to(self.acc)
                    imag = mX[row0 + r, k0 + k, l0, l1, 1].to(self.acc)
                    if cutlass.const_expr(name in self.conj):
                        imag = -imag
                else:
                    value = mX[row0 + r, k0 + k, l0, l1].to(self.acc)
            sX[r, k, 0] = value
            if cutlass.const_expr(self.parts > 1):
                sX[r, k, 1] = imag


def buildable(config: ReferenceConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those element types, with fake arguments."""
    if types["acc"] in PARTS:
        part = cute_type(PARTS[types["acc"]])
        return Buildable(
            GemmReference(config, part, part, conj=types["conj"]),
            (*(dynamic_tensor(types[operand], rank=_RANK) for operand in "abcd"), *fake_scalars(part)),
        )
    acc = cute_type(types["acc"])
    # Integers that become floats are scaled in float32.
    scale = acc if cute_type(types["d"]).is_integer or not acc.is_integer else cutlass.Float32
    tensors = tuple(dynamic_tensor(types[operand], rank=_RANK) for operand in "abcd")
    if "epilogue" not in types:
        return Buildable(GemmReference(config, acc, scale), (*tensors, scale(1), scale(0)))
    epilogue = ElementEpilogue(types, scale)
    inputs = tuple(dynamic_tensor(kind, rank=4) for kind in types["inputs"].split())
    extras = (*inputs, *epilogue.fake_numbers(), *((fake_absmax(),) if epilogue.has_absmax else ()))
    second = (dynamic_tensor(types["b"], rank=4),) if epilogue.expression.gated else ()
    return Buildable(
        GemmReference(config, acc, scale, epilogue), (*tensors, scale(1), scale(0), extras or None, *second)
    )
