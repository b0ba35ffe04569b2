"""GEMM at the limit of Hopper's tensor cores: TMA, wgmma, warp specialisation, clusters, persistent CTAs.

Idea
    A persistent CTA computes tile after tile. One producer warp issues TMA loads of k-tiles of A and B into a pipeline
    of stages; two consumer warpgroups multiply them with wgmma, which reads both operands from shared memory, and store
    the accumulators through shared memory by TMA. Full barriers count the bytes that arrive, empty barriers the
    warpgroups that have released a stage.
Compared with h08_pingpong
    A scheduler, a mainloop and an epilogue are composed, each of several kinds. With `pingpong` each warpgroup has
    tiles of its own, and one multiplies while the other writes; without, both share a tile (cooperative). CTAs of a
    cluster share loads (multicast), or split a tile's K and reduce their partial sums in their order. With swap_ab the
    kernel computes the transpose of D. With `stream_k` the k-tiles of tiles that do not fill a wave are shared evenly.
Data movement
    The tile of 128 x 256: 85 FLOP a byte from L2 for 16-bit types; a wgmma of 64 x 256 x 16 reads 2 KB of A and 8 KB of
    B from shared memory for 524,288 FLOP.
Limits
    Power: at full rate an H100 lowers its clock. Then prologue and epilogue of a tile, and how the tiles of the last
    wave fill the multiprocessors.
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
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import ClusterReduction
from gemmule.kernels.hopper.epilogues.context import EpilogueContext
from gemmule.kernels.hopper.epilogues.epi_tile_layout import EpiTileLayout
from gemmule.kernels.hopper.epilogues.fused import FusedEpilogue
from gemmule.kernels.hopper.epilogues.fused_fragments import FragmentFusion
from gemmule.kernels.hopper.epilogues.linear_combination import LinearCombination
from gemmule.kernels.hopper.mainloops.operands import NO_TENSOR, Matrices, OperandStages, flat
from gemmule.kernels.hopper.mainloops.promoted_accumulators import PromotedMainloop
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_peers_a, multicast_peers_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.schedulers.persistent import PersistentScheduler
from gemmule.kernels.hopper.schedulers.stream_k import StreamKScheduler
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, K_BYTES, MMA_M, THREADS
from gemmule.kernels.parts.absolute_maximum import absmax_atomic_max, absmax_init
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d

from .config import HopperGemmConfig

# Registers of a thread: the producer warpgroup gives up what the consumers need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers: 1 and 2 of the consumers' epilogues, 3 and 4 for their order in ping-pong, and one for the prologue.
_EPILOGUE_BARRIER_ID, _ORDER_BARRIER_ID, _PROLOGUE_BARRIER_ID = 1, 3, 5
# Bytes of an accumulator.
_ACC_BYTES = 4


class HopperGemm:
    """D[m, n] = alpha * sum over k of A[m, k] B[n, k] + beta * C[m, n], for each matrix of a batch.

    A is (M, K, L), B (N, K, L), as CuTe has them; C and D (M, N, L) are row-major, with swap_ab column-major. With a
    gated epilogue there are two B (dual GEMM, as in GLU).

    Parameters
    ----------
    config : HopperGemmConfig
        Tile, schedule and cluster.
    types : dict
        The signature: element types, majors, whether there is a C, and the fused epilogue.
    """

    def __init__(self, config: HopperGemmConfig, types: dict[str, str]) -> None:
        self.acc, d_element = cute_type(types["acc"]), cute_type(types["d"])
        # TMA rounds float32 to TF32.
        elements = tuple(cutlass.TFloat32 if types[x] == "float32" else cute_type(types[x]) for x in "ab")
        self.fusion: Any = FragmentFusion(types) if "epilogue" in types else None
        self.num_b = 2 if self.fusion and self.fusion.expression.gated else 1
        # Columns of the accumulators are those of all B in a CTA tile; D's are as many as those of one.
        self.tile_m, self.tile_n, self.mma_n = config.tile_m, config.tile_n // self.num_b, config.tile_n
        self.tile_k = K_BYTES * 8 // elements[0].width
        self.pingpong, self.warpgroups_per_tile = bool(config.pingpong), config.warpgroups_per_tile
        cluster = (config.cluster_m, config.cluster_n, config.cluster_k)
        scheduler: Any = (
            functools.partial(StreamKScheduler, config.warpgroups_per_tile) if config.stream_k else PersistentScheduler
        )
        self.scheduler = scheduler(self.tile_m, self.tile_n, config.group, *cluster)
        self.operands = OperandStages(
            (self.tile_m, self.mma_n, self.tile_k), (elements[0], elements[1]),
            (types["a_major"] == "k", types["b_major"] == "k"), config.stages,
            multicast_size_a=config.cluster_n, multicast_size_b=config.cluster_m, num_b=self.num_b,
        )  # fmt: skip
        # Of 8-bit floats the instruction's own accumulators are too coarse for all of K.
        mainloop = PromotedMainloop if types["a"].startswith("float8") else Mainloop
        stage_bytes = self.operands.stage_bytes
        self.mainloop = mainloop(config.stages, stage_bytes, pingpong=self.pingpong, order_barrier=_ORDER_BARRIER_ID)
        mma_tiles_m = config.mma_tiles_m
        accumulator_bytes = MMA_M * mma_tiles_m * self.mma_n * _ACC_BYTES
        self.reduction = ClusterReduction(config.cluster_k, mma_tiles_m, accumulator_bytes)
        itemsize = d_element.width // 8
        epi_tile_n = config.epi_tile_n(itemsize, self.num_b)
        self.epi_tiles = EpiTileLayout(
            d_element, (EPI_TILE_M, epi_tile_n), mma_tiles_m, self.tile_n // config.cluster_k // epi_tile_n,
            mma_stride_m=1 if self.pingpong else CONSUMERS, epi_stages=config.epi_stages(itemsize, self.num_b),
            column_major=bool(config.swap_ab), reads_c=types["adds"] == "yes",
        )  # fmt: skip
        self.epilogue: Any = LinearCombination(self.epi_tiles)
        if self.fusion is not None:
            self.epilogue = FusedEpilogue(self.epi_tiles, self.fusion, self.num_b)

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, aux_args=None, workspaces=None, mB_up=None):
        mA, mB, mC, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        b_up = NO_TENSOR if cutlass.const_expr(mB_up is None) else self.operands.tma_b(mB_up)
        matrices = Matrices(a, b, c=self.epi_tiles.tma_load(mC), d=self.epi_tiles.tma_store(mD))
        self.launch(matrices, grid, scale, aux_args, workspaces, b_up)

    @cute.jit
    def launch(self, matrices, grid: Int32, scale, aux_args=None, workspaces=None, b_up=NO_TENSOR):
        """Launch the kernel; `b_up` is the second B of a gated epilogue."""
        self.kernel(matrices, scale, aux_args, workspaces, b_up).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.scheduler.cluster_size, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, matrices, scale, aux_args, workspaces, b_up):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers, c_full = self.mainloop.barriers(smem), self.epi_tiles.barriers(smem)
        exchange_barriers = self.reduction.barriers(smem)
        stages, epi_smem = self.operands.allocate(smem), self.epi_tiles.allocate(smem)
        exchange = self.reduction.allocate(smem, exchange_barriers)
        if warp == 0:
            for matrix in (matrices.a, matrices.b, matrices.d, b_up):
                if cutlass.const_expr(matrix.atom is not None):
                    cpasync.prefetch_descriptor(matrix.atom)
            with cute.arch.elect_one():
                self.mainloop.init(barriers, 1, self.warpgroups_per_tile * self.scheduler.empty_arrival_ctas)
                self.epi_tiles.init(c_full)
                self.reduction.init(exchange_barriers)
            cute.arch.mbarrier_init_fence()
        self.sync_after_init(warp)
        # Wait for the predecessor grid's writes, then let the dependent grid launch.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        k_range = self.scheduler.k_range(cute.ceil_div(matrices.a.tensor.shape[1], self.tile_k))
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(matrices, b_up, stages, barriers, k_range)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            idx = warp // 4 - 1
            own_exchange = self.reduction.of_warpgroup(exchange, idx)
            ctx = EpilogueContext(
                matrices.c, matrices.d, epi_smem, c_full, scale, idx, _EPILOGUE_BARRIER_ID + idx, aux_args,
                d_transposed=matrices.d_transposed,
            )  # fmt: skip
            self.consume(ctx, stages, barriers, own_exchange, k_range, workspaces)

    @cute.jit
    def sync_after_init(self, warp):
        """Arrive at the cluster's barrier; wait until this CTA's barriers are initialised.

        As `Mainloop.prologue`, but only the threads that need the cluster wait for it: a producer that multicasts, and
        consumers before their first exchange.
        """
        if cutlass.const_expr(self.scheduler.cluster_size > 1):
            cute.arch.cluster_arrive()
        if warp == 0:
            # This warp initialised the barriers: it arrives without waiting for the CTA's other warps.
            cute.arch.sync_warp()
            cute.arch.barrier_arrive(barrier_id=_PROLOGUE_BARRIER_ID, number_of_threads=THREADS)
            if cutlass.const_expr(self.scheduler.empty_arrival_ctas > 1):
                cute.arch.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=_PROLOGUE_BARRIER_ID, number_of_threads=THREADS)

    @cute.jit
    def produce(self, matrices, b_up, stages, barriers, k_range):
        """Load every k-tile of every work tile."""
        (sA, sB), mD = stages, matrices.d.tensor
        row, col = self.scheduler.cta_coord_in_cluster()
        load_a = self.operands.load_a(matrices.a, sA, col, multicast_peers_a(self.scheduler, row))
        loads_b = tuple(
            self.operands.load_b(b, sB, row, multicast_peers_b(self.scheduler, col), index)
            for index, b in enumerate((matrices.b, b_up)[: self.num_b])
        )
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(mD, k_range.count)
        for work_index in cutlass.range(start, end, stride):
            (i, j, batch), work_k_range = self.scheduler.work_tile(mD, work_index, k_range)
            loads = ((load_a, i), *((load_b, j) for load_b in loads_b))
            state = self.mainloop.load(loads, (batch,), barriers, state, work_k_range)
        if cutlass.const_expr(self.scheduler.empty_arrival_ctas > 1):
            self.mainloop.producer_tail(barriers, state)

    def make_tiled_mma(self) -> cute.TiledMma:
        """Return the instruction, for the warpgroups that share a tile."""
        a, b = self.operands.elements
        return tiled_mma(a, self.operands.k_major, self.acc, self.warpgroups_per_tile, (MMA_M, self.mma_n), b)

    @cute.jit
    def consume(self, ctx, stages, barriers, exchange, k_range, workspaces):
        """Multiply and write this warpgroup's work tiles, or its rows of them."""
        idx, mD, num_k_tiles = ctx.warpgroup_idx, ctx.d.tensor, k_range.count
        idx_in_tile = 0 if cutlass.const_expr(self.pingpong) else idx
        fragments = self.mainloop.fragments(self.operands, self.make_tiled_mma, stages, idx_in_tile, self.acc)
        if cutlass.const_expr(self.fusion is not None and self.fusion.has_absmax):
            ctx = dataclasses.replace(ctx, absmax=absmax_init())
        release = functools.partial(release_cluster, self.scheduler)
        c_phase, exchange_phase = Int32(0), Int32(0)
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, mD, num_k_tiles, idx)
        for work_index in cutlass.range(start, end, stride):
            tile, work_k_range = self.scheduler.work_tile(mD, work_index, k_range)
            inputs = None
            if cutlass.const_expr(self.fusion is not None and not self.scheduler.requires_fixup):
                inputs = self.epilogue.begin(ctx, self.epi_origin(tile, idx))
            state = self.mainloop.multiply(fragments, barriers, state, work_k_range.count, idx, release)
            if cutlass.const_expr(self.pingpong):
                # The other warpgroup consumes the k-tiles of the next work tile.
                passed = self.scheduler.k_tile_count(mD, work_index + stride // CONSUMERS, num_k_tiles)
                state = self.mainloop.advance_by(state, passed)
            accumulators, epi_col = flat(fragments.accumulators), self.epi_col(tile)
            if cutlass.const_expr(self.reduction.cluster_k > 1):
                if work_index == start:
                    # The other CTAs have initialised their exchange barriers.
                    cute.arch.cluster_wait()
                has_next = work_index + stride < end
                accumulators = self.reduction.reduce(accumulators, exchange, exchange_phase, ctx, has_next)
                exchange_phase, epi_col = exchange_phase ^ 1, self.epi_col_of_cta(epi_col)
            if cutlass.const_expr(self.scheduler.requires_fixup):
                if self.scheduler.fixup(workspaces, accumulators, mD, work_k_range, num_k_tiles, ctx):
                    c_phase = self.write(ctx, inputs, c_phase, accumulators, tile, epi_col)
            else:
                c_phase = self.write(ctx, inputs, c_phase, accumulators, tile, epi_col)
        if cutlass.const_expr(ctx.absmax is not None):
            absmax_atomic_max(ctx.absmax, ctx.aux_args[-1])
        self.epi_tiles.end()

    def write(self, ctx: Any, inputs: Any, c_phase: Any, accumulators: Any, tile: Any, epi_col: Any) -> Any:
        """Write this warpgroup's part of a tile by the epilogue; return C's next phase."""
        if self.fusion is None:
            row = tile[0] * (self.tile_m // EPI_TILE_M) + (0 if self.pingpong else ctx.warpgroup_idx)
            origin = (row, epi_col, tile[2:])
        else:
            origin = self.epi_origin(tile, ctx.warpgroup_idx)
            if self.scheduler.requires_fixup:
                # Before the mainloop it was not known whether this CTA would own the tile.
                inputs = self.epilogue.begin(ctx, origin)
        return self.epilogue.finish(ctx, c_phase, accumulators, origin, inputs)

    def epi_origin(self, tile: Any, warpgroup_idx: Any) -> tuple[Any, Any, Any]:
        """Return row and column of this warpgroup's first epilogue tile of a tile, in epilogue tiles, and the batch."""
        row, col = tile[0] * (self.tile_m // EPI_TILE_M), self.epi_col(tile)
        if not self.pingpong:
            row = row + warpgroup_idx
        return row, self.epi_col_of_cta(col), tile[2:]

    def epi_col(self, tile: Any) -> Any:
        """Return the column of a tile's first epilogue tile, in epilogue tiles."""
        return tile[1] * (self.tile_n // self.epi_tiles.shape[1])

    def epi_col_of_cta(self, epi_col: Any) -> Any:
        """Return the column of the first epilogue tile that this CTA writes, where a cluster splits K."""
        if self.reduction.cluster_k == 1:
            return epi_col
        return epi_col + self.scheduler.cta_k_in_cluster() * self.epi_tiles.epi_tiles_n


def buildable(config: HopperGemmConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    d_mode = 0 if config.swap_ab else 1
    contiguous_modes = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, d_mode, d_mode)

    def tensor(operand: str) -> Any:
        mode, vector = contiguous_modes["abcd".index(operand)], 128 // cute_type(types[operand]).width
        return major_tensor(types[operand], mode, batch=1, vector=vector)

    acc = cute_type(types["acc"])
    kernel = HopperGemm(config, types)
    aux_args = None if kernel.fusion is None else kernel.fusion.stand_ins()
    workspaces = (tensor_1d(types["acc"]), tensor_1d("int32")) if config.stream_k else None
    b_up = tensor("b") if kernel.num_b > 1 else None
    matrices = tuple(map(tensor, "abcd"))
    return Buildable(kernel, (matrices, Int32(1), (acc(1), acc(0)), aux_args, workspaces, b_up))
