"""Hopper rung 8: two warpgroups take turns at the tensor cores.

Idea
    Each warpgroup that multiplies has tiles of its own. While one multiplies, the other writes its tile, and the turn
    is handed over by named barriers: the tensor cores have the next tile at once.
Change from the rung before
    Every other tile for each warpgroup, the stages of the tiles between passed over, two barriers for the turn. A tile
    is the work of one warpgroup, so it is smaller.
Data movement
    The pair of tiles, 256 x 128: 85 FLOP a byte from L2 for 16-bit types, where a pair of 128 x 256 had 128.
Limits
    Power, and how the tiles of the last wave fill the multiprocessors.
Sources
    The same; NVIDIA CUTLASS, "Efficient GEMM in CUDA": ping-pong schedule.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.context import EpilogueContext
from gemmule.kernels.hopper.epilogues.linear_combination import PlainBoxes
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, TmaLoad, partitioned
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import BOX_M, BOX_N, CONSUMERS, K_BYTES, MMA_M, WARPGROUP
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import copied_arguments, cute_type

from .config import BUFFERS, CLUSTER, PingpongConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers of the warpgroups' turns; 1 and 2 are theirs for writing.
_TURN = 3


class Pingpong:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), through TMA."""

    def __init__(self, config: PingpongConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.tile_k = K_BYTES * 8 // self.element.width
        self.stages, self.group, self.ctas = config.stages, config.group, config.ctas
        stage_bytes = (self.tile_m + self.tile_n) * K_BYTES
        self.mainloop = Mainloop(self.stages, stage_bytes, pingpong=True, turn_barrier=_TURN)
        blocks, boxes = self.tile_m // MMA_M, self.tile_n // BOX_N
        reads_c = types["adds"] == "yes"
        self.result = PlainBoxes(self.element, BOX_M, BOX_N, blocks, boxes, 1, BUFFERS, False, reads_c)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        sD = hopper_helpers.make_smem_layout_epi(
            self.element, LayoutEnum.ROW_MAJOR, (BOX_M, BOX_N), CONSUMERS * BUFFERS
        )
        slice_a, slice_b, box = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB, sD))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(load, mA, slice_a, (self.tile_m, self.tile_k))
        share = cpasync.CopyBulkTensorTileG2SMulticastOp()
        tma_b, tB = cpasync.make_tiled_tma_atom(share, mB, slice_b, (self.tile_n, self.tile_k), CLUSTER)
        tma_c, tC = cpasync.make_tiled_tma_atom(load, mC, box, (BOX_M, BOX_N))
        tma_d, tD = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mD, box, (BOX_M, BOX_N))
        tiles_m, tiles_n = self.tiles(mD)
        self.kernel(tma_a, tA, tma_b, tB, tma_c, tC, tma_d, tD, sA, sB, sD, alpha, beta).launch(
            grid=(cutlass.min(tiles_m * tiles_n * CLUSTER, self.ctas), 1, 1),
            block=((1 + CONSUMERS) * WARPGROUP, 1, 1),
            cluster=(CLUSTER, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        tma_d: cute.CopyAtom,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        alpha,
        beta,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        c_full = smem.allocate_array(cutlass.Int64, CONSUMERS * BUFFERS)
        sA, sB, sD = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b, layout_d)
        )
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            cpasync.prefetch_descriptor(tma_d)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, CLUSTER)
                for b in cutlass.range_constexpr(CONSUMERS * BUFFERS):
                    cute.arch.mbarrier_init(c_full + b, 1)
            cute.arch.mbarrier_init_fence()
        self.meet()

        k_tiles = cute.ceil_div(mA.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, k_tiles)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            warpgroup_idx = warp // 4 - 1
            ctx = EpilogueContext(tma_c, mC, tma_d, mD, sD, c_full, alpha, beta, warpgroup_idx, 1 + warpgroup_idx)
            self.consume(ctx, sA, sB, full, empty, k_tiles)
        # The barriers of a CTA that has ended cannot be told anything.
        self.meet()

    @cute.jit
    def meet(self):
        """Wait for the whole cluster."""
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, k_tiles):
        """Load every k-tile of every tile."""
        gA = cute.local_tile(mA, (self.tile_m, self.tile_k), (None, None))
        gB = cute.local_tile(mB, (self.tile_n, self.tile_k), (None, None))
        load_a = TmaLoad(tma_a, *partitioned(tma_a, sA, gA))
        # Each CTA loads a half of B's k-tile, for both.
        load_b = TmaLoad(tma_b, *partitioned(tma_b, sB, gB, self.rank(), CLUSTER), (None, 1, CLUSTER))
        stage, phase = Int32(0), Int32(1)
        first, step, tiles = self.share(mD)
        for number in cutlass.range(first, tiles, step):
            i, j = self.tile(mD, number)
            loads = ((load_a, i), (load_b, j))
            stage, phase = self.mainloop.load(loads, (), full, empty, stage, phase, 0, k_tiles)

    @cute.jit
    def consume(self, ctx, sA, sB, full, empty, k_tiles):
        """Multiply and write this warpgroup's tiles, or its rows of them."""
        mma = tiled_mma(self.element, self.along_k, cutlass.Float32, 1, (MMA_M, self.tile_n))
        part = mma.get_slice(0)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        stage, phase, c_phase = Int32(0), Int32(0), Int32(0)
        first, step, tiles = self.share(ctx.d)
        # Every other tile; the k_tiles of those between pass by.
        if ctx.warpgroup_idx == 1:
            stage, phase = k_tiles % self.stages, k_tiles // self.stages % 2
            cute.arch.barrier_arrive(barrier_id=_TURN, number_of_threads=2 * WARPGROUP)
        for number in cutlass.range(first + ctx.warpgroup_idx * step, tiles, CONSUMERS * step):
            tile_m, tile_n = self.tile(ctx.d, number)
            self.mainloop.begin_turn(ctx.warpgroup_idx)
            stage, phase, last = self.mainloop.multiply(
                mma, accumulators, rA, rB, full, stage, phase, k_tiles, lambda done: self.release(empty, done)
            )
            self.mainloop.end_turn(ctx.warpgroup_idx)
            warpgroup.wait_group(0)
            self.release(empty, last)
            stage, phase = self.mainloop.skip(stage, phase, k_tiles)
            flat = cute.make_tensor(accumulators.iterator, cute.make_layout(cute.size(accumulators)))
            row, col = tile_m * (self.tile_m // BOX_M), tile_n * (self.tile_n // BOX_N)
            c_phase = self.result.finish(ctx, c_phase, flat, row, col, None)
        self.result.end()

    @cute.jit
    def release(self, empty, stage):
        """Say that this warpgroup is done with a stage, to every CTA that fills it; each by one thread."""
        tid, _, _ = cute.arch.thread_idx()
        peer = tid % WARPGROUP
        if peer < CLUSTER:
            cute.arch.mbarrier_arrive(empty + stage, peer)

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles of whole clusters there are."""
        return cute.ceil_div(mD.shape[0], self.tile_m * CLUSTER), cute.ceil_div(mD.shape[1], self.tile_n)

    @cute.jit
    def rank(self):
        """Return this CTA's row in its cluster."""
        cta, _, _ = cute.arch.block_idx()
        return cta % CLUSTER

    @cute.jit
    def share(self, mD: cute.Tensor):
        """Return the number of this CTA's cluster, how many clusters and how many clusters' tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        return cta // CLUSTER, ctas // CLUSTER, tiles_m * tiles_n

    @cute.jit
    def tile(self, mD: cute.Tensor, number):
        """Return the place of this CTA's tile along M and along N."""
        tiles_m, tiles_n = self.tiles(mD)
        tile_m, tile_n = grouped_tile(number, tiles_m, tiles_n, self.group)
        return tile_m * CLUSTER + self.rank(), tile_n


def buildable(config: PingpongConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(Pingpong(config, types), copied_arguments(types))
