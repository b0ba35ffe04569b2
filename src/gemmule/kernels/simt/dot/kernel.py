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
from gemmule.kernels.parts.complex_parts import fake_scalars, is_used, pair_at, scaled
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.tensors import PARTS, cute_type, strided_tensor

from .config import DotConfig

_WARP, _ALIGNMENT = 32, 16


class SimtDot:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), C and D (M, N, L), all of any strides.

    Complex elements are pairs of parts in registers, and complex scalars pairs.
    """

    def __init__(self, config: DotConfig, types: dict[str, str]) -> None:
        acc = types["acc"]
        self.config, self.parts = config, 2 if acc in PARTS else 1
        # Type of the accumulators, or of the parts of complex ones.
        self.acc: Any = cute_type(PARTS.get(acc, acc))
        conj = types.get("conj", "")
        self.signs = tuple(-1 if name in conj else 1 for name in "ab") if conj != "no" else (1, 1)

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
        parts, elements = cutlass.const_expr(self.parts), cutlass.const_expr(config.tile_elements)
        numbers = cutlass.const_expr(parts * elements)
        partials = SmemAllocator().allocate_tensor(self.acc, cute.make_layout((numbers, config.warps)), _ALIGNMENT)
        rC = cute.make_rmem_tensor(
            cute.make_layout((parts, config.tile_m, config.tile_n), stride=(1, parts * config.tile_n, parts)), self.acc
        )
        rC.fill(self.acc(0))
        wait_for_predecessor()

        used = is_used(alpha) if cutlass.const_expr(parts > 1) else alpha
        depth = mA.shape[1] if used != 0 else 0
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

        values = cute.make_tensor(rC.iterator, cute.make_layout(numbers))
        lane, warp = tid % _WARP, tid // _WARP
        for e in cutlass.range_constexpr(numbers):
            total = values[e]
            for step in cutlass.range_constexpr(5):
                total = total + cute.arch.shuffle_sync_bfly(total, offset=1 << step)
            if lane == 0:
                partials[e, warp] = total
        cute.arch.sync_threads()
        own = tid if tid < elements else Int32(0)
        rD = cute.make_rmem_tensor(cute.make_layout(parts), self.acc)
        for p in cutlass.range_constexpr(parts):
            rD[p] = partials[parts * own + p, 0]
            for other in cutlass.range_constexpr(1, config.warps):
                rD[p] = rD[p] + partials[parts * own + p, other]
        if cutlass.const_expr(config.cluster_k > 1):
            cute.arch.sync_threads()
            if tid < elements:
                for p in cutlass.range_constexpr(parts):
                    partials[parts * own + p, 0] = rD[p]
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            address = (partials.iterator + parts * own).toint()
            rD.store(sum_in_cluster(address, self.acc, parts, config.cluster_k))
            # A CTA's shared memory must outlive the others' reads.
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        row, col = m0 + own // config.tile_n, n0 + own % config.tile_n
        if rank == 0 and tid < elements and row < mD.shape[0] and col < mD.shape[1]:
            self.write(mD, mC, rD, (row, col, batch), (alpha, beta))

    @cute.jit
    def write(self, mD: cute.Tensor, mC: cute.Tensor, rD: cute.Tensor, place, scalars):
        """Write an element, alpha times a sum plus beta * C, which is read only where beta is not 0."""
        alpha, beta = scalars
        if cutlass.const_expr(self.parts > 1):
            rD[0], rD[1] = scaled(alpha, rD[0], rD[1])
            if is_used(beta) != 0:
                addend = pair_at(mC, place, self.acc)
                more = scaled(beta, addend[0], addend[1])
                rD[0], rD[1] = rD[0] + more[0], rD[1] + more[1]
            cute.autovec_copy(rD, pair_at(mD, place, self.acc))
        else:
            value = alpha * rD[0]
            if beta != 0:
                value += beta * mC[place].to(self.acc)
            mD[place] = value.to(mD.element_type)

    @cute.jit
    def multiply(self, rC: cute.Tensor, factors, corner, k0, count: cutlass.Constexpr[int]):
        """Add the products of `count` k from `k0` on, as many apart as a CTA has threads."""
        config, sides = self.config, cutlass.const_expr((self.config.tile_m, self.config.tile_n))
        found = []
        for x in cutlass.range_constexpr(2):
            gX, side = factors[x], sides[x]
            kind = self.acc if cutlass.const_expr(self.parts > 1) else gX.element_type
            rX = cute.make_rmem_tensor(cute.make_layout((self.parts, side, count)), kind)
            for u in cutlass.range_constexpr(count):
                for i in cutlass.range_constexpr(side):
                    # Rows beyond the last are the last again, whose products are not written.
                    place = cutlass.min(corner[x] + i, gX.shape[0] - 1), k0 + u * config.threads
                    if cutlass.const_expr(self.parts > 1):
                        cute.autovec_copy(pair_at(gX, place, self.acc), rX[None, i, u])
                    else:
                        rX[0, i, u] = gX[place]
            found.append(rX)
        rA, rB = found
        for u in cutlass.range_constexpr(count):
            for i in cutlass.range_constexpr(config.tile_m):
                for j in cutlass.range_constexpr(config.tile_n):
                    self.add_product(rC[None, i, j], rA[None, i, u], rB[None, j, u])

    @cute.jit
    def add_product(self, total: cute.Tensor, a: cute.Tensor, b: cute.Tensor):
        """Add the product of two elements, by their parts."""
        if cutlass.const_expr(self.parts > 1):
            sign_a, sign_b = cutlass.const_expr(self.signs[0]), cutlass.const_expr(self.signs[1])
            total[0] += a[0] * b[0]
            total[0] -= self.acc(sign_a * sign_b) * a[1] * b[1]
            total[1] += self.acc(sign_b) * a[0] * b[1]
            total[1] += self.acc(sign_a) * a[1] * b[0]
        else:
            total[0] += a[0].to(self.acc) * b[0].to(self.acc)


def buildable(config: DotConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with fake arguments."""
    operands = [strided_tensor(types[name]) for name in "abcd"]
    kernel = SimtDot(config, types)
    scalars = fake_scalars(kernel.acc) if kernel.parts > 1 else (kernel.acc(1), kernel.acc(0))
    return Buildable(kernel, (*operands, *scalars))
