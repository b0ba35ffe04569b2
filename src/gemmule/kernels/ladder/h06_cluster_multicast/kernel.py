"""Hopper rung 6: clusters of two CTAs read the columns they share once.

Idea
    Two CTAs of a cluster compute tiles one below the other, which need the same slices of B. Each reads half of a slice
    and the copy engine writes it into the shared memory of both (multicast).
Change from the rung before
    Clusters and their place in the order of tiles; half slices of B with a mask of receivers; a stage is empty when the
    consumers of both CTAs are done with it.
Data movement
    The pair of tiles, 256 x 256: 128 FLOP a byte from L2 instead of 85.
Limits
    Neither CTA can run ahead of the other by more than its stages. The tensor cores still stand idle while a tile is
    written.
Sources
    The same; NVIDIA, PTX ISA: clusters, cp.async.bulk.tensor with multicast.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, TmaLoad, partitioned
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, WARPGROUP
from gemmule.kernels.ladder.warpgroup_accumulators import write_sums
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import copied_arguments, cute_type

from .config import CLUSTER, ClusterConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232


class ClusterMulticast:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), A and B through TMA."""

    def __init__(self, config: ClusterConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.tile_k = K_BYTES * 8 // self.element.width
        self.stages, self.group, self.ctas = config.stages, config.group, config.ctas
        stage_bytes = (self.tile_m + self.tile_n) * K_BYTES
        self.mainloop = Mainloop(self.stages, stage_bytes)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        slice_a, slice_b = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(load, mA, slice_a, (self.tile_m, self.tile_k))
        share = cpasync.CopyBulkTensorTileG2SMulticastOp()
        tma_b, tB = cpasync.make_tiled_tma_atom(share, mB, slice_b, (self.tile_n, self.tile_k), CLUSTER)
        tiles_m, tiles_n = self.tiles(mD)
        self.kernel(tma_a, tA, tma_b, tB, mC, mD, sA, sB, alpha, beta).launch(
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
        mC: cute.Tensor,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        alpha,
        beta,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        sA, sB = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, CONSUMERS * CLUSTER)
            cute.arch.mbarrier_init_fence()
        self.meet()

        slices = cute.ceil_div(mA.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mC, mD, sA, sB, full, empty, slices, warp // 4 - 1, alpha, beta)
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
    def consume(self, mC, mD, sA, sB, full, empty, slices, mine, alpha, beta):
        """Multiply the slices as they arrive, this warpgroup its rows of them, and write those of the tiles."""
        mma = tiled_mma(self.element, self.along_k, cutlass.Float32, CONSUMERS, (MMA_M, self.tile_n))
        part = mma.get_slice(mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        stage, phase = Int32(0), Int32(0)
        first, step, tiles = self.share(mD)
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n = self.tile(mD, number)
            stage, phase, last = self.mainloop.multiply(
                mma, sums, rA, rB, full, stage, phase, slices, lambda done: self.release(empty, done)
            )
            warpgroup.wait_group(0)
            self.release(empty, last)
            row, col = tile_m * self.tile_m + mine * MMA_M, tile_n * self.tile_n
            write_sums(mD, mC, sums, row, col, self.tile_n, CONSUMERS * MMA_M, alpha, beta, self.reads_c)

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


def buildable(config: ClusterConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(ClusterMulticast(config, types), copied_arguments(types))
