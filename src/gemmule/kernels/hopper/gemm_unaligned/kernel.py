"""Results whose rows begin anywhere: Hopper's production kernel, with C and D moved by threads.

Idea
    The copy engine (TMA) takes no row that does not begin at a multiple of 16 bytes, to read or to write. Where
    only C and the result are such, all else stays as it was: threads write the result's rows themselves.
Change from the rung before
    A warp puts 16 rows of the tile into shared memory and writes each as the words of 32 bits that lie in it; where the
    row begins between two words, they are put together from two of those in shared memory. No clusters.
Data movement
    As of h09. A warp writes 128 bytes at once instead of the copy engine's boxes of 8 KB.
Limits
    The last tile of each CTA is written while nothing multiplies.
Sources
    As of h09; NVIDIA, PTX ISA: prmt.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.unaligned_rows import element_at, read_run, write_run, write_whole_runs
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, TmaLoad, partitioned, release_local
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, THREADS, WARPGROUP
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import words_at

from .config import PAD, RaggedResultConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers for the warpgroups' turns.
_TURN = 1


class RaggedResult:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L) through TMA, row-major C and D (M, N, L)."""

    def __init__(self, config: RaggedResultConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.along_k = (types["a_major"] == "k", types["b_major"] == "k")
        self.reads_c = types["adds"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.tile_k = K_BYTES * 8 // self.element.width
        self.stages, self.group = config.stages, config.group
        self.pingpong = bool(config.pingpong)
        stage_bytes = (self.tile_m + self.tile_n) * K_BYTES
        self.mainloop = Mainloop(self.stages, stage_bytes, pingpong=self.pingpong, turn_barrier=_TURN)
        # Blocks of 64 rows that a warpgroup computes of a tile, and warpgroups that share one.
        self.sharing = 1 if self.pingpong else CONSUMERS
        self.blocks = self.tile_m // (MMA_M * self.sharing)
        # Words of 32 bits of a row of the tile on its way out.
        self.pitch = (2 * self.tile_n + PAD) // 4
        # Rows that a warp writes together, as far as there are registers beside the sums.
        self.together = 4 if self.blocks * self.tile_n <= 256 else 2

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, grid: Int32, alpha, beta):
        tile = (self.tile_m, self.tile_n, self.tile_k)
        layout_a, layout_b = (LayoutEnum.ROW_MAJOR if along else LayoutEnum.COL_MAJOR for along in self.along_k)
        sA = hopper_helpers.make_smem_layout_a(layout_a, tile, self.element, self.stages)
        sB = hopper_helpers.make_smem_layout_b(layout_b, tile, self.element, self.stages)
        slice_a, slice_b = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(load, mA, slice_a, (self.tile_m, self.tile_k))
        tma_b, tB = cpasync.make_tiled_tma_atom(load, mB, slice_b, (self.tile_n, self.tile_k))
        self.kernel(tma_a, tA, tma_b, tB, mC, mD, sA, sB, alpha, beta).launch(
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
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        sA, sB = (
            smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        rows = smem.allocate_tensor(Uint32, cute.make_layout(CONSUMERS * MMA_M * self.pitch), 16).iterator
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, self.sharing)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        # Until here nothing was read that the launch before may have written.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        slices = cute.ceil_div(mA.shape[1], self.tile_k)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mC, mD, sA, sB, rows, full, empty, slices, warp // 4 - 1, alpha, beta)

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
    def produce(self, tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, k_tiles):
        """Load every k-tile of every tile."""
        gA = cute.local_tile(mA, (self.tile_m, self.tile_k), (None, None, None))
        gB = cute.local_tile(mB, (self.tile_n, self.tile_k), (None, None, None))
        load_a, load_b = TmaLoad(tma_a, *partitioned(tma_a, sA, gA)), TmaLoad(tma_b, *partitioned(tma_b, sB, gB))
        stage, phase = Int32(0), Int32(1)
        first, step, tiles = self.share(mD)
        for number in cutlass.range(first, tiles, step):
            i, j, batch = self.tile(mD, number)
            loads = ((load_a, i), (load_b, j))
            stage, phase = self.mainloop.load(loads, (batch,), full, empty, stage, phase, 0, k_tiles)

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
        if cutlass.const_expr(self.pingpong):
            # Every other tile; the slices of those between pass by.
            if mine == 1:
                stage, phase = slices % self.stages, slices // self.stages % 2
                cute.arch.barrier_arrive(barrier_id=_TURN, number_of_threads=2 * WARPGROUP)
            first, step = first + mine * step, CONSUMERS * step
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n, batch = self.tile(mD, number)
            self.mainloop.begin_turn(mine)
            stage, phase, last = self.mainloop.multiply(
                mma, sums, rA, rB, full, stage, phase, slices, lambda done: release_local(empty, done)
            )
            self.mainloop.end_turn(mine)
            warpgroup.wait_group(0)
            release_local(empty, last)
            if cutlass.const_expr(self.pingpong):
                stage, phase = self.mainloop.skip(stage, phase, slices)
            gC, gD = mC[None, None, batch], mD[None, None, batch]
            self.finish(gC, gD, rows, sums, tile_m * self.tile_m, tile_n * self.tile_n, mine, alpha, beta)

    @cute.jit
    def finish(self, gC, gD, rows, sums, m0, n0, mine, alpha, beta):
        """Write a tile, 16 rows of each warp at a time, through its part of shared memory; add what C has there."""
        tid, _, _ = cute.arch.thread_idx()
        warp = tid % WARPGROUP // 32
        own = rows + (mine * MMA_M + warp * 16) * self.pitch
        cols = cutlass.min(gD.shape[1] - n0, self.tile_n)
        for block in cutlass.range_constexpr(self.blocks):
            # A block of 64 rows, then the next one, or that of the other warpgroup and then the next one.
            m = m0 + (block if self.pingpong else mine + CONSUMERS * block) * MMA_M + warp * 16
            count = cutlass.min(gD.shape[0] - m, 16)
            cute.arch.sync_warp()
            if cutlass.const_expr(self.reads_c):
                for r in cutlass.range(16, unroll=1):
                    there = cols if r < count else Int32(0)
                    read_run(element_at(gC, m + r, n0), own + r * self.pitch, there, self.tile_n)
                cute.arch.sync_warp()
            self.put(own, sums, block, alpha, beta)
            cute.arch.sync_warp()
            if cols == self.tile_n and count == 16:
                for r in cutlass.range(0, 16, self.together, unroll=1):
                    starts = [element_at(gD, m + r + i, n0) for i in range(self.together)]
                    write_whole_runs(starts, own + r * self.pitch, self.pitch, self.tile_n)
            else:
                for r in cutlass.range(count, unroll=1):
                    write_run(element_at(gD, m + r, n0), own + r * self.pitch, cols, self.tile_n)

    @cute.jit
    def put(self, own, sums, block: cutlass.Constexpr[int], alpha, beta):
        """Put a warp's 16 rows into shared memory, and add what lies there."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        for half in cutlass.range_constexpr(2):
            row = own + (lane // 4 + 8 * half) * self.pitch + lane % 4
            for n in cutlass.range_constexpr(self.tile_n // 8):
                place = words_at(row + 4 * n, 1)
                values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
                for v in cutlass.range_constexpr(2):
                    values[v] = flat[block * self.tile_n // 2 + 4 * n + 2 * half + v] * alpha
                out = cute.make_rmem_tensor(cute.make_layout(2), self.element)
                word = cute.recast_tensor(out, Uint32)
                if cutlass.const_expr(self.reads_c):
                    word[0] = place[0]
                    for v in cutlass.range_constexpr(2):
                        values[v] = values[v] + beta * out[v].to(cutlass.Float32)
                out.store(values.load().to(self.element))
                place[0] = word[0]


def buildable(config: RaggedResultConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    name = types["element"]
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    a, b = (major_tensor(name, unit, batch=1, vector=8) for unit in units)
    c, d = (major_tensor(name, 1, batch=1) for _ in range(2))
    return Buildable(RaggedResult(config, types), (a, b, c, d, Int32(1), cutlass.Float32(1), cutlass.Float32(0)))
