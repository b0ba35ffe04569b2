"""Double precision, rung 1: k-tiles of A and B in shared memory, accumulators in registers.

Idea
    The common tiling: a CTA computes a tile of C whose accumulators stay in registers, in k-tiles of 16, those of A and
    of B in shared memory. A thread owns rows and columns spread over the tile: a warp reads contiguous elements.
Data movement
    The tile of 32 x 64: per k-tile (32 + 64) * 16 elements of 8 bytes for 2 * 32 * 64 * 16 operations, 5.3 FLOP a byte,
    12,288 bytes of shared memory. A thread reads 5 values for 4 multiply-adds. The tile of 64 x 128: 10.7 FLOP a byte,
    and 16 values for 64 multiply-adds.
Limits
    Shared memory: a warp's read of B is 256 bytes, two passes, for 4 multiply-adds a thread. Loads are not hidden.
Sources
    Liang, Ren, Guo and Liu, "Design and Implementation of Matrix Multiplication on GPU", section 3.1.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import ThreadTileConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.vectors import read_element, write_element


class SharedAB:
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
        tid, _, _ = cute.arch.thread_idx()
        tile_n, tile_m, _ = cute.arch.block_idx()
        m0, n0 = tile_m * self.tile_m, tile_n * self.tile_n
        threads_m, threads_n = self.tile_m // self.thread_m, self.tile_n // self.thread_n
        row, col = tid // threads_n, tid % threads_n
        smem = SmemAllocator()
        sA = smem.allocate_tensor(
            self.element, cute.make_layout((self.tile_m, self.tile_k), stride=(self.tile_k, 1)), 16
        )
        sB = smem.allocate_tensor(
            self.element, cute.make_layout((self.tile_n, self.tile_k), stride=(1, self.tile_n)), 16
        )
        rC = cute.make_rmem_tensor(cute.make_layout((self.thread_m, self.thread_n)), self.element)
        rC.fill(self.element(0))

        depth = mA.shape[1] if alpha != 0 else 0
        for k0 in cutlass.range(0, depth, self.tile_k):
            for p in cutlass.range_constexpr(self.tile_m * self.tile_k // self.threads):
                e = tid + p * self.threads
                i, k = e // self.tile_k, e % self.tile_k
                sA[i, k] = read_element(mA, m0 + i, k0 + k, self.whole)
            for p in cutlass.range_constexpr(self.tile_n * self.tile_k // self.threads):
                e = tid + p * self.threads
                j, k = e % self.tile_n, e // self.tile_n
                sB[j, k] = read_element(mB, n0 + j, k0 + k, self.whole)
            cute.arch.sync_threads()
            for k in cutlass.range_constexpr(self.tile_k):
                for i in cutlass.range_constexpr(self.thread_m):
                    for j in cutlass.range_constexpr(self.thread_n):
                        rC[i, j] += sA[row + i * threads_m, k] * sB[col + j * threads_n, k]
            cute.arch.sync_threads()
        for i in cutlass.range_constexpr(self.thread_m):
            for j in cutlass.range_constexpr(self.thread_n):
                m, n = m0 + row + i * threads_m, n0 + col + j * threads_n
                if self.whole or (m < mD.shape[0] and n < mD.shape[1]):
                    write_element(mD, mC, m, n, rC[i, j], alpha, beta)


buildable = row_major_buildable(SharedAB)
