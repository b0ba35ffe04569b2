"""Tensor cores by mma.sync: the CuTe HGEMM for Ampere, for all types and layouts.

Idea
    Three levels overlap. cp.async copies k-tiles of A and B from device memory into shared memory, several k-tiles
    ahead; ldmatrix loads fragments from there into registers, one step ahead; mma.sync multiplies the fragments of
    this step. 16-byte chunks are swizzled in shared memory, so that both sides use all banks.
Change from g07_cp_async
    A warp's 32 threads hold one product together: 16 x 8 x 16 multiply-adds are one instruction. Operands keep the
    order that they have in memory, whatever the layout: ldmatrix transposes on the way into registers. Accumulators
    pass through shared memory in the epilogue, so that rows are written 16 bytes a thread. Where there are few tiles,
    the CTAs of a cluster may share one: each takes a part of K.
Data movement
    The tile of 128 x 128: 64 FLOP a byte in 16 bits. A warp tile of 64 x 64 reads 4 KiB of fragments for 32
    mma.sync m16n8k16.
Limits
    On Hopper mma.sync feeds the tensor cores at 0.67 of the rate of wgmma, which takes its operands from shared memory
    by itself, and at 0.5 with the fragments that it needs. Power limits what is left.
Sources
    NVIDIA CUTLASS, the CuTe tutorial for sm_80: swizzled atoms, the three levels, alpha and beta. PTX ISA: fragments
    of mma.sync, ldmatrix.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.schedulers.split_k_clusters import SplitK
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import MmaSyncConfig
from .mainloop import MmaSyncMainloop
from .small.epilogue import StagedStore
from .warp_tiles import WarpTile

#: Most elements of a thread whose C is in registers together.
_MOST_STAGED = 64


@dataclass(frozen=True)
class HeldStore:
    """Writes of sums that threads hold."""

    store: StagedStore  #: Those of sums that are staged.

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, held: cute.Tensor, origin, scalars, rank):
        """Write D = alpha * sums + beta * C for the share of the tile of the CTA of that rank."""
        tid, _, _ = cute.arch.thread_idx()
        self.store.write_vectors(gD, gC, None, origin, scalars, rank * self.store.share + tid, None, held)


class MmaSync:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: MmaSyncConfig, types: dict[str, str]) -> None:
        self.fused: Any = VectorEpilogue(types) if "epilogue" in types else None
        # In a gated activation half of a tile's columns are of B, half of a second B, for half as many of the result.
        self.num_b = 2 if self.fused is not None and self.fused.expression.gated else 1
        self.threads, self.cluster_k = config.threads, config.cluster_k
        self.scheduler = RasterTileScheduler(config.tile_m, config.tile_n // self.num_b, config.group, config.cluster_k)
        self.mainloop = MmaSyncMainloop(config, types, self.num_b)
        self.split: Any = SplitK(config.threads) if config.split_k else None
        # Where lines of D begin anywhere, all of a tile passes through shared memory at once, which writes whole lines.
        staged = StagedStore(config.tile_m, config.tile_n, config.threads, 1, 1, config.cluster_k, self.fused)
        begin_anywhere = types["a"] == "float32" and types["d_vector"] == "1" and self.num_b == 1
        # A function of the elements is not to see those that no CTA writes.
        takes_all = staged.divides or self.fused is None
        self.staged = (begin_anywhere and takes_all and staged.count <= _MOST_STAGED) or config.split_k == 1
        self.epilogue: Any = (
            staged
            if self.staged
            else WarpTile(
                self.mainloop.warp_m,
                self.mainloop.warp_n,
                int(types["d_vector"]),
                types["tiles"] == "whole",
                self.mainloop.stageA.paired_rows,
                self.mainloop.stageB.paired_rows,
                self.fused,
                config.cluster_k,
            )
        )

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        self.kernel(mA, mB, mC, mD, alpha, beta, extras, mU).launch(
            grid=(self.scheduler.ctas(mD), 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_k, 1, 1) if self.cluster_k > 1 else None,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        tile_m, tile_n, batch, rank = self.scheduler.tile(mD)
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        part = (rank, self.cluster_k) if self.split is None else self.split.part(rank, self.cluster_k)
        rC, stages, (row, col) = self.mainloop.multiply_tile(gA, gB, (mU, batch), m0, n0, alpha, part)
        # Accumulators overwrite the stages.
        cute.arch.sync_threads()
        inputs = None
        if cutlass.const_expr(self.fused is not None):
            inputs = self.fused.of_batch(extras, batch)
        origin, scalars = (m0 + row, n0 + col), (alpha, beta)
        if cutlass.const_expr(self.split is not None):
            self.epilogue.stage(rC, stages, (row, col, 0))
            held = self.epilogue.hold(stages, rank)
            place = (m0, n0), scalars, rank
            self.split.finish(HeldStore(self.epilogue), (gD, gC), held, place, (), extras)
        elif cutlass.const_expr(self.staged):
            self.epilogue.stage(rC, stages, (row, col, 0))
            self.epilogue.write(gD, gC, stages, (m0, n0), scalars, rank, inputs)
        elif cutlass.const_expr(self.cluster_k > 1):
            self.epilogue.write_share(gD, gC, rC, stages, origin, scalars, rank, inputs)
        else:
            self.epilogue.write(gD, gC, rC, stages, origin, scalars, inputs)
        if cutlass.const_expr(self.fused is not None):
            self.fused.end(inputs)


def buildable(config: MmaSyncConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    element, out = types["a"], types["d"]
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    copies = (int(types["a_copies"]), int(types["b_copies"]))

    def operand(number: int) -> Any:
        vector = max(8 * copies[number] // cute_type(element).width, 1)
        return major_tensor(element, units[number], batch=1, vector=vector)

    results = tuple(major_tensor(out, 1, batch=1, vector=int(types["d_vector"])) for _ in range(2))
    acc = cute_type(types["acc"])
    kernel = MmaSync(config, types)
    extras = () if kernel.fused is None else (kernel.fused.fake_args(),)
    second = (operand(1),) if kernel.num_b > 1 else ()
    if config.split_k:
        extras = ((tensor_1d(types["acc"]), tensor_1d("uint64")),)
    return Buildable(kernel, (*map(operand, range(2)), *results, acc(1), acc(0), *extras, *second))
