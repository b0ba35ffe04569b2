"""Six products for one: float32, in three parts of bfloat16 each, at the rate of the tensor cores.

Idea
    A float32 has 24 bits, three times those of a bfloat16: a = a1 + a2 + a3. Of the nine products of parts three are
    less than the last bit of the result; the other six are bfloat16 products, whose rate is 16 times that of float32.
    The tensor cores cut what they add, and never round up: so the small products come first, and every 32 of K the sums
    are added to others that are rounded. These are set aside every 1024 of K, so that long sums are sums of sums.
Change from the rung before
    A stage holds a slice of one part of A and one of B; three stages are six products. Twice the sums. Rows of float32
    are written from registers, wherever they begin.
Data movement
    128 x 192 of C: as a bfloat16 product with half of the reads, as each slice is used twice.
Limits
    The tensor cores, and how much power they may take.
Sources
    As of h09; Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations".
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.unaligned_rows import element_at
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, TmaLoad, partitioned, release_local
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, THREADS, WARPGROUP
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import line_tensor, major_tensor

from .config import ASIDE, PARTS, SLICE, SixProductsConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 24, 240
# Parts, from 0 on, of A and of B in each of three stages.
_STAGED = ((1, 1), (2, 0), (0, 2))
# The stages whose A and whose B are multiplied, small products first: 22, 31, 13, 21, 12, 11. The stage that is free
# first, behind the fifth, is the first one.
_PRODUCTS = ((0, 0), (1, 1), (2, 2), (0, 1), (2, 0), (2, 1))
_LAST_OF_FIRST = 4
# Sums that are kept in device memory at once.
_VECTOR = 4


class SixProducts:
    """D = alpha * A @ B + beta * C for A (M, 3 K, L), B (N, 3 K, L) through TMA, row-major C and D (M, N, L)."""

    def __init__(self, config: SixProductsConfig, types: dict[str, str]) -> None:
        self.element = cutlass.BFloat16
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.stages, self.group = config.stages, config.group
        self.mainloop = Mainloop(self.stages, (self.tile_m + self.tile_n) * K_BYTES)
        self.parts_of_slice = SLICE // config.depth

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta, aside
    ):
        tile = (self.tile_m, self.tile_n, SLICE)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        slice_a, slice_b = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(load, mA, slice_a, (self.tile_m, SLICE))
        tma_b, tB = cpasync.make_tiled_tma_atom(load, mB, slice_b, (self.tile_n, SLICE))
        self.kernel(tma_a, tA, tma_b, tB, mC, mD, sA, sB, alpha, beta, aside).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        alpha,
        beta,
        aside: cute.Tensor,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        sA, sB = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, CONSUMERS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        # Until here nothing was read that the launch before, which makes the parts, may have written.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        slices = mA.shape[1] // (PARTS * SLICE)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mC, mD, sA, sB, full, empty, slices, warp // 4 - 1, alpha, beta, aside)

    @cute.jit
    def share(self, mD: cute.Tensor):
        """Return this CTA's first tile, the step to its next, and how many tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        return cta, ctas, tiles_m * tiles_n * mD.shape[2]

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return how many tiles there are along M and N."""
        return cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)

    @cute.jit
    def tile(self, mD: cute.Tensor, number):
        """Return a tile along M, along N, and the matrix of the batch."""
        tiles_m, tiles_n = self.tiles(mD)
        batch = number // (tiles_m * tiles_n)
        i, j = grouped_tile(number - batch * tiles_m * tiles_n, tiles_m, tiles_n, self.group)
        return i, j, batch

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices):
        """Load three pairs of parts of every k-tile of every tile."""
        gA = cute.local_tile(mA, (self.tile_m, SLICE), (None, None, None))
        gB = cute.local_tile(mB, (self.tile_n, SLICE), (None, None, None))
        load_a, load_b = TmaLoad(tma_a, *partitioned(tma_a, sA, gA)), TmaLoad(tma_b, *partitioned(tma_b, sB, gB))
        stage, phase = Int32(0), Int32(1)
        first, step, tiles = self.share(mD)
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n, batch = self.tile(mD, number)
            # One matrix may serve the whole batch.
            batch_a, batch_b = (cutlass.min(batch, mX.shape[2] - 1) for mX in (mA, mB))
            for k in cutlass.range(slices):
                for pair in cutlass.range_constexpr(len(_STAGED)):
                    k_a, k_b = (part * slices + k for part in _STAGED[pair])
                    loads = ((load_a, (tile_m, k_a, batch_a)), (load_b, (tile_n, k_b, batch_b)))
                    stage, phase = self.mainloop.load_stage(loads, full, empty, stage, phase)

    @cute.jit
    def consume(self, mC, mD, sA, sB, full, empty, slices, mine, alpha, beta, aside):
        """Multiply the slices of this warpgroup's half of each tile as they arrive, and write it."""
        majors = tuple(OperandMajorMode.K if along else OperandMajorMode.MN for along in self.along_k)
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, *majors, cutlass.Float32, (CONSUMERS, 1, 1), (MMA_M, self.tile_n)
        )
        part = mma.get_slice(mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        shape = mma.partition_shape_C((self.tile_m, self.tile_n))
        sums = cute.make_rmem_tensor(shape, cutlass.Float32)
        rounded = cute.make_rmem_tensor(shape, cutlass.Float32)
        stage, phase = Int32(0), Int32(0)
        first, step, tiles = self.share(mD)
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n, batch = self.tile(mD, number)
            rounded.fill(0.0)
            for k in cutlass.range(slices):
                stages = []
                steps = cutlass.const_expr(cute.size(rA, mode=[2]) // self.parts_of_slice)
                for part_of_slice in cutlass.range_constexpr(self.parts_of_slice):
                    last = cutlass.const_expr(part_of_slice == self.parts_of_slice - 1)
                    # The first product overwrites the sums.
                    mma.set(warpgroup.Field.ACCUMULATE, False)
                    for product in cutlass.range_constexpr(len(_PRODUCTS)):
                        if cutlass.const_expr(len(stages) < len(_STAGED)):
                            cute.arch.mbarrier_wait(full + stage, phase)
                            stages.append(stage)
                            stage, phase = self.mainloop.advance(stage, phase)
                        if cutlass.const_expr(product == 0):
                            warpgroup.fence()
                        of_a, of_b = (stages[place] for place in _PRODUCTS[product])
                        for step in cutlass.range_constexpr(steps):
                            at = part_of_slice * steps + step
                            cute.gemm(mma, sums, rA[None, None, at, of_a], rB[None, None, at, of_b], sums)
                            mma.set(warpgroup.Field.ACCUMULATE, True)
                        if cutlass.const_expr(last and product == _LAST_OF_FIRST):
                            warpgroup.commit_group()
                    warpgroup.commit_group()
                    if cutlass.const_expr(last):
                        warpgroup.wait_group(1)
                        release_local(empty, stages[0])
                    warpgroup.wait_group(0)
                    if cutlass.const_expr(last):
                        release_local(empty, stages[1])
                        release_local(empty, stages[2])
                    rounded.store(rounded.load() + sums.load())
                done = k + 1
                if done % ASIDE == 0 and done < slices:
                    if done > ASIDE:
                        self.add_kept(aside, mine, rounded)
                    self.keep(aside, mine, rounded)
                    rounded.fill(0.0)
            if slices > ASIDE:
                self.add_kept(aside, mine, rounded)
            gC, gD = mC[None, None, batch], mD[None, None, batch]
            self.finish(gC, gD, rounded, tile_m * self.tile_m + mine * MMA_M, tile_n * self.tile_n, alpha, beta)

    @cute.jit
    def kept(self, aside: cute.Tensor, mine, count: cutlass.Constexpr[int]):
        """Return where a thread's sums are kept, as vectors; between two of its own lie those of the other threads."""
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        first = (cta * CONSUMERS + mine) * (WARPGROUP * count) + tid % WARPGROUP * _VECTOR
        place = (aside.iterator + first).align(4 * _VECTOR)
        return cute.make_tensor(place, cute.make_layout((_VECTOR, count // _VECTOR), stride=(1, WARPGROUP * _VECTOR)))

    @cute.jit
    def add_kept(self, aside: cute.Tensor, mine, sums: cute.Tensor):
        """Add to a thread's sums those that are kept."""
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        kept = self.kept(aside, mine, cute.size(sums))
        for v in cutlass.range_constexpr(cute.size(sums) // _VECTOR):
            found = cute.make_rmem_tensor(cute.make_layout(_VECTOR), cutlass.Float32)
            cute.autovec_copy(kept[None, v], found)
            for e in cutlass.range_constexpr(_VECTOR):
                flat[v * _VECTOR + e] = flat[v * _VECTOR + e] + found[e]

    @cute.jit
    def keep(self, aside: cute.Tensor, mine, sums: cute.Tensor):
        """Keep a thread's sums."""
        kept = self.kept(aside, mine, cute.size(sums))
        for v in cutlass.range_constexpr(cute.size(sums) // _VECTOR):
            own = cute.make_tensor(sums.iterator + v * _VECTOR, cute.make_layout(_VECTOR))
            cute.autovec_copy(own, kept[None, v])

    @cute.jit
    def finish(self, gC, gD, sums, m0, n0, alpha, beta):
        """Write 64 rows of a tile: a thread has two neighbours of every eighth column, in two rows."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        col = n0 + 2 * (lane % 4)
        for half in cutlass.range_constexpr(2):
            row = m0 + warp * 16 + lane // 4 + 8 * half
            if row < gD.shape[0]:
                whole = n0 + self.tile_n <= gD.shape[1] and element_at(gD, row, col).toint() % 8 == 0
                if cutlass.const_expr(self.reads_c):
                    whole = whole and element_at(gC, row, col).toint() % 8 == 0
                if whole:
                    for n in cutlass.range_constexpr(self.tile_n // 8):
                        self.write_pair(gC, gD, flat, row, col + 8 * n, 4 * n + 2 * half, alpha, beta)
                else:
                    for n in cutlass.range_constexpr(self.tile_n // 8):
                        for v in cutlass.range_constexpr(2):
                            at = col + 8 * n + v
                            if at < gD.shape[1]:
                                value = flat[4 * n + 2 * half + v] * alpha
                                if cutlass.const_expr(self.reads_c):
                                    value = value + beta * gC[row, at]
                                gD[row, at] = value

    @cute.jit
    def write_pair(self, gC, gD, flat, row, col, place: cutlass.Constexpr[int], alpha, beta):
        """Write two neighbours at once."""
        values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
        if cutlass.const_expr(self.reads_c):
            cute.autovec_copy(pair_at(element_at(gC, row, col)), values)
        for v in cutlass.range_constexpr(2):
            if cutlass.const_expr(self.reads_c):
                values[v] = flat[place + v] * alpha + beta * values[v]
            else:
                values[v] = flat[place + v] * alpha
        cute.autovec_copy(values, pair_at(element_at(gD, row, col)))


@cute.jit
def pair_at(place: cute.Pointer):
    """Return two float32 at a place whose address is a multiple of 8."""
    return cute.make_tensor(
        cute.make_ptr(cutlass.Float32, place.toint(), place.memspace, assumed_align=8), cute.make_layout(2)
    )


def buildable(config: SixProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    a, b = (major_tensor("bfloat16", unit, batch=1, vector=8) for unit in units)
    c, d = (major_tensor("float32", 1, batch=1) for _ in range(2))
    scalars = (Int32(1), cutlass.Float32(1), cutlass.Float32(0))
    return Buildable(SixProducts(config, types), (a, b, c, d, *scalars, line_tensor("float32")))
