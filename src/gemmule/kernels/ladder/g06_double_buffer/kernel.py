"""Rung 6: two stages in shared memory, one barrier a k-tile.

Idea
    While a k-tile is multiplied, the loads of the next one into registers are in flight; they are then stored in the
    other stage. The barrier that protected the stage from the next k-tile is no longer needed.
Change from the rung before
    The mainloop: load the next k-tile, multiply this one, store the next, one barrier. And the order of the
    multiply-adds: serpentine over the rows of a thread tile.
Data movement
    As before; the latency of device memory is hidden behind the 512 multiply-adds of a k-tile.
Limits
    The share of multiply-adds among the instructions: 16 values read, 64 multiply-adds, and the next k-tile
    passes through registers that accumulators could use.
Sources
    The same; NVIDIA CUTLASS, "Efficient GEMM in CUDA", section on pipelining.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import ThreadTileConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.stages import load_k_tile, store_k_tile
from gemmule.kernels.simt.thread_tiles import spread, write_thread_tile


class DoubleBuffer:
    """D = alpha * A @ B + beta * C for row-major A (M, K), B (N, K), C and D (M, N)."""

    def __init__(self, config: ThreadTileConfig, types: dict[str, str]) -> None:
        self.tile_m, self.tile_n, self.tile_k = config.tile
        self.thread_m, self.thread_n, self.threads = config.thread_m, config.thread_n, config.threads
        self.element = cute_type(types["element"])
        self.whole = types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(grid=(tiles_n, tiles_m, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tile_n, tile_m, _ = cute.arch.block_idx()
        m0, n0 = tile_m * self.tile_m, tile_n * self.tile_n
        # The k-tiles of B, like those of A, are read along their rows: K x N.
        mBt = cute.make_tensor(mB.iterator, cute.select(mB.layout, mode=[1, 0]))
        smem = SmemAllocator()
        stages = cute.make_layout((self.tile_m, self.tile_k, 2), stride=(1, self.tile_m, self.tile_m * self.tile_k))
        sA = smem.allocate_tensor(self.element, stages, 16)
        stages = cute.make_layout((self.tile_k, self.tile_n, 2), stride=(self.tile_n, 1, self.tile_n * self.tile_k))
        sB = smem.allocate_tensor(self.element, stages, 16)
        rC = cute.make_rmem_tensor(cute.make_layout((self.thread_m, self.thread_n)), self.element)
        rC.fill(self.element(0))

        depth = mA.shape[1] if alpha != 0 else 0
        k_tiles = cute.ceil_div(depth, self.tile_k)
        if k_tiles > 0:
            store_k_tile(
                load_k_tile(mA, m0, 0, sA.shape[:2], self.threads, self.whole), sA[None, None, 0], self.threads
            )
            store_k_tile(
                load_k_tile(mBt, 0, n0, sB.shape[:2], self.threads, self.whole), sB[None, None, 0], self.threads
            )
            cute.arch.sync_threads()
            for k in cutlass.range(k_tiles - 1):
                this, following = k % 2, (k + 1) % 2
                # In flight while this k-tile is multiplied.
                nextA = load_k_tile(mA, m0, (k + 1) * self.tile_k, sA.shape[:2], self.threads, self.whole)
                nextB = load_k_tile(mBt, (k + 1) * self.tile_k, n0, sB.shape[:2], self.threads, self.whole)
                self.multiply(sA[None, None, this], sB[None, None, this], rC)
                store_k_tile(nextA, sA[None, None, following], self.threads)
                store_k_tile(nextB, sB[None, None, following], self.threads)
                cute.arch.sync_threads()
            last = (k_tiles - 1) % 2
            self.multiply(sA[None, None, last], sB[None, None, last], rC)
        write_thread_tile(mD, mC, rC, m0, n0, (alpha, beta), self)

    @cute.jit
    def multiply(self, sA: cute.Tensor, sB: cute.Tensor, rC: cute.Tensor):
        """Add the products of a k-tile to this thread's accumulators."""
        rA = cute.make_rmem_tensor(cute.make_layout(self.thread_m), self.element)
        rB = cute.make_rmem_tensor(cute.make_layout(self.thread_n), self.element)
        for k in cutlass.range(self.tile_k, unroll_full=True):
            for i in cutlass.range_constexpr(self.thread_m):
                rA[i] = sA[self.row(i), k]
            for j in cutlass.range_constexpr(self.thread_n):
                rB[j] = sB[k, self.col(j)]
            for i in cutlass.range_constexpr(self.thread_m):
                for step in cutlass.range_constexpr(self.thread_n):
                    # Serpentine: successive multiply-adds share an operand, which is read once.
                    j = step if i % 2 == 0 else self.thread_n - 1 - step
                    rC[i, j] += rA[i] * rB[j]

    @cute.jit
    def row(self, i: cutlass.Constexpr[int]):
        """Return the row, in the tile, of this thread's row i."""
        tid, _, _ = cute.arch.thread_idx()
        return spread(tid // (self.tile_n // self.thread_n), i, self.tile_m // self.thread_m)

    @cute.jit
    def col(self, j: cutlass.Constexpr[int]):
        """Return the column, in the tile, of this thread's column j."""
        tid, _, _ = cute.arch.thread_idx()
        threads_n = self.tile_n // self.thread_n
        return spread(tid % threads_n, j, threads_n)


buildable = row_major_buildable(DoubleBuffer)
