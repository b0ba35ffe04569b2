"""Rung 3: square tiles in shared memory, one element a thread.

Idea
    The threads of a CTA need the same rows of A and columns of B. They load a square tile of each together, into shared
    memory, and each thread reads its operands there: an element that is loaded once is used as often as the tile is
    wide, 32 times.
Change from the rung before
    The loop over K goes in k-tiles: load, barrier, multiply, barrier.
Data movement
    Per k-tile of side 32, 2 * 32 * 32 elements for 2 * 32**3 operations: 8 FLOP a byte of device memory or L2. Shared
    memory: a warp reads 32 contiguous elements of B for each multiply-add, and one element of A, four at a time.
Limits
    Shared memory: 1.25 load instructions for one multiply-add, and a barrier before and after 32 of them.
Sources
    "CUDA C++ Programming Guide", shared memory section.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import SharedTileConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.vectors import read_element, write_element


class SharedTile:
    """D = alpha * A @ B + beta * C for row-major A (M, K), B (N, K), C and D (M, N)."""

    def __init__(self, config: SharedTileConfig, types: dict[str, str]) -> None:
        self.side = config.side
        self.element = cute_type(types["element"])
        self.whole = types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        blocks_m, blocks_n = cute.ceil_div(mD.shape[0], self.side), cute.ceil_div(mD.shape[1], self.side)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(grid=(blocks_n, blocks_m, 1), block=(self.side**2, 1, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tid, _, _ = cute.arch.thread_idx()
        block_n, block_m, _ = cute.arch.block_idx()
        i, j = tid // self.side, tid % self.side
        m, n = block_m * self.side + i, block_n * self.side + j
        smem = SmemAllocator()
        layout = cute.make_layout((self.side, self.side), stride=(self.side, 1))
        sA = smem.allocate_tensor(self.element, layout, 16)
        sB = smem.allocate_tensor(self.element, layout, 16)

        depth = mA.shape[1] if alpha != 0 else 0
        value = self.element(0)
        for k0 in cutlass.range(0, depth, self.side):
            sA[i, j] = read_element(mA, m, k0 + j, self.whole)
            sB[i, j] = read_element(mB, n, k0 + i, self.whole)
            cute.arch.sync_threads()
            for k in cutlass.range_constexpr(self.side):
                value += sA[i, k] * sB[k, j]
            cute.arch.sync_threads()
        if self.whole or (m < mD.shape[0] and n < mD.shape[1]):
            write_element(mD, mC, m, n, value, alpha, beta)


buildable = row_major_buildable(SharedTile)
