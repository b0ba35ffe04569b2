"""Hopper's tensor cores at their limit: TMA, wgmma, warpgroups with roles, clusters, persistent CTAs.

Idea
    A CTA stays on its multiprocessor and takes tile after tile. One warp lets the copy engine (TMA) bring slices of A
    and B into a ring of stages; two warpgroups multiply them with wgmma, which reads both operands from shared memory,
    and write the result through shared memory with TMA. Barriers in shared memory count the bytes that arrive and the
    warpgroups that are done with a stage.
Change from the rung before
    Nothing of a slice passes through registers or is addressed by threads; the products of a tile overlap with the
    writing of another. With `pingpong` each warpgroup has tiles of its own, and one multiplies while the other writes;
    without, both share a tile. CTAs of a cluster that need the same slice read it once, for all of them (multicast), or
    share a tile along K, and add up each other's sums in their order. A swapped product takes its rows as columns.
    With `stream_k` the tiles that do not fill a wave are shared slice by slice.
Data movement
    The tile of 128 x 256: 85 FLOP a byte from L2 for 16-bit types; a wgmma of 64 x 256 x 16 reads 2 KB of A and 8 KB of
    B from shared memory for 524,288 FLOP.
Limits
    Power: at full rate an H100 lowers its clock. Then what a tile costs at its ends, and how the tiles of the last wave
    fill the multiprocessors.
Sources
    NVIDIA, PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier; NVIDIA CUTLASS, "Efficient GEMM in CUDA": warp
    specialisation, cooperative and ping-pong schedules.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import add_sums, send_sums
from gemmule.kernels.hopper.epilogues.context import EpilogueContext
from gemmule.kernels.hopper.epilogues.fused import FinishedBoxes
from gemmule.kernels.hopper.epilogues.fused_fragments import FragmentEpilogue
from gemmule.kernels.hopper.epilogues.linear_combination import PlainBoxes
from gemmule.kernels.hopper.mainloops.promoted_accumulators import PromotedSums
from gemmule.kernels.hopper.mainloops.tma_wgmma import (
    Mainloop,
    TmaLoad,
    multicast_a,
    multicast_b,
    partitioned,
    release_cluster,
)
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.schedulers.persistent import ClusterTiles
from gemmule.kernels.hopper.schedulers.stream_k import StreamK
from gemmule.kernels.hopper.tile_config import BOX_M, CONSUMERS, K_BYTES, MMA_M, THREADS, WARPGROUP
from gemmule.kernels.parts.absolute_maximum import largest_of_none, write_largest
from gemmule.kernels.parts.tensors import cute_type, line_tensor, major_tensor

from .config import ProductionConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers: 1 and 2 for the warpgroups' own, 3 and 4 for their turns, and one for the beginning.
_OWN, _TURN, _BEGUN = 1, 3, 5


class Production:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), C and D (M, N, L) in rows, swapped in columns."""

    def __init__(self, config: ProductionConfig, types: dict[str, str]) -> None:
        self.out, self.acc = cute_type(types["d"]), cute_type(types["acc"])
        # The copy engine rounds float32 to TF32.
        self.element, self.element_b = (
            cutlass.TFloat32 if types[name] == "float32" else cute_type(types[name]) for name in "ab"
        )
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.epilogue: Any = FragmentEpilogue(types) if "epilogue" in types else None
        # Of a gated form, a tile holds as many columns of B as of another B, for half as many of the result.
        self.factors = 2 if self.epilogue and self.epilogue.expression.gated else 1
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.tile_k = K_BYTES * 8 // self.element.width
        self.stages = config.stages
        self.cluster_m, self.cluster_n = config.cluster_m, config.cluster_n
        self.pingpong, self.swapped = bool(config.pingpong), bool(config.swap_ab)
        # Blocks of 64 rows that a warpgroup computes of a tile, and warpgroups that share one.
        self.sharing, self.blocks = config.warpgroups_per_tile, config.blocks
        # CTAs that share the sum of a tile along K, and the columns of it that each of them writes, box by box.
        self.cluster_k, self.columns = config.cluster_k, config.tile_n // (config.cluster_k * self.factors)
        item = self.out.width // 8
        self.box_n, self.buffers = config.box_n(item, self.factors), config.buffers(item, self.factors)
        self.boxes = self.columns // self.box_n
        self.size = config.cluster
        # Columns of the result in a tile.
        self.result_n = config.tile_n // self.factors
        order: Any = functools.partial(StreamK, self.sharing) if config.stream_k else ClusterTiles
        self.order = order(self.tile_m, self.result_n, self.cluster_m, self.cluster_n, self.cluster_k, config.group)
        # Of 8-bit floats the instruction's own sums are too coarse for all of K.
        narrow = types["a"].startswith("float8")
        stage_bytes = (self.tile_m + self.tile_n) * K_BYTES
        self.mainloop = Mainloop(self.stages, stage_bytes, pingpong=self.pingpong, turn_barrier=_TURN)
        self.promoted: Any = PromotedSums(self.mainloop) if narrow else None
        # Bytes of a warpgroup's sums.
        self.slots = MMA_M * self.blocks * config.tile_n * 4
        # Those who use what a CTA brings: itself, and the others of its row and column of the cluster.
        self.peers = self.cluster_m + self.cluster_n - 1
        apart = 1 if self.pingpong else CONSUMERS
        boxes = (self.out, BOX_M, self.box_n, self.blocks, self.boxes, apart, self.buffers, self.swapped, self.reads_c)
        self.plain: Any = PlainBoxes(*boxes)
        self.finished: Any = self.epilogue and FinishedBoxes(*boxes, self.epilogue, self.factors)

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta, extras=None,
        left=None, mU=None,
    ):  # fmt: skip
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element_b, self.stages)
        layout_d = LayoutEnum.COL_MAJOR if self.swapped else LayoutEnum.ROW_MAJOR
        sD = hopper_helpers.make_smem_layout_epi(self.out, layout_d, (BOX_M, self.box_n), CONSUMERS * self.buffers)
        part_b = hopper_helpers.make_smem_layout_b(
            layout_b, (self.tile_m, self.result_n, self.tile_k), self.element_b, self.stages
        )
        slice_a, slice_b, box = (cute.slice_(layout, (None, None, 0)) for layout in (sA, part_b, sD))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = self.map_a(mA, slice_a)
        tma_b, tB = self.map_b(mB, slice_b)
        tma_u, tU = None, None
        if cutlass.const_expr(self.factors > 1):
            tma_u, tU = self.map_b(mU, slice_b)
        tma_c, tC = cpasync.make_tiled_tma_atom(load, mC, box, (BOX_M, self.box_n))
        tma_d, tD = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mD, box, (BOX_M, self.box_n))
        matrices = (tma_a, tA, tma_b, tB, tma_c, tC, tma_d, tD)
        self.kernel(*matrices, sA, sB, sD, alpha, beta, extras, left, tma_u, tU).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.size, 1, 1),
            min_blocks_per_mp=1,
        )

    def map_a(self, mA: Any, slice_a: Any) -> Any:
        """Return how the copy engine brings a slice of A."""
        load = cpasync.CopyBulkTensorTileG2SOp() if self.cluster_n == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        tile = (self.tile_m, self.tile_k)
        return cpasync.make_tiled_tma_atom(load, mA, slice_a, tile, self.cluster_n, internal_type=self.element)

    def map_b(self, mB: Any, slice_b: Any) -> Any:
        """Return how the copy engine brings a slice of B, or of one of two."""
        load = cpasync.CopyBulkTensorTileG2SOp() if self.cluster_m == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        tile = (self.result_n, self.tile_k)
        return cpasync.make_tiled_tma_atom(load, mB, slice_b, tile, self.cluster_m, internal_type=self.element_b)

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        tma_c,
        mC,
        tma_d,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        layout_d: cute.ComposedLayout,
        alpha,
        beta,
        extras=None,
        left=None,
        tma_u=None,
        mU=None,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        c_full = smem.allocate_array(cutlass.Int64, CONSUMERS * self.buffers)
        # Sums of the cluster have come, and have been taken.
        came = smem.allocate_array(cutlass.Int64, CONSUMERS)
        taken = smem.allocate_array(cutlass.Int64, CONSUMERS)
        sA, sB, sD = (
            smem.allocate_tensor(kind, layout.outer, 1024, swizzle=layout.inner)
            for kind, layout in ((self.element, layout_a), (self.element_b, layout_b), (self.out, layout_d))
        )
        slots = came
        if cutlass.const_expr(self.cluster_k > 1):
            slots = smem.allocate(self.slots * CONSUMERS, 1024)
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            if cutlass.const_expr(tma_d is not None):
                cpasync.prefetch_descriptor(tma_d)
            if cutlass.const_expr(self.factors > 1):
                cpasync.prefetch_descriptor(tma_u)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, self.sharing * self.peers)
                for b in cutlass.range_constexpr(CONSUMERS * self.buffers):
                    cute.arch.mbarrier_init(c_full + b, 1)
                for w in cutlass.range_constexpr(CONSUMERS):
                    cute.arch.mbarrier_init(came + w, 1)
                    cute.arch.mbarrier_init(taken + w, self.cluster_k)
            cute.arch.mbarrier_init_fence()
        self.begin(warp)
        # What the launch before this one wrote is there; the next one may prepare itself.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        first_k, slices = self.order.part_of_k(cute.ceil_div(mA.shape[1], self.tile_k))
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                maps_b = ((tma_b, mB), (tma_u, mU))
                self.produce(tma_a, mA, maps_b, mD, sA, sB, full, empty, first_k, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            warpgroup_idx = warp // 4 - 1
            exchange = (slots.toint() + warpgroup_idx * self.slots, came + warpgroup_idx, taken + warpgroup_idx)
            ctx = EpilogueContext(
                tma_c, mC, tma_d, mD, sD, c_full, alpha, beta, warpgroup_idx, _OWN + warpgroup_idx, extras
            )
            self.consume(ctx, (sA, sB), (full, empty), exchange, first_k, slices, left)

    @cute.jit
    def begin(self, warp):
        """Tell the cluster that it can send; wait until this CTA's barriers can be used."""
        if cutlass.const_expr(self.size > 1):
            cute.arch.cluster_arrive()
        if warp == 0:
            # The warp of the lane that made them need not wait, but for those that it shares slices with.
            cute.arch.sync_warp()
            cute.arch.barrier_arrive(barrier_id=_BEGUN, number_of_threads=THREADS)
            if cutlass.const_expr(self.peers > 1):
                cute.arch.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=_BEGUN, number_of_threads=THREADS)

    @cute.jit
    def produce(self, tma_a, mA, maps_b, mD, sA, sB, full, empty, first_k, k_tiles):
        """Load every k-tile of every tile."""
        row, col = self.order.rank()
        gA = cute.local_tile(mA, (self.tile_m, self.tile_k), (None, None, None))
        part_a = partitioned(tma_a, sA, gA, col, self.cluster_n)
        load_a = TmaLoad(tma_a, *part_a, multicast_a(self.order, row))
        loads_b = tuple(self.load_b(*maps_b[f], sB, f, row, col) for f in range(self.factors))
        stage, phase = Int32(0), Int32(1)
        begin, step, end = self.order.turns(mD, k_tiles)
        for number in cutlass.range(begin, end, step):
            i, j, batch, first, count = self.order.work(mD, number, first_k, k_tiles)
            loads = ((load_a, i), *((one, j) for one in loads_b))
            stage, phase = self.mainloop.load(loads, (batch,), full, empty, stage, phase, first, count)
        if cutlass.const_expr(self.peers > 1):
            self.mainloop.drain(empty, stage, phase)

    def load_b(self, tma: Any, mB: Any, sB: Any, number: int, row: Any, col: Any) -> TmaLoad:
        """Return the load of B, or of one of two, whose columns of a stage lie behind those of the first."""
        tile = (self.result_n, self.tile_k)
        stages = cute.local_tile(sB, tile, (number, 0, None)) if self.factors > 1 else sB
        tiles = cute.local_tile(mB, tile, (None, None, None))
        return TmaLoad(tma, *partitioned(tma, stages, tiles, row, self.cluster_m), multicast_b(self.order, col))

    @cute.jit
    def consume(self, ctx, stages, barriers, exchange, first_k, slices, left):
        """Multiply and write this warpgroup's tiles, or its rows of them."""
        (sA, sB), (full, empty), mine, mD = stages, barriers, ctx.warpgroup_idx, ctx.d
        kinds = (self.element, self.along_k, self.acc, self.sharing, (MMA_M, self.tile_n), self.element_b)
        mma = tiled_mma(*kinds)
        part = mma.get_slice(0 if self.pingpong else mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), self.acc)
        found, both = None, None
        if cutlass.const_expr(self.promoted is not None):
            found = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), self.acc)
            both = self.promoted.instructions(mma, tiled_mma(*kinds))
        if cutlass.const_expr(self.epilogue is not None and self.epilogue.keeps):
            absmax, largest = ctx.extras[-1], largest_of_none()
            ctx = dataclasses.replace(ctx, extras=(*ctx.extras, largest))
        release = functools.partial(release_cluster, self.order, empty)
        stage, phase, c_phase, turn = Int32(0), Int32(0), Int32(0), Int32(0)
        first, step, tiles = self.order.turns(mD, slices)
        if cutlass.const_expr(self.pingpong):
            # Every other tile; the slices of those between pass by.
            if mine == 1:
                passed = self.order.passed(mD, first, slices)
                stage, phase = passed % self.stages, passed // self.stages % 2
                cute.arch.barrier_arrive(barrier_id=_TURN, number_of_threads=2 * WARPGROUP)
            first, step = first + mine * step, CONSUMERS * step
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n, batch, first_slice, count = self.order.work(mD, number, first_k, slices)
            begun = None
            if cutlass.const_expr(self.epilogue is not None and not self.order.splits):
                row, col = self.corner(tile_m, tile_n, mine)
                begun = self.finished.begin(ctx, row, col, batch)
            self.mainloop.begin_turn(mine)
            if cutlass.const_expr(self.promoted is not None):
                stage, phase = self.promoted.multiply(both, sums, found, rA, rB, full, stage, phase, count, release)
            else:
                stage, phase, last = self.mainloop.multiply(mma, sums, rA, rB, full, stage, phase, count, release)
            self.mainloop.end_turn(mine)
            if cutlass.const_expr(self.promoted is None):
                warpgroup.wait_group(0)
                release(last)
            if cutlass.const_expr(self.pingpong):
                passed = self.order.passed(mD, number + step // CONSUMERS, slices)
                stage, phase = self.mainloop.skip(stage, phase, passed)
            flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
            first_box = tile_n * (self.result_n // self.box_n)
            if cutlass.const_expr(self.cluster_k > 1):
                if number == first:
                    cute.arch.cluster_wait()
                flat, first_box = self.add_up(flat, exchange, turn, mine, first_box, number + step < tiles)
                turn = turn ^ 1
            place = (tile_m, tile_n, first_box, batch)
            if cutlass.const_expr(self.order.splits):
                if self.order.complete(left, flat, mD, first_slice, count, slices, mine, _OWN + mine):
                    c_phase = self.write(ctx, begun, c_phase, flat, place)
            else:
                c_phase = self.write(ctx, begun, c_phase, flat, place)
        if cutlass.const_expr(self.epilogue is not None and self.epilogue.keeps):
            write_largest(largest, absmax)
        if self.warp() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def write(self, ctx: Any, begun: Any, c_phase: Any, accumulators: Any, place: Any) -> Any:
        """Write a tile, by its epilogue if there is one; return C's next phase."""
        tile_m, tile_n, first_box, batch = place
        if self.epilogue is None:
            row = tile_m * (self.tile_m // BOX_M) + (0 if self.pingpong else ctx.warpgroup_idx)
            return self.plain.finish(ctx, c_phase, accumulators, row, first_box, batch)
        row, col = self.corner(tile_m, tile_n, ctx.warpgroup_idx)
        if self.order.splits:
            # Before the mainloop it was not known whether this CTA would have all of the sum.
            begun = self.finished.begin(ctx, row, col, batch)
        return self.finished.finish(ctx, begun, c_phase, accumulators, row, col, batch)

    @cute.jit
    def warp(self):
        """Return this warp's number in its warpgroup."""
        return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4

    @cute.jit
    def corner(self, tile_m, tile_n, mine):
        """Return the first box of this warpgroup's part of a tile."""
        row, col = tile_m * (self.tile_m // BOX_M), tile_n * (self.result_n // self.box_n)
        if cutlass.const_expr(not self.pingpong):
            row = row + mine
        if cutlass.const_expr(self.cluster_k > 1):
            cta, _, _ = cute.arch.block_idx()
            col = col + cta % self.cluster_k * self.boxes
        return row, col

    @cute.jit
    def add_up(self, sums, exchange, turn, mine, first_box, more):
        """Exchange sums with the cluster; return all parts of K of this CTA's columns, and their first box."""
        slots, came, taken = exchange
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        rank = cta % self.cluster_k
        # The others are done with the sums of the tile before.
        cute.arch.mbarrier_wait(taken, turn ^ 1)
        if tid % WARPGROUP == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(came, self.slots)
        send_sums(sums, slots, came.toint(), rank, self.cluster_k, self.blocks)
        cute.arch.mbarrier_wait(came, turn)
        out = cute.make_rmem_tensor(cute.make_layout(cute.size(sums) // self.cluster_k), self.acc)
        add_sums(out, slots, self.cluster_k)
        # A CTA that has ended cannot be told anything: the last time nobody waits for it.
        if more:
            cute.arch.barrier(barrier_id=_OWN + mine, number_of_threads=WARPGROUP)
            if tid % WARPGROUP < self.cluster_k:
                cute.arch.mbarrier_arrive(taken, tid % WARPGROUP)
        return out, first_box + rank * self.boxes


def buildable(config: ProductionConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    result = 0 if config.swap_ab else 1
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, result, result)

    def tensor(operand: str) -> Any:
        unit, vector = units["abcd".index(operand)], 128 // cute_type(types[operand]).width
        return major_tensor(types[operand], unit, batch=1, vector=vector)

    acc = cute_type(types["acc"])
    kernel = Production(config, types)
    extras = () if kernel.epilogue is None else (kernel.epilogue.stand_ins(),)
    rest = [*extras]
    if config.stream_k:
        rest = [*(extras or (None,)), (line_tensor(types["acc"]), line_tensor("int32"))]
    if kernel.factors > 1:
        rest = [*extras, None, tensor("b")]
    return Buildable(kernel, (*map(tensor, "abcd"), Int32(1), acc(1), acc(0), *rest))
