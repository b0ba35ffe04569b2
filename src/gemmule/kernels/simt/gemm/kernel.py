"""Float32 GEMM on the FMA units, in all four layouts at one speed; int32 likewise, by IMAD at half of it.

Idea
    The stages of both operands are MN-major, whatever the matrices are: a thread reads vectors of 4 rows and of 4
    columns for each k, and multiplies all by all. A K-major operand is transposed by its asynchronous copies, 4 bytes
    each, without a register, and so is one whose rows begin anywhere copied. Where there are few tiles, the CTAs of a
    cluster share one: each takes a part of K, and they exchange partial sums through distributed shared memory.
Data movement
    The tile of 128 x 128: 32 FLOP a byte. For a k a thread with 8 x 8 accumulators reads 4 vectors of 16 bytes for 64
    FMAs. Copies of 4 bytes are 4 instructions a thread for 8 k of 128 rows, where those of 16 bytes are one.
Limits
    The FMA units: an FMA of three registers leaves no issue slot for what copies and reads need, so that a thread tile
    of 8 x 8 reaches 94 % at most. And power, at large sizes.
Sources
    NVIDIA CUTLASS, "Efficient GEMM in CUDA": the hierarchy of CTA, warp and thread tiles.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute, select_

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.cluster_reduction import reduce_in_cluster, reduce_in_cta
from gemmule.kernels.parts.pdl import launch_dependents
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue
from gemmule.kernels.simt.config import PANEL, SimtConfig
from gemmule.kernels.simt.epilogue import SimtEpilogue

from .mainloop import SimtGemmMainloop


class SimtGemm:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    #: Function of a fused epilogue.
    vector_epilogue: type[VectorEpilogue] = VectorEpilogue
    mainloop_type: type[SimtGemmMainloop] = SimtGemmMainloop
    #: Whether each CTA has one tile, so that its dependent grid may launch before the tile is written.
    triggers = True

    def __init__(
        self, config: SimtConfig, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
    ):
        self.config, self.cluster_k = config, config.cluster_k
        self.scheduler = scheduler(config.tile_m, config.tile_n, config.group, config.cluster_k)
        self.mainloop = self.mainloop_type(config, types)
        self.resident = config.resident(self.mainloop.copyA.count + self.mainloop.copyB.count)
        self.fused: Any = self.vector_epilogue(types) if "epilogue" in types else None
        self.rows = types["d_vector"] == "1"
        #: Products of few bytes, whose launches overlap, run in the smallest tiles.
        self.triggered = self.triggers and config.tile_elements == PANEL * PANEL
        interleaved = self.mainloop.interleaved
        # Shared memory for accumulators; with transposing copies it would cost larger tiles registers and time.
        rotated = self.rows or config.cluster_k * config.warps_k > 1
        rotated = rotated and (interleaved or not self.mainloop.transposes or config.threads % 3 == 0)
        self.epilogue = SimtEpilogue(
            config,
            int(types["d_vector"]),
            types["tiles"] == "whole",
            self.fused,
            rotated,
            interleaved,
            self.mainloop.number,
        )

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first=None, extras=None
    ):
        self.kernel(mA, mB, mC, mD, alpha, beta, first, extras).launch(
            grid=(self.scheduler.ctas(mD), 1, 1),
            block=(self.config.threads, 1, 1),
            cluster=(self.cluster_k, 1, 1) if self.cluster_k > 1 else None,
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first=None, extras=None
    ):
        self.compute_tile(mA, mB, mC, mD, alpha, beta, first, extras)

    @cute.jit
    def compute_tile(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first, extras
    ):
        """Compute this CTA's tile."""
        tile_m, tile_n, batch, rank = self.scheduler.tile(mD, first)
        matrices = tuple(mX[None, None, batch] for mX in (mA, mB, mC, mD))
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        self.multiply_and_write(matrices, (m0, n0), rank, (alpha, beta), extras, batch)

    @cute.jit
    def multiply_and_write(self, matrices, origin, rank, scalars, extras, batch):
        """Compute the tile at `origin`.

        Parameters
        ----------
        matrices : tuple of Tensor
            A (M, K), B (N, K), C and D (M, N).
        origin : tuple of Int32
            First row and column of the tile.
        rank : Int32
            This CTA's in the cluster.
        scalars : tuple
            Alpha and beta.
        extras : tuple or None
            Inputs of the fused epilogue for all matrices.
        batch : Int32
            The matrix that those of this tile are for; whatever `of_batch` of the fused epilogue takes.
        """
        (gA, gB, gC, gD), (m0, n0), (alpha, beta) = matrices, origin, scalars
        rC, stages = self.mainloop.multiply_tile(gA, gB, m0, n0, alpha, rank)
        if cutlass.const_expr(self.epilogue.rotated):
            if cutlass.const_expr(self.cluster_k * self.config.warps_k > 1):
                # Alpha is for the sum: times a part of it, it may overflow. The factor is 1, which no compiler knows.
                one, two = self.mainloop.number(1), self.mainloop.number(2)
                rC = self.scaled(rC, self.mainloop.number(select_(gA.shape[1] < 0, two, one)))
            else:
                rC, alpha = self.scaled(rC, alpha), self.mainloop.number(1)
        row, col = self.mainloop.corner()
        corner = m0 + row, n0 + col
        inputs = None
        if cutlass.const_expr(self.fused is not None):
            inputs = self.fused.of_batch(extras, batch)
        summed, first_row = cutlass.const_expr(self.config.summed_m), 0
        if cutlass.const_expr(self.config.warps_k > 1):
            rSum = self.mainloop.accumulators(summed, self.config.thread_n)
            reduce_in_cta(rSum, rC, stages, self.mainloop.group(), self.config.warps_k, self.config.threads)
            rC, first_row = rSum, self.mainloop.group() * summed
        # Behind the loop CTAs of the dependent grid would come too early: most SMs are full, and few get many of them.
        if cutlass.const_expr(self.triggered and self.cluster_k == 1):
            launch_dependents()
        if cutlass.const_expr(self.cluster_k > 1):
            writers = cutlass.const_expr(self.config.writers)
            rows = cutlass.const_expr(summed // writers)
            rPart = self.mainloop.accumulators(rows, self.config.thread_n)
            part = rank if cutlass.const_expr(writers == self.cluster_k) else rank % writers
            reduce_in_cluster(rPart, rC, stages, part, self.cluster_k, self.config.threads)
            first_row += part * rows
            if cutlass.const_expr(self.triggered):
                launch_dependents()
            if writers == self.cluster_k or rank < writers:
                if cutlass.const_expr(self.rows):
                    self.epilogue.write_rows(gD, gC, rPart, (m0, n0), first_row, stages, (alpha, beta), inputs)
                else:
                    self.epilogue.write(gD, gC, rPart, corner, first_row, (alpha, beta), inputs)
        elif cutlass.const_expr(self.rows):
            # The stages are overwritten.
            cute.arch.sync_threads()
            self.epilogue.write_rows(gD, gC, rC, (m0, n0), first_row, stages, (alpha, beta), inputs)
        else:
            self.epilogue.write(gD, gC, rC, corner, first_row, (alpha, beta), inputs)
        if cutlass.const_expr(self.fused is not None):
            self.fused.end(inputs)

    @cute.jit
    def scaled(self, rC: cute.Tensor, factor):
        """Return accumulators times a factor, in the places that the epilogue takes them from."""
        rows, cols = cutlass.const_expr((self.config.thread_m, self.config.thread_n))
        rScaled = self.mainloop.accumulators(rows, cols)
        for i in cutlass.range_constexpr(rows):
            for j in cutlass.range_constexpr(cols):
                rScaled[i, self.epilogue.place(j)] = factor * rC[i, j]
        return rScaled


def buildable(
    config: SimtConfig, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    kernel = SimtGemm(config, types, scheduler)
    return Buildable(kernel, fake_args(kernel, types, scheduler.fake_args()))


def fake_args(kernel: SimtGemm, types: dict[str, str], further: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return fake arguments of a kernel; `further` are those that its scheduler reads."""
    element = types["element"]
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    operands = tuple(
        major_tensor(element, unit, batch=1, vector=int(types[copies]) // 4)
        for unit, copies in zip(units, ("a_copies", "b_copies"), strict=True)
    )
    out = types.get("d", element)
    results = tuple(major_tensor(out, 1, batch=1, vector=int(types["d_vector"])) for _ in range(2))
    if kernel.fused is not None:
        further = (*(further or (None,)), kernel.fused.fake_args())
    return (*operands, *results, cute_type(element)(1), cute_type(element)(0), *further)
