"""Dot products: results of few elements and a long K, which all threads of a CTA share.

Idea
    A tile of the result has few elements, so each thread accumulates all of them, over every 256th k: its loads are
    those of its neighbours along K. The sums are added in a warp by shuffles, in a CTA through shared memory, and in a
    cluster, whose CTAs take parts of K, through that of the others.
Data movement
    A tile of 4 x 4 loads 8 elements for 16 multiply-adds; each element moves once for each tile that uses it.
Limits
    Memory: loads are of one element, 32 of which are one access where they are contiguous along K.
Sources
    "CUDA C++ Programming Guide", warp shuffles and distributed shared memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.cluster_reduction import sum_in_cluster
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.tensors import cute_type, strided_tensor

from .config import DotConfig

_WARP, _ALIGNMENT = 32, 16


class SimtDot:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), C and D (M, N, L), all of any strides."""

    def __init__(self, config: DotConfig, accumulator: Any) -> None:
        self.config, self.acc = config, accumulator

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        tiles = cute.ceil_div(mD.shape[0], config.tile_m) * cute.ceil_div(mD.shape[1], config.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(tiles * mD.shape[2] * config.cluster_k, 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.cluster_k, 1, 1) if config.cluster_k > 1 else None,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        block, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        cta, rank = block // config.cluster_k, block % config.cluster_k
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], config.tile_m), cute.ceil_div(mD.shape[1], config.tile_n)
        tile, batch = cta % (tiles_m * tiles_n), cta // (tiles_m * tiles_n)
        m0, n0 = tile // tiles_n * config.tile_m, tile % tiles_n * config.tile_n
        elements = cutlass.const_expr(config.tile_elements)
        partials = SmemAllocator().allocate_tensor(self.acc, cute.make_layout((elements, config.warps)), _ALIGNMENT)
        rC = cute.make_rmem_tensor(
            cute.make_layout((config.tile_m, config.tile_n), stride=(config.tile_n, 1)), self.acc
        )
        rC.fill(self.acc(0))
        wait_for_predecessor()

        depth = mA.shape[1] if alpha != 0 else 0
        # CTAs of a cluster take consecutive parts of K.
        part = cute.ceil_div(depth, config.cluster_k)
        first = rank * part
        end = cutlass.min(first + part, depth)
        gA, gB = mA[None, None, batch], mB[None, None, batch]
        rounds = (end - first) // (config.threads * config.unroll) if first < end else Int32(0)
        for i in cutlass.range(rounds, unroll=1):
            k0 = first + i * (config.threads * config.unroll) + tid
            self.multiply(rC, (gA, gB), (m0, n0), k0, config.unroll)
        k = first + rounds * (config.threads * config.unroll) + tid
        while k < end:
            self.multiply(rC, (gA, gB), (m0, n0), k, 1)
            k += config.threads

        values = cute.make_tensor(rC.iterator, cute.make_layout(elements))
        lane, warp = tid % _WARP, tid // _WARP
        for e in cutlass.range_constexpr(elements):
            total = values[e]
            for step in cutlass.range_constexpr(5):
                total = total + cute.arch.shuffle_sync_bfly(total, offset=1 << step)
            if lane == 0:
                partials[e, warp] = total
        cute.arch.sync_threads()
        own = tid if tid < elements else Int32(0)
        total = partials[own, 0]
        for other in cutlass.range_constexpr(1, config.warps):
            total = total + partials[own, other]
        if cutlass.const_expr(config.cluster_k > 1):
            cute.arch.sync_threads()
            if tid < elements:
                partials[own, 0] = total
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            address = (partials.iterator + own).toint()
            total = sum_in_cluster(address, self.acc, 1, config.cluster_k)[0]
            # A CTA's shared memory must outlive the others' reads.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        row, col = m0 + own // config.tile_n, n0 + own % config.tile_n
        if rank == 0 and tid < elements and row < mD.shape[0] and col < mD.shape[1]:
            value = alpha * total
            if beta != 0:
                value += beta * mC[row, col, batch].to(self.acc)
            mD[row, col, batch] = value.to(mD.element_type)

    @cute.jit
    def multiply(self, rC: cute.Tensor, factors, corner, k0, count: cutlass.Constexpr[int]):
        """Add the products of `count` k from `k0` on, as many apart as a CTA has threads."""
        config, sides = self.config, cutlass.const_expr((self.config.tile_m, self.config.tile_n))
        found = []
        for x in cutlass.range_constexpr(2):
            gX, side = factors[x], sides[x]
            rX = cute.make_rmem_tensor(cute.make_layout((side, count)), gX.element_type)
            for u in cutlass.range_constexpr(count):
                for i in cutlass.range_constexpr(side):
                    # Rows beyond the last are the last again, whose products are not written.
                    row = cutlass.min(corner[x] + i, gX.shape[0] - 1)
                    rX[i, u] = gX[row, k0 + u * config.threads]
            found.append(rX)
        rA, rB = found
        for u in cutlass.range_constexpr(count):
            for i in cutlass.range_constexpr(config.tile_m):
                for j in cutlass.range_constexpr(config.tile_n):
                    rC[i, j] += rA[i, u].to(self.acc) * rB[j, u].to(self.acc)


def buildable(config: DotConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with fake arguments."""
    operands = [strided_tensor(types[name]) for name in "abcd"]
    accumulator = cute_type(types["acc"])
    return Buildable(SimtDot(config, accumulator), (*operands, accumulator(1), accumulator(0)))
