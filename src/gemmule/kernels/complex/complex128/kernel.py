"""complex128 GEMM on the float64 tensor cores: four real products for each complex one (4M), all layouts.

Idea
    An mma.sync has real and imaginary parts of 8 rows: rows (Ar, -Ai) and (Ai, Ar) times columns (Br, Bi). A lane reads
    elements whole, those of B as the operand that they are, and makes A's four parts in registers, for all columns.
Data movement
    The tile of 64 x 64 elements: 16 FLOP a byte. For 8 of K a warp reads 8 KiB of fragments of shared memory for its
    32 x 32 accumulators, 16 instructions of 16 x 8 x 16: half of what the float64 kernel reads for one.
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
        results, scalars = (gD, gC), (alpha, beta)
        if cutlass.const_expr(self.cluster_k > 1):
            columns = cutlass.const_expr(self.mainloop.columns // self.writers)
            rPart = cute.make_rmem_tensor(cute.make_layout((4, self.mainloop.blocks, columns)), Float64)
            part = rank if cutlass.const_expr(self.writers == self.cluster_k) else rank % self.writers
            reduce_in_cluster(rPart, rC, stages, part, self.cluster_k, self.threads)
            if self.writers == self.cluster_k or rank < self.writers:
                self.write(results, rPart, (m0 + row, n0 + col + part * (columns * COLUMNS)), scalars, mirrored)
        else:
            self.write(results, rC, (m0 + row, n0 + col), scalars, mirrored)


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
        from .tma import TmaComplex128Gemm

        part = PARTS[types["element"]]
        parts = tuple(major_tensor(part, unit, batch=1, vector=2) for unit in units[:2])
        return Buildable(TmaComplex128Gemm(config, types), (*parts, *arguments[2:], fake_shares()))
    if config.stream_k:
        return Buildable(StreamKComplex128Gemm(config, types), (*arguments, fake_shares()))
    return Buildable(Complex128Gemm(config, types, scheduler), (*arguments, *scheduler.fake_args()))
