"""Hopper rung 4: warp specialisation, one producer warpgroup and two consumers.

Idea
    Warp specialisation: one producer warp waits for empty stages and loads into them; two consumer warpgroups wait for
    full ones, multiply them, and release them. No CTA-wide barrier remains.
Change from the rung before
    Empty barriers instead of the barrier of all threads; three warpgroups. The producer gives its registers to the
    consumers: enough for the accumulators of a tile of 128 x 256.
Data movement
    The tile of 128 x 256: 85 FLOP a byte from L2 for 16-bit types.
Limits
    One such CTA fills an SM. During its prologue, and while it writes its tile, nothing is multiplied.
Sources
    The same; NVIDIA CUTLASS, "Efficient GEMM in CUDA": warp specialisation; PTX ISA: setmaxnreg.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, REGISTERS
from gemmule.kernels.ladder.buildables import tma_buildable
from gemmule.kernels.ladder.hopper_rung_config import RolesConfig
from gemmule.kernels.ladder.warpgroup_accumulators import write_accumulators
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import cute_type


class WarpSpecialised:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), A and B through TMA."""

    def __init__(self, config: RolesConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.k_major = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        self.num_stages, self.group = config.stages, config.group

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        stage_a, stage_b = (cute.slice_(layout, (None, None, 0)) for layout in self.smem_layouts())
        load = cpasync.CopyBulkTensorTileG2SOp()
        a = cpasync.make_tiled_tma_atom(load, mA, stage_a, (self.tile_m, self.tile_k))
        b = cpasync.make_tiled_tma_atom(load, mB, stage_b, (self.tile_n, self.tile_k))
        tiles_m, tiles_n = self.tiles(mD)
        self.kernel(a, b, mC, mD, (alpha, beta)).launch(
            grid=(tiles_m * tiles_n, 1, 1), block=((1 + CONSUMERS) * WARPGROUP, 1, 1), min_blocks_per_mp=1
        )

    def smem_layouts(self):
        """Return the shared-memory layouts of the stages of A and of B."""
        tile = (self.tile_m, self.tile_n, self.tile_k)
        order_a, order_b = (LayoutEnum.ROW_MAJOR if is_k_major else LayoutEnum.COL_MAJOR for is_k_major in self.k_major)
        return (
            hopper_helpers.make_smem_layout_a(order_a, tile, self.element, self.num_stages),
            hopper_helpers.make_smem_layout_b(order_b, tile, self.element, self.num_stages),
        )

    @cute.kernel
    def kernel(self, a, b, mC: cute.Tensor, mD: cute.Tensor, scale):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        # A stage is full when its bytes have arrived, and empty when both consumers have released it.
        full, empty = barriers = tuple(smem.allocate_array(cutlass.Int64, self.num_stages) for _ in range(2))
        smem_ab = tuple(
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in self.smem_layouts()
        )
        if warp == 0:
            cpasync.prefetch_descriptor(a[0])
            cpasync.prefetch_descriptor(b[0])
            with cute.arch.elect_one():
                for s in cutlass.range_constexpr(self.num_stages):
                    cute.arch.mbarrier_init(full + s, 1)
                    cute.arch.mbarrier_init(empty + s, CONSUMERS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        k_tiles = cute.ceil_div(a[1].shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(a, b, mD, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            self.consume((mC, mD, scale), smem_ab, barriers, k_tiles, warp // 4 - 1)

    @cute.jit
    def produce(self, a, b, mD, smem_ab, barriers, k_tiles):
        """Load every k-tile, as stages become empty."""
        (tma_a, mA), (tma_b, mB), (sA, sB), (full, empty) = a, b, smem_ab, barriers
        gA = cute.local_tile(mA, (self.tile_m, self.tile_k), (None, None))
        gB = cute.local_tile(mB, (self.tile_n, self.tile_k), (None, None))
        sA_part, gA_part = self.partitioned(tma_a, sA, gA)
        sB_part, gB_part = self.partitioned(tma_b, sB, gB)
        stage, phase = Int32(0), Int32(1)
        tile_m, tile_n = self.tile(mD)
        for k in cutlass.range(k_tiles):
            cute.arch.mbarrier_wait(empty + stage, phase)
            source_a, source_b = gA_part[None, tile_m, k], gB_part[None, tile_n, k]
            self.load(tma_a, source_a, sA_part[None, stage], tma_b, source_b, sB_part[None, stage], full + stage)
            stage, phase = self.advance(stage, phase)

    @cute.jit
    def consume(self, result, smem_ab, barriers, k_tiles, warpgroup_idx):
        """Multiply the k-tiles as they arrive, this warpgroup its rows of them, and write those of the tile."""
        (mC, mD, scale), (sA, sB), (full, empty) = result, smem_ab, barriers
        mma = tiled_mma(self.element, self.k_major, cutlass.Float32, CONSUMERS, (MMA_M, self.tile_n))
        part = mma.get_slice(warpgroup_idx * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        stage, phase = Int32(0), Int32(0)
        tile_m, tile_n = self.tile(mD)
        # The first product overwrites the accumulators.
        mma.set(warpgroup.Field.ACCUMULATE, False)
        last = stage
        for k in cutlass.range(k_tiles):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                a_k, b_k = rA[None, None, step_k, stage], rB[None, None, step_k, stage]
                cute.gemm(mma, accumulators, a_k, b_k, accumulators)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            # With one group in flight the one before it is complete.
            warpgroup.wait_group(1)
            if k > 0:
                self.release(empty, last)
            last = stage
            stage, phase = self.advance(stage, phase)
        warpgroup.wait_group(0)
        row, col = tile_m * self.tile_m + warpgroup_idx * MMA_M, tile_n * self.tile_n
        matrices, block = (mC if self.reads_c else None, mD), (self.tile_n, CONSUMERS * MMA_M)
        write_accumulators(matrices, accumulators, (row, col), block, scale)

    @cute.jit
    def release(self, empty, stage):
        """Release a stage to the producer, by one thread of the warpgroup."""
        tid, _, _ = cute.arch.thread_idx()
        if tid % WARPGROUP == 0:
            cute.arch.mbarrier_arrive(empty + stage)

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles there are."""
        return cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)

    @cute.jit
    def tile(self, mD: cute.Tensor):
        """Return this CTA's tile along M and along N."""
        cta, _, _ = cute.arch.block_idx()
        tiles_m, tiles_n = self.tiles(mD)
        return grouped_tile(cta, tiles_m, tiles_n, self.group)

    @cute.jit
    def advance(self, stage, phase):
        """Return the next pipeline state: the stage, and its phase, which flips each time around the ring."""
        stage = stage + 1
        if stage == self.num_stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    @cute.jit
    def load(self, tma_a, source_a, target_a, tma_b, source_b, target_b, barrier):
        """Issue the loads of a k-tile of A and one of B, by one thread of the warp; the barrier counts their bytes."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, (self.tile_m + self.tile_n) * K_BYTES)
        cute.copy(tma_a, source_a, target_a, tma_bar_ptr=barrier)
        cute.copy(tma_b, source_b, target_b, tma_bar_ptr=barrier)

    @cute.jit
    def partitioned(self, tma, sX: cute.Tensor, gX: cute.Tensor):
        """Return stages, and k-tiles of the matrix, partitioned for the TMA atom."""
        return cpasync.tma_partition(
            tma, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
        )


buildable = tma_buildable(WarpSpecialised)
