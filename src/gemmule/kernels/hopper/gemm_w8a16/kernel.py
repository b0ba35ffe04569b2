"""Few rows by 8-bit weights: read once, and widened in registers on their way into the tensor cores.

Idea
    A product of few rows takes as long as its weights take to be read. wgmma takes one operand from registers, 64 rows
    of it: so the transposed product is computed, with weights as these rows. A warpgroup reads them from shared memory
    as they came, makes 16-bit floats of them in registers, and multiplies. Products are exact, and sums those of
    float16.
Change from the rung before
    Weights are not written to memory and read again: one byte for each, not five. The rows of A are widened by warps
    that do nothing else, from slice to slice of shared memory. CTAs of a cluster share a tile along K.
Data movement
    Every weight is read once, by the copy engine, 128 rows by 128 bytes at a time; each CTA reads the few rows of A.
Limits
    Memory, up to about 64 rows; beyond, tensor cores at the rate of 16-bit floats.
Sources
    NVIDIA, PTX ISA: wgmma with A in registers, cvt, mapa; NVIDIA CUTLASS: mixed-input products on Hopper.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction_rows import SharedTile
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, Ring, TmaLoad, partitioned
from gemmule.kernels.hopper.mainloops.upcast_operands import LINE, STEPS, fill_fragments, widen_slice
from gemmule.kernels.hopper.tile_config import CONSUMERS, WARPGROUP
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import BLOCK, THREADS, TILE_K, TILES_N, WIDENERS, MixedConfig

_MMA_ROWS = 64
#: Warps that multiply; behind them are those that widen rows of A, and then the one that copies.
_MULTIPLIERS = 4 * CONSUMERS
_HALVES = 2
#: Registers of a thread that multiplies, and of others, by CTAs on a multiprocessor, blocks and rows of a tile.
_REGISTERS = {
    (2, 1, 8): (72, 56),
    (2, 1, 16): (72, 56),
    (2, 1, 32): (80, 48),
    (1, 2, 64): (168, 88),
    (1, 2, 128): (216, 40),
}
#: Those of the largest tile if rows of A are of 16 bits: a thread that puts them in order has two words for one.
_REGISTERS_FOR_16_BITS = (184, 72)
#: The named barrier of those that multiply.
_TOGETHER = 1


class Mixed:
    """D = alpha * X @ W.T + beta * C for W (N, K, L) of 8 bits, X (M, K, L), and D (M, N, L) in rows."""

    def __init__(self, config: MixedConfig, types: dict[str, str]) -> None:
        self.kinds = (types["b"], types["a"])
        self.weight, self.token = (cute_type(kind) for kind in self.kinds)
        self.team = WIDENERS // config.teams
        # Units of work that a thread has at a time: with two CTAs on a multiprocessor registers are scarce.
        self.at_once = 2 if config.residents > 1 else 1 if config.tile_n > 64 else 4
        self.registers: Any = _REGISTERS.get((config.residents, config.blocks, config.tile_n))
        if self.token.width == 16 and config.tile_n == TILES_N[-1]:
            self.registers = _REGISTERS_FOR_16_BITS
        # Rows of A that are of 16 bits are only put in order.
        self.wide = self.token if self.token.width == 16 else cutlass.Float16
        self.token_bytes = config.tile_n * TILE_K * self.token.width // 8
        self.out = cute_type(types["d"])
        self.tile_n, self.stages, self.slots = config.tile_n, config.stages, config.slots
        self.cluster_k, self.residents = config.cluster_k, config.residents
        self.blocks, self.tile_w = config.blocks, config.tile_w
        self.mainloop = Mainloop(self.stages, self.tile_w * LINE + self.token_bytes)
        # Slots of A's k-tiles as 16-bit floats.
        self.widened = Ring(self.slots)
        self.epilogue: Any = VectorEpilogue(types) if "epilogue" in types else None
        # Whether sums that come have memory of their own, so that nobody waits for who gets them.
        self.apart = config.apart
        threads = CONSUMERS * WARPGROUP
        reads_c = types["adds"] == "yes"
        self.tile = SharedTile(config.tile_n, config.tile_w, config.cluster_k, threads, self.epilogue, reads_c)

    @cute.jit
    def __call__(
        self, mW: cute.Tensor, mX: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta, extras=None
    ):
        rows = LayoutEnum.ROW_MAJOR
        tile = (self.tile_w, self.tile_n, TILE_K)
        sW = hopper_helpers.make_smem_layout_a(rows, tile, self.weight, self.stages)
        sX = hopper_helpers.make_smem_layout_b(rows, tile, self.token, self.stages)
        sB = hopper_helpers.make_smem_layout_b(rows, tile, self.wide, self.slots)
        slice_w, slice_x = (cute.slice_(layout, (None, None, 0)) for layout in (sW, sX))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_w, tW = cpasync.make_tiled_tma_atom(load, mW, slice_w, (self.tile_w, TILE_K))
        tma_x, tX = cpasync.make_tiled_tma_atom(load, mX, slice_x, (self.tile_n, TILE_K))
        self.kernel(tma_w, tW, tma_x, tX, mC, mD, sW, sX, sB, alpha, beta, extras).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.cluster_k, 1, 1),
            min_blocks_per_mp=self.residents,
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(
        self,
        tma_w: cute.CopyAtom,
        mW: cute.Tensor,
        tma_x: cute.CopyAtom,
        mX: cute.Tensor,
        mC: cute.Tensor,
        mD: cute.Tensor,
        layout_w: cute.ComposedLayout,
        layout_x: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        alpha,
        beta,
        extras=None,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        wide, used = self.widened.barriers(smem)
        # The cluster's sums have come.
        came = smem.allocate_array(cutlass.Int64, 1)
        sW, sX, sB = (
            smem.allocate_tensor(kind, layout.outer, 1024, swizzle=layout.inner)
            for kind, layout in ((self.weight, layout_w), (self.token, layout_x), (self.wide, layout_b))
        )
        parts = sW.iterator.toint()
        if cutlass.const_expr(self.apart):
            parts = smem.allocate(self.tile.nbytes, 128).toint()
        cta, _, batch = cute.arch.block_idx()
        tile, rank = cta // self.cluster_k, cta % self.cluster_k
        # Tiles of the same weights stand side by side.
        tiles_x = cute.ceil_div(mD.shape[0], self.tile_n)
        tile_w, tile_x = tile // tiles_x, tile % tiles_x
        rows = cutlass.min(mD.shape[0] - tile_x * self.tile_n, self.tile_n)
        if warp == 0:
            cpasync.prefetch_descriptor(tma_w)
            cpasync.prefetch_descriptor(tma_x)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, _MULTIPLIERS + self.team)
                self.widened.init(wide, used, self.team, _MULTIPLIERS)
                if cutlass.const_expr(self.cluster_k > 1):
                    cute.arch.mbarrier_init(came, 1)
            cute.arch.mbarrier_init_fence()
            if cutlass.const_expr(self.cluster_k > 1):
                with cute.arch.elect_one():
                    self.tile.expect(came, rank, rows)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.apart):
            # Others may send now.
            cute.arch.cluster_arrive()
        # What the launch before this one wrote is there; the next one may prepare itself.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        slices = cute.ceil_div(mW.shape[1], TILE_K)
        first = rank * slices // self.cluster_k
        count = (rank + 1) * slices // self.cluster_k - first
        if warp < _MULTIPLIERS:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_increase(self.registers[0])
            place = (tile_w * self.tile_w, tile_x * self.tile_n, batch)
            shared = (parts, came, rank, rows)
            self.consume(mC, mD, sW.iterator.toint(), sB, full, empty, wide, used, count, shared, place, alpha, beta,
                         extras)  # fmt: skip
        else:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_decrease(self.registers[1])
            if warp < _MULTIPLIERS + WIDENERS:
                self.widen(sX.iterator.toint(), sB.iterator.toint(), full, empty, wide, used, count)
            elif warp == _MULTIPLIERS + WIDENERS:
                self.produce(tma_w, mW, tma_x, mX, sW, sX, full, empty, (tile_w, tile_x, batch), first, count)

    @cute.jit
    def produce(self, tma_w, mW, tma_x, mX, sW, sX, full, empty, place, first, count):
        """Load every k-tile."""
        tile_w, tile_x, batch = place
        gW = cute.local_tile(mW, (self.tile_w, TILE_K), (None, None, None))
        gX = cute.local_tile(mX, (self.tile_n, TILE_K), (None, None, None))
        load_w, load_x = TmaLoad(tma_w, *partitioned(tma_w, sW, gW)), TmaLoad(tma_x, *partitioned(tma_x, sX, gX))
        loads = ((load_x, tile_x), (load_w, tile_w))
        self.mainloop.load(loads, (batch,), full, empty, Int32(0), Int32(1), first, count)

    @cute.jit
    def tell(self, barrier):
        """Say that this warp has done its part."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier)

    @cute.jit
    def tell_of_slot(self, used, before, k):
        """Say that this warp has multiplied the slot of the slice before this one, if there was one."""
        if k > 0:
            self.tell(used + before)

    @cute.jit
    def widen(self, source, target, full, empty, wide, used, count):
        """Write the rows of A of every slice as 16-bit floats: warps, or teams of them, take slices in turns."""
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(tid // 32) - _MULTIPLIERS
        teams = cutlass.const_expr(WIDENERS // self.team)
        for k in cutlass.range(warp // self.team, count, teams):
            stage, slot = k % self.stages, k % self.slots
            # What is used up tells that the stage's slice before this one came, too: its phase is over.
            cute.arch.mbarrier_wait(used + slot, k // self.slots % 2 ^ 1)
            cute.arch.mbarrier_wait(full + stage, k // self.stages % 2)
            begin, end = source + stage * self.token_bytes, target + slot * (2 * self.tile_n * LINE)
            widen_slice(begin, end, self.tile_n, tid % (32 * self.team), 32 * self.team, self.at_once, self.kinds[1],
                        self.wide)  # fmt: skip
            cute.arch.fence_proxy("async.shared", space="cta")
            self.tell(wide + slot)
            self.tell(empty + stage)

    @cute.jit
    def consume(
        self, mC, mD, start, sB, full, empty, wide, used, count, shared, place, alpha, beta, extras,
    ):  # fmt: skip
        """Multiply the slices as they arrive, and write this CTA's share of the tile."""
        me, _, _ = cute.arch.thread_idx()
        along_k = OperandMajorMode.K
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.wide, self.wide, along_k, along_k, cutlass.Float32, (CONSUMERS, 1, 1), (_MMA_ROWS, self.tile_n),
            warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        part = mma.get_slice(me)
        rB = mma.make_fragment_B(part.partition_B(sB))
        sums = tuple(
            cute.make_rmem_tensor(mma.partition_shape_C((BLOCK, self.tile_n)), cutlass.Float32)
            for _ in range(self.blocks)
        )
        # One half of a block's slice is read while the one before is multiplied.
        shape = mma.partition_shape_A((BLOCK, TILE_K // _HALVES))
        turns = tuple(cute.make_rmem_tensor(shape, self.wide) for _ in range(2))
        line = cute.arch.make_warp_uniform(me // 32) * 16
        stage, phase, slot, turn = Int32(0), Int32(0), Int32(0), Int32(0)
        before = slot
        for k in cutlass.range(count):
            cute.arch.mbarrier_wait(full + stage, phase)
            for number in cutlass.range_constexpr(_HALVES * self.blocks):
                half, block, mine = number // self.blocks, number % self.blocks, turns[number % 2]
                # The products that had these registers are done; those of the others may be under way.
                warpgroup.wait_group(1)
                words = cute.recast_tensor(mine, cutlass.Uint32)
                flat = cute.make_tensor(words.iterator, cute.make_layout(4 * STEPS))
                begin = start + stage * (self.tile_w * LINE)
                fill_fragments(flat, begin, line + block * BLOCK, half, self.kinds[0], self.wide)
                if cutlass.const_expr(number == 0):
                    cute.arch.mbarrier_wait(wide + slot, turn)
                if cutlass.const_expr(number == 1):
                    self.tell_of_slot(used, before, k)
                warpgroup.fence()
                for step in cutlass.range_constexpr(STEPS):
                    # The first product overwrites the sums.
                    mma.set(warpgroup.Field.ACCUMULATE, k > 0 if half + step == 0 else True)
                    factor = rB[None, None, half * STEPS + step, slot]
                    cute.gemm(mma, sums[block], mine[None, None, step], factor, sums[block])
                warpgroup.commit_group()
            # Products have begun: what this warp reads of the stage is in registers, not on its way to them.
            self.tell(empty + stage)
            before = slot
            stage, phase = self.mainloop.advance(stage, phase)
            slot, turn = self.widened.advance(slot, turn)
        warpgroup.wait_group(0)
        parts, came, rank, rows = shared
        if cutlass.const_expr(self.cluster_k == 1):
            # Everybody here has read the stages, whose memory takes the sums.
            cute.arch.barrier(barrier_id=_TOGETHER, number_of_threads=CONSUMERS * WARPGROUP)
        elif cutlass.const_expr(not self.apart):
            cute.arch.cluster_arrive()
        if cutlass.const_expr(self.cluster_k > 1):
            # The others' memory can take sums.
            cute.arch.cluster_wait()
        for block in cutlass.range_constexpr(self.blocks):
            flat = cute.make_tensor(sums[block].iterator, cute.make_layout(cute.size(sums[block])))
            self.tile.give(parts, flat, line + block * BLOCK, came, rank, rows)
        if cutlass.const_expr(self.cluster_k > 1):
            cute.arch.mbarrier_wait(came, 0)
        else:
            cute.arch.barrier(barrier_id=_TOGETHER, number_of_threads=CONSUMERS * WARPGROUP)
        first_col, first_row, batch = place
        if cutlass.const_expr(self.epilogue is not None):
            extras = self.epilogue.of_batch(extras, batch)
        self.tile.write(parts, rank, me, mD[None, None, batch], mC[None, None, batch], first_row, first_col, extras,
                        alpha, beta)  # fmt: skip


def buildable(config: MixedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with stand-ins for its arguments."""
    weights, tokens = (
        major_tensor(types[name], 1, batch=1, vector=128 // cute_type(types[name]).width) for name in "ba"
    )
    results = (major_tensor(types[name], 1, batch=1) for name in "cd")
    kernel = Mixed(config, types)
    extras = () if kernel.epilogue is None else (kernel.epilogue.stand_ins(),)
    return Buildable(kernel, (weights, tokens, *results, Int32(1), cutlass.Float32(1), cutlass.Float32(0), *extras))
