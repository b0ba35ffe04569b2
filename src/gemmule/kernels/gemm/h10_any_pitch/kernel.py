"""Rows that begin anywhere, for the copy engine: every 8th row has a pitch of whole 16 bytes, and boxes may be shifted.

Idea
    The copy engine wants a matrix to begin at a multiple of 16 bytes and rows to be a multiple of 16 bytes apart; where
    in a row a box begins, it does not mind. So a matrix of any pitch is eight matrices: rows 0, 8, 16 ...; 1, 9, 17
    ...; and so on, each with eight times the pitch. Each begins at the multiple of 16 bytes before its first row, and
    its boxes are shifted to the right by what that is too early.
Change from the rung before
    Eight maps instead of one, each bringing an eighth of a tile's rows. They lie in shared memory in another order: the
    tile's rows of A are rows of the result, its rows of B columns of the result, and both are put right when the
    result is written. Lines across K are slices' values of K in another order, the same for A and B. The result is
    written by threads, row by row, as no engine takes its rows.
Data movement
    As of h09, but a row of 128 bytes of a box touches 5 sectors of 32 bytes instead of 4. Nothing is copied beforehand.
Limits
    L2: a quarter more sectors. The eight maps must be encoded for each address.
Sources
    NVIDIA, CUDA driver API: what cuTensorMapEncodeTiled asks of addresses and strides; PTX ISA: cp.async.bulk.tensor.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint16, Uint32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.parts.raster import grouped_tile
from gemmule.parts.tensors import cute_type, major_tensor
from gemmule.parts.words import words_at

from .spec import CLASSES, CONSUMERS, DEPTH, K_BYTES, MMA_M, PAD, THREADS, WARPGROUP, AnyPitchConfig, box

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers for the warpgroups' turns.
_TURN = 1


class AnyPitch:
    """D = alpha * A @ B + beta * C for A (M, K), B (N, K), row-major C and D (M, N); A and B through TMA."""

    def __init__(self, config: AnyPitchConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a"] == "k", types["b"] == "k")
        self.maps = (int(types["a_maps"]), int(types["b_maps"]))
        self.reads_c = types["c"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.stages, self.group = config.stages, config.group
        self.pingpong = bool(config.pingpong)
        # Blocks of 64 rows that a warpgroup computes of a tile, and warpgroups that share one.
        self.sharing = 1 if self.pingpong else CONSUMERS
        self.blocks = self.tile_m // (MMA_M * self.sharing)
        # Words of 32 bits from one row of the tile on its way out to the next.
        self.pitch = (2 * self.tile_n + PAD) // 4

    def box(self, operand: int) -> tuple[int, int]:
        """Return what one copy brings of A (0) or B (1): rows of the tile and values of K."""
        return box(self.along_k[operand], (self.tile_m, self.tile_n)[operand], self.maps[operand])

    def boxes(self, operand: int) -> tuple[tuple[int, int], ...]:
        """Return the copies of a slice as they follow in shared memory: of which map, and which of its boxes."""
        rows, _ = self.box(operand)
        maps, tile = self.maps[operand], (self.tile_m, self.tile_n)[operand]
        if self.along_k[operand]:
            return tuple((of_map, strip) for of_map in range(maps) for strip in range(tile // maps // rows))
        return tuple((of_map, strip) for strip in range(tile // rows) for of_map in range(maps))

    @cute.jit
    def __call__(self, ms_a, ms_b, mC: cute.Tensor, mD: cute.Tensor, k, shifts_a, shifts_b, grid: Int32,
                 alpha, beta):  # fmt: skip
        tile = (self.tile_m, self.tile_n, DEPTH)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        (rows_a, depth_a), (rows_b, depth_b) = self.box(0), self.box(1)
        box_a = hopper_helpers.make_smem_layout_a(layout_a, (rows_a, rows_a, depth_a), self.element, 1)
        box_b = hopper_helpers.make_smem_layout_b(layout_b, (rows_b, rows_b, depth_b), self.element, 1)
        box_a, box_b = (cute.slice_(layout, (None, None, 0)) for layout in (box_a, box_b))
        load = cpasync.CopyBulkTensorTileG2SOp()
        maps_a = [cpasync.make_tiled_tma_atom(load, mA, box_a, self.box(0)) for mA in ms_a]
        maps_b = [cpasync.make_tiled_tma_atom(load, mB, box_b, self.box(1)) for mB in ms_b]
        self.kernel([found[0] for found in maps_a], [found[1] for found in maps_a],
                    [found[0] for found in maps_b], [found[1] for found in maps_b],
                    mC, mD, sA, sB, k, shifts_a, shifts_b, alpha, beta).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        tmas_a,
        ms_a,
        tmas_b,
        ms_b,
        mC: cute.Tensor,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        k,
        shifts_a,
        shifts_b,
        alpha,
        beta,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        # A stage is full when its bytes have arrived, and empty when all who read it are done.
        full = smem.allocate_array(cutlass.Int64, self.stages)
        empty = smem.allocate_array(cutlass.Int64, self.stages)
        sA, sB = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        rows = smem.allocate_tensor(Uint32, cute.make_layout(CONSUMERS * MMA_M * self.pitch), 16).iterator
        if warp == 0:
            for tma in tmas_a + tmas_b:
                cpasync.prefetch_descriptor(tma)
            with cute.arch.elect_one():
                for s in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + s, 1)
                    cute.arch.mbarrier_init(empty + s, self.sharing)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        slices = cute.ceil_div(k, DEPTH)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tmas_a, ms_a, tmas_b, ms_b, mD, sA, sB, full, empty, slices, shifts_a, shifts_b)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mC, mD, sA, sB, rows, full, empty, slices, warp // 4 - 1, alpha, beta)

    @cute.jit
    def share(self, mD: cute.Tensor):
        """Return this CTA's first tile, the step to its next, and how many tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        return cta, ctas, tiles_m * tiles_n

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return how many tiles there are along M and N."""
        return cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)

    @cute.jit
    def following(self, stage, phase):
        """Return the stage behind one, and its phase, which turns over with every round of the ring."""
        stage = stage + 1
        if stage == self.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    @cute.jit
    def produce(self, tmas_a, ms_a, tmas_b, ms_b, mD, sA, sB, full, empty, slices, shifts_a, shifts_b):
        """Bring every slice of every tile, as stages become empty."""
        parts_a = self.parts(0, tmas_a, ms_a, sA, shifts_a)
        parts_b = self.parts(1, tmas_b, ms_b, sB, shifts_b)
        stage, phase = Int32(0), Int32(1)
        first, step, tiles = self.share(mD)
        tiles_m, tiles_n = self.tiles(mD)
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n = grouped_tile(number, tiles_m, tiles_n, self.group)
            for k in cutlass.range(slices):
                cute.arch.mbarrier_wait(empty + stage, phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, (self.tile_m + self.tile_n) * K_BYTES)
                self.bring(0, tmas_a, parts_a, tile_m, k, stage, full)
                self.bring(1, tmas_b, parts_b, tile_n, k, stage, full)
                stage, phase = self.following(stage, phase)

    @cute.jit
    def parts(self, operand: cutlass.Constexpr[int], tmas, ms, sX: cute.Tensor, shifts):
        """Return boxes in shared memory (one behind the other, stages) and those of each map, shifted."""
        rows, depth = cutlass.const_expr(self.box(operand))
        count, size = cutlass.const_expr(len(self.boxes(operand))), cutlass.const_expr(rows * depth)
        along = cutlass.const_expr(self.along_k[operand])
        layout = cute.make_layout(
            ((rows, depth), count, self.stages),
            stride=((depth, 1) if along else (1, rows), size, size * count),
        )
        boxes = cute.group_modes(cute.make_tensor(sX.iterator, layout), 0, 1)
        found = []
        for i in cutlass.range_constexpr(len(ms)):
            shift = shifts >> 4 * i & 15
            moved = cute.domain_offset((0, shift) if along else (shift, 0), ms[i])
            gX = cute.local_tile(moved, (rows, depth), (None, None))
            found.append(cpasync.tma_partition(tmas[i], 0, cute.make_layout(1), boxes, cute.group_modes(gX, 0, 2)))
        return found

    @cute.jit
    def bring(self, operand: cutlass.Constexpr[int], tmas, parts, tile, k, stage, full):
        """Start the copies of a slice of A or B."""
        strips = cutlass.const_expr(len(self.boxes(operand)) // self.maps[operand])
        for n in cutlass.range_constexpr(len(self.boxes(operand))):
            of_map, strip = cutlass.const_expr(self.boxes(operand)[n])
            sX, gX = parts[of_map]
            source = gX[None, tile * strips + strip, k]
            cute.copy(tmas[of_map], source, sX[None, n, stage], tma_bar_ptr=full + stage)

    @cute.jit
    def release(self, empty, stage):
        """Say that this warpgroup is done with a stage, by one thread."""
        tid, _, _ = cute.arch.thread_idx()
        if tid % WARPGROUP == 0:
            cute.arch.mbarrier_arrive(empty + stage)

    @cute.jit
    def consume(self, mC, mD, sA, sB, rows, full, empty, slices, mine, alpha, beta):
        """Multiply the slices of this warpgroup's tiles as they arrive, and write the tiles."""
        majors = tuple(OperandMajorMode.K if along else OperandMajorMode.MN for along in self.along_k)
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, *majors, cutlass.Float32, (self.sharing, 1, 1), (MMA_M, self.tile_n)
        )
        part = mma.get_slice(0 if self.pingpong else mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        stage, phase = Int32(0), Int32(0)
        first, step, tiles = self.share(mD)
        tiles_m, tiles_n = self.tiles(mD)
        if cutlass.const_expr(self.pingpong):
            # Every other tile; the slices of those between pass by.
            if mine == 1:
                stage, phase = slices % self.stages, slices // self.stages % 2
                cute.arch.barrier_arrive(barrier_id=_TURN, number_of_threads=2 * WARPGROUP)
            first, step = first + mine * step, CONSUMERS * step
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n = grouped_tile(number, tiles_m, tiles_n, self.group)
            if cutlass.const_expr(self.pingpong):
                cute.arch.barrier(barrier_id=_TURN + mine, number_of_threads=2 * WARPGROUP)
            # The first product overwrites the sums.
            mma.set(warpgroup.Field.ACCUMULATE, False)
            before = stage
            for k in cutlass.range(slices):
                cute.arch.mbarrier_wait(full + stage, phase)
                warpgroup.fence()
                for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                    cute.gemm(mma, sums, rA[None, None, step_k, stage], rB[None, None, step_k, stage], sums)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                # With one slice under way the products of the one before are done.
                warpgroup.wait_group(1)
                if k > 0:
                    self.release(empty, before)
                before = stage
                stage, phase = self.following(stage, phase)
            if cutlass.const_expr(self.pingpong):
                cute.arch.barrier_arrive(barrier_id=_TURN + 1 - mine, number_of_threads=2 * WARPGROUP)
            warpgroup.wait_group(0)
            self.release(empty, before)
            if cutlass.const_expr(self.pingpong):
                passed = stage + slices
                stage, phase = passed % self.stages, (phase + passed // self.stages) % 2
            self.finish(mC, mD, rows, sums, tile_m * self.tile_m, tile_n * self.tile_n, mine, alpha, beta)

    @cute.jit
    def finish(self, mC, mD, rows, sums, m0, n0, mine, alpha, beta):
        """Write a tile, 16 rows of each warp at a time, through its part of shared memory; add what C has there."""
        tid, _, _ = cute.arch.thread_idx()
        warp = tid % WARPGROUP // 32
        own = rows + (mine * MMA_M + warp * 16) * self.pitch
        cols = cutlass.min(mD.shape[1] - n0, self.tile_n)
        for block in cutlass.range_constexpr(self.blocks):
            # Blocks of 64 rows of shared memory: one after another, or every other one.
            first = (block if self.pingpong else mine + CONSUMERS * block) * MMA_M + warp * 16
            cute.arch.sync_warp()
            if cutlass.const_expr(self.reads_c):
                for r in cutlass.range(16, unroll=1):
                    m = m0 + self.row(first + r)
                    if m < mD.shape[0]:
                        read_row(mC, own + r * self.pitch, m, n0, cols, self.tile_n)
                cute.arch.sync_warp()
            self.put(own, sums, block, alpha, beta)
            cute.arch.sync_warp()
            for r in cutlass.range(16, unroll=2):
                m = m0 + self.row(first + r)
                if m < mD.shape[0]:
                    write_row(mD, own + r * self.pitch, m, n0, cols, self.tile_n)

    @cute.jit
    def row(self, place):
        """Return which row of the tile lies at a place in shared memory."""
        if cutlass.const_expr(self.along_k[0] and self.maps[0] > 1):
            lines = cutlass.const_expr(self.tile_m // CLASSES)
            place = place % lines * CLASSES + place // lines
        return place

    @cute.jit
    def put(self, own, sums, block: cutlass.Constexpr[int], alpha, beta):
        """Put a warp's 16 rows where their columns belong."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        mixed = cutlass.const_expr(self.along_k[1] and self.maps[1] > 1)
        # Neighbours that a thread holds: with columns in the order of 8 maps one of each map, else two.
        run = cutlass.const_expr(CLASSES if mixed else 2)
        wide = cutlass.const_expr(self.tile_n // 64)
        for half in cutlass.range_constexpr(2):
            row = own + (lane // 4 + 8 * half) * self.pitch
            for n in cutlass.range_constexpr(self.tile_n // 4 // run):
                if cutlass.const_expr(mixed):
                    # The sum of column 8 j + i is that of line j of map i.
                    group, pair = n // 2, n % 2
                    column = (8 * group + 2 * (lane % 4) + pair) * CLASSES
                    indices = [4 * (i * wide + group) + 2 * half + pair for i in range(CLASSES)]
                else:
                    column = 8 * n + 2 * (lane % 4)
                    indices = [4 * n + 2 * half + e for e in range(2)]
                place = words_at(row + column // 2, run // 2)
                values = cute.make_rmem_tensor(cute.make_layout(run), cutlass.Float32)
                for v in cutlass.range_constexpr(run):
                    values[v] = flat[block * self.tile_n // 2 + indices[v]] * alpha
                out = cute.make_rmem_tensor(cute.make_layout(run), self.element)
                words = cute.recast_tensor(out, Uint32)
                if cutlass.const_expr(self.reads_c):
                    cute.autovec_copy(place, words)
                    for v in cutlass.range_constexpr(run):
                        values[v] = values[v] + beta * out[v].to(cutlass.Float32)
                out.store(values.load().to(self.element))
                cute.autovec_copy(words, place)


@cute.jit
def halves_at(place: cute.Pointer, count: cutlass.Constexpr[int]):
    """Return the elements of 16 bits at a place as a tensor."""
    pointer = cute.make_ptr(Uint16, place.toint(), place.memspace, assumed_align=2)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def write_row(mD: cute.Tensor, staged, m, n0, cols, length: cutlass.Constexpr[int]):
    """Write `cols` of the `length` elements that are staged to row m from column n0 on, 4 bytes a lane."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    source = halves_at(staged, length)
    start = mD.iterator + cute.crd2idx((m, n0), mD.layout)
    target = halves_at(start, length)
    # Where the row begins between two words, its first element and its last are written alone.
    odd = Int32(start.toint() // 2 % 2)
    for x in cutlass.range_constexpr(length // 64):
        e = 2 * (lane + 32 * x) - odd
        low, high = Uint32(source[cutlass.max(e, 0)]), Uint32(source[e + 1])
        if e >= 0 and e + 1 < cols:
            words_at(start + e, 1)[0] = low | high << 16
        elif e >= 0 and e < cols:
            target[e] = Uint16(low)
        elif e < 0:
            target[0] = Uint16(high)
    if odd == 1 and lane == 0 and length <= cols:
        target[length - 1] = source[length - 1]


@cute.jit
def read_row(mC: cute.Tensor, staged, m, n0, cols, length: cutlass.Constexpr[int]):
    """Read `cols` elements of row m from column n0 on, one a lane."""
    tid, _, _ = cute.arch.thread_idx()
    target = halves_at(staged, length)
    source = halves_at(mC.iterator + cute.crd2idx((m, n0), mC.layout), length)
    for x in cutlass.range_constexpr(length // 32):
        e = tid % 32 + 32 * x
        if e < cols:
            target[e] = source[e]


def buildable(config: AnyPitchConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts and maps, with stand-ins for its arguments."""
    name = types["element"]
    units = (1 if types["a"] == "k" else 0, 1 if types["b"] == "k" else 0)
    a, b = (
        [major_tensor(name, unit, vector=8) for _ in range(int(types[maps]))]
        for unit, maps in zip(units, ("a_maps", "b_maps"), strict=True)
    )
    c, d = (major_tensor(name, 1) for _ in range(2))
    return Buildable(
        AnyPitch(config, types),
        (a, b, c, d, Int32(1), Int32(0), Int32(0), Int32(1), cutlass.Float32(1), cutlass.Float32(0)),
    )
