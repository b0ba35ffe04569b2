"""Rung 4: 128 x 128 tiles, 8 x 8 elements a thread, 16-byte copies.

Idea
    A thread that computes an 8 x 8 thread tile reads 16 values for 64 multiply-adds, where one element took 2 values a
    multiply-add: registers are the level of the hierarchy that can feed the arithmetic units. A CTA of 16 x 16
    threads computes 128 x 128, in k-tiles of 8, and copies them 16 bytes a thread at a time.
Change from the rung before
    A thread owns a tile of accumulators, and copies vectors of 4 elements.
Data movement
    Per k-tile (128 + 128) * 8 elements for 2 * 128 * 128 * 8 operations: 32 FLOP a byte. Shared memory: 16 values read
    for 64 multiply-adds, in vectors of 4: two of a row of B, and one in each of 8 rows of A, which serves 4 steps of k.
Limits
    Bank conflicts: consecutive threads read vectors of B with a stride of 32 bytes, so that half of the banks are used.
    Every k-tile waits for its own loads.
Sources
    Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", for accumulators in registers.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import ThreadTileConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.stages import load_k_tile, store_k_tile
from gemmule.kernels.simt.thread_tiles import write_thread_tile


class RegisterTile:
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
        sA = smem.allocate_tensor(
            self.element, cute.make_layout((self.tile_m, self.tile_k), stride=(self.tile_k, 1)), 16
        )
        sB = smem.allocate_tensor(
            self.element, cute.make_layout((self.tile_k, self.tile_n), stride=(self.tile_n, 1)), 16
        )
        rC = cute.make_rmem_tensor(cute.make_layout((self.thread_m, self.thread_n)), self.element)
        rC.fill(self.element(0))

        depth = mA.shape[1] if alpha != 0 else 0
        for k0 in cutlass.range(0, depth, self.tile_k):
            store_k_tile(load_k_tile(mA, m0, k0, sA.shape[:2], self.threads, self.whole), sA, self.threads)
            store_k_tile(load_k_tile(mBt, k0, n0, sB.shape[:2], self.threads, self.whole), sB, self.threads)
            cute.arch.sync_threads()
            self.multiply(sA, sB, rC)
            cute.arch.sync_threads()
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
                for j in cutlass.range_constexpr(self.thread_n):
                    rC[i, j] += rA[i] * rB[j]

    @cute.jit
    def row(self, i: cutlass.Constexpr[int]):
        """Return the row, in the tile, of this thread's row i."""
        tid, _, _ = cute.arch.thread_idx()
        return tid // (self.tile_n // self.thread_n) * self.thread_m + i

    @cute.jit
    def col(self, j: cutlass.Constexpr[int]):
        """Return the column, in the tile, of this thread's column j."""
        tid, _, _ = cute.arch.thread_idx()
        return tid % (self.tile_n // self.thread_n) * self.thread_n + j


buildable = row_major_buildable(RegisterTile)
