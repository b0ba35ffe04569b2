"""Double precision, rung 2: B in registers, A in shared memory.

Idea
    A thread owns whole columns of its tile of C, so no other thread of its warp needs its columns of B: they are loaded
    from device memory straight into registers, without shared memory. The threads that share rows of A, a whole warp or
    half of it, read the same values of shared memory, two at a time.
Change from the rung before
    B skips shared memory; its row for a later k replaces that of this one as soon as it is used. A is copied
    asynchronously into two stages, with one barrier a k-tile. Concurrent CTAs form a block of tiles.
Data movement
    The tile of 16 x 64: per k-tile (16 + 64) * 16 elements of 8 bytes for 2 * 16 * 64 * 16 operations, 3.2 FLOP a byte;
    8 reads of shared memory, 16 bytes each, for 16 multiply-adds. The tile of 64 x 128, 16 x 4 a thread: 10.7 FLOP a
    byte from L2; 4 warps read the same part of B, from the L1 cache, into which unused copies prefetch it;
    8 reads of shared memory and 2 of L1 for 64 multiply-adds.
Limits
    The register file: a multiply-add reads three operands of 8 bytes, and loads write their results at the same time.
    And registers: 64 accumulators of 8 bytes are 128 of the 255, so that 8 warps an SM are left.
Sources
    Liang, Ren, Guo and Liu, "Design and Implementation of Matrix Multiplication on GPU", section 3.2, where a thread
    owns one column of 16 rows.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import SECTOR, BInRegistersConfig
from gemmule.kernels.parts.async_copy import copy_vector_async
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.vectors import read_vector, write_vector


class BInRegisters:
    """D = alpha * A @ B + beta * C for row-major A (M, K), B (N, K), C and D (M, N)."""

    def __init__(self, config: BInRegistersConfig, types: dict[str, str]) -> None:
        self.tile_m, self.tile_n, self.tile_k = config.tile
        self.thread_m, self.thread_n, self.threads = config.thread_m, config.thread_n, config.threads
        self.lanes_n, self.ahead, self.ld, self.group = (
            config.lanes_n,
            config.ahead,
            config.leading_dimension,
            config.group,
        )
        self.prefetched = config.prefetched
        # Contiguous columns that a thread moves at once; its vectors are spread over the warp tile.
        self.vector = min(self.thread_n, 2)
        self.element = cute_type(types["element"])
        self.whole = types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        kernel = self.kernel(mA, mB, mC, mD, alpha, beta)
        grid, block = (tiles_m * tiles_n, 1, 1), (self.threads, 1, 1)
        if cutlass.const_expr(self.prefetched > 0):
            # A thread with many accumulators may have all registers that it can name.
            kernel.launch(grid=grid, block=block, min_blocks_per_mp=1)
        else:
            kernel.launch(grid=grid, block=block)

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        cta, _, _ = cute.arch.block_idx()
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta, tiles_m, tiles_n, self.group)
        row, col = self.corner()
        m0, n = tile_m * self.tile_m, tile_n * self.tile_n + col
        mBt = cute.make_tensor(mB.iterator, cute.select(mB.layout, mode=[1, 0]))
        smem = SmemAllocator()
        stages = cute.make_layout((self.tile_m, self.tile_k, 2), stride=(1, self.ld, self.ld * self.tile_k))
        sA = smem.allocate_tensor(self.element, stages, 16)
        sPrefetched = sA
        if cutlass.const_expr(self.prefetched > 0):
            sPrefetched = smem.allocate_tensor(self.element, cute.make_layout(self.prefetched), 16)
        rB = cute.make_rmem_tensor(cute.make_layout((self.thread_n, self.ahead)), self.element)
        rC = cute.make_rmem_tensor(cute.make_layout((self.thread_m, self.thread_n)), self.element)
        rC.fill(self.element(0))

        depth = mA.shape[1] if alpha != 0 else 0
        k_tiles = cute.ceil_div(depth, self.tile_k)
        if k_tiles > 0:
            self.copy(mA, sA[None, None, 0], m0, 0)
            for k in cutlass.range_constexpr(self.ahead):
                self.load(mBt, k, n, rB[None, k])
            self.wait()
            for s in cutlass.range(k_tiles - 1):
                self.copy(mA, sA[None, None, (s + 1) % 2], m0, (s + 1) * self.tile_k)
                if cutlass.const_expr(self.prefetched > 0):
                    self.prefetch(mBt, sPrefetched, (s + 1) * self.tile_k, tile_n * self.tile_n)
                for k in cutlass.range_constexpr(self.tile_k):
                    self.multiply(sA[None, k, s % 2], rB[None, k % self.ahead], rC, row)
                    # Just used, and free for the row that is needed `ahead` rows later.
                    self.load(mBt, s * self.tile_k + k + self.ahead, n, rB[None, k % self.ahead])
                self.wait()
            last = k_tiles - 1
            for k in cutlass.range_constexpr(self.tile_k):
                self.multiply(sA[None, k, last % 2], rB[None, k % self.ahead], rC, row)
                if cutlass.const_expr(k + self.ahead < self.tile_k):
                    self.load(mBt, last * self.tile_k + k + self.ahead, n, rB[None, k % self.ahead])
        self.finish(mD, mC, rC, m0 + row, n, alpha, beta)

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        warps_n = self.tile_n // (self.lanes_n * self.thread_n)
        row = (warp // warps_n * (32 // self.lanes_n) + lane // self.lanes_n) * self.thread_m
        col = warp % warps_n * self.lanes_n * self.thread_n + lane % self.lanes_n * self.vector
        return row, col

    @cute.jit
    def load(self, mBt: cute.Tensor, k, n, rB: cute.Tensor):
        """Load this thread's columns of one row of B."""
        for f in cutlass.range_constexpr(self.thread_n // self.vector):
            vector = read_vector(mBt, k, n + f * self.lanes_n * self.vector, self.vector, self.whole)
            for v in cutlass.range_constexpr(self.vector):
                rB[f * self.vector + v] = vector[v]

    @cute.jit
    def multiply(self, sA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor, row):
        """Add the products of one column of A and one row of B, in serpentine order: FMAs share operands."""
        rA = cute.make_rmem_tensor(cute.make_layout(self.thread_m), self.element)
        for i in cutlass.range_constexpr(self.thread_m):
            rA[i] = sA[row + i]
        for i in cutlass.range_constexpr(self.thread_m):
            for f in cutlass.range(self.thread_n, unroll_full=True):
                j = self.thread_n - 1 - f if i % 2 else f
                rC[i, j] += rA[i] * rB[j]

    @cute.jit
    def copy(self, mA: cute.Tensor, sA: cute.Tensor, m0, k0):
        """Issue this thread's copies of the k-tile of A at (m0, k0), zeros outside the matrix."""
        tid, _, _ = cute.arch.thread_idx()
        for p in cutlass.range_constexpr(self.tile_m * self.tile_k // self.threads):
            e = tid + p * self.threads
            i, k = e // self.tile_k, e % self.tile_k
            inside = m0 + i < mA.shape[0] and (self.whole or k0 + k < mA.shape[1])
            source = mA.iterator + cute.crd2idx((m0 + i, k0 + k), mA.layout)
            copy_vector_async(sA.iterator + cute.crd2idx((i, k), sA.layout), source, 1, 1 if inside else 0)

    @cute.jit
    def prefetch(self, mBt: cute.Tensor, sPrefetched: cute.Tensor, k0, n0):
        """Prefetch a k-tile of B into the L1 cache: copy an element of each of its sectors, which is not read."""
        tid, _, _ = cute.arch.thread_idx()
        sectors = self.tile_n // SECTOR
        for p in cutlass.range_constexpr(self.prefetched // self.threads):
            e = tid + p * self.threads
            k, n = k0 + e // sectors, n0 + e % sectors * SECTOR
            inside = self.whole or (k < mBt.shape[0] and n < mBt.shape[1])
            source = mBt.iterator + cute.crd2idx((k, n), mBt.layout)
            copy_vector_async(sPrefetched.iterator + e, source, 1, 1 if inside else 0)

    @cute.jit
    def wait(self):
        """Wait until the copies of every thread are in shared memory."""
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    @cute.jit
    def finish(self, mD: cute.Tensor, mC: cute.Tensor, rC: cute.Tensor, m, n, alpha, beta):
        """Write this thread's rows from m on, in its columns."""
        for i in cutlass.range_constexpr(self.thread_m):
            if m + i < mD.shape[0]:
                for f in cutlass.range_constexpr(self.thread_n // self.vector):
                    vector = cute.make_rmem_tensor(cute.make_layout(self.vector), self.element)
                    for v in cutlass.range_constexpr(self.vector):
                        vector[v] = rC[i, f * self.vector + v]
                    write_vector(mD, mC, m + i, n + f * self.lanes_n * self.vector, vector, alpha, beta, self.whole)


buildable = row_major_buildable(BInRegisters)
