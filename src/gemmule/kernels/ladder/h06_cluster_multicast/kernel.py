"""Hopper rung 6: clusters of two CTAs load the columns they share once (multicast).

Idea
    Two CTAs of a cluster compute tiles one below the other, which need the same k-tiles of B. Each loads half of a
    k-tile, and TMA writes it into the shared memory of both (multicast).
Change from the rung before
    Clusters in the scheduler; half k-tiles of B with a mask of receivers; a stage is empty when the consumers of both
    CTAs have released it.
Data movement
    The pair of tiles, 256 x 256: 128 FLOP a byte from L2 instead of 85.
Limits
    Neither CTA can run ahead of the other by more than its stages. The tensor cores still idle while a tile is written.
Sources
    The same; NVIDIA, PTX ISA: clusters, cp.async.bulk.tensor with multicast.
"""

from __future__ import annotations

import functools

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from gemmule.kernels.hopper.mainloops.operands import OperandStages
from gemmule.kernels.hopper.mainloops.pipeline import sync_cluster
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, REGISTERS
from gemmule.kernels.ladder.buildables import tma_buildable
from gemmule.kernels.ladder.hopper_rung_config import CLUSTER, ClusterConfig
from gemmule.kernels.ladder.warpgroup_accumulators import write_accumulators
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type


class ClusterMulticast:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), by TMA."""

    def __init__(self, config: ClusterConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.k_major = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        tile = (self.tile_m, self.tile_n, self.tile_k)
        self.operands = OperandStages(
            tile, (self.element, self.element), self.k_major, config.stages, multicast_size_b=CLUSTER
        )
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.scheduler, self.ctas = PersistentScheduler(self.tile_m, self.tile_n, config.group, CLUSTER), config.ctas

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.kernel(a, b, mC, mD, (alpha, beta)).launch(
            grid=(cutlass.min(self.scheduler.num_tiles(mD) * CLUSTER, self.ctas), 1, 1),
            block=((1 + CONSUMERS) * WARPGROUP, 1, 1),
            cluster=(CLUSTER, 1, 1),
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
                self.mainloop.init(barriers, 1, CONSUMERS * CLUSTER)
            cute.arch.mbarrier_init_fence()
        sync_cluster()

        k_tiles = cute.ceil_div(a.tensor.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(a, b, mD, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            self.consume((mC, mD, scale), smem_ab, barriers, k_tiles, warp // 4 - 1)
        # Stay resident until every remote arrival on our empty barriers is in.
        sync_cluster()

    @cute.jit
    def produce(self, a, b, mD, smem_ab, barriers, k_tiles):
        """Load every k-tile of every tile."""
        load_a = self.operands.load_a(a, smem_ab[0])
        # Each CTA loads a half of B's k-tile, for both.
        row, col = self.scheduler.cta_coord_in_cluster()
        load_b = self.operands.load_b(b, smem_ab[1], row, multicast_ctas_b(self.scheduler, col))
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
        release = functools.partial(release_cluster, self.scheduler)
        state = self.mainloop.consumer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j = self.scheduler.tile_coord(mD, tile_index)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release)
            place = (i * self.tile_m + warpgroup_idx * MMA_M, j * self.tile_n)
            block = (self.tile_n, CONSUMERS * MMA_M)
            write_accumulators((mC if self.reads_c else None, mD), fragments.accumulators, place, block, scale)


buildable = tma_buildable(ClusterMulticast)
