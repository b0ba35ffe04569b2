"""Double precision, rung 3: the tensor cores, by mma.sync.

Idea
    A warp's 32 threads hold a product of 16 x 8 x 16 together: 2048 multiply-adds in one instruction, which reads 16
    operands of 8 bytes a thread for 64 of them. On Hopper the tensor cores multiply float64 at twice the rate of the
    FMA units.
Change from the rung before
    Both operands are in shared memory again, in stages of asynchronous copies: a warp reads an element once for 32 or
    64 multiply-adds. Operands keep the order that they have in memory, whatever the layout. Where there are few tiles,
    the CTAs of a cluster may share one: each takes a part of K.
Data movement
    The tile of 64 x 64: 8 FLOP a byte. For 16 of K a warp reads 8 KiB of fragments of shared memory for its 32 x 32
    accumulators, 8 instructions. The three CTAs of an SM wait at different times.
Limits
    The tensor cores, with shared memory busy three quarters of their time. And power, at large sizes.
Sources
    PTX ISA: fragments of mma.sync for .f64. NVIDIA CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.float64.config import COLUMNS, Float64Config
from gemmule.kernels.float64.epilogue import Float64Epilogue
from gemmule.kernels.float64.mainloop import Float64Mainloop
from gemmule.kernels.parts.cluster_reduction import reduce_in_cluster
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.schedulers.split_k_clusters import SplitK
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d
from gemmule.kernels.parts.tile_gemm import TileGemm

#: Elements of the largest tile that has as many CTAs an SM in each layout, and of the smallest that chains addresses.
_LARGE, _CHAINED = 64 * 64, 32 * 64


def needs_registers(config: Float64Config, types: dict[str, str]) -> bool:
    """Return whether registers for addresses are worth more than a CTA an SM: of large tiles, or clusters, as measured.

    Copies of single elements need them, and one layout of the four does.
    """
    layout = (types["a_major"], types["b_major"]) == ("m", "k")
    if config.cluster_k > 1:
        return not config.stream_k and (layout or "8" in (types["a_copies"], types["b_copies"]))
    return layout and config.tile_elements > _LARGE


def chains_addresses(config: Float64Config, types: dict[str, str]) -> bool:
    """Return whether addresses of copies are sums, one after another: of single elements along K, as measured.

    Held through the loop over K, they spill, or take registers of the fragments: sums take 3 to 8 % less time. Other
    tiles were not measured.
    """
    single = {types["a_major"], types["b_major"]} == {"k"} and {types["a_copies"], types["b_copies"]} == {"8"}
    measured = _CHAINED <= config.tile_elements <= (_CHAINED if config.stream_k else _LARGE)
    return single and measured and not needs_registers(config, types)


class Float64Gemm(TileGemm):
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(
        self,
        config: Float64Config,
        types: dict[str, str],
        scheduler: type[RasterTileScheduler] = RasterTileScheduler,
        split: SplitK | None = None,
    ):
        self.split: Any = split
        self.threads, self.cluster_k, self.writers = config.threads, config.cluster_k, config.writers
        self.resident = max(config.resident - needs_registers(config, types), 1)
        self.scheduler = scheduler(config.tile_m, config.tile_n, config.group, config.cluster_k)
        self.mainloop = Float64Mainloop(config, types, chained=chains_addresses(config, types))
        self.epilogue = Float64Epilogue(int(types["d_vector"]), types["tiles"] == "whole")

    @cute.jit
    def compute_tile(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        """Compute this CTA's tile."""
        tile_m, tile_n, batch, rank = self.scheduler.tile(mD, first)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        rC, stages = self.mainloop.multiply_tile(gA, gB, m0, n0, alpha, self.part(rank))
        row, col = self.mainloop.corner()
        if cutlass.const_expr(self.cluster_k > 1):
            columns = cutlass.const_expr(self.mainloop.columns // self.writers)
            rPart = cute.make_rmem_tensor(cute.make_layout((4, self.mainloop.blocks, columns)), Float64)
            part = rank if cutlass.const_expr(self.writers == self.cluster_k) else rank % self.writers
            reduce_in_cluster(rPart, rC, stages, part, self.cluster_k, self.threads)
            if self.writers == self.cluster_k or rank < self.writers:
                self.finish((gD, gC), rPart, (m0 + row, n0 + col + part * (columns * COLUMNS)), (alpha, beta), first)
        else:
            self.finish((gD, gC), rC, (m0 + row, n0 + col), (alpha, beta), first)

    def part(self, rank: Any) -> tuple[Any, Any]:
        """Return which part of K this CTA of the cluster multiplies, and how many there are."""
        return (rank, self.cluster_k) if self.split is None else self.split.part(rank, self.cluster_k)

    @cute.jit
    def finish(self, results, rC: cute.Tensor, place, factors, first):
        """Write sums of all of K, from `place` on; `results` are D and C, `factors` alpha and beta."""
        if cutlass.const_expr(self.split is None):
            self.epilogue.write(*results, rC, *place, *factors)
        else:
            self.split.finish(self.epilogue, results, rC, place, factors, first)


def buildable(
    config: Float64Config, types: dict[str, str], scheduler: type[RasterTileScheduler] = RasterTileScheduler
) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    element = types["element"]
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    vectors = (int(types["a_copies"]) // 8, int(types["b_copies"]) // 8)
    operands = tuple(
        major_tensor(element, unit, batch=1, vector=vector) for unit, vector in zip(units, vectors, strict=True)
    )
    results = tuple(major_tensor(element, 1, batch=1, vector=int(types["d_vector"])) for _ in range(2))
    arguments = (*operands, *results, cute_type(element)(1), cute_type(element)(0))
    if config.split_k:
        gemm = Float64Gemm(config, types, split=SplitK(config.threads))
        return Buildable(gemm, (*arguments, (tensor_1d(element), tensor_1d("uint64"))))
    if config.tma:
        from .shared_tiles import fake_shares
        from .tma import TmaFloat64Gemm

        return Buildable(TmaFloat64Gemm(config, types), (*arguments, fake_shares()))
    if config.stream_k:
        from .shared_tiles import fake_shares
        from .stream_k import StreamKFloat64Gemm

        return Buildable(StreamKFloat64Gemm(config, types), (*arguments, fake_shares()))
    return Buildable(Float64Gemm(config, types, scheduler), (*arguments, *scheduler.fake_args()))
