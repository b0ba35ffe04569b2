"""Skinny GEMM with 8-bit weights (W8A16): read once, and upcast in registers on their way into the tensor cores.

Idea
    A GEMM of few rows takes as long as its weights take to be read. wgmma takes one operand from registers, 64 rows of
    it: so the transposed product is computed, with weights as these rows. A warpgroup reads them from shared memory as
    TMA wrote them, upcasts them in registers, and multiplies. Products are exact, and accumulators those of float16.
Compared with hopper_gemm_upcast
    Weights are not written to memory and read again: one byte for each, not five. The rows of A are upcast by warps of
    their own, from stage to stage of shared memory. CTAs of a cluster split a tile's K.
Data movement
    Every weight is read once, by TMA, 128 rows by 128 bytes at a time; each CTA reads the few rows of A.
Limits
    Memory, up to about 64 rows; beyond, tensor cores at the rate of 16-bit floats.
Sources
    NVIDIA, PTX ISA: wgmma with A in registers, cvt, mapa; NVIDIA CUTLASS: mixed-input GEMM on Hopper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_rows import Received, SplitKTile
from gemmule.kernels.hopper.mainloops.operands import OperandStages, flat
from gemmule.kernels.hopper.mainloops.pipeline import Pipeline
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop
from gemmule.kernels.hopper.mainloops.upcast_operands import LINE, STEPS, Upcast, fill_fragments, upcast_k_tile
from gemmule.kernels.hopper.mainloops.wgmma import issue_group
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import BLOCK, THREADS, TILE_K, TILES_N, UPCAST_WARPS, W8A16Config

_MMA_M = 64
#: Warps that multiply; after them come those that upcast rows of A, and then the producer.
_MULTIPLIERS = 4 * CONSUMERS
_HALVES = 2
#: Registers of a thread that multiplies, and of others, by CTAs on an SM, blocks and rows of a tile.
_REGISTERS = {
    (2, 1, 8): (72, 56),
    (2, 1, 16): (72, 56),
    (2, 1, 32): (80, 48),
    (1, 2, 64): (168, 88),
    (1, 2, 128): (216, 40),
}
#: Those of the largest tile if rows of A are of 16 bits: a thread that permutes them has two words for one.
_REGISTERS_FOR_16_BITS = (184, 72)
#: The named barrier of the warps that multiply.
_MULTIPLIERS_BARRIER = 1


class Result(NamedTuple):
    """Operands of the epilogue."""

    c: Any
    d: Any
    scale: Any
    aux_args: Any


class HopperGemmW8A16:
    """D = alpha * X @ W.T + beta * C for X (M, K, L), W (N, K, L) of 8-bit floats, and row-major D (M, N, L).

    The transposed product is computed: the weights W are wgmma's A, its M (`tile_w`), and the tokens X its B, its N
    (`tile_n`).
    """

    def __init__(self, config: W8A16Config, types: dict[str, str]) -> None:
        weight, token = (cute_type(types[name]) for name in "ba")
        self.upcast_threads = 32 * (UPCAST_WARPS // config.teams)
        # Units of work that a thread has at a time: with two CTAs on an SM registers are scarce.
        self.units = 2 if config.residents > 1 else 1 if config.tile_n > 64 else 4
        self.registers: Any = _REGISTERS.get((config.residents, config.blocks, config.tile_n))
        if token.width == 16 and config.tile_n == TILES_N[-1]:
            self.registers = _REGISTERS_FOR_16_BITS
        # Rows of A that are of 16 bits are only permuted.
        self.wide = token if token.width == 16 else cutlass.Float16
        self.upcast_w, self.upcast_x = Upcast(types["b"], self.wide), Upcast(types["a"], self.wide)
        self.token_bytes = config.tile_n * TILE_K * token.width // 8
        self.tile_n, self.slots = config.tile_n, config.slots
        self.cluster_k, self.residents = config.cluster_k, config.residents
        self.blocks, self.tile_w = config.blocks, config.tile_w
        tile = (self.tile_w, self.tile_n, TILE_K)
        self.operands = OperandStages(tile, (weight, token), (True, True), config.stages)
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.upcast = Pipeline(self.slots)
        self.epilogue: Any = VectorEpilogue(types) if "epilogue" in types else None
        # Whether partial sums that arrive have memory of their own, so that no CTA waits for the receivers.
        self.own_memory = config.own_memory
        threads = CONSUMERS * WARPGROUP
        reads_c = types["adds"] == "yes"
        self.tile = SplitKTile(config.tile_n, config.tile_w, config.cluster_k, threads, self.epilogue, reads_c)

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, aux_args=None):
        mW, mX, mC, mD = matrices
        w, x = self.operands.tma_a(mW), self.operands.tma_b(mX)
        self.kernel((w, x), Result(mC, mD, scale, aux_args)).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.cluster_k, 1, 1),
            min_blocks_per_mp=self.residents,
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, operands, result):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        loaded, upcast = self.mainloop.barriers(smem), self.upcast.barriers(smem)
        # The cluster's partial sums have arrived.
        full = smem.allocate_array(cutlass.Int64, 1)
        sW, sX = self.operands.allocate(smem)
        tile = (self.tile_w, self.tile_n, TILE_K)
        layout = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, self.wide, self.slots)
        sB = smem.allocate_tensor(self.wide, layout.outer, 1024, swizzle=layout.inner)
        partials = sW.iterator.toint()
        if cutlass.const_expr(self.own_memory):
            partials = smem.allocate(self.tile.nbytes, 128).toint()
        cta, _, batch = cute.arch.block_idx()
        tile_index, cta_k = cta // self.cluster_k, cta % self.cluster_k
        # Tiles of the same weights have consecutive indices.
        tiles_x = cute.ceil_div(result.d.shape[0], self.tile_n)
        tile_w, tile_x = tile_index // tiles_x, tile_index % tiles_x
        rows = cutlass.min(result.d.shape[0] - tile_x * self.tile_n, self.tile_n)
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
            with cute.arch.elect_one():
                self.mainloop.init(loaded, 1, _MULTIPLIERS + self.upcast_threads // 32)
                self.upcast.init(upcast, self.upcast_threads // 32, _MULTIPLIERS)
                if cutlass.const_expr(self.cluster_k > 1):
                    cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
            if cutlass.const_expr(self.cluster_k > 1):
                with cute.arch.elect_one():
                    self.tile.expect(full, cta_k, rows)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.own_memory):
            # From here on the other CTAs may send.
            cute.arch.cluster_arrive()
        # Wait for the predecessor grid's writes, then let the dependent grid launch.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        k_tiles = cute.ceil_div(operands[0].tensor.shape[1], TILE_K)
        start = cta_k * k_tiles // self.cluster_k
        count = (cta_k + 1) * k_tiles // self.cluster_k - start
        if warp < _MULTIPLIERS:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_increase(self.registers[0])
            origin = (tile_w * self.tile_w, tile_x * self.tile_n, batch)
            received = Received(partials, full, cta_k, rows)
            self.consume(result, (sW.iterator.toint(), sB), (loaded, upcast), count, received, origin)
        else:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_decrease(self.registers[1])
            if warp < _MULTIPLIERS + UPCAST_WARPS:
                self.upcast_rows(sX.iterator.toint(), sB.iterator.toint(), (loaded, upcast), count)
            elif warp == _MULTIPLIERS + UPCAST_WARPS:
                self.produce(operands, (sW, sX), loaded, (tile_w, tile_x, batch), (start, count))

    @cute.jit
    def produce(self, operands, smem_wx, barriers, coord, k_range):
        """Load every k-tile."""
        tile_w, tile_x, batch = coord
        load_w, load_x = self.operands.load_a(operands[0], smem_wx[0]), self.operands.load_b(operands[1], smem_wx[1])
        loads = ((load_x, tile_x), (load_w, tile_w))
        self.mainloop.load(loads, (batch,), barriers, self.mainloop.producer_state(), k_range)

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
        warp = cute.arch.make_warp_uniform(tid // 32) - _MULTIPLIERS
        team = cutlass.const_expr(self.upcast_threads // 32)
        num_stages = self.mainloop.num_stages
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
    def consume(self, result, smem_wb, pipelines, count, received, origin):
        """Multiply the k-tiles as they arrive, and write this CTA's vectors of the tile."""
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
        state, upcast_state = self.mainloop.consumer_state(), self.upcast.consumer_state()
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
            state, upcast_state = self.mainloop.advance(state), self.upcast.advance(upcast_state)
        warpgroup.wait_group(0)
        if cutlass.const_expr(self.cluster_k == 1):
            # All warps have read the stages, whose memory takes the accumulators.
            cute.arch.barrier(barrier_id=_MULTIPLIERS_BARRIER, number_of_threads=CONSUMERS * WARPGROUP)
        elif cutlass.const_expr(not self.own_memory):
            cute.arch.cluster_arrive()
        if cutlass.const_expr(self.cluster_k > 1):
            # The other CTAs' memory can take partial sums.
            cute.arch.cluster_wait()
        for block in cutlass.range_constexpr(self.blocks):
            self.tile.send(received, flat(accumulators[block]), line + block * BLOCK)
        if cutlass.const_expr(self.cluster_k > 1):
            cute.arch.mbarrier_wait(received.full, 0)
        else:
            cute.arch.barrier(barrier_id=_MULTIPLIERS_BARRIER, number_of_threads=CONSUMERS * WARPGROUP)
        first_col, first_row, batch = origin
        aux_args = result.aux_args
        if cutlass.const_expr(self.epilogue is not None):
            aux_args = self.epilogue.of_batch(aux_args, batch)
        gD, gC = (x[None, None, batch] for x in (result.d, result.c))
        self.tile.write(received, tid, Result(gC, gD, result.scale, aux_args), first_row, first_col)


def half_k_tile_mmas(mma: Any, operands: Any, k: Any, half: int, slot: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the wgmma of a half of k-tile `k`, as `issue_group` takes them, with A in registers."""
    a, b = operands
    for step in range(STEPS):
        # The first wgmma overwrites the accumulators.
        mma.set(warpgroup.Field.ACCUMULATE, k > 0 if half + step == 0 else True)
        yield mma, a[None, None, step], b[None, None, half * STEPS + step, slot]


def buildable(config: W8A16Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with fake arguments."""
    weights, tokens = (
        major_tensor(types[name], 1, batch=1, vector=128 // cute_type(types[name]).width) for name in "ba"
    )
    results = (major_tensor(types[name], 1, batch=1) for name in "cd")
    kernel = HopperGemmW8A16(config, types)
    aux_args = () if kernel.epilogue is None else (kernel.epilogue.fake_args(),)
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    return Buildable(kernel, ((weights, tokens, *results), Int32(1), scale, *aux_args))
