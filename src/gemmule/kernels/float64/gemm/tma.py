"""The float64 GEMM by TMA: a producer warp loads k-tiles, other warps multiply them by mma.sync; CTAs are persistent.

Power limits large products of float64, so that instructions and bytes count. TMA needs no instructions of the warps
that multiply, which have registers for fragments of 16 k: half of the reads and writes of accumulators that products of
8 k need. Tiles, stream-K and the order of sums are those of stream_k.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float64, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.tma.epilogue import TmaEpilogue
from gemmule.kernels.float64.tma.mainloop import TmaMainloop
from gemmule.kernels.hopper.mainloops.operands import OperandStages
from gemmule.kernels.hopper.tile_config import REGISTERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.schedulers.persistent import KTileRange

from .shared_tiles import SharedTiles, SharedTileScheduler

#: Named barrier of the first warpgroup.
_BARRIER = 1


class _Warpgroup(NamedTuple):
    """A warpgroup of consumers, and its named barrier."""

    warpgroup_idx: Any
    barrier_id: Any


class TmaFloat64Gemm:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    operands: Any
    mainloop: Any
    epilogue: Any

    def __init__(self, config: Float64Config, types: dict[str, str]) -> None:
        k_major = types["a_major"] == "k", types["b_major"] == "k"
        self.threads, self.warps = config.threads, config.threads // 32
        tile = config.tile_m, config.tile_n, config.tile_k
        self.operands = OperandStages(tile, (Float64, Float64), k_major, config.stages)
        self.mainloop = TmaMainloop(config, k_major)
        self.epilogue = TmaEpilogue(
            int(types["d_vector"]), types["tiles"] == "whole", True, self.mainloop.stageA, self.mainloop.stageB
        )
        self.shares = SharedTileScheduler(config.threads // WARPGROUP, config.tile_m, config.tile_n, config.group)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.kernel((a, b), (mC, mD), (alpha, beta), first).launch(
            grid=(1, 1, 1), block=(self.threads + WARPGROUP, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, operands, results, factors, first):
        wait_for_predecessor()
        self.compute_tiles(operands, results, factors, first)

    @cute.jit
    def compute_tiles(self, operands, results, factors, first):
        """Compute this CTA's tiles, and its parts of others; `first` are the workspaces and `SharedTiles`."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        self.mainloop.prologue(warp, operands, barriers, self.warps, waits=False)
        tiles = SharedTiles(*first[2:])
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(operands, smem_ab, barriers, tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            self.consume(results, smem_ab, barriers, factors, (first[:2], tiles), warp - 4)

    @cute.jit
    def produce(self, operands, smem_ab, barriers, tiles):
        """Load the k-tiles of this CTA's tiles, and one more, whose fragments consumers read and do not multiply."""
        load_a, load_b = self.operands.load_a(operands[0], smem_ab[0]), self.operands.load_b(operands[1], smem_ab[1])
        every = KTileRange(0, tiles.k_tiles)
        state = self.mainloop.producer_state()
        start, stride, end = self.shares.work(tiles, tiles.k_tiles)
        for work_index in cutlass.range(start, end, stride, unroll=1):
            (i, j, batch), k_range = self.shares.work_tile(tiles, work_index, every)
            count = k_range.num_k_tiles + (1 if work_index + stride >= end else 0)
            loads = (load_a, i), (load_b, j)
            state = self.mainloop.load(loads, (batch,), barriers, state, KTileRange(k_range.start, count))

    @cute.jit
    def consume(self, results, smem_ab, barriers, factors, shared, warp):
        """Multiply and write this CTA's tiles, and its parts of others."""
        (mC, mD), (workspaces, tiles) = results, shared
        corner = self.mainloop.corner_of(warp)
        tile = self.mainloop.begin(smem_ab, corner)
        warpgroup = warp // (WARPGROUP // 32)
        ctx = _Warpgroup(warpgroup, _BARRIER + warpgroup)
        every = KTileRange(0, tiles.k_tiles)
        place = self.mainloop.first_place()
        start, stride, end = self.shares.work(tiles, tiles.k_tiles)
        if start < end:
            self.mainloop.read_first(tile, barriers, place)
        for work_index in cutlass.range(start, end, stride, unroll=1):
            coord, k_range = self.shares.work_tile(tiles, work_index, every)
            tile.accumulators.fill(Float64(0))
            place = self.mainloop.multiply_k_tiles(tile, barriers, place, k_range.num_k_tiles)
            flat = cute.make_tensor(tile.accumulators.iterator, cute.make_layout(cute.size(tile.accumulators)))
            if self.shares.fixup(workspaces, flat, tiles, k_range, tiles.k_tiles, ctx):
                first = coord[0] * self.mainloop.tile_m + corner[0], coord[1] * self.mainloop.tile_n + corner[1]
                gC, gD = mC[None, None, coord[2]], mD[None, None, coord[2]]
                self.write_tile((gD, gC), tile.accumulators, first, factors)

    @cute.jit
    def write_tile(self, results, accumulators: cute.Tensor, first, factors):
        """Write a warp tile that begins at `first`; `results` are D and C, `factors` alpha and beta."""
        self.epilogue.write(*results, accumulators, *first, *factors)
