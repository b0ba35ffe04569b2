"""complex64 GEMM on the FMA units: four FMAs for each complex product, all layouts at one speed.

Idea
    The float32 GEMM with elements of 8 bytes: stages are MN-major, K-major operands are transposed by their copies of
    one element each, and vectors of 16 bytes are two elements.
Data movement
    The tile of 128 x 128: 64 FLOP a byte. For a k a thread with 8 x 8 accumulators reads 8 vectors of 16 bytes for 256
    FMAs, half of what the float32 kernel's thread tile of 8 x 8 reads for as many.
Limits
    The FMA units, and the two banks of registers: `multiply_fragments` of the mainloop. 128 registers of a thread are
    accumulators.
Sources
    Higham, "Accuracy and Stability of Numerical Algorithms", 2002, 3.6: errors of complex products.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute, select_

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.complex.epilogue import ComplexEpilogue
from gemmule.kernels.parts.cluster_reduction import reduce_in_cluster, reduce_in_cta
from gemmule.kernels.parts.complex_parts import fake_scalars, is_used
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.tensors import major_tensor
from gemmule.kernels.parts.tile_gemm import TileGemm
from gemmule.kernels.simt.config import LANES_M, LANES_N

from .mainloop import Complex64Mainloop


class Complex64Gemm(TileGemm):
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(
        self, config: Complex64Config, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
    ):
        self.config, self.threads, self.cluster_k = config, config.threads, config.cluster_k
        self.scheduler = scheduler(config.tile_m, config.tile_n, config.group, config.cluster_k)
        self.mainloop = Complex64Mainloop(config, types)
        self.resident = config.resident(self.mainloop.copyA.count + self.mainloop.copyB.count)
        self.epilogue = ComplexEpilogue(Float32, types)

    @cute.jit
    def compute_tile(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        """Compute this CTA's tile."""
        tile_m, tile_n, batch, rank = self.scheduler.tile(mD, first)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        rC, stages = self.mainloop.multiply_tile(gA, gB, m0, n0, is_used(alpha), rank)
        row, col = self.mainloop.corner()
        corner, scalars = (m0 + row, n0 + col), (alpha, beta)
        mirrored = self.epilogue.is_mirrored(m0, n0)
        warps_k, summed, first_row = cutlass.const_expr((self.config.warps_k, self.config.summed_m, 0))
        if cutlass.const_expr(self.cluster_k * warps_k > 1):
            # Shared memory takes vectors of consecutive registers, and accumulators are in any bank. The factor is 1,
            # which no compiler knows.
            rC.store(rC.load() * Float32(select_(gA.shape[1] < 0, Float32(2), Float32(1))))
        if cutlass.const_expr(warps_k > 1):
            rSum = self.mainloop.accumulators(summed, self.config.thread_n)
            reduce_in_cta(rSum, rC, stages, self.mainloop.group(), warps_k, self.threads)
            rC, first_row = rSum, self.mainloop.group() * summed
        if cutlass.const_expr(self.cluster_k > 1):
            writers = cutlass.const_expr(self.config.writers)
            rows = cutlass.const_expr(summed // writers)
            rPart = self.mainloop.accumulators(rows, self.config.thread_n)
            part = rank if cutlass.const_expr(writers == self.cluster_k) else rank % writers
            reduce_in_cluster(rPart, rC, stages, part, self.cluster_k, self.threads)
            if writers == self.cluster_k or rank < writers:
                self.write(gD, gC, rPart, corner, first_row + part * rows, scalars, mirrored)
        else:
            self.write(gD, gC, rC, corner, first_row, scalars, mirrored)

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, corner, first, scalars, mirrored):
        """Write rows of a thread tile, of which `first` is the number of the first one."""
        length, vector = cutlass.const_expr((self.config.vector, self.epilogue.vector))
        for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
            number = first + i
            row = corner[0] + number // length * (LANES_M * length) + number % length
            for j in cutlass.range_constexpr(0, cute.size(rC, mode=[2]), vector):
                col = corner[1] + (j // length * (LANES_N * length) + j % length)
                products = cute.make_rmem_tensor(cute.make_layout((vector, 2)), Float32)
                for v in cutlass.range_constexpr(vector):
                    for p in cutlass.range_constexpr(2):
                        products[v, p] = rC[p, i, j + v]
                self.epilogue.write(gD, gC, products, (row, col), scalars, mirrored)


def buildable(
    config: Complex64Config, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, 1, 1)
    vectors = int(types["a_copies"]) // 8, int(types["b_copies"]) // 8, int(types["d_vector"]), int(types["d_vector"])
    tensors: tuple[Any, ...] = tuple(
        major_tensor(types["element"], unit, batch=1, vector=vector)
        for unit, vector in zip(units, vectors, strict=True)
    )
    return Buildable(
        Complex64Gemm(config, types, scheduler), (*tensors, *fake_scalars(Float32), *scheduler.fake_args())
    )
