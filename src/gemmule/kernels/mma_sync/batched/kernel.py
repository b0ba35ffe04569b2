"""Small matrices of a batch on tensor cores: a warp for each tile, fed from device memory.

Idea
    Matrices of a few rows and columns are bound by memory and by launches. A warp computes a tile that may cover a
    whole matrix, without shared memory or barriers: lanes load what their fragments of mma.sync need, any strides, and
    write their accumulators. An SM has dozens of such warps, which hide each other's latency.
Change from mma_sync_small
    A warp for each matrix instead of a CTA of 256 threads with tiles of 32 x 32; no stages.
Data movement
    Each element of A, B and D moves once where a tile covers the matrix: 1.5 KB for 16 x 16 x 16. Vectors lie along the
    contiguous mode, since rows, columns and K are permuted to what a lane has.
Limits
    Device memory; instructions where lines begin anywhere, as loads have one element then; L1 where a matrix has
    several tiles, which load its lines again.
Sources
    PTX ISA: fragments of mma.sync.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.mma_sync.warp_tiles import vector_at
from gemmule.kernels.parts.mma_sync import mma_name, mma_sync
from gemmule.kernels.parts.pdl import launch_dependents, wait_for_predecessor
from gemmule.kernels.parts.tensors import strided_tensor

from .config import MMA_K, BatchedMmaConfig
from .fragments import LaneLoads

#: Accumulators of a lane for an mma.sync; bytes of the K of one, and k of a lane.
_SUMS, _K_BYTES, _LANE_K = 4, 32, 4
#: Lanes along the rows of A, and along the columns of B, of a fragment.
_LANES = 8


class MmaSyncBatched:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), C and D (M, N, L), all of any strides."""

    def __init__(self, config: BatchedMmaConfig, types: dict[str, str]) -> None:
        self.config = config
        self.vector = min(int(types["d_vector"]), 2 * config.columns)
        self.loads_a = LaneLoads(config.rows, types["a_major"] == "k", int(types["a_copies"]))
        self.loads_b = LaneLoads(config.columns, types["b_major"] == "k", int(types["b_copies"]))
        # Vectors along K need consecutive k in a lane; others along M or N, and those of D, rows or columns.
        along_k = any(loads.k_major and loads.vector > 1 for loads in (self.loads_a, self.loads_b))
        k_stride = 1 if along_k else _LANE_K
        self.stride_m, self.stride_n = (
            1 if vector > 1 or (loads.vector > 1 and not loads.k_major) else _LANES
            for loads, vector in ((self.loads_a, 1), (self.loads_b, self.vector))
        )
        self.loads_a, self.loads_b = (
            dataclasses.replace(loads, stride=stride, k_stride=k_stride)
            for loads, stride in ((self.loads_a, self.stride_m), (self.loads_b, self.stride_n))
        )
        self.first_k = _LANE_K // k_stride
        self.mma = mma_name(types["a"], types["acc"], _K_BYTES)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        tiles = cute.ceil_div(mD.shape[0], config.tile_m) * cute.ceil_div(mD.shape[1], config.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(cute.ceil_div(tiles * mD.shape[2], config.warps), 1, 1), block=(config.threads, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        block, _, _ = cute.arch.block_idx()
        lane, warp = cute.arch.lane_idx(), cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], config.tile_m), cute.ceil_div(mD.shape[1], config.tile_n)
        number, tiles = Uint32(block * config.warps + warp), Uint32(tiles_m * tiles_n)
        matrix = Int32(number // tiles)
        tile = number % tiles
        m0, n0 = Int32(tile // Uint32(tiles_n)) * config.tile_m, Int32(tile % Uint32(tiles_n)) * config.tile_n
        rC = cute.make_rmem_tensor(cute.make_layout((_SUMS, config.rows // 2, config.columns)), Float32)
        rC.fill(0)
        wait_for_predecessor()
        launch_dependents()
        if matrix < mD.shape[2]:
            depth = mA.shape[1] if alpha != 0 else Int32(0)
            # The first row and column of this lane, of as many as its loads have.
            row, col = (
                first + lane // 4 * (lines if cutlass.const_expr(stride == 1) else 1)
                for first, lines, stride in ((m0, config.rows, self.stride_m), (n0, config.columns, self.stride_n))
            )
            gA, gB = mA[None, None, matrix], mB[None, None, matrix]
            self.multiply(rC, (gA, gB), (row, col), depth)
            # The columns of two lanes of B.
            place = row, n0 + lane % 4 * (2 * (config.columns if cutlass.const_expr(self.stride_n == 1) else 1))
            self.write(mD[None, None, matrix], mC[None, None, matrix], rC, place, (alpha, beta))

    @cute.jit
    def multiply(self, rC: cute.Tensor, factors, lines, depth):
        """Add the products of all k; `lines` are this lane's first row and column."""
        config = self.config
        sources_a = self.loads_a.sources(factors[0], lines[0], depth)
        sources_b = self.loads_b.sources(factors[1], lines[1], depth)
        step_a, step_b = (Int64(gX.stride[1]) * (gX.element_type.width // 8) for gX in factors)
        first = cute.arch.lane_idx() % 4 * self.first_k
        for k0 in cutlass.range(0, depth, MMA_K * config.unroll, unroll=1):
            loaded: list[Any] = []
            for number in cutlass.range_constexpr(config.unroll):
                k = k0 + number * MMA_K + first
                loaded.append((self.loads_a.step(sources_a, step_a, k), self.loads_b.step(sources_b, step_b, k)))
            for number in cutlass.range_constexpr(config.unroll):
                a, b = loaded[number]
                for i in cutlass.range_constexpr(config.rows // 2):
                    upper, lower = a[2 * i], a[2 * i + 1]
                    for j in cutlass.range_constexpr(config.columns):
                        mma_sync(self.mma, rC[None, i, j], (upper[0], lower[0], upper[1], lower[1]), b[j])

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, place, scalars):
        """Write alpha times the sums plus beta * C, read only where beta is not 0, from a row and column on."""
        config, (alpha, beta), vector = self.config, scalars, cutlass.const_expr(self.vector)
        for r in cutlass.range_constexpr(config.rows):
            for first in cutlass.range_constexpr(0, 2 * config.columns, vector):
                half, j = cutlass.const_expr(divmod(first, config.columns))
                apart = cutlass.const_expr(first if self.stride_n == 1 else half + j * self.stride_n)
                row, col = place[0] + r * self.stride_m, place[1] + apart
                if row < gD.shape[0] and col < gD.shape[1]:
                    values = cute.make_rmem_tensor(cute.make_layout(vector), Float32)
                    for v in cutlass.range_constexpr(vector):
                        # Columns of the first of an mma.sync's pairs, then those of the second.
                        half, j = cutlass.const_expr(divmod(first + v, config.columns))
                        values[v] = alpha * rC[half + 2 * (r % 2), r // 2, j]
                    if beta != 0:
                        for v in cutlass.range_constexpr(vector):
                            values[v] += beta * gC[row, col + v].to(Float32)
                    vector_at(gD, (row, col), vector).store(values.load().to(gD.element_type))


def buildable(config: BatchedMmaConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    operands = [strided_tensor(types[name]) for name in "abcd"]
    return Buildable(MmaSyncBatched(config, types), (*operands, Float32(1), Float32(0)))
