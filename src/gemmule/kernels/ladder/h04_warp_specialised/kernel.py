"""Hopper rung 4: one warpgroup feeds, two multiply.

Idea
    Who starts copies need not multiply. One warp waits for empty stages and has them filled; two warpgroups wait for
    full ones, multiply them, and say when they are done. Nobody waits for all.
Change from the rung before
    A second ring of barriers instead of the barrier of all threads; three warpgroups. The one that copies gives its
    registers to those that multiply: room for the sums of a tile of 128 x 256.
Data movement
    The tile of 128 x 256: 85 FLOP a byte from L2 for 16-bit types.
Limits
    One such CTA fills a multiprocessor. While it begins, and while it writes its tile, nothing is multiplied.
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

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, WARPGROUP
from gemmule.kernels.ladder.warpgroup_accumulators import write_sums
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import copied_arguments, cute_type

from .config import SpecialisedConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232


class WarpSpecialised:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N), A and B through TMA."""

    def __init__(self, config: SpecialisedConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.tile_k = K_BYTES * 8 // self.element.width
        self.stages, self.group = config.stages, config.group

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        slice_a, slice_b = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(load, mA, slice_a, (self.tile_m, self.tile_k))
        tma_b, tB = cpasync.make_tiled_tma_atom(load, mB, slice_b, (self.tile_n, self.tile_k))
        tiles_m, tiles_n = self.tiles(mD)
        self.kernel(tma_a, tA, tma_b, tB, mC, mD, sA, sB, alpha, beta).launch(
            grid=(tiles_m * tiles_n, 1, 1), block=((1 + CONSUMERS) * WARPGROUP, 1, 1), min_blocks_per_mp=1
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
        # A stage is full when its bytes have arrived, and empty when all who read it are done.
        full = smem.allocate_array(cutlass.Int64, self.stages)
        empty = smem.allocate_array(cutlass.Int64, self.stages)
        sA, sB = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                for s in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + s, 1)
                    cute.arch.mbarrier_init(empty + s, CONSUMERS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        slices = cute.ceil_div(mA.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mC, mD, sA, sB, full, empty, slices, warp // 4 - 1, alpha, beta)

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices):
        """Bring every slice, as stages become empty."""
        gA = cute.local_tile(mA, (self.tile_m, self.tile_k), (None, None))
        gB = cute.local_tile(mB, (self.tile_n, self.tile_k), (None, None))
        sA_part, gA_part = self.parts(tma_a, sA, gA)
        sB_part, gB_part = self.parts(tma_b, sB, gB)
        stage, phase = Int32(0), Int32(1)
        tile_m, tile_n = self.tile(mD)
        for k in cutlass.range(slices):
            cute.arch.mbarrier_wait(empty + stage, phase)
            source_a, source_b = gA_part[None, tile_m, k], gB_part[None, tile_n, k]
            self.bring(tma_a, source_a, sA_part[None, stage], tma_b, source_b, sB_part[None, stage], full + stage)
            stage, phase = self.following(stage, phase)

    @cute.jit
    def consume(self, mC, mD, sA, sB, full, empty, slices, mine, alpha, beta):
        """Multiply the slices as they arrive, this warpgroup its rows of them, and write those of the tile."""
        mma = tiled_mma(self.element, self.along_k, cutlass.Float32, CONSUMERS, (MMA_M, self.tile_n))
        part = mma.get_slice(mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        stage, phase = Int32(0), Int32(0)
        tile_m, tile_n = self.tile(mD)
        # The first product overwrites the sums.
        mma.set(warpgroup.Field.ACCUMULATE, False)
        before = stage
        for k in cutlass.range(slices):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                cute.gemm(mma, sums, rA[None, None, step_k, stage], rB[None, None, step_k, stage], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            # With one slice under way the products of the one before are done.
            warpgroup.wait_group(1)
            if k > 0:
                self.release(empty, before)
            before = stage
            stage, phase = self.following(stage, phase)
        warpgroup.wait_group(0)
        row, col = tile_m * self.tile_m + mine * MMA_M, tile_n * self.tile_n
        write_sums(mD, mC, sums, row, col, self.tile_n, CONSUMERS * MMA_M, alpha, beta, self.reads_c)

    @cute.jit
    def release(self, empty, stage):
        """Say that this warpgroup is done with a stage, by one thread."""
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
    def following(self, stage, phase):
        """Return the stage behind one, and its phase, which turns over with every round of the ring."""
        stage = stage + 1
        if stage == self.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    @cute.jit
    def bring(self, tma_a, source_a, target_a, tma_b, source_b, target_b, barrier):
        """Let one thread of the warp start the copies of a slice of A and one of B, for which the barrier waits."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, (self.tile_m + self.tile_n) * K_BYTES)
        cute.copy(tma_a, source_a, target_a, tma_bar_ptr=barrier)
        cute.copy(tma_b, source_b, target_b, tma_bar_ptr=barrier)

    @cute.jit
    def parts(self, tma, sX: cute.Tensor, gX: cute.Tensor):
        """Return slices in shared memory, and those of the matrix, as the copy engine takes them."""
        return cpasync.tma_partition(
            tma, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
        )


def buildable(config: SpecialisedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(WarpSpecialised(config, types), copied_arguments(types))
