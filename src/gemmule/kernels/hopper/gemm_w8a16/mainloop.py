"""The mainloop of W8A16: rows of A are upcast from stage to stage, weights in registers, and both multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.kernels.hopper.mainloops.operands import OperandStages
from gemmule.kernels.hopper.mainloops.pipeline import Pipeline
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop
from gemmule.kernels.hopper.mainloops.upcast_operands import LINE, STEPS, Upcast, fill_fragments, upcast_k_tile
from gemmule.kernels.hopper.mainloops.wgmma import issue_group
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.tensors import cute_type

from .config import BLOCK, TILE_K, UPCAST_WARPS, W8A16Config

#: Warps that multiply; after them come those that upcast rows of A, and then the producer.
MULTIPLIERS = 4 * CONSUMERS
_MMA_M, _HALVES = 64, 2


class UpcastMainloop:
    """Two pipelines: stages of W and X as TMA loads them, and of X as 16-bit floats.

    The weights W are wgmma's A, its M (`tile_w`), and the tokens X its B, its N (`tile_n`).
    """

    def __init__(self, config: W8A16Config, types: dict[str, str]) -> None:
        weight, token = (cute_type(types[name]) for name in "ba")
        self.upcast_threads, self.upcast_warps = 32 * (UPCAST_WARPS // config.teams), UPCAST_WARPS // config.teams
        # Units of work that a thread has at a time: with two CTAs on an SM registers are scarce.
        self.units = 2 if config.residents > 1 else 1 if config.tile_n > 64 else 4
        # Rows of A that are of 16 bits are only permuted.
        self.wide = token if token.width == 16 else cutlass.Float16
        self.upcast_w, self.upcast_x = Upcast(types["b"], self.wide), Upcast(types["a"], self.wide)
        self.token_bytes = config.tile_n * TILE_K * token.width // 8
        self.tile_w, self.tile_n, self.blocks, self.slots = config.tile_w, config.tile_n, config.blocks, config.slots
        self.tile = (self.tile_w, self.tile_n, TILE_K)
        self.operands = OperandStages(self.tile, (weight, token), (True, True), config.stages)
        self.loaded, self.upcast = Mainloop(config.stages, self.operands.stage_bytes), Pipeline(self.slots)

    def allocate(self, smem: Any) -> tuple[Any, Any, Any]:
        """Allocate the stages of W, of X, and of X as 16-bit floats."""
        sW, sX = self.operands.allocate(smem)
        layout = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, self.tile, self.wide, self.slots)
        return sW, sX, smem.allocate_tensor(self.wide, layout.outer, 1024, swizzle=layout.inner)

    @cute.jit
    def produce(self, operands, smem_wx, barriers, coord, k_range):
        """Load every k-tile."""
        tile_w, tile_x, batch = coord
        load_w, load_x = self.operands.load_a(operands[0], smem_wx[0]), self.operands.load_b(operands[1], smem_wx[1])
        loads = ((load_x, tile_x), (load_w, tile_w))
        self.loaded.load(loads, (batch,), barriers, self.loaded.producer_state(), k_range)

    @cute.jit
    def arrive(self, barrier):
        """Arrive at a barrier, once all threads of this warp have come here."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier)

    @cute.jit
    def release_before(self, empty, slot, k):
        """Release the upcast stage of the k-tile before this one, if there was one."""
        if k > 0:
            self.arrive(empty + slot)

    @cute.jit
    def upcast_rows(self, source, target, pipelines, count):
        """Write the rows of A of every k-tile as 16-bit floats: warps, or teams of them, take k-tiles alternately."""
        (full, empty), (upcast_full, upcast_empty) = pipelines
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(tid // 32) - MULTIPLIERS
        team = cutlass.const_expr(self.upcast_warps)
        num_stages = self.loaded.num_stages
        for k in cutlass.range(warp // team, count, cutlass.const_expr(UPCAST_WARPS // team)):
            stage, slot = k % num_stages, k % self.slots
            # An empty slot implies that the stage's k-tile before this one was full, too: its phase is over.
            cute.arch.mbarrier_wait(upcast_empty + slot, k // self.slots % 2 ^ 1)
            cute.arch.mbarrier_wait(full + stage, k // num_stages % 2)
            begin, end = source + stage * self.token_bytes, target + slot * (2 * self.tile_n * LINE)
            threads = (tid % self.upcast_threads, self.upcast_threads, self.units)
            upcast_k_tile(begin, end, self.tile_n, threads, self.upcast_x)
            cute.arch.fence_proxy("async.shared", space="cta")
            self.arrive(upcast_full + slot)
            self.arrive(empty + stage)

    @cute.jit
    def multiply(self, smem_wb, pipelines, count):
        """Multiply the k-tiles as they arrive; return each block's accumulators, and this warp's first row."""
        (start, sB), ((full, empty), (upcast_full, upcast_empty)) = smem_wb, pipelines
        tid, _, _ = cute.arch.thread_idx()
        major = OperandMajorMode.K
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.wide, self.wide, major, major, cutlass.Float32, (CONSUMERS, 1, 1), (_MMA_M, self.tile_n),
            warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        part = mma.get_slice(tid)
        rB = mma.make_fragment_B(part.partition_B(sB))
        accumulators = tuple(
            cute.make_rmem_tensor(mma.partition_shape_C((BLOCK, self.tile_n)), cutlass.Float32)
            for _ in range(self.blocks)
        )
        # One half of a block's k-tile is read while the one before is multiplied.
        shape = mma.partition_shape_A((BLOCK, TILE_K // _HALVES))
        fragments = tuple(cute.make_rmem_tensor(shape, self.wide) for _ in range(2))
        line = cute.arch.make_warp_uniform(tid // 32) * 16
        state, upcast_state = self.loaded.consumer_state(), self.upcast.consumer_state()
        before = upcast_state.stage
        for k in cutlass.range(count):
            stage, slot = state.stage, upcast_state.stage
            cute.arch.mbarrier_wait(full + stage, state.phase)
            for index in cutlass.range_constexpr(_HALVES * self.blocks):
                half, block, fragment = index // self.blocks, index % self.blocks, fragments[index % 2]
                # The products that read these registers are complete; one group may be in flight.
                warpgroup.wait_group(1)
                words = cute.recast_tensor(fragment, cutlass.Uint32)
                words = cute.make_tensor(words.iterator, cute.make_layout(4 * STEPS))
                begin = start + stage * (self.tile_w * LINE)
                fill_fragments(words, begin, line + block * BLOCK, half, self.upcast_w)
                if cutlass.const_expr(index == 0):
                    cute.arch.mbarrier_wait(upcast_full + slot, upcast_state.phase)
                if cutlass.const_expr(index == 1):
                    self.release_before(upcast_empty, before, k)
                issue_group(half_k_tile_mmas(mma, (fragment, rB), k, half, slot), accumulators[block])
                # ACCUMULATE is loop-carried state, which the DSL tracks only if the loop body sets it.
                mma.set(warpgroup.Field.ACCUMULATE, True)
            # Its last products are issued: what this warp reads of the stage is in registers.
            self.arrive(empty + stage)
            before = slot
            state, upcast_state = self.loaded.advance(state), self.upcast.advance(upcast_state)
        warpgroup.wait_group(0)
        return accumulators, line


def half_k_tile_mmas(mma: Any, operands: Any, k: Any, half: int, slot: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the wgmma of a half of k-tile `k`, as `issue_group` takes them, with A in registers."""
    a, b = operands
    for step in range(STEPS):
        # The first wgmma overwrites the accumulators.
        mma.set(warpgroup.Field.ACCUMULATE, k > 0 if half + step == 0 else True)
        yield mma, a[None, None, step], b[None, None, half * STEPS + step, slot]
