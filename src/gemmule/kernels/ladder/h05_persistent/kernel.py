"""Hopper rung 5: persistent CTAs.

Idea
    As many CTAs as there are SMs, each computing tile after tile. While its consumers write one tile, its
    producer already loads k-tiles of the next.
Change from the rung before
    A loop over tiles around both roles; pipeline states go on from tile to tile. Operands, mainloop and scheduler are
    pieces that the rungs from here on share: the loops are those of h04.
Data movement
    As before, but spread over the time in which tiles are written too.
Limits
    K-tiles are loaded early, but the tensor cores still idle while a tile is written. Every CTA loads all of its
    k-tiles for itself.
Sources
    The same; NVIDIA CUTLASS, "Efficient GEMM in CUDA": persistent kernels.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from gemmule.kernels.hopper.mainloops.operands import OperandStages
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, release_local
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, REGISTERS
from gemmule.kernels.ladder.buildables import tma_buildable
from gemmule.kernels.ladder.hopper_rung_config import PersistentConfig
from gemmule.kernels.ladder.warpgroup_accumulators import write_accumulators
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type


class Persistent:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), by TMA."""

    def __init__(self, config: PersistentConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.k_major = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        tile = (self.tile_m, self.tile_n, self.tile_k)
        self.operands = OperandStages(tile, (self.element, self.element), self.k_major, config.stages)
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.scheduler, self.ctas = PersistentScheduler(self.tile_m, self.tile_n, config.group), config.ctas

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.kernel(a, b, mC, mD, (alpha, beta)).launch(
            grid=(cutlass.min(self.scheduler.num_tiles(mD), self.ctas), 1, 1),
            block=((1 + CONSUMERS) * WARPGROUP, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, a, b, mC: cute.Tensor, mD: cute.Tensor, scale):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        if warp == 0:
            cpasync.prefetch_descriptor(a.atom)
            cpasync.prefetch_descriptor(b.atom)
            with cute.arch.elect_one():
                self.mainloop.init(barriers, 1, CONSUMERS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        k_tiles = cute.ceil_div(a.tensor.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(a, b, mD, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            self.consume((mC, mD, scale), smem_ab, barriers, k_tiles, warp // 4 - 1)

    @cute.jit
    def produce(self, a, b, mD, smem_ab, barriers, k_tiles):
        """Load every k-tile of every tile."""
        load_a = self.operands.load_a(a, smem_ab[0])
        load_b = self.operands.load_b(b, smem_ab[1])
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j = self.scheduler.tile_coord(mD, tile_index)
            loads = ((load_a, i), (load_b, j))
            state = self.mainloop.load(loads, (), barriers, state, (0, k_tiles))

    @cute.jit
    def consume(self, result, smem_ab, barriers, k_tiles, warpgroup_idx):
        """Multiply the k-tiles as they arrive, this warpgroup its rows of them, and write those of the tiles."""
        mC, mD, scale = result
        mma = tiled_mma(self.element, self.k_major, cutlass.Float32, CONSUMERS, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, smem_ab, warpgroup_idx, cutlass.Float32)
        state = self.mainloop.consumer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j = self.scheduler.tile_coord(mD, tile_index)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release_local)
            place = (i * self.tile_m + warpgroup_idx * MMA_M, j * self.tile_n)
            block = (self.tile_n, CONSUMERS * MMA_M)
            write_accumulators((mC if self.reads_c else None, mD), fragments.accumulators, place, block, scale)


buildable = tma_buildable(Persistent)
