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
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, REGISTERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.schedulers.persistent import KTileRange, PersistentScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor, strided_tensor
from gemmule.kernels.parts.words import words_at

from .config import CLASSES, TILE_K, LineClassConfig

#: Named barriers: two of all consumers, and those of the warpgroups' reduce-scatters.
_ZEROED_BARRIER_ID, _STAGED_BARRIER_ID, _REDUCE_BARRIER_ID = 1, 2, 3
#: Elements of K of a k-tile.


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
    """D = alpha A B + beta C, for aligned M-major A (M, K), B (N, K) in classes of lines, C and D of any strides."""

    def __init__(self, config: LineClassConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.reads_c, self.k_major = types["adds"] == "yes", types["b_major"] == "k"
        self.d_rows = types["d_major"] == "n"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.operands = OperandStages(
            (self.tile_m, self.tile_n, TILE_K), (self.element,) * 2, (False, self.k_major), config.stages,
            multicast_size_b=config.cluster_m,
        )  # fmt: skip
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.warpgroups, self.threads = config.warpgroups_per_tile, config.threads
        self.cluster_k, self.columns = config.cluster_k, config.columns
        self.reduction = ClusterReduction(config.cluster_k, 1, MMA_M * self.tile_n * 4, config.cluster_m)
        # Columns from one tile to the next: the first ones of the last class lie before the line.
        self.step_n = self.tile_n if self.k_major else self.tile_n - CLASSES
        # For places in the cluster.
        self.scheduler = PersistentScheduler(self.tile_m, self.step_n, 1, config.cluster_m, cluster_k=config.cluster_k)

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
            self.init_reduction(warp, reduce_barriers)
        releases = self.warpgroups * self.scheduler.empty_arrival_ctas
        self.mainloop.prologue(warp, (*a, *b), barriers, releases, self.scheduler.cluster_size, False)
        place = self.place(a, b, mD, residues)
        overlap_predecessor((place.i, place.n0, place.first, place.last))
        if warp >= self.warpgroups * 4:
            if cutlass.const_expr(self.warpgroups == CONSUMERS):
                cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == self.warpgroups * 4:
                self.produce(a, b, smem_ab, barriers, (place, residues))
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
    def init_reduction(self, warp, barriers):
        """Initialise the barriers of the cluster's partial sums, by warp 1; the prologue waits for the cluster."""
        if warp == 1:
            with cute.arch.elect_one():
                self.reduction.init(barriers)
            cute.arch.mbarrier_init_fence()

    @cute.jit
    def place(self, a, b, mD: cute.Tensor, residues):
        """Return this CTA's tile and k-tiles."""
        cta, _, _ = cute.arch.block_idx()
        part, tile = self.scheduler.cta_k_in_cluster(), cta // self.scheduler.cluster_size
        row, _ = self.scheduler.cta_coord_in_cluster()
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m * self.scheduler.cluster_m)
        i, j = tile % tiles_m * self.scheduler.cluster_m + row, tile // tiles_m
        own, classes, shift = Int32(0), CLASSES, Int32(0)
        if cutlass.const_expr(self.k_major):
            own, j, classes = j % CLASSES, j // CLASSES, 1
            shift = own // residues[0] * residues[0]
            # B's map of the first class has lines as long as K.
            per_class = cute.ceil_div(b[0].tensor.shape[1] + shift, TILE_K)
        else:
            per_class = cute.ceil_div(a[0].tensor.shape[1], TILE_K)
        k_tiles = per_class * classes
        first, last = k_tiles * part // self.cluster_k, k_tiles * (part + 1) // self.cluster_k
        return Place(i, j * self.step_n, own, shift, first, last, per_class)

    @cute.jit
    def k_range(self, place, number, residues):
        """Return this CTA's k-tiles of a class: the first, and how many."""
        before = Int32(0) if cutlass.const_expr(self.k_major) else number * place.per_class
        first = cutlass.max(place.first - before, 0)
        count = cutlass.max(cutlass.min(place.last - before, place.per_class) - first, 0)
        if cutlass.const_expr(self.k_major):
            count = count if number == place.own else Int32(0)
        else:
            # Of fewer than 8 lines some classes have none.
            count = count if first_line(number, residues) < residues[2] else Int32(0)
        return KTileRange(first, count)

    @cute.jit
    def produce(self, a, b, smem_ab, barriers, what):
        """Load this CTA's k-tiles, class after class."""
        (place, residues), state = what, self.mainloop.producer_state()
        step = residues[0]
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
            state = self.mainloop.load(loads, (), barriers, state, self.k_range(place, number, residues))
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    @cute.jit
    def consume(self, result, smem_ab, barriers, place, own):
        """Multiply this CTA's k-tiles as they arrive, and write its part of the tile."""
        warpgroup_idx, reduce_buffer = own
        mma = tiled_mma(self.element, self.operands.k_major, cutlass.Float32, self.warpgroups, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, smem_ab, warpgroup_idx, cutlass.Float32)
        fragments.accumulators.fill(0)
        accumulators, state = flat(fragments.accumulators), self.mainloop.consumer_state()
        if cutlass.const_expr(self.k_major):
            count = place.last - place.first
            zeroed = place.shift if place.first == 0 else Int32(0)
            state = self.accumulate(fragments, smem_ab[1], barriers, state, (count, zeroed))
        else:
            step, shift = result[2][0], Int32(-1)
            for number in cutlass.range(CLASSES, unroll=1):
                count = self.k_range(place, number, result[2]).num_k_tiles
                if count > 0:
                    own_shift = number // step * step
                    if shift >= 0:
                        move_columns(accumulators, own_shift - shift)
                    shift = own_shift
                state = self.accumulate(fragments, smem_ab[1], barriers, state, (count, Int32(0)))
            move_columns(accumulators, CLASSES - cutlass.max(shift, 0))
        column = Int32(0)
        if cutlass.const_expr(self.cluster_k > 1):
            # Every CTA of the cluster has multiplied what was in its stages.
            sync_cluster()
            barrier = _REDUCE_BARRIER_ID + warpgroup_idx
            accumulators = self.reduction.reduce(accumulators, reduce_buffer, Int32(0), barrier, False)
            column = self.scheduler.cta_k_in_cluster() * self.columns
        self.write(result, place, accumulators, smem_ab, (warpgroup_idx, column))

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
                self.zero_elements(tiles, stage, zeroed if k == 0 else Int32(0))
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
        if count > 0:
            for x in cutlass.range_constexpr(-(-self.tile_n // threads)):
                line = tid + x * threads
                if line < self.tile_n:
                    for e in cutlass.range(count, unroll=1):
                        tiles[line, e, stage] = self.element(0)
            # wgmma reads through the async proxy.
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=_ZEROED_BARRIER_ID, number_of_threads=threads)

    @cute.jit
    def write(self, result, place, accumulators, smem_ab, origin):
        """Write this CTA's columns of the tile: with C from registers, else through shared memory, in lines of D."""
        warpgroup_idx, column = origin
        if cutlass.const_expr(self.reads_c):
            self.add_and_write(result, place, accumulators, origin)
        else:
            # Every warpgroup has multiplied, or received, what was in the stages.
            threads = self.warpgroups * WARPGROUP
            cute.arch.barrier(barrier_id=_STAGED_BARRIER_ID, number_of_threads=threads)
            tid, _, _ = cute.arch.thread_idx()
            warp, stride = tid % WARPGROUP // 32, cutlass.const_expr(self.columns + 8)
            begin = smem_ab[0].iterator.toint() + warpgroup_idx * (MMA_M * self.tile_n * 4)
            begin = begin + warp * (16 * stride * self.element.width // 8)
            staged = cute.make_tensor(
                cute.make_ptr(self.element, begin, cute.AddressSpace.smem, assumed_align=16),
                cute.make_layout((16, stride), stride=(stride, 1)),
            )
            self.stage(staged, accumulators, result[3][0])
            cute.arch.sync_warp()
            self.copy_lines(staged, result, place, (warpgroup_idx * MMA_M + warp * 16, column))

    @cute.jit
    def stage(self, staged: cute.Tensor, accumulators, alpha):
        """Store a warp's 16 rows to shared memory, two elements a thread and store."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        for n in cutlass.range_constexpr(self.columns // 8):
            for half in cutlass.range_constexpr(2):
                pair = cute.make_rmem_tensor(cute.make_layout(2), self.element)
                for v in cutlass.range_constexpr(2):
                    pair[v] = (accumulators[4 * n + 2 * half + v] * alpha).to(self.element)
                target = staged.iterator + ((lane // 4 + 8 * half) * staged.stride[0] + 8 * n + lane % 4 * 2)
                words_at(target, 1)[0] = cute.recast_tensor(pair, cutlass.Uint32)[0]

    @cute.jit
    def copy_lines(self, staged: cute.Tensor, result, place, origin):
        """Write a warp's 16 rows, lanes along D's lines."""
        (_, mD, residues, _), (row, column) = result, origin
        tid, _, _ = cute.arch.thread_idx()
        lane, at_once = tid % 32, cutlass.const_expr(min(8, self.columns // 2))
        elements = cute.make_rmem_tensor(cute.make_layout(at_once), self.element)
        for first in cutlass.range(0, self.columns // 2, at_once, unroll=1):
            for x in cutlass.range_constexpr(at_once):
                i, e = self.staged_place(lane + 32 * (first + x))
                elements[x] = staged[i, e]
            for x in cutlass.range_constexpr(at_once):
                i, e = self.staged_place(lane + 32 * (first + x))
                m, (n, inside) = place.i * self.tile_m + row + i, self.column_of(place, residues, column + e)
                if inside and m < mD.shape[0] and n < mD.shape[1]:
                    mD[m, n, 0] = elements[x]

    @cute.jit
    def staged_place(self, index):
        """Return row and column of an element of a warp's rows in the order in which they are written."""
        index = cutlass.Uint32(index)
        if cutlass.const_expr(self.d_rows):
            return Int32(index // self.columns), Int32(index % self.columns)
        return Int32(index % 16), Int32(index // 16)

    @cute.jit
    def column_of(self, place, residues, index):
        """Return the column of D of a column of the tile, and whether the tile has it."""
        if cutlass.const_expr(self.k_major):
            return first_line(place.own, residues) + CLASSES * (place.n0 + index), True
        return place.n0 + index - CLASSES, index >= CLASSES

    @cute.jit
    def add_and_write(self, result, place, accumulators, origin):
        """Write this CTA's columns of the tile from registers, and add what C has there."""
        (mC, mD, residues, (alpha, beta)), (warpgroup_idx, column) = result, origin
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid % WARPGROUP // 32
        m, cols = place.i * self.tile_m + warpgroup_idx * MMA_M + warp * 16 + lane // 4, mD.shape[1]
        for n in cutlass.range_constexpr(self.columns // 8):
            for v in cutlass.range_constexpr(2):
                col, inside = self.column_of(place, residues, column + (8 * n + v) + lane % 4 * 2)
                for half in cutlass.range_constexpr(2):
                    row = m + 8 * half
                    if inside and row < mD.shape[0] and col < cols:
                        value = accumulators[4 * n + 2 * half + v] * alpha
                        mD[row, col, 0] = (value + beta * mC[row, col, 0].to(cutlass.Float32)).to(self.element)


@cute.jit
def first_line(number, residues):
    """Return the first line of a class, by the step and inverse of the launch recipe."""
    step, inverse, _ = residues
    return (number // step * inverse + number % step * (CLASSES // step)) % CLASSES


@cute.jit
def move_columns(accumulators: cute.Tensor, distance):
    """Move a wgmma tile's accumulators so many columns to the right, up to 8, those of a thread and of its neighbours.

    Columns to the left of the first are zero.
    """
    for bit in cutlass.range_constexpr(4):
        if distance >> bit & 1 == 1:
            _move_by(accumulators, 1 << bit)


@cute.jit
def _move_by(accumulators: cute.Tensor, distance: cutlass.Constexpr[int]):
    """Move accumulators by 1, 2, 4 or 8 columns: a lane has two neighbours, four lanes have 8 columns."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    lanes = cutlass.const_expr((distance + 1) // 2 % 4)
    source, is_first = (lane & 28) | ((lane - lanes) & 3), lane % 4 < lanes
    carried = [accumulators.element_type(0) for _ in range(4)]
    for n in cutlass.range_constexpr(cute.size(accumulators) // 4):
        for half in cutlass.range_constexpr(2):
            at = cutlass.const_expr(4 * n + 2 * half)
            even, odd = accumulators[at], accumulators[at + 1]
            if cutlass.const_expr(distance == 1):
                moved = cute.arch.shuffle_sync(odd, source)
                accumulators[at + 1] = even
                accumulators[at] = carried[half] if is_first else moved
                carried[half] = moved
            else:
                for v in cutlass.range_constexpr(2):
                    value = even if cutlass.const_expr(v == 0) else odd
                    moved = value if cutlass.const_expr(distance == 8) else cute.arch.shuffle_sync(value, source)
                    before = carried[2 * half + v]
                    accumulators[at + v] = before if cutlass.const_expr(distance == 8) else (
                        before if is_first else moved
                    )  # fmt: skip
                    carried[2 * half + v] = moved


def buildable(config: LineClassConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that type and layout of B, with fake arguments."""
    name, k_major = types["element"], types["b_major"] == "k"
    vector = 128 // cute_type(name).width
    a = tuple(major_tensor(name, 0, vector=vector) for _ in range(1 if k_major else CLASSES))
    b = tuple(major_tensor(name, 1 if k_major else 0, vector=vector) for _ in range(CLASSES))
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    arguments = ((a, b), strided_tensor(name), strided_tensor(name), (Int32(1), Int32(1), Int32(1)), Int32(1), scale)
    return Buildable(HopperGemmLineClasses(config, types), arguments)
