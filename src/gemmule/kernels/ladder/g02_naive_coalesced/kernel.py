"""Rung 2: one thread an element, consecutive threads along a row of C.

Idea
    The same dot product a thread, but a warp is 32 contiguous elements of a row: the fast index of the threads is the
    fast index of C.
Change from the rung before
    The element of a thread: two lines, and the order of the CTAs.
Data movement
    Each multiply-add still loads two elements. A warp of the 32 x 32 block reads one element of A, 32
    contiguous ones of B and writes 32 of C: 5 sectors for 32 multiply-adds, 0.4 FLOP a byte of the sectors. In a
    block of 16 x 16 a warp is 2 rows of 16: 4 sectors.
Limits
    The load units: two load instructions for one multiply-add.
Sources
    The coalescing step of Simon Boehm's "How to Optimize a CUDA Matmul Kernel".
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import ThreadBlockConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.vectors import write_element


class NaiveCoalesced:
    """D = alpha * A @ B + beta * C for row-major A (M, K), B (N, K), C and D (M, N)."""

    def __init__(self, config: ThreadBlockConfig, types: dict[str, str]) -> None:
        self.block_m, self.block_n = config.block_m, config.block_n
        self.element = cute_type(types["element"])
        self.whole = types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        blocks_m, blocks_n = cute.ceil_div(mD.shape[0], self.block_m), cute.ceil_div(mD.shape[1], self.block_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(blocks_n, blocks_m, 1), block=(self.block_m * self.block_n, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tid, _, _ = cute.arch.thread_idx()
        block_n, block_m, _ = cute.arch.block_idx()
        m = block_m * self.block_m + tid // self.block_n
        n = block_n * self.block_n + tid % self.block_n
        depth = mA.shape[1] if alpha != 0 else 0
        if self.whole or (m < mD.shape[0] and n < mD.shape[1]):
            value = self.element(0)
            for k in cutlass.range(depth, unroll=8):
                value += mA[m, k] * mB[n, k]
            write_element(mD, mC, m, n, value, alpha, beta)


buildable = row_major_buildable(NaiveCoalesced)
