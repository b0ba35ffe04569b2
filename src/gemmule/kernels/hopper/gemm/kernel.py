"""GEMM at the limit of Hopper's tensor cores: TMA, wgmma, warp specialisation, clusters, persistent CTAs.

Idea
    A persistent CTA computes tile after tile. One producer warp issues TMA loads of k-tiles of A and B into a pipeline
    of stages; consumer warpgroups multiply them with wgmma, which reads both operands from shared memory, and store
    the accumulators through shared memory by TMA. Full barriers count the bytes that arrive, empty barriers the
    warpgroups that have released a stage.
Compared with h08_pingpong
    A scheduler, a mainloop and an epilogue are composed, each of several kinds. With `pingpong` each warpgroup has
    tiles of its own, and one multiplies while the other writes; without, both share a tile (cooperative). CTAs of a
    cluster share loads (multicast), and split a tile's K and add the partial sums in CTA-rank order: deterministic.
    With swap_ab the kernel computes the transpose of D. With `split_k` several clusters split a tile's K.
Data movement
    The tile of 128 x 256: 85 FLOP a byte from L2 for 16-bit types; a wgmma of 64 x 256 x 16 reads 2 KB of A and 8 KB of
    B from shared memory for 524,288 FLOP.
Limits
    Power: at full rate an H100 lowers its clock. Then prologue and epilogue of a tile, and how the tiles of the last
    wave fill the SMs.
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

from gemmule.core.epilogue import ABSMAX
from gemmule.core.epilogue_inputs import CLEARED
from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import ClusterReduction
from gemmule.kernels.hopper.epilogues.context import EpilogueContext
from gemmule.kernels.hopper.epilogues.cta_maximum import CtaMaximum
from gemmule.kernels.hopper.epilogues.epi_tile_layout import EpiTileLayout
from gemmule.kernels.hopper.epilogues.fused_epilogue import FusedEpilogue
from gemmule.kernels.hopper.epilogues.fused_fragments import FragmentFusion
from gemmule.kernels.hopper.epilogues.linear_combination import LinearCombination
from gemmule.kernels.hopper.mainloops.operands import NO_TENSOR, Matrices, OperandStages, flat
from gemmule.kernels.hopper.mainloops.producer import Producer
from gemmule.kernels.hopper.mainloops.promoted_accumulators import PromotedMainloop
from gemmule.kernels.hopper.mainloops.register_operand import RegisterOperandMainloop
from gemmule.kernels.hopper.mainloops.scaled_accumulators import ScaledMainloop, block_lines, fake_scales
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.scale_stages import narrow_columns
from gemmule.kernels.hopper.schedulers.divided import DividedScheduler
from gemmule.kernels.hopper.schedulers.narrow_edge import NarrowEdgeScheduler
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, K_BYTES, MMA_M
from gemmule.kernels.parts.absolute_maximum import absmax_init
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.schedulers.split_k import SplitKScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d

from .config import HopperGemmConfig

# Named barriers: 1 and 2 of the consumers' epilogues, 3 and 4 for their order in ping-pong, or 3 of a third consumer's
# epilogue, one for the prologue, one for the absolute maximum.
_EPILOGUE_BARRIER_ID, _ORDER_BARRIER_ID, _PROLOGUE_BARRIER_ID, _MAXIMUM_BARRIER_ID = 1, 3, 5, 6
# The producers' warp that raises the absolute maximum; bytes of an accumulator.
_MAXIMUM_WARP, _ACC_BYTES = 3, 4
# Elements of a tile whose k-tiles take long enough to load C meanwhile; of one whose first loads divisions would delay:
# few rows, whose weights come from memory.
_LARGE_TILE, _SMALL_TILE = 128 * 112, 64 * 64


class HopperGemm(Producer):
    """D[m, n] = alpha * sum over k of A[m, k] B[n, k] + beta * C[m, n], for each matrix of a batch.

    A is (M, K, L), B (N, K, L), as CuTe has them; C and D (M, N, L) are row-major, with swap_ab column-major. With a
    gated epilogue there are two B (dual GEMM, as in GLU), with swap_ab two A.

    Parameters
    ----------
    config : HopperGemmConfig
        Tile, schedule and cluster.
    types : dict
        The signature: element types, majors, whether there is a C, and the fused epilogue.
    """

    #: Whether lanes share the inputs of an epilogue of 8-bit floats that vary by column only.
    shares_inputs = True

    def __init__(self, config: HopperGemmConfig, types: dict[str, str]) -> None:
        self.acc, d_element = cute_type(types["acc"]), cute_type(types["d"])
        # TMA rounds float32 to TF32.
        elements = tuple(cutlass.TFloat32 if types[x] == "float32" else cute_type(types[x]) for x in "ab")
        promotes = types["a"].startswith("float8")
        columns = config.mma_n // config.cluster_k if promotes and self.shares_inputs else 0
        self.fusion: Any = FragmentFusion(types, columns) if "epilogue" in types else None
        self.maximum: Any = None
        if self.fusion and self.fusion.has_absmax:
            self.maximum = CtaMaximum(types[ABSMAX] == CLEARED, _MAXIMUM_BARRIER_ID, config.consumers)
        # A gated epilogue reduces the accumulators of both B, or with swap_ab both A, to one tile of D.
        pair = 2 if self.fusion and self.fusion.expression.gated else 1
        self.num_a, self.num_b = (pair, 1) if config.swap_ab else (1, pair)
        self.rows, self.columns = config.tile_m, config.tile_n
        self.tile_m, self.tile_n = self.rows // self.num_a, self.columns // self.num_b
        self.tile_k = K_BYTES * 8 // elements[0].width
        self.pingpong, self.warpgroups_per_tile = bool(config.pingpong), config.warpgroups_per_tile
        self.warpgroups_n, self.mma_n = config.warpgroups_n, config.mma_n
        self.threads, self.registers = config.threads, config.registers
        cluster = (config.cluster_m, config.cluster_n, config.cluster_k)
        small = not promotes and self.rows * self.columns <= _SMALL_TILE
        scheduler: Any = DividedScheduler if small or (promotes and not self.pingpong) else PersistentScheduler
        if narrow_n := 0 if (lines := block_lines(types)) is None else narrow_columns(lines, config):
            scheduler = functools.partial(NarrowEdgeScheduler, narrow_n)
        self.precomputes_divisors = small or config.precomputes_divisors
        if config.split_k:
            scheduler = functools.partial(SplitKScheduler, config.warpgroups_per_tile)
        self.scheduler = scheduler(self.tile_m, self.tile_n, config.group, *cluster)
        self.operands = OperandStages(
            (self.rows, self.columns, self.tile_k), (elements[0], elements[1]),
            (types["a_major"] == "k", types["b_major"] == "k"), config.stages,
            multicast_size_a=config.cluster_n, multicast_size_b=config.cluster_m, num_b=self.num_b,
            num_a=self.num_a, parts_b=config.warpgroups_n,
        )  # fmt: skip
        # FP8 wgmma accumulates with about 13 fraction bits: promote to float32 per k-tile.
        tile = {"tile_m": self.rows, "tile_n": self.columns}
        mainloop: Any = functools.partial(PromotedMainloop, **tile) if promotes else Mainloop
        if elements[0] is cutlass.TFloat32 and types["a_major"] != "k":
            mainloop = RegisterOperandMainloop
        if lines is not None:
            mainloop = functools.partial(ScaledMainloop, lines=lines, narrow_n=narrow_n, **tile)
        stage_bytes = self.operands.stage_bytes
        self.mainloop = mainloop(config.stages, stage_bytes, pingpong=self.pingpong, order_barrier=_ORDER_BARRIER_ID)
        mma_tiles_m = config.mma_tiles_m
        accumulator_bytes = MMA_M * mma_tiles_m * self.mma_n * _ACC_BYTES
        stride = config.cluster_m * config.cluster_n
        # With a gated epilogue each CTA gets the same columns of both products.
        self.reduction = ClusterReduction(config.cluster_k, mma_tiles_m * self.num_b, accumulator_bytes, stride)
        itemsize = d_element.width // 8
        epi_tile_n = config.epi_tile_n(itemsize, pair)
        self.epi_layout = EpiTileLayout(
            d_element, (EPI_TILE_M, epi_tile_n), mma_tiles_m // self.num_a,
            self.tile_n // (config.warpgroups_n * config.cluster_k * epi_tile_n), mma_stride_m=config.warpgroups_m,
            epi_stages=config.epi_stages(itemsize, pair), column_major=bool(config.swap_ab),
            reads_c=types["adds"] == "yes", loads_c_ahead=types["adds"] == "yes",
            loads_c_during=types["adds"] == "yes" and self.mainloop.calls_during
            and not (config.split_k or config.cluster_k > 1) and self.rows * self.columns >= _LARGE_TILE,
            warpgroups=config.consumers,
        )  # fmt: skip
        if lines is None:
            fused = self.fusion is not None and not promotes
            stages, batches = config.epi_batches(itemsize, pair, reads_c=self.epi_layout.reads_c, fused=fused)
            self.epi_layout = dataclasses.replace(self.epi_layout, epi_stages=stages, num_batches=batches)
        self.epilogue: Any = LinearCombination(self.epi_layout)
        if self.fusion is not None or self.epi_layout.reads_c:
            self.epilogue = FusedEpilogue(self.epi_layout, self.fusion, self.num_b, self.num_a)

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, aux_args=None, workspaces=None, mB_up=None, scales=None):
        mA, mB, mC, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        b_up = NO_TENSOR
        if cutlass.const_expr(mB_up is not None):
            b_up = self.operands.tma_a(mB_up) if self.num_a > 1 else self.operands.tma_b(mB_up)
        tma = Matrices(a, b, c=self.epi_layout.tma_load(mC), d=self.epi_layout.tma_store(mD))
        self.launch(tma, grid, scale, aux_args, workspaces, b_up, scales=scales)

    @cute.jit
    def launch(
        self, tma, grid: Int32, scale, aux_args=None, workspaces=None, b_up=NO_TENSOR, offsets=None, scales=None
    ):
        """Launch the kernel; `b_up`: a gated activation's second B or A; `offsets` of groups, `scales` by blocks."""
        self.kernel(tma, scale, aux_args, workspaces, b_up, offsets, scales).launch(
            grid=(grid, 1, 1), block=(self.threads, 1, 1), cluster=(self.scheduler.cluster_size, 1, 1),
            min_blocks_per_mp=1,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, tma, scale, aux_args, workspaces, b_up, offsets, scales):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers, c_full = self.mainloop.barriers(smem), self.epi_layout.barriers(smem)
        reduce_barriers = self.reduction.barriers(smem)
        # Before the operands, which begin at a multiple of 1024 bytes.
        table = self.scheduler.allocate(smem)
        if cutlass.const_expr(scales is not None):
            scales = (scales, self.mainloop.allocate(smem))
        maxima, flags = None, None
        if cutlass.const_expr(self.maximum is not None):
            maxima = self.maximum.allocate(smem)
            if cutlass.const_expr(self.maximum.clears):
                workspaces, flags = workspaces[:-1], workspaces[-1]
        smem_ab, epi_smem = self.operands.allocate(smem), self.epi_layout.allocate(smem)
        reduce_buffer = self.reduction.allocate(smem, reduce_barriers)
        divisors = ()
        if cutlass.const_expr(self.precomputes_divisors):
            divisors = self.scheduler.divisors(tma.d.tensor)
        if warp == 0:
            for matrix in (tma.a, tma.b, tma.d, b_up):
                if cutlass.const_expr(matrix.atom is not None):
                    cpasync.prefetch_descriptor(matrix.atom)
            with cute.arch.elect_one():
                releases = self.warpgroups_per_tile * WARPGROUP // self.mainloop.releasing
                self.mainloop.init(
                    barriers, self.mainloop.producer_arrivals, releases * self.scheduler.empty_arrival_ctas
                )
                self.epi_layout.init(c_full)
                self.reduction.init(reduce_barriers)
                self.scheduler.init(table)
            cute.arch.mbarrier_init_fence()
        self.sync_after_init(warp)
        if cutlass.const_expr(not self.waits_late):
            overlap_predecessor()

        schedule = self.scheduler.schedule(tma, offsets, table)
        k_range = self.scheduler.k_range(cute.ceil_div(tma.a.tensor.shape[1], self.tile_k))
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(self.registers.producer)
            if cutlass.const_expr(flags is not None):  # noqa: SIM102, one when compiled
                if warp == _MAXIMUM_WARP:
                    self.maximum.clear(aux_args[-1], flags)
            if warp == 0:
                self.produce(tma, b_up, smem_ab, barriers, k_range, schedule, *divisors)
            if cutlass.const_expr(scales is not None):
                self.produce_scales(scales, barriers, k_range, schedule, warp)
            if cutlass.const_expr(self.maximum is not None):  # noqa: SIM102, one when compiled
                if warp == _MAXIMUM_WARP:
                    self.maximum.finish(maxima, aux_args[-1], flags)
        else:
            cute.arch.setmaxregister_increase(self.registers.consumer)
            if cutlass.const_expr(self.waits_late):
                overlap_predecessor()
            idx = warp // 4 - 1
            own_buffer = self.reduction.of_warpgroup(reduce_buffer, idx)
            ctx = EpilogueContext(
                tma.c, tma.d, epi_smem, c_full, scale, idx, _EPILOGUE_BARRIER_ID + idx, aux_args,
                maxima=maxima, d_transposed=tma.d_transposed,
            )  # fmt: skip
            self.consume(ctx, smem_ab, barriers, own_buffer, k_range, workspaces, schedule, scales)

    @cute.jit
    def sync_after_init(self, warp):
        """Arrive at the cluster's barrier; wait until this CTA's barriers are initialised.

        A producer that multicasts waits for the cluster here, consumers before their first reduce-scatter. Other
        consumers need no wait: their first remote arrive follows a full phase, and that follows the producer's
        cluster_wait. So most threads never complete this barrier: the kernel must not use another cluster barrier.
        """
        if cutlass.const_expr(self.scheduler.cluster_size > 1):
            cute.arch.cluster_arrive()
        if warp == 0:
            # This warp initialised the barriers: it arrives without waiting for the CTA's other warps.
            cute.arch.sync_warp()
            cute.arch.barrier_arrive(barrier_id=_PROLOGUE_BARRIER_ID, number_of_threads=self.threads)
            if cutlass.const_expr(self.scheduler.is_multicast):
                cute.arch.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=_PROLOGUE_BARRIER_ID, number_of_threads=self.threads)

    def make_tiled_mma(self, mma_n: int | None = None) -> cute.TiledMma:
        """Return the instruction, for the warpgroups that share a tile: of so many of its columns, or of all."""
        a, b = self.operands.elements
        shape = MMA_M, mma_n or self.mma_n
        return tiled_mma(a, self.operands.k_major, self.acc, self.warpgroups_per_tile, shape, b, self.warpgroups_n)

    @cute.jit
    def consume(self, ctx, smem_ab, barriers, reduce_buffer, k_range, workspaces, schedule, scales):
        """Multiply and write work tiles: in ping-pong this warpgroup's own, cooperatively its rows of all."""
        idx, num_k_tiles = ctx.warpgroup_idx, k_range.num_k_tiles
        idx_in_tile = 0 if cutlass.const_expr(self.pingpong) else idx
        fragments = self.mainloop.fragments(self.operands, self.make_tiled_mma, smem_ab, idx_in_tile, self.acc)
        if cutlass.const_expr(scales is not None):
            fragments = fragments._replace(scales=self.mainloop.lane_scales(scales[1], idx_in_tile))
        if cutlass.const_expr(self.maximum is not None):
            ctx = dataclasses.replace(ctx, absmax=absmax_init())
        release = functools.partial(release_cluster, self.scheduler, threads=self.mainloop.releasing)
        c_phase, reduce_phase = Int32(0), Int32(0)
        divisors = self.scheduler.divisors(schedule)
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, schedule, num_k_tiles, idx)
        for work_index in cutlass.range(start, end, stride):
            coord, work_k_range = self.scheduler.work_tile(schedule, work_index, k_range, *divisors)
            inputs, during = None, ()
            if cutlass.const_expr(self.epi_layout.reads_c):
                # With split K, C is added by the CTA that writes the tile.
                writes = self.scheduler.has_last_part() if cutlass.const_expr(self.scheduler.requires_fixup) else True
                c_tiles, origin = self.epilogue.c_tiles, self.epi_origin(coord, idx)
                wait_for_first = functools.partial(self.mainloop.wait_full, barriers, state)
                first = c_tiles.begin(ctx, origin, wait_for_first, work_k_range.num_k_tiles, writes)
                if cutlass.const_expr(self.epi_layout.loads_c_during):
                    during = (functools.partial(c_tiles.load_during, ctx, origin, first),)
            if cutlass.const_expr(self.fusion is not None and not self.scheduler.requires_fixup):
                inputs = self.epilogue.prefetch_inputs(ctx, self.epi_origin(coord, idx))
            of_tile = self.mainloop.of_tile(fragments, schedule, coord)
            state = self.mainloop.multiply(of_tile, barriers, state, work_k_range.num_k_tiles, idx, release, *during)
            if cutlass.const_expr(self.pingpong):
                # The other warpgroup consumes the k-tiles of the next work tile.
                skipped_k_tiles = self.scheduler.k_tile_count(schedule, work_index + stride // CONSUMERS, num_k_tiles)
                state = self.mainloop.advance_by(state, skipped_k_tiles)
            accumulators = flat(fragments.accumulators)
            if cutlass.const_expr(self.reduction.cluster_k > 1):
                if work_index == start:
                    # Wait for the peers' barrier init (they arrive in `sync_after_init`).
                    cute.arch.cluster_wait()
                has_next = work_index + stride < end
                accumulators = self.reduction.reduce(
                    accumulators, reduce_buffer, reduce_phase, ctx.barrier_id, has_next
                )
                reduce_phase = reduce_phase ^ 1
            if cutlass.const_expr(self.scheduler.requires_fixup):
                if self.scheduler.fixup(workspaces, accumulators, schedule, work_k_range, num_k_tiles, ctx):
                    c_phase = self.store_tile(ctx, c_phase, accumulators, coord, inputs)
            else:
                c_phase = self.store_tile(ctx, c_phase, accumulators, coord, inputs)
        if cutlass.const_expr(self.maximum is not None):
            self.maximum.add_warp(ctx.maxima, ctx.absmax)
        self.epi_layout.end()

    def store_tile(self, ctx: Any, c_phase: Any, accumulators: Any, coord: Any, inputs: Any) -> Any:
        """Run the epilogue of this warpgroup's part of a tile; return C's next phase."""
        origin = self.epi_origin(coord, ctx.warpgroup_idx)
        if self.fusion is not None and self.scheduler.requires_fixup:
            # Only a tile's owner runs the epilogue: it loads the inputs after the fix-up.
            inputs = self.epilogue.prefetch_inputs(ctx, origin)
        return self.epilogue.store_tile(ctx, c_phase, accumulators, origin, inputs)

    def epi_origin(self, coord: Any, warpgroup_idx: Any) -> tuple[Any, Any, Any]:
        """Return row and column of this warpgroup's first epilogue tile of a tile, in epilogue tiles, and the batch."""
        col = coord[1] * (self.tile_n // self.epi_layout.shape[1])
        if self.reduction.cluster_k > 1:
            # Each CTA of the cluster writes a part of the columns.
            col = col + self.scheduler.cta_k_in_cluster() * self.epi_layout.epi_tiles_n
        row = coord[0] * (self.tile_m // EPI_TILE_M)
        if self.warpgroups_n > 1:
            col = col + warpgroup_idx * self.epi_layout.epi_tiles_n
        elif not self.pingpong:
            row = row + warpgroup_idx
        return row, col, coord[2:]


def buildable(config: HopperGemmConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    d_mode = 0 if config.swap_ab else 1
    contiguous_modes = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, d_mode, d_mode)

    def tensor(operand: str) -> Any:
        mode, vector = contiguous_modes["abcd".index(operand)], 128 // cute_type(types[operand]).width
        return major_tensor(types[operand], mode, batch=1, vector=vector)

    kernel = HopperGemm(config, types)
    # Integers that become floats are scaled in float32.
    scale = kernel.acc if cute_type(types["d"]).is_integer else cutlass.Float32
    aux_args = None if kernel.fusion is None else kernel.fusion.fake_args()
    workspaces: tuple[Any, ...] | None = (tensor_1d(types["acc"]), tensor_1d("uint64")) if config.split_k else None
    if kernel.maximum is not None and kernel.maximum.clears:
        workspaces = (*(workspaces or ()), tensor_1d("uint64"))
    b_up = tensor("a") if kernel.num_a > 1 else tensor("b") if kernel.num_b > 1 else None
    matrices = tuple(map(tensor, "abcd"))
    scales = fake_scales(types)
    return Buildable(kernel, (matrices, Int32(1), (scale(1), scale(0)), aux_args, workspaces, b_up, scales))
