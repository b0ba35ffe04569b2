"""complex128 GEMM on the float64 tensor cores: four real products for each complex one (4M), all layouts.

Idea
    Real and imaginary parts are successive elements of K: rows (Ar, -Ai) times columns (Br, Bi) are the real parts of
    the product, rows (Ai, Ar) its imaginary ones. mma.sync takes A's operands from contiguous registers; each load of
    8 bytes is one of them, where loads of whole elements had to be moved apart, four moves for an instruction.
Data movement
    The tile of 64 x 64 elements: 16 FLOP a byte. For 8 of K a warp reads 12 KiB of fragments of shared memory for its
    32 x 32 accumulators, 32 instructions of 16 x 8 x 8: three quarters of what the float64 kernel reads for one.
Limits
    The tensor cores, and power at large sizes. 128 registers of a thread are accumulators.
Sources
    PTX ISA: fragments of mma.sync for .f64. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, 3.6 and
    23.2.4: errors of complex products; 3M, which has fewer, bounds them by norms only.
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.complex.epilogue import ComplexEpilogue
from gemmule.kernels.float64.config import COLUMNS
from gemmule.kernels.parts.cluster_reduction import reduce_in_cluster
from gemmule.kernels.parts.complex_parts import fake_scalars, is_used
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.tensors import PARTS, major_tensor
from gemmule.kernels.parts.tile_gemm import TileGemm

from .mainloop import Complex128Mainloop
from .stream_k import StreamKComplex128Gemm, fake_shares
from .warp_tile_writes import WarpTileWrites


class Complex128Gemm(WarpTileWrites, TileGemm):
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(
        self,
        config: Complex128Config,
        types: dict[str, str],
        scheduler: type[RasterTileScheduler] = RasterTileScheduler,
    ):
        self.threads, self.cluster_k, self.resident = config.threads, config.cluster_k, config.resident
        self.writers = config.writers
        self.scheduler = scheduler(config.tile_m, config.tile_n, config.group, config.cluster_k)
        self.mainloop = Complex128Mainloop(config, types)
        self.epilogue = ComplexEpilogue(Float64, types)

    @cute.jit
    def compute_tile(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        """Compute this CTA's tile."""
        tile_m, tile_n, batch, rank = self.scheduler.tile(mD, first)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        rC, stages = self.mainloop.multiply_tile(gA, gB, m0, n0, is_used(alpha), (rank, self.cluster_k))
        row, col = self.mainloop.corner()
        mirrored = self.epilogue.is_mirrored(m0, n0)
        if cutlass.const_expr(self.cluster_k > 1):
            part = cutlass.const_expr(self.mainloop.columns // self.writers)
            # Parts are the last mode of accumulators; a cluster's pieces are consecutive.
            rAll = cute.make_rmem_tensor(cute.make_layout((4, self.mainloop.blocks, 2, self.mainloop.columns)), Float64)
            for p in cutlass.range_constexpr(2):
                for j in cutlass.range_constexpr(self.mainloop.columns):
                    rAll[None, None, p, j].store(rC[None, None, j, p].load())
            rPart = cute.make_rmem_tensor(cute.make_layout((4, self.mainloop.blocks, 2, part)), Float64)
            piece = rank if cutlass.const_expr(self.writers == self.cluster_k) else rank % self.writers
            reduce_in_cluster(rPart, rAll, stages, piece, self.cluster_k, self.threads)
            col += piece * (part * COLUMNS)
            for p in cutlass.range_constexpr(2):
                for j in cutlass.range_constexpr(part):
                    rC[None, None, j, p].store(rPart[None, None, p, j].load())
            if self.writers == self.cluster_k or rank < self.writers:
                self.write(gD, gC, rC, (m0 + row, n0 + col), (alpha, beta), mirrored, part)
        else:
            self.write(gD, gC, rC, (m0 + row, n0 + col), (alpha, beta), mirrored, self.mainloop.columns)


def buildable(
    config: Complex128Config, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, 1, 1)
    out = types.get("d", types["element"])
    elements = (types["element"], types["element"], out, out)
    tensors = tuple(major_tensor(element, unit, batch=1) for element, unit in zip(elements, units, strict=True))
    arguments = (*tensors, *fake_scalars(Float64))
    if config.tma:
        from .tma.gemm import TmaComplex128Gemm

        part = PARTS[types["element"]]
        parts = tuple(major_tensor(part, unit, batch=1, vector=2) for unit in units[:2])
        return Buildable(TmaComplex128Gemm(config, types), (*parts, *arguments[2:], fake_shares()))
    if config.stream_k:
        return Buildable(StreamKComplex128Gemm(config, types), (*arguments, fake_shares()))
    return Buildable(Complex128Gemm(config, types, scheduler), (*arguments, *scheduler.fake_args()))
