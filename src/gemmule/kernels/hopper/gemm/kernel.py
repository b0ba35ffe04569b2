"""GEMM at the limit of Hopper's tensor cores: TMA, wgmma, warp specialisation, clusters, persistent CTAs.

Idea
    A persistent CTA computes tile after tile. One producer warp issues TMA loads of k-tiles of A and B into a pipeline
    of stages; two consumer warpgroups multiply them with wgmma, which reads both operands from shared memory, and store
    the accumulators through shared memory by TMA. Full barriers count the bytes that arrive, empty barriers the
    warpgroups that have released a stage.
Change from the rung before
    A scheduler, a mainloop and an epilogue are put together, each of several kinds. With `pingpong` each warpgroup has
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
from gemmule.kernels.hopper.epilogues.fused import FusedEpilogue
from gemmule.kernels.hopper.epilogues.fused_fragments import FragmentEpilogue
from gemmule.kernels.hopper.epilogues.linear_combination import LinearCombination
from gemmule.kernels.hopper.mainloops.operands import NO_TENSOR, Matrices, OperandStages, flat
from gemmule.kernels.hopper.mainloops.promoted_accumulators import PromotedMainloop
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_a, multicast_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.schedulers.persistent import PersistentScheduler
from gemmule.kernels.hopper.schedulers.stream_k import StreamKScheduler
from gemmule.kernels.hopper.tile_config import BOX_M, CONSUMERS, K_BYTES, MMA_M, THREADS
from gemmule.kernels.parts.absolute_maximum import largest_of_none, write_largest
from gemmule.kernels.parts.tensors import cute_type, line_tensor, major_tensor

from .config import HopperGemmConfig

# Registers of a thread: the producer warpgroup gives up what the consumers need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers: 1 and 2 of the consumers' epilogues, 3 and 4 for their order in ping-pong, and one for the prologue.
_EPILOGUE, _ORDER, _PROLOGUE = 1, 3, 5


class HopperGemm:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L); swap_ab: column-major.

    Parameters
    ----------
    config : HopperGemmConfig
        What is put together.
    types : dict
        The signature: element types, majors, whether there is a C, and the fused epilogue.
    """

    def __init__(self, config: HopperGemmConfig, types: dict[str, str]) -> None:
        self.acc, out = cute_type(types["acc"]), cute_type(types["d"])
        # TMA rounds float32 to TF32.
        elements = tuple(cutlass.TFloat32 if types[x] == "float32" else cute_type(types[x]) for x in "ab")
        self.epilogue: Any = FragmentEpilogue(types) if "epilogue" in types else None
        # A tile of a gated form holds columns of two matrices B, for half as many of D.
        self.num_b = 2 if self.epilogue and self.epilogue.expression.gated else 1
        # Columns of B in a tile, and of D.
        self.tile_m, self.tile_n, self.tile_d = config.tile_m, config.tile_n, config.tile_n // self.num_b
        self.tile_k = K_BYTES * 8 // elements[0].width
        self.pingpong, self.warpgroups_per_tile = bool(config.pingpong), config.warpgroups_per_tile
        cluster = (config.cluster_m, config.cluster_n, config.cluster_k)
        kind: Any = (
            functools.partial(StreamKScheduler, config.warpgroups_per_tile) if config.stream_k else PersistentScheduler
        )
        self.scheduler = kind(self.tile_m, self.tile_d, config.group, *cluster)
        self.operands = OperandStages(
            (self.tile_m, self.tile_n, self.tile_k), (elements[0], elements[1]),
            (types["a_major"] == "k", types["b_major"] == "k"), config.stages,
            ctas_a=config.cluster_n, ctas_b=config.cluster_m, num_b=self.num_b,
        )  # fmt: skip
        # Of 8-bit floats the instruction's own accumulators are too coarse for all of K.
        mainloop = PromotedMainloop if types["a"].startswith("float8") else Mainloop
        stage_bytes = self.operands.stage_bytes
        self.mainloop = mainloop(config.stages, stage_bytes, pingpong=self.pingpong, order_barrier=_ORDER)
        self.reduction = ClusterReduction(config.cluster_k, config.blocks, MMA_M * config.blocks * config.tile_n * 4)
        item = out.width // 8
        box_n = config.box_n(item, self.num_b)
        subtiles = (
            out, (BOX_M, box_n), config.blocks, self.tile_d // config.cluster_k // box_n,
            1 if self.pingpong else CONSUMERS, config.buffers(item, self.num_b), bool(config.swap_ab),
            types["adds"] == "yes",
        )  # fmt: skip
        # Both write subtiles; the plain one also allocates them and their barriers.
        self.plain: Any = LinearCombination(*subtiles)
        self.fused: Any = self.epilogue and FusedEpilogue(*subtiles, self.epilogue, self.num_b)

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, extras=None, workspaces=None, mU=None):
        mA, mB, mC, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        u = NO_TENSOR if cutlass.const_expr(mU is None) else self.operands.tma_b(mU)
        matrices = Matrices(a, b, self.plain.tma_load(mC), self.plain.tma_store(mD))
        self.launch(matrices, grid, scale, extras, workspaces, u)

    @cute.jit
    def launch(self, matrices, grid: Int32, scale, extras=None, workspaces=None, u=NO_TENSOR):
        """Launch the kernel."""
        self.kernel(matrices, scale, extras, workspaces, u).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.scheduler.size, 1, 1),
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, matrices, scale, extras, workspaces, u):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers, c_full = self.mainloop.barriers(smem), self.plain.barriers(smem)
        exchange_barriers = self.reduction.barriers(smem)
        stages, subtiles = self.operands.allocate(smem), self.plain.allocate(smem)
        exchange = self.reduction.allocate(smem, exchange_barriers)
        if warp == 0:
            for matrix in (matrices.a, matrices.b, matrices.d, u):
                if cutlass.const_expr(matrix.atom is not None):
                    cpasync.prefetch_descriptor(matrix.atom)
            with cute.arch.elect_one():
                self.mainloop.init(barriers, 1, self.warpgroups_per_tile * self.scheduler.multicast_ctas)
                self.plain.init(c_full)
                self.reduction.init(exchange_barriers)
            cute.arch.mbarrier_init_fence()
        self.begin(warp)
        # Wait for the predecessor grid's writes, then let the dependent grid launch.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        k_range = self.scheduler.k_range(cute.ceil_div(matrices.a.tensor.shape[1], self.tile_k))
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(matrices, u, stages, barriers, k_range)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            idx = warp // 4 - 1
            own_exchange = self.reduction.of_warpgroup(exchange, idx)
            ctx = EpilogueContext(matrices.c, matrices.d, subtiles, c_full, scale, idx, _EPILOGUE + idx, extras)
            self.consume(ctx, stages, barriers, own_exchange, k_range, workspaces)

    @cute.jit
    def begin(self, warp):
        """Arrive at the cluster's barrier; wait until this CTA's barriers are initialised."""
        if cutlass.const_expr(self.scheduler.size > 1):
            cute.arch.cluster_arrive()
        if warp == 0:
            # The warp that initialised them need not wait, but for the CTAs that it shares loads with.
            cute.arch.sync_warp()
            cute.arch.barrier_arrive(barrier_id=_PROLOGUE, number_of_threads=THREADS)
            if cutlass.const_expr(self.scheduler.multicast_ctas > 1):
                cute.arch.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=_PROLOGUE, number_of_threads=THREADS)

    @cute.jit
    def produce(self, matrices, u, stages, barriers, k_range):
        """Load every k-tile of every tile."""
        (sA, sB), mD = stages, matrices.d.tensor
        row, col = self.scheduler.rank()
        load_a = self.operands.load_a(matrices.a, sA, col, multicast_a(self.scheduler, row))
        loads_b = tuple(
            self.operands.load_b(b, sB, row, multicast_b(self.scheduler, col), number)
            for number, b in enumerate((matrices.b, u)[: self.num_b])
        )
        state = self.mainloop.producer_state()
        first, step, end = self.scheduler.work(mD, k_range[1])
        for number in cutlass.range(first, end, step):
            (i, j, batch), k_tiles = self.scheduler.piece(mD, number, k_range)
            loads = ((load_a, i), *((load_b, j) for load_b in loads_b))
            state = self.mainloop.load(loads, (batch,), barriers, state, k_tiles)
        if cutlass.const_expr(self.scheduler.multicast_ctas > 1):
            self.mainloop.drain(barriers, state)

    def mma(self) -> cute.TiledMma:
        """Return the instruction, for the warpgroups that share a tile."""
        a, b = self.operands.elements
        return tiled_mma(a, self.operands.along_k, self.acc, self.warpgroups_per_tile, (MMA_M, self.tile_n), b)

    @cute.jit
    def consume(self, ctx, stages, barriers, exchange, k_range, workspaces):
        """Multiply and write this warpgroup's tiles, or its rows of them."""
        idx, mD, k_tiles = ctx.warpgroup_idx, ctx.d.tensor, k_range[1]
        of_tile = 0 if cutlass.const_expr(self.pingpong) else idx
        fragments = self.mainloop.fragments(self.operands, self.mma, stages, of_tile, self.acc)
        if cutlass.const_expr(self.epilogue is not None and self.epilogue.has_absmax):
            absmax, largest = ctx.extras[-1], largest_of_none()
            ctx = dataclasses.replace(ctx, extras=(*ctx.extras, largest))
        release = functools.partial(release_cluster, self.scheduler)
        c_phase, exchange_phase = Int32(0), Int32(0)
        state, first, step, end = self.mainloop.consumer_work(self.scheduler, mD, k_tiles, idx)
        for number in cutlass.range(first, end, step):
            tile, piece = self.scheduler.piece(mD, number, k_range)
            inputs = None
            if cutlass.const_expr(self.epilogue is not None and not self.scheduler.splits_tiles):
                inputs = self.fused.begin(ctx, self.corner(tile, idx))
            state = self.mainloop.multiply(fragments, barriers, state, piece[1], idx, release)
            if cutlass.const_expr(self.pingpong):
                # The other warpgroup consumes the k-tiles of the next piece.
                passed = self.scheduler.k_tiles(mD, number + step // CONSUMERS, k_tiles)
                state = self.mainloop.skip(state, passed)
            accumulators, col = flat(fragments.accumulators), self.column(tile)
            if cutlass.const_expr(self.reduction.ctas > 1):
                if number == first:
                    # The other CTAs have initialised their exchange barriers.
                    cute.arch.cluster_wait()
                accumulators = self.reduction.reduce(accumulators, exchange, exchange_phase, ctx, number + step < end)
                exchange_phase, col = exchange_phase ^ 1, col + self.scheduler.rank_k() * self.plain.per_block
            if cutlass.const_expr(self.scheduler.splits_tiles):
                if self.scheduler.complete(workspaces, accumulators, mD, piece, k_tiles, ctx):
                    c_phase = self.write(ctx, inputs, c_phase, accumulators, tile, col)
            else:
                c_phase = self.write(ctx, inputs, c_phase, accumulators, tile, col)
        if cutlass.const_expr(self.epilogue is not None and self.epilogue.has_absmax):
            write_largest(largest, absmax)
        self.plain.end()

    def write(self, ctx: Any, inputs: Any, c_phase: Any, accumulators: Any, tile: Any, col: Any) -> Any:
        """Write a tile by its epilogue, the linear combination from subtile column `col` on; return C's next phase."""
        if self.epilogue is None:
            row = tile[0] * (self.tile_m // BOX_M) + (0 if self.pingpong else ctx.warpgroup_idx)
            return self.plain.finish(ctx, c_phase, accumulators, row, col, tile[2:])
        corner = self.corner(tile, ctx.warpgroup_idx)
        if self.scheduler.splits_tiles:
            # Before the mainloop it was not known whether this CTA would complete the tile.
            inputs = self.fused.begin(ctx, corner)
        return self.fused.finish(ctx, inputs, c_phase, accumulators, corner)

    def column(self, tile: Any) -> Any:
        """Return the column of a tile's first subtile, in subtiles."""
        return tile[1] * (self.tile_d // self.plain.shape[1])

    def corner(self, tile: Any, warpgroup_idx: Any) -> tuple[Any, Any, Any]:
        """Return row and column of the first subtile of this warpgroup's part of a tile, and the batch."""
        row, col = tile[0] * (self.tile_m // BOX_M), self.column(tile)
        if not self.pingpong:
            row = row + warpgroup_idx
        if self.reduction.ctas > 1:
            col = col + self.scheduler.rank_k() * self.plain.per_block
        return row, col, tile[2:]


def buildable(config: HopperGemmConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    result = 0 if config.swap_ab else 1
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, result, result)

    def tensor(operand: str) -> Any:
        unit, vector = units["abcd".index(operand)], 128 // cute_type(types[operand]).width
        return major_tensor(types[operand], unit, batch=1, vector=vector)

    acc = cute_type(types["acc"])
    kernel = HopperGemm(config, types)
    extras = None if kernel.epilogue is None else kernel.epilogue.stand_ins()
    workspaces = (line_tensor(types["acc"]), line_tensor("int32")) if config.stream_k else None
    second = tensor("b") if kernel.num_b > 1 else None
    matrices = tuple(map(tensor, "abcd"))
    return Buildable(kernel, (matrices, Int32(1), (acc(1), acc(0)), extras, workspaces, second))
