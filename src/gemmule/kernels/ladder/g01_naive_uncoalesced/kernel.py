"""Rung 1: one thread an element, consecutive threads in different rows.

Idea
    A thread computes one element of C: it reads a row of A and a column of B, with the accumulator in a register. The
    first index of a thread is the first index of C, which looks natural: thread 1 computes the row below thread 0.
Data movement
    Each multiply-add loads two elements: 0.25 FLOP a byte. A warp is 32 rows of one column: it reads 32 rows of A,
    32 sectors for 128 bytes, one element of B, and writes C into 32 rows.
Limits
    The load units: 33 sectors for every 32 multiply-adds. A sector of A holds 8 consecutive k, so most of
    these loads hit the L1 cache, as long as 32 rows of every warp fit.
Sources
    The kernel that Simon Boehm's "How to Optimize a CUDA Matmul Kernel" and many courses begin with.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.kernels.ladder.buildables import row_major_buildable
from gemmule.kernels.ladder.row_major_rung_config import ThreadBlockConfig
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.simt.vectors import write_element


class NaiveUncoalesced:
    """D = alpha * A @ B + beta * C for row-major A (M, K), B (N, K), C and D (M, N)."""

    def __init__(self, config: ThreadBlockConfig, types: dict[str, str]) -> None:
        self.block_m, self.block_n = config.block_m, config.block_n
        self.element = cute_type(types["element"])
        self.whole = types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        blocks_m, blocks_n = cute.ceil_div(mD.shape[0], self.block_m), cute.ceil_div(mD.shape[1], self.block_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(blocks_m, blocks_n, 1), block=(self.block_m * self.block_n, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tid, _, _ = cute.arch.thread_idx()
        block_m, block_n, _ = cute.arch.block_idx()
        m = block_m * self.block_m + tid % self.block_m
        n = block_n * self.block_n + tid // self.block_m
        depth = mA.shape[1] if alpha != 0 else 0
        if self.whole or (m < mD.shape[0] and n < mD.shape[1]):
            value = self.element(0)
            for k in cutlass.range(depth, unroll=8):
                value += mA[m, k] * mB[n, k]
            write_element(mD, mC, m, n, value, alpha, beta)


buildable = row_major_buildable(NaiveUncoalesced)
