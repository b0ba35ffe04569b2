"""Hopper rung 8: ping-pong, two warpgroups alternate at the tensor cores.

Idea
    Each consumer warpgroup has tiles of its own. While one multiplies, the other writes its tile, and named barriers
    keep their order: the tensor cores have the next tile at once.
Change from the rung before
    Every other tile for each warpgroup, the k-tiles of the tiles between skipped, two barriers for the order. A tile is
    the work of one warpgroup, so it is smaller.
Data movement
    The pair of tiles, 256 x 128: 85 FLOP a byte from L2 for 16-bit types, where a pair of 128 x 256 had 128.
Limits
    Power, and how the tiles of the last wave fill the SMs.
Sources
    The same; NVIDIA CUTLASS, "Efficient GEMM in CUDA": ping-pong schedule.
"""

from __future__ import annotations

import functools

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from gemmule.kernels.hopper.epilogues.context import EpilogueContext
from gemmule.kernels.hopper.epilogues.epi_tile_layout import EpiTileLayout
from gemmule.kernels.hopper.epilogues.linear_combination import LinearCombination
from gemmule.kernels.hopper.mainloops.operands import OperandStages, flat
from gemmule.kernels.hopper.mainloops.pipeline import sync_cluster
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, EPI_TILE_N, K_BYTES, MMA_M, REGISTERS
from gemmule.kernels.ladder.buildables import tma_buildable
from gemmule.kernels.ladder.hopper_rung_config import CLUSTER, EPI_STAGES, PingpongConfig
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type

# Named barriers for the order of the warpgroups; 1 and 2 are those of their epilogues.
_ORDER = 3


class Pingpong:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), by TMA."""

    def __init__(self, config: PingpongConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.k_major = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        tile = (self.tile_m, self.tile_n, self.tile_k)
        self.operands = OperandStages(
            tile, (self.element, self.element), self.k_major, config.stages, multicast_size_b=CLUSTER
        )
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes, pingpong=True, order_barrier=_ORDER)
        self.scheduler, self.ctas = PersistentScheduler(self.tile_m, self.tile_n, config.group, CLUSTER), config.ctas
        mma_tiles_m, epi_tiles_n = self.tile_m // MMA_M, self.tile_n // EPI_TILE_N
        shape = (EPI_TILE_M, EPI_TILE_N)
        self.epi_layout = EpiTileLayout(
            self.element, shape, mma_tiles_m, epi_tiles_n, 1, EPI_STAGES, reads_c=self.reads_c
        )
        self.epilogue = LinearCombination(self.epi_layout)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        c, d = self.epi_layout.tma_load(mC), self.epi_layout.tma_store(mD)
        self.kernel(a, b, c, d, (alpha, beta)).launch(
            grid=(cutlass.min(self.scheduler.num_tiles(mD) * CLUSTER, self.ctas), 1, 1),
            block=((1 + CONSUMERS) * WARPGROUP, 1, 1),
            cluster=(CLUSTER, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, a, b, c, d, scale):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        c_full = self.epi_layout.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        epi_smem = self.epi_layout.allocate(smem)
        if warp == 0:
            cpasync.prefetch_descriptor(a.atom)
            cpasync.prefetch_descriptor(b.atom)
            cpasync.prefetch_descriptor(d.atom)
            with cute.arch.elect_one():
                self.mainloop.init(barriers, 1, CLUSTER)
                self.epi_layout.init(c_full)
            cute.arch.mbarrier_init_fence()
        sync_cluster()

        k_tiles = cute.ceil_div(a.tensor.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(a, b, d.tensor, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            idx = warp // 4 - 1
            ctx = EpilogueContext(c, d, epi_smem, c_full, scale, idx, 1 + idx)
            self.consume(ctx, smem_ab, barriers, k_tiles)
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
    def consume(self, ctx, smem_ab, barriers, k_tiles):
        """Multiply the k-tiles of this warpgroup's tiles as they arrive, and write the tiles."""
        warpgroup_idx, mD, c_phase = ctx.warpgroup_idx, ctx.d.tensor, Int32(0)
        mma = tiled_mma(self.element, self.k_major, cutlass.Float32, 1, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, smem_ab, 0, cutlass.Float32)
        release = functools.partial(release_cluster, self.scheduler)
        # Every other tile; the k-tiles of those between pass by.
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, mD, k_tiles, warpgroup_idx)
        for tile_index in cutlass.range(start, end, stride):
            i, j = self.scheduler.tile_coord(mD, tile_index)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release)
            state = self.mainloop.advance_by(state, k_tiles)
            row, col = i * (self.tile_m // EPI_TILE_M), j * (self.tile_n // EPI_TILE_N)
            c_phase = self.epilogue.store_tile(ctx, c_phase, flat(fragments.accumulators), (row, col, ()))
        self.epi_layout.end()


buildable = tma_buildable(Pingpong)
