"""GEMM with unaligned C and D: `hopper_gemm`, with both moved by threads.

Idea
    TMA takes no row that does not begin at a multiple of 16 bytes, to read or to write. Where only C and D are such,
    all else stays as it was: threads write D's rows themselves.
Compared with hopper_gemm
    A warp stores 16 rows of the tile to shared memory, each as many words from a multiple of 16 bytes as in memory, and
    writes them 16 bytes a lane; where a row of 16-bit elements begins between two words, each word is made of two of
    those in shared memory. CTAs of a cluster may split a tile's K, of which each writes a part of the columns, or share
    loads (multicast).
Data movement
    As of `hopper_gemm`. A warp writes 512 bytes at once instead of TMA's epilogue tiles of 8 KB.
Limits
    The last tile of each CTA is written while nothing multiplies.
Sources
    As of `hopper_gemm`; NVIDIA, PTX ISA: shf.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import ClusterReduction
from gemmule.kernels.hopper.epilogues.fused_fragments import FragmentFusion
from gemmule.kernels.hopper.epilogues.unaligned_rows import (
    read_rows,
    words_before,
    write_rows,
)
from gemmule.kernels.hopper.mainloops.operands import OperandStages, flat
from gemmule.kernels.hopper.mainloops.pipeline import sync_cluster
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_ctas_a, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, REGISTERS, THREADS
from gemmule.kernels.parts.epilogue import pair_operations
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import words_at

from .config import PAD, UnalignedGemmConfig

#: Named barriers: 1 and 2 for the warpgroups' order in ping-pong, 3 and 4 of their reduce-scatters.
_REDUCE_BARRIER_ID = 3
#: Columns whose inputs of a fused epilogue are loaded together.
_FUSED_COLUMNS = 32


class Warpgroup(NamedTuple):
    """A consumer warpgroup: its index, and what it has in shared memory."""

    index: Any
    rows: Any  #: Pointer. Rows of D of all warpgroups.
    reduce_buffer: Any  #: WarpgroupReduceBuffer or None.


class HopperGemmUnaligned:
    """As `HopperGemm`, for row-major C and D (M, N, L) of any alignment; TMA loads A (M, K, L) and B (N, K, L)."""

    #: Whether a CTA has a part of one tile only: it receives partial sums where the stages were.
    one_tile = False
    #: Whether the predecessor grid has written B only, so that the producer loads A before the wait for it.
    loads_ahead = False

    def __init__(self, config: UnalignedGemmConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.out = cute_type(types["d"]) if "d" in types else self.element
        self.fused: Any = FragmentFusion(types) if "epilogue" in types else None
        # TMA rounds float32 to TF32.
        operand = cutlass.TFloat32 if types["element"] == "float32" else self.element
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, K_BYTES * 8 // self.element.width
        self.pingpong = bool(config.pingpong)
        # Reading C, or inputs of an epilogue, takes more registers.
        self.shares_registers = self.fused is None and not self.reads_c and config.register_threads > THREADS
        self.max_threads = [config.register_threads, 1, 1] if self.shares_registers else [0, 0, 0]
        k_major = (types["a_major"] == "k", types["b_major"] == "k")
        tile = (self.tile_m, self.tile_n, self.tile_k)
        cluster = (config.cluster_m, config.cluster_n, config.cluster_k)
        self.operands = OperandStages(
            tile, (operand, operand), k_major, config.stages,
            multicast_size_a=config.cluster_n, multicast_size_b=config.cluster_m,
        )  # fmt: skip
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes, pingpong=self.pingpong)
        self.scheduler = PersistentScheduler(self.tile_m, self.tile_n, config.group, *cluster)
        self.warpgroups_per_tile = config.warpgroups_per_tile
        self.mma_tiles_m = config.mma_tiles_m
        nbytes = MMA_M * self.mma_tiles_m * self.tile_n * 4
        self.reduction = ClusterReduction(
            config.cluster_k, self.mma_tiles_m, nbytes, config.cluster_m * config.cluster_n
        )
        # Columns of a tile that this CTA writes.
        self.columns = config.columns
        # Words of 32 bits from one row of the tile in shared memory to the next.
        self.row_words = self.out.width // 8 * (self.columns + PAD) // 4
        self.staged_words = CONSUMERS * MMA_M * self.row_words
        # Vectors that a thread writes together, as far as registers besides the accumulators allow.
        self.together = 4 if self.mma_tiles_m * self.columns <= 256 else 1

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, extras=None):
        mA, mB, mC, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        cluster = (self.scheduler.cluster_size, 1, 1) if cutlass.const_expr(self.scheduler.cluster_size > 1) else None
        self.kernel((a, b), mC, mD, scale, extras).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=cluster, min_blocks_per_mp=1,
            max_number_threads=self.max_threads,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, operands, mC: cute.Tensor, mD: cute.Tensor, scale, extras=None):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers, reduce_barriers = self.mainloop.barriers(smem), self.reduction.barriers(smem)
        smem_ab = self.operands.stages(smem, operands)
        rows = smem.allocate_tensor(Uint32, cute.make_layout(self.staged_words), 16).iterator
        reduce_buffer = self.reduce_buffer(smem, smem_ab, reduce_barriers)
        if cutlass.const_expr(self.reduction.cluster_k > 1):
            self.init_reduction(warp, reduce_barriers)
        releases = self.warpgroups_per_tile * WARPGROUP // self.mainloop.releasing * self.scheduler.empty_arrival_ctas
        self.mainloop.prologue(warp, operands, barriers, releases, self.scheduler.cluster_size, False)

        k_range = self.k_range(operands)
        if warp // 4 == 0:
            if cutlass.const_expr(not self.shares_registers):
                cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(operands, mD, smem_ab, barriers, k_range)
            if cutlass.const_expr(self.one_tile):
                sync_cluster()
        else:
            if cutlass.const_expr(not self.shares_registers):
                cute.arch.setmaxregister_increase(REGISTERS.consumer)
            index = warp // 4 - 1
            own = Warpgroup(index, rows, self.reduction.of_warpgroup(reduce_buffer, index))
            overlap_predecessor()
            self.consume((mC, mD, (scale, extras)), smem_ab, barriers, k_range.num_k_tiles, own)

    def reduce_buffer(self, smem: Any, smem_ab: Any, barriers: Any) -> Any:
        """Allocate the shared memory of partial sums, where the cluster splits K."""
        del smem_ab
        return self.reduction.allocate(smem, barriers)

    def k_range(self, operands: Any) -> Any:
        """Return the k-tiles that this CTA loads of each tile."""
        return self.scheduler.k_range(self.operands.num_k_tiles(operands[1]))

    @cute.jit
    def init_reduction(self, warp, barriers):
        """Initialise the barriers of the cluster's partial sums, by warp 1; the prologue waits for the cluster."""
        if warp == 1:
            with cute.arch.elect_one():
                self.reduction.init(barriers)
            cute.arch.mbarrier_init_fence()

    @cute.jit
    def produce(self, operands, mD, smem_ab, barriers, k_range):
        """Load every k-tile of every tile, after the wait for the predecessor grid."""
        row, col = self.scheduler.cta_coord_in_cluster()
        load_a = self.operands.load_a(operands[0], smem_ab[0], col, multicast_ctas_a(self.scheduler, row))
        load_b = self.operands.load_b(operands[1], smem_ab[1], row, multicast_ctas_b(self.scheduler, col))
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(mD, k_range.num_k_tiles)
        # In a dynamic loop the DSL would treat `scheduler` as an SSA value: bind the method before it.
        tile_coord = self.scheduler.tile_coord
        i, j, batch = tile_coord(mD, start)
        if cutlass.const_expr(self.loads_ahead):
            state = self.mainloop.load_ahead(((load_a, i), (load_b, j)), (batch,), barriers, state, k_range)
            start = start + stride
            if cutlass.const_expr(not self.one_tile):
                i, j, batch = tile_coord(mD, start)
        else:
            overlap_predecessor((i, j, batch))
        if cutlass.const_expr(not self.one_tile):
            for tile_index in cutlass.range(start, end, stride):
                state = self.mainloop.load(((load_a, i), (load_b, j)), (batch,), barriers, state, k_range)
                i, j, batch = tile_coord(mD, tile_index + stride)
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    def make_tiled_mma(self) -> cute.TiledMma:
        """Return the instruction, for the warpgroups that share a tile."""
        shape, warpgroups = (MMA_M, self.tile_n), self.warpgroups_per_tile
        return tiled_mma(self.operands.elements[0], self.operands.k_major, cutlass.Float32, warpgroups, shape)

    @cute.jit
    def consume(self, result, smem_ab, barriers, k_tiles, own):
        """Multiply the k-tiles of this warpgroup's tiles as they arrive, and write the tiles."""
        (mC, mD, scale), warpgroup_idx = result, own.index
        idx_in_tile = 0 if cutlass.const_expr(self.pingpong) else warpgroup_idx
        fragments = self.mainloop.fragments(self.operands, self.make_tiled_mma, smem_ab, idx_in_tile, cutlass.Float32)
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, mD, k_tiles, warpgroup_idx)
        release = functools.partial(release_cluster, self.scheduler, threads=self.mainloop.releasing)
        reduce_phase = Int32(0)
        for tile_index in cutlass.range(start, end, stride):
            i, j, batch = self.scheduler.tile_coord(mD, tile_index)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release)
            if cutlass.const_expr(self.pingpong):
                state = self.mainloop.advance_by(state, k_tiles)
            matrices = (mC[None, None, batch], mD[None, None, batch])
            m0, n0 = i * self.tile_m, j * self.tile_n
            accumulators = flat(fragments.accumulators)
            if cutlass.const_expr(self.one_tile):
                # Every CTA of the cluster has multiplied what was in its stages.
                sync_cluster()
            if cutlass.const_expr(self.reduction.cluster_k > 1):
                has_next, barrier = tile_index + stride < end, _REDUCE_BARRIER_ID + warpgroup_idx
                accumulators = self.reduction.reduce(accumulators, own.reduce_buffer, reduce_phase, barrier, has_next)
                reduce_phase = reduce_phase ^ 1
                n0 = n0 + self.scheduler.cta_k_in_cluster() * self.columns
            (alpha, beta), extras = scale
            # Of a fused epilogue, its inputs and the matrix of the batch, too.
            scalars = (alpha, beta) if cutlass.const_expr(self.fused is None) else (alpha, beta, extras, batch)
            self.write(matrices, (m0, n0), own.rows, accumulators, warpgroup_idx, scalars)

    @cute.jit
    def write(self, matrices, origin, rows, accumulators, warpgroup_idx, scale):
        """Write a CTA's part of a tile, 16 rows of each warp at a time, through shared memory; add what C has there."""
        m0, n0 = origin
        tid, _, _ = cute.arch.thread_idx()
        warp = tid % WARPGROUP // 32
        own = rows + (warpgroup_idx * MMA_M + warp * 16) * self.row_words
        cols = cutlass.min(matrices[1].shape[1] - n0, self.columns)
        for mma_tile in cutlass.range_constexpr(self.mma_tiles_m):
            # Warpgroups that share a tile have alternate wgmma tiles of 64 rows.
            row = (mma_tile if self.pingpong else warpgroup_idx + CONSUMERS * mma_tile) * MMA_M + warp * 16
            (slab_c, slab_d), m = self.slabs(matrices, m0, row)
            count = cutlass.min(slab_d.shape[0] - m, 16)
            if cutlass.const_expr(self.scheduler.cluster_size > 1):
                # The part may begin beyond the last column.
                count = count if cols > 0 else Int32(0)
            cute.arch.sync_warp()
            part = (m, n0), own, self.row_words, (count, cols), self.columns
            if cutlass.const_expr(self.reads_c):
                read_rows(slab_c, *part, slab_d)
                cute.arch.sync_warp()
            starts = [words_before(slab_d, m + tid % 32 // 4 + 8 * half, n0) for half in range(2)]
            self.store(own, starts, accumulators, mma_tile, scale, (slab_d, m, n0))
            cute.arch.sync_warp()
            write_rows(slab_d, *part, self.together)

    def slabs(self, matrices: Any, m0: Any, row: Any) -> tuple[Any, Any]:
        """Return matrices with a warp's 16 rows from `row` of the tile at `m0` on one after another, and the first."""
        return matrices, m0 + row

    @cute.jit
    def store(self, own, starts, accumulators, mma_tile: cutlass.Constexpr[int], scale, at):
        """Store a warp's 16 rows, at `at`, to shared memory, a thread's two from these words on; add their content."""
        mD, m, n0 = at
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        words = cutlass.const_expr(self.out.width // 16)
        width = cutlass.const_expr(self.columns if self.fused is None else _FUSED_COLUMNS)
        for first in cutlass.range_constexpr(0, self.columns, width):
            blocks = cutlass.const_expr(min(width, self.columns - first) // 8)
            inputs = None
            if cutlass.const_expr(self.fused is not None):
                # No inputs of later columns are loaded before this, into registers that there are not.
                cute.arch.sync_warp()
                col = _again(n0 + first, mma_tile)
                inputs = self.fused.load(scale[2], mD, m, col, scale[3], 8 * blocks)
            for half in cutlass.range_constexpr(2):
                row = own + ((lane // 4 + 8 * half) * self.row_words + starts[half] + lane % 4 * words)
                for block in cutlass.range_constexpr(blocks):
                    n = cutlass.const_expr(first // 8 + block)
                    smem_words = [words_at(row + (4 * words * n + w), 1) for w in range(words)]
                    pair = [accumulators[mma_tile * self.columns // 2 + 4 * n + 2 * half + v] for v in range(2)]
                    out = cute.make_rmem_tensor(cute.make_layout(2), self.out)
                    out_words = cute.recast_tensor(out, Uint32)
                    if cutlass.const_expr(self.reads_c):
                        for w in cutlass.range_constexpr(words):
                            out_words[w] = smem_words[w][0]
                    values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
                    found = self.values(pair, out, scale, inputs, 4 * block + 2 * half)
                    for v in cutlass.range_constexpr(2):
                        values[v] = found[v]
                    out.store(values.load().to(self.out))
                    for w in cutlass.range_constexpr(words):
                        smem_words[w][0] = out_words[w]

    def values(self, pair: Any, addends: Any, scale: Any, inputs: Any, number: int) -> Any:
        """Return two values, of accumulators and elements of C; `number` is that of the first among `inputs`."""
        alpha, beta = scale[:2]
        acc = tuple(one * alpha for one in pair)
        c = tuple(addends[v].to(cutlass.Float32) for v in range(2)) if self.reads_c else (None, None)
        if self.reads_c and not (self.fused is not None and self.fused.expression.names_c):
            acc = tuple(acc[v] + beta * c[v] for v in range(2))
        if self.fused is None:
            return acc
        products = tuple((acc[v], None, c[v]) for v in range(2))
        return self.fused.pair(products, inputs, scale[2], number, pair_operations(self.out))


def _again(col: Any, turn: int) -> Any:
    """Return a column that is unlike those of other turns to the compiler, which else holds the addresses of all."""
    return Int32(
        cute.arch.inline_ptx(f"mov.b32 {{$w0}}, {{$r0}}; // {turn}", write_only_types=[Int32], read_only_args=[col])
    )


def buildable(config: UnalignedGemmConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    name = types["element"]
    contiguous_modes = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    vector = 128 // cute_type(name).width
    a, b = (major_tensor(name, mode, batch=1, vector=vector) for mode in contiguous_modes)
    c, d = (major_tensor(types.get("d", name), 1, batch=1) for _ in range(2))
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    kernel = HopperGemmUnaligned(config, types)
    extras = () if kernel.fused is None else (kernel.fused.fake_args(),)
    return Buildable(kernel, ((a, b, c, d), Int32(1), scale, *extras))
