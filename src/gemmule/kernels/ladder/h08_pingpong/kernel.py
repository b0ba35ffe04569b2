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
    Power, and how the tiles of the last wave fill the multiprocessors.
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
from gemmule.kernels.hopper.epilogues.linear_combination import LinearCombination
from gemmule.kernels.hopper.mainloops.operands import OperandStages, flat
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.schedulers.persistent import PersistentScheduler
from gemmule.kernels.hopper.tile_config import BOX_M, BOX_N, CONSUMERS, K_BYTES, MMA_M, WARPGROUP
from gemmule.kernels.ladder.buildables import tma_buildable
from gemmule.kernels.ladder.hopper_rung_config import BUFFERS, CLUSTER, PingpongConfig
from gemmule.kernels.parts.tensors import cute_type

# Registers of a thread: the producer warpgroup gives up what the consumers need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers for the order of the warpgroups; 1 and 2 are those of their epilogues.
_ORDER = 3


class Pingpong:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), by TMA."""

    def __init__(self, config: PingpongConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        tile = (self.tile_m, self.tile_n, self.tile_k)
        self.operands = OperandStages(tile, (self.element, self.element), self.along_k, config.stages, ctas_b=CLUSTER)
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes, pingpong=True, order_barrier=_ORDER)
        self.scheduler, self.ctas = PersistentScheduler(self.tile_m, self.tile_n, config.group, CLUSTER), config.ctas
        blocks, subtiles = self.tile_m // MMA_M, self.tile_n // BOX_N
        self.epilogue = LinearCombination(
            self.element, (BOX_M, BOX_N), blocks, subtiles, 1, BUFFERS, reads_c=self.reads_c
        )

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        c, d = self.epilogue.tma_load(mC), self.epilogue.tma_store(mD)
        self.kernel(a, b, c, d, (alpha, beta)).launch(
            grid=(cutlass.min(self.scheduler.count(mD) * CLUSTER, self.ctas), 1, 1),
            block=((1 + CONSUMERS) * WARPGROUP, 1, 1),
            cluster=(CLUSTER, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, a, b, c, d, scale):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        c_full = self.epilogue.barriers(smem)
        stages = self.operands.allocate(smem)
        epilogue_tiles = self.epilogue.allocate(smem)
        if warp == 0:
            cpasync.prefetch_descriptor(a.atom)
            cpasync.prefetch_descriptor(b.atom)
            cpasync.prefetch_descriptor(d.atom)
            with cute.arch.elect_one():
                self.mainloop.init(barriers, 1, CLUSTER)
                self.epilogue.init(c_full)
            cute.arch.mbarrier_init_fence()
        self.sync_cluster()

        k_tiles = cute.ceil_div(a.tensor.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(a, b, d.tensor, stages, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            idx = warp // 4 - 1
            ctx = EpilogueContext(c, d, epilogue_tiles, c_full, scale, idx, 1 + idx)
            self.consume(ctx, stages, barriers, k_tiles)
        # Stay resident until every remote arrival on our empty barriers is in.
        self.sync_cluster()

    @cute.jit
    def sync_cluster(self):
        """Wait for the whole cluster."""
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    @cute.jit
    def produce(self, a, b, mD, stages, barriers, k_tiles):
        """Load every k-tile of every tile."""
        load_a = self.operands.load_a(a, stages[0])
        # Each CTA loads a half of B's k-tile, for both.
        row, col = self.scheduler.rank()
        load_b = self.operands.load_b(b, stages[1], row, multicast_b(self.scheduler, col))
        state = self.mainloop.producer_state()
        first, step, tiles = self.scheduler.work(mD, k_tiles)
        for number in cutlass.range(first, tiles, step):
            i, j = self.scheduler.tile(mD, number)
            loads = ((load_a, i), (load_b, j))
            state = self.mainloop.load(loads, (), barriers, state, (0, k_tiles))

    @cute.jit
    def consume(self, ctx, stages, barriers, k_tiles):
        """Multiply the k-tiles of this warpgroup's tiles as they arrive, and write the tiles."""
        warpgroup_idx, mD, c_phase = ctx.warpgroup_idx, ctx.d.tensor, Int32(0)
        mma = tiled_mma(self.element, self.along_k, cutlass.Float32, 1, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, stages, 0, cutlass.Float32)
        release = functools.partial(release_cluster, self.scheduler)
        # Every other tile; the k-tiles of those between pass by.
        state, first, step, tiles = self.mainloop.consumer_work(self.scheduler, mD, k_tiles, warpgroup_idx)
        for number in cutlass.range(first, tiles, step):
            i, j = self.scheduler.tile(mD, number)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release)
            state = self.mainloop.skip(state, k_tiles)
            row, col = i * (self.tile_m // BOX_M), j * (self.tile_n // BOX_N)
            c_phase = self.epilogue.finish(ctx, c_phase, flat(fragments.accumulators), row, col, ())
        self.epilogue.end()


buildable = tma_buildable(Pingpong)
