"""Grouped GEMM: products of several groups in one launch, whose sizes are in device memory.

Idea
    The groups are contiguous in a matrix: along M, as tokens of the experts of a mixture; along N; or along K,
    for gradients of their weights. A persistent CTA reads the groups' ends and finds the group of each of
    its tiles by itself: the host neither knows nor waits for a size. TMA takes a tile from any row on, so that one
    tensor map of all rows serves every group; a tile may load rows of the next group, and does not write them.
Compared with hopper_gemm
    `hopper_gemm` with a grouped scheduler and an epilogue with ends. Along M, an epilogue tile that ends before its
    64th row is written by threads, 16 bytes each, all others by TMA. Along K, the consumers zero what a group's last
    k-tile has of the next group, in both operands, before they multiply. Rows that each name their matrix, as the slots
    of a token, are groups of one row.
Data movement
    As of `hopper_gemm`, with a weight matrix for each group.
Limits
    The last tile of a group is computed whole: half a tile a group is lost on average. Groups of few rows are bound by
    the weights' way from memory.
Sources
    As of `hopper_gemm`; NVIDIA CUTLASS, "Grouped kernel schedulers". PyTorch, `torch.nn.functional.grouped_mm`: the
    meaning of the operands.
"""

from __future__ import annotations

import functools
from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute, select_

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.limited_store import LimitedStore, Region
from gemmule.kernels.hopper.gemm.kernel import HopperGemm
from gemmule.kernels.hopper.mainloops.operands import NO_TENSOR, Matrices, TmaTensor, flat
from gemmule.kernels.hopper.mainloops.promoted_accumulators import PromotedMainloop
from gemmule.kernels.hopper.mainloops.ragged_k import RaggedKMainloop, ZeroFillMainloop
from gemmule.kernels.hopper.mainloops.tma_wgmma import multicast_ctas_a, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.schedulers.grouped import GroupedKScheduler, GroupedScheduler, RowScheduler
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d

from .config import GroupedConfig

# Named barriers of ping-pong's order, of which cooperative warpgroups use the first, and of a ragged end of K.
_ORDER_BARRIER_ID, _RAGGED_BARRIER_ID = 3, 6


class HopperGroupedGemm(HopperGemm):
    """D[m, n] = sum over k of A[m, k] B[n, k] for each group; A is (M, K, L), B (N, K, L), D (M, N, L), row-major.

    Parameters
    ----------
    config : GroupedConfig
        Tile, schedule and cluster.
    types : dict
        The signature: element types, majors, the divided dimension, and whether TMA stores D.
    """

    #: Inputs are loaded for each epilogue tile.
    shares_inputs = False

    def __init__(self, config: GroupedConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.by_rows, self.by_tma = types["axis"] == "row", types["written"] == "boxes"
        # A row is a group of one row, with a matrix by its number.
        self.axis = "m" if self.by_rows else types["axis"]
        shape = (self.tile_m, self.tile_n, config.group, config.cluster_m, config.cluster_n)
        self.dynamic = bool(config.dynamic)
        pipeline = (config.stages, self.operands.stage_bytes)
        if self.axis == "k":
            self.scheduler: Any = GroupedKScheduler(self.tile_k, self.dynamic, *shape)
            self.mainloop: Any = RaggedKMainloop(
                *pipeline, pingpong=self.pingpong, warpgroups=self.warpgroups_per_tile, tile_k=self.tile_k,
                order_barrier=_ORDER_BARRIER_ID, barrier_id=_RAGGED_BARRIER_ID,
            )  # fmt: skip
        else:
            self.scheduler = GroupedScheduler("mn".index(self.axis), MAX_GROUPS, self.dynamic, *shape)
            if self.by_rows:
                self.scheduler = RowScheduler(self.dynamic, *shape)
            mainloop: Any = ZeroFillMainloop
            if types["a"].startswith("float8"):
                mainloop = functools.partial(PromotedMainloop, tile_m=self.tile_m, tile_n=self.mma_n)
            self.mainloop = mainloop(*pipeline, pingpong=self.pingpong, order_barrier=_ORDER_BARRIER_ID)
        self.epilogue: Any = LimitedStore(self.epi_layout, self.by_tma, self.fusion, self.num_b)

    @cute.jit
    def __call__(self, matrices, offsets: cute.Tensor, counter, grid: Int32, aux_args=None, mB_up=None):
        mA, mB, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        b_up = NO_TENSOR if cutlass.const_expr(mB_up is None) else self.operands.tma_b(mB_up)
        threads_d = TmaTensor(None, mD)
        if cutlass.const_expr(self.by_tma):
            tma = Matrices(a, b, c=threads_d, d=self.epi_layout.tma_store(mD))
        else:
            tma = Matrices(a, b, d=threads_d)
        self.launch(tma, grid, None, aux_args, b_up=b_up, offsets=(offsets, counter))

    @cute.jit
    def produce(self, tma, b_up, smem_ab, barriers, k_range, schedule):
        """Load every k-tile of every work tile."""
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(schedule, k_range.num_k_tiles)
        load = functools.partial(self.load_tile, (tma, b_up), smem_ab, barriers, k_range, schedule)
        if cutlass.const_expr(self.dynamic):
            queue = self.scheduler.work_counter
            # In a dynamic `while` the DSL would treat `queue` as an SSA value: bind the methods before it.
            publish, fetch, slot = queue.publish, queue.fetch, queue.producer_state()
            queue.begin(schedule.counter, start)
            work_index = start
            while work_index < end:
                slot = publish(schedule.ring, slot, work_index)
                state = load(state, work_index)
                work_index = stride + fetch(schedule.counter, end)
            # In ping-pong each warpgroup reads an index for itself and one for the other.
            for _ in cutlass.range_constexpr(CONSUMERS if self.pingpong else 1):
                slot = publish(schedule.ring, slot, end)
        else:
            for work_index in cutlass.range(start, end, stride):
                state = load(state, work_index)
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    @cute.jit
    def load_tile(self, operands, smem_ab, barriers, k_range, schedule, state, work_index):
        """Load the k-tiles of a work tile; return the producer's next state."""
        (tma, b_up), (sA, sB) = operands, smem_ab
        row, col = self.scheduler.cta_coord_in_cluster()
        ctas_a, ctas_b = multicast_ctas_a(self.scheduler, row), multicast_ctas_b(self.scheduler, col)
        (i, j, group), work_k_range = self.scheduler.work_tile(schedule, work_index, k_range)
        first, _ = self.scheduler.bounds(schedule, group)
        matrix = self.scheduler.matrix(schedule, group)
        load_a = self.operands.load_a(self.of_group(tma.a, "m", "n", matrix, first), sA, col, ctas_a)
        loads_b = tuple(
            (self.operands.load_b(self.of_group(b, "n", "m", matrix, first), sB, row, ctas_b, index), j)
            for index, b in enumerate((tma.b, b_up)[: self.num_b])
        )
        return self.mainloop.load(((load_a, i), *loads_b), (), barriers, state, work_k_range)

    def of_group(self, operand: TmaTensor, lines: str, others: str, matrix: Any, first: Any) -> TmaTensor:
        """Return a group's part of an operand.

        Parameters
        ----------
        operand : TmaTensor
            A or B.
        lines, others : str
            The dimension of D that its lines are, and the other one: along that, there is a matrix for each group.
        matrix, first : Int32
            The number of its matrix, where the operand has several, and where the group begins.
        """
        batch = 0
        if self.axis == others:
            # Rows without a matrix have no k-tile.
            batch = matrix if self.by_rows else cutlass.min(matrix, operand.tensor.shape[2] - 1)
        origin = (first if self.axis == lines else 0, first if self.axis == "k" else 0)
        return TmaTensor(operand.atom, cute.domain_offset(origin, operand.tensor[None, None, batch]))

    @cute.jit
    def consume(self, ctx, smem_ab, barriers, reduce_buffer, k_range, workspaces, schedule, scales):
        """Multiply and write work tiles: in ping-pong this warpgroup's own, cooperatively its rows of all."""
        del reduce_buffer, workspaces, scales
        idx, num_k_tiles = ctx.warpgroup_idx, k_range.num_k_tiles
        idx_in_tile = 0 if cutlass.const_expr(self.pingpong) else idx
        fragments = self.mainloop.fragments(self.operands, self.make_tiled_mma, smem_ab, idx_in_tile, self.acc)
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, schedule, num_k_tiles, idx)
        multiply = functools.partial(self.multiply_tile, ctx, fragments, barriers, k_range, schedule)
        if cutlass.const_expr(self.dynamic):
            queue = self.scheduler.work_counter
            read = queue.read
            work_index, slot = read(schedule.ring, queue.consumer_state())
            if cutlass.const_expr(self.pingpong):  # noqa: SIM102, one when compiled
                # Warpgroup 1 has the second work tile; `consumer_start` knew the first, which is static.
                if idx == 1:
                    work_index, slot = read(schedule.ring, slot)
            while work_index < end:
                state = multiply(state, work_index)
                if cutlass.const_expr(self.pingpong):
                    other_index, slot = read(schedule.ring, slot)
                    skipped_k_tiles = self.scheduler.k_tile_count(schedule, other_index, num_k_tiles)
                    state = self.mainloop.advance_by(state, skipped_k_tiles)
                work_index, slot = read(schedule.ring, slot)
        else:
            for work_index in cutlass.range(start, end, stride):
                state = multiply(state, work_index)
                if cutlass.const_expr(self.pingpong):
                    # The other warpgroup consumes the k-tiles of the next work tile.
                    other_index = work_index + stride // CONSUMERS
                    skipped_k_tiles = self.scheduler.k_tile_count(schedule, other_index, num_k_tiles)
                    state = self.mainloop.advance_by(state, skipped_k_tiles)
        self.epi_layout.end()

    @cute.jit
    def multiply_tile(self, ctx, fragments, barriers, k_range, schedule, state, work_index):
        """Multiply and write this warpgroup's part of a work tile; return the consumer's next state."""
        idx = ctx.warpgroup_idx
        release = functools.partial(release_cluster, self.scheduler)
        coord, work_k_range = self.scheduler.work_tile(schedule, work_index, k_range)
        bounds = self.scheduler.bounds(schedule, coord[2])
        count = work_k_range.num_k_tiles
        if cutlass.const_expr(self.axis == "k"):
            fragments = fragments._replace(depth=bounds[1] - bounds[0] - (count - 1) * self.tile_k)
        multiplied = count
        if cutlass.const_expr(self.axis == "m" and not self.pingpong):
            # A warpgroup without rows of the group leaves the tensor cores to the other.
            has_rows = bounds[0] + coord[0] * self.tile_m + idx * EPI_TILE_M < bounds[1]
            multiplied = Int32(select_(Boolean(has_rows), count, Int32(0)))
        state = self.mainloop.multiply(fragments, barriers, state, multiplied, idx, release)
        if cutlass.const_expr(self.axis == "m" and not self.pingpong):
            state = self.mainloop.release_unread(barriers, state, count - multiplied, release)
        self.store_group_tile(ctx, flat(fragments.accumulators), coord, bounds, schedule)
        return state

    @cute.jit
    def store_group_tile(self, ctx, accumulators: cute.Tensor, coord, bounds, schedule):
        """Write this warpgroup's part of a tile, as far as its group and D go."""
        i, j, group = coord
        start, end = bounds
        row, col = i * self.tile_m, j * self.tile_n
        if cutlass.const_expr(not self.pingpong):
            row = row + ctx.warpgroup_idx * EPI_TILE_M
        rows, cols = ctx.d.tensor.shape[0], ctx.d.tensor.shape[1]
        if cutlass.const_expr(self.axis == "k"):
            self.epilogue.store_tile(ctx, accumulators, Region(row, col, rows, cols), group, True)
        elif cutlass.const_expr(self.axis == "m"):
            # Rows without a matrix are zero.
            of_group = select_(Boolean(self.scheduler.has_matrix(schedule, group)), group, Int32(-1))
            self.epilogue.store_tile(ctx, accumulators, Region(start + row, col, end, cols), 0, group=of_group)
        else:
            self.epilogue.store_tile(ctx, accumulators, Region(row, start + col, rows, end), 0)


def buildable(config: GroupedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""

    def tensor(operand: str, mode: int, vector: int | None = None) -> cute.Tensor:
        return major_tensor(types[operand], mode, batch=1, vector=vector or 128 // cute_type(types[operand]).width)

    kernel = HopperGroupedGemm(config, types)
    a, b = (tensor(operand, 1 if types[f"{operand}_major"] == "k" else 0) for operand in "ab")
    d = tensor("d", 1, None if kernel.by_tma else 1)
    offsets = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int32(),), assumed_align=4)
    counter = tensor_1d("uint64") if config.dynamic else None
    aux_args = None if kernel.fusion is None else kernel.fusion.fake_args()
    b_up = tensor("b", 1 if types["b_major"] == "k" else 0) if kernel.num_b > 1 else None
    return Buildable(kernel, ((a, b, d), offsets, counter, Int32(1), aux_args, b_up))
