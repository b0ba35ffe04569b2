"""GEMM with a large B whose lines begin anywhere, without a copy of it: TMA loads every 8th line.

Idea
    Every 8th line of a matrix lies a multiple of 16 bytes after the one before it, whatever the leading dimension. So
    each of eight classes of lines has a tensor map, from the multiple of 16 bytes before its first line on: its
    elements lie 0 to 7 elements late, and the classes are in the order of that shift.
    N-major B: lines are along K. A tile adds the k-tiles of one class after another, A's lines in the same classes;
    between two classes the accumulators move one column to the right. K-major B: lines are columns of D. A tile has
    columns of one class, and A's k-tiles begin as much earlier; what lies before the lines is set to zero.
Compared with hopper_gemm_unaligned
    B is unaligned too. A tile of N-major B has 8 columns less than it loads. Threads write D from registers.
Data movement
    B once from memory, where one tile has all rows of A; A once a column of tiles. No copy of B.
Limits
    A must be M-major and aligned, and is small, as every CTA reads it for each column of tiles.
Sources
    NVIDIA, PTX ISA: cp.async.bulk.tensor, wgmma, shfl.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import ClusterReduction, ReduceBuffer
from gemmule.kernels.hopper.mainloops.operands import OperandStages, TmaTensor, flat
from gemmule.kernels.hopper.mainloops.pipeline import sync_cluster
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import issue_group, k_block_mmas, tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, REGISTERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import KTileRange, PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor, strided_tensor

from .config import CLASSES, LineClassConfig

#: Named barriers: one of all consumers, and those of the warpgroups' reduce-scatters.
_ZEROED_BARRIER_ID, _REDUCE_BARRIER_ID = 1, 2
#: Elements of K of a k-tile.
_TILE_K = K_BYTES // 2


class Place(NamedTuple):
    """What a CTA computes."""

    i: Any  #: Index of its tile along M.
    n0: Any  #: The first of B's lines of its class, or of elements of lines, that its tile has.
    #: own, shift: K-major B: the class of the tile's columns, and how many elements late its lines begin.
    own: Any
    shift: Any
    first: Any  #: first, last: Its k-tiles, of K-major B those of its class, else those of all classes.
    last: Any
    per_class: Any  #: K-tiles of a class.


class HopperGemmLineClasses:
    """D = alpha A B + beta C, for aligned M-major A (M, K), B (N, K) in classes of lines, and C and D of any strides."""

    def __init__(self, config: LineClassConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.reads_c, self.k_major = types["adds"] == "yes", types["b_major"] == "k"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.operands = OperandStages(
            (self.tile_m, self.tile_n, _TILE_K), (self.element,) * 2, (False, self.k_major), config.stages,
            multicast_size_b=config.cluster_m,
        )  # fmt: skip
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.warpgroups, self.threads = config.warpgroups_per_tile, config.threads
        self.cluster_k, self.columns = config.cluster_k, config.columns
        self.reduction = ClusterReduction(config.cluster_k, 1, MMA_M * self.tile_n * 4, config.cluster_m)
        # Columns from one tile to the next: the first ones of the last class lie before the line.
        self.step_n = self.tile_n if self.k_major else self.tile_n - CLASSES
        # For places in the cluster.
        self.scheduler = PersistentScheduler(
            self.tile_m, self.step_n, 1, config.cluster_m, cluster_k=config.cluster_k
        )

    @cute.jit
    def __call__(self, matrices, mC, mD, residues, grid: Int32, scale):
        a = tuple(self.operands.tma_a(one) for one in matrices[0])
        b = tuple(self.operands.tma_b(one) for one in matrices[1])
        size = self.scheduler.cluster_size
        cluster = (size, 1, 1) if cutlass.const_expr(size > 1) else None
        self.kernel(a, b, mC, mD, residues, scale).launch(
            grid=(grid, 1, 1), block=(self.threads, 1, 1), cluster=cluster, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, a, b, mC: cute.Tensor, mD: cute.Tensor, residues, scale):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers, reduce_barriers = self.mainloop.barriers(smem), self.reduction.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        if cutlass.const_expr(self.cluster_k > 1):
            if warp == 1:
                with cute.arch.elect_one():
                    self.reduction.init(reduce_barriers)
                cute.arch.mbarrier_init_fence()
        releases = self.warpgroups * self.scheduler.empty_arrival_ctas
        self.mainloop.prologue(warp, (*a, *b), barriers, releases, self.scheduler.cluster_size)
        place = self.place(a, b, mD, residues[0])
        if warp >= self.warpgroups * 4:
            if cutlass.const_expr(self.warpgroups == CONSUMERS):
                cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == self.warpgroups * 4:
                self.produce(a, b, smem_ab, barriers, (place, residues[0]))
            if cutlass.const_expr(self.cluster_k > 1):
                sync_cluster()
        else:
            if cutlass.const_expr(self.warpgroups == CONSUMERS):
                cute.arch.setmaxregister_increase(REGISTERS.consumer)
            # Partial sums are received where the stages were.
            buffer = ReduceBuffer(smem_ab[0].iterator, *reduce_barriers)
            own = self.reduction.of_warpgroup(buffer, warp // 4)
            self.consume((mC, mD, residues, scale), smem_ab, barriers, place, (warp // 4, own))

    @cute.jit
    def place(self, a, b, mD: cute.Tensor, step: Int32):
        """Return this CTA's tile and k-tiles."""
        cta, _, _ = cute.arch.block_idx()
        part, tile = self.scheduler.cta_k_in_cluster(), cta // self.scheduler.cluster_size
        row, _ = self.scheduler.cta_coord_in_cluster()
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m * self.scheduler.cluster_m)
        i, j = tile % tiles_m * self.scheduler.cluster_m + row, tile // tiles_m
        own, classes, shift = Int32(0), CLASSES, Int32(0)
        if cutlass.const_expr(self.k_major):
            own, j, classes = j % CLASSES, j // CLASSES, 1
            shift = own // step * step
            # B's map of the first class has lines as long as K.
            per_class = cute.ceil_div(b[0].tensor.shape[1] + shift, _TILE_K)
        else:
            per_class = cute.ceil_div(a[0].tensor.shape[1], _TILE_K)
        k_tiles = per_class * classes
        first, last = k_tiles * part // self.cluster_k, k_tiles * (part + 1) // self.cluster_k
        return Place(i, j * self.step_n, own, shift, first, last, per_class)

    @cute.jit
    def k_range(self, place, number):
        """Return this CTA's k-tiles of a class: the first, and how many."""
        before = Int32(0) if cutlass.const_expr(self.k_major) else number * place.per_class
        first = cutlass.max(place.first - before, 0)
        count = cutlass.max(cutlass.min(place.last - before, place.per_class) - first, 0)
        if cutlass.const_expr(self.k_major):
            count = count if number == place.own else Int32(0)
        return KTileRange(first, count)

    @cute.jit
    def produce(self, a, b, smem_ab, barriers, what):
        """Load this CTA's k-tiles, class after class."""
        (place, step), state = what, self.mainloop.producer_state()
        row, col = self.scheduler.cta_coord_in_cluster()
        ctas = multicast_ctas_b(self.scheduler, col)
        for number in cutlass.range_constexpr(CLASSES):
            one_a = a[0] if cutlass.const_expr(self.k_major) else a[number]
            if cutlass.const_expr(self.k_major and number > 0):
                one_a = TmaTensor(one_a.atom, cute.domain_offset((0, -(number // step * step)), one_a.tensor))
            one_b = TmaTensor(b[number].atom, cute.domain_offset((place.n0, 0), b[number].tensor))
            loads = (
                (self.operands.load_a(one_a, smem_ab[0]), place.i),
                (self.operands.load_b(one_b, smem_ab[1], row, ctas), 0),
            )
            state = self.mainloop.load(loads, (), barriers, state, self.k_range(place, number))
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    @cute.jit
    def consume(self, result, smem_ab, barriers, place, own):
        """Multiply this CTA's k-tiles as they arrive, and write its part of the tile."""
        warpgroup_idx, reduce_buffer = own
        mma = tiled_mma(
            self.element, self.operands.k_major, cutlass.Float32, self.warpgroups, (MMA_M, self.tile_n)
        )
        fragments = self.operands.fragments(mma, smem_ab, warpgroup_idx, cutlass.Float32)
        fragments.accumulators.fill(0)
        accumulators, state = flat(fragments.accumulators), self.mainloop.consumer_state()
        if cutlass.const_expr(self.k_major):
            count = place.last - place.first
            zeroed = place.shift if place.first == 0 else Int32(0)
            state = self.accumulate(fragments, smem_ab[1], barriers, state, (count, zeroed))
        else:
            for number in cutlass.range(CLASSES, unroll=1):
                if number > 0 and number % result[2][0] == 0:
                    for _ in cutlass.range(result[2][0], unroll=1):
                        move_columns(accumulators)
                count = self.k_range(place, number).num_k_tiles
                state = self.accumulate(fragments, smem_ab[1], barriers, state, (count, Int32(0)))
        column = Int32(0)
        if cutlass.const_expr(self.cluster_k > 1):
            # Every CTA of the cluster has multiplied what was in its stages.
            sync_cluster()
            barrier = _REDUCE_BARRIER_ID + warpgroup_idx
            accumulators = self.reduction.reduce(accumulators, reduce_buffer, Int32(0), barrier, False)
            column = self.scheduler.cta_k_in_cluster() * self.columns
        self.write(result, place, accumulators, (warpgroup_idx, column))

    @cute.jit
    def accumulate(self, fragments, tiles: cute.Tensor, barriers, state, work):
        """Add k-tiles as they arrive; return the next state. Of the first one some elements of B's lines are zeroed."""
        (count, zeroed), (mma, a, b, accumulators) = work, fragments
        mma.set(warpgroup.Field.ACCUMULATE, True)
        last = state.stage
        for k in cutlass.range(count, unroll=1):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            if cutlass.const_expr(self.k_major):
                if k == 0 and zeroed > 0:
                    self.zero_elements(tiles, stage, zeroed)
            issue_group(k_block_mmas(mma, a, b, stage), accumulators)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.wait_group(1)
            if k > 0:
                release_cluster(self.scheduler, barriers.empty, last)
            last = stage
            state = self.mainloop.advance(state)
        warpgroup.wait_group(0)
        if count > 0:
            release_cluster(self.scheduler, barriers.empty, last)
        return state

    @cute.jit
    def zero_elements(self, tiles: cute.Tensor, stage, count):
        """Zero the first elements of each of a stage's lines: those of the line before, which may be infinite."""
        tid, _, _ = cute.arch.thread_idx()
        threads = cutlass.const_expr(self.warpgroups * WARPGROUP)
        for x in cutlass.range_constexpr(-(-self.tile_n // threads)):
            line = tid + x * threads
            if line < self.tile_n:
                for e in cutlass.range(count, unroll=1):
                    tiles[line, e, stage] = self.element(0)
        # wgmma reads through the async proxy.
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=_ZEROED_BARRIER_ID, number_of_threads=threads)

    @cute.jit
    def write(self, result, place, accumulators, origin):
        """Write this CTA's columns of the tile from registers; add what C has there."""
        (mC, mD, (step, inverse), (alpha, beta)), (warpgroup_idx, column) = result, origin
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid % WARPGROUP // 32
        m, cols = place.i * self.tile_m + warpgroup_idx * MMA_M + warp * 16 + lane // 4, mD.shape[1]
        # Lines of a class are every 8th, from the one on that begins so many elements late.
        first = (place.own // step * inverse + place.own % step * (CLASSES // step)) % CLASSES
        for n in cutlass.range_constexpr(self.columns // 8):
            for half in cutlass.range_constexpr(2):
                row = m + 8 * half
                for v in cutlass.range_constexpr(2):
                    index = column + (8 * n + v) + lane % 4 * 2
                    if cutlass.const_expr(self.k_major):
                        col, inside = first + CLASSES * (place.n0 + index), True
                    else:
                        col = place.n0 + index - (CLASSES - step)
                        inside = index >= CLASSES - step and index < self.tile_n - step
                    if inside and row < mD.shape[0] and col < cols:
                        value = accumulators[4 * n + 2 * half + v] * alpha
                        if cutlass.const_expr(self.reads_c):
                            value = value + beta * mC[row, col, 0].to(cutlass.Float32)
                        mD[row, col, 0] = value.to(self.element)


@cute.jit
def move_columns(accumulators: cute.Tensor):
    """Move a wgmma tile's accumulators one column to the right, those of a thread and of its neighbours."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    source, is_first = (lane & 28) | ((lane - 1) & 3), lane % 4 == 0
    carried = [accumulators.element_type(0), accumulators.element_type(0)]
    for n in cutlass.range_constexpr(cute.size(accumulators) // 4):
        for half in cutlass.range_constexpr(2):
            at = cutlass.const_expr(4 * n + 2 * half)
            moved = cute.arch.shuffle_sync(accumulators[at + 1], source)
            accumulators[at + 1] = accumulators[at]
            accumulators[at] = carried[half] if is_first else moved
            carried[half] = moved


def buildable(config: LineClassConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that type and layout of B, with fake arguments."""
    name, k_major = types["element"], types["b_major"] == "k"
    vector = 128 // cute_type(name).width
    a = tuple(major_tensor(name, 0, vector=vector) for _ in range(1 if k_major else CLASSES))
    b = tuple(major_tensor(name, 1 if k_major else 0, vector=vector) for _ in range(CLASSES))
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    arguments = ((a, b), strided_tensor(name), strided_tensor(name), (Int32(1), Int32(1)), Int32(1), scale)
    return Buildable(HopperGemmLineClasses(config, types), arguments)
